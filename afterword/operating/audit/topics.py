"""Reduces the topics' records to the rows that an audit keeps."""

from typing import TYPE_CHECKING

from aiokafka import ConsumerRecord

from afterword.operating.audit.evidence import (
    Amended,
    Announced,
    AnnouncedDeletion,
    Change,
    Closed,
    Core,
    Current,
    DeadLetter,
    Evidence,
    Flush,
    Message,
    Refused,
    Unreadable,
    digest,
    digest_of_all,
    digest_of_message,
    number_of,
    scope_in,
    scope_name,
)
from afterword.schemas import (
    ConversationDeleted,
    EpisodeAmended,
    EpisodeClosed,
    InvalidRecord,
    MessageCreated,
    MessageDeleted,
    MessageEdited,
    SummaryCreated,
    SummaryDeleted,
    decode_closed,
    decode_input,
)
from afterword.schemas.dead_letters import ARCHIVE, DEAD_LETTER_PREFIX, is_offset
from afterword.schemas.decoding import validate
from afterword.schemas.episodes import fingerprint
from afterword.schemas.headers import CE_ID, header
from afterword.schemas.ids import conversation_of_scope
from afterword.streams.segmenter.arrival import milliseconds

if TYPE_CHECKING:  # its libraries take 100 ms to import, and most deployments do not redact
    from afterword.streams.redaction.records import RecordRedaction


def take_message(evidence: Evidence, record: ConsumerRecord, redaction: "RecordRedaction | None" = None) -> None:
    """Add a record of `messages`. `redaction` is what segmenter and archiver apply."""
    where = record.partition, record.offset
    try:
        event = decode_input(record.key, record.value, record.headers, record.timestamp)
    except InvalidRecord:
        evidence.add(Refused(*where))
        return
    if redaction:
        event = redaction.event(event)
    if isinstance(event, MessageCreated):
        evidence.add(
            Message(
                *where,
                event.conversation_id,
                scope_name(event.conversation_id),
                digest_of_message(event.conversation_id, event.id, event.tenant_id),
                digest(event.content),
                event.skip_summarization,
                event.agent_id or None,
                event.tenant_id,
                record.timestamp,
                milliseconds(event.sent_at) if event.sent_at else 0,
            )
        )
    elif isinstance(event, MessageEdited | MessageDeleted | ConversationDeleted):
        evidence.add(change_of(*where, event))
    else:
        evidence.add(Flush(*where, event.conversation_id, event.agent_id or None))


def change_of(partition: int, offset: int, event: MessageEdited | MessageDeleted | ConversationDeleted) -> Change:
    whose = partition, offset, event.conversation_id, event.tenant_id
    if isinstance(event, ConversationDeleted):
        return Change(*whose, None)
    message = digest_of_message(event.conversation_id, event.id, event.tenant_id)
    if isinstance(event, MessageDeleted):
        return Change(*whose, message)
    content = None if event.content is None else digest(event.content)
    return Change(*whose, message, content, deletes=False, excludes=bool(event.skip_summarization))


def take_episode(evidence: Evidence, record: ConsumerRecord) -> None:
    """Add a record of `episode.closed`."""
    try:
        event = decode_closed(record.key, record.value, record.headers)
    except InvalidRecord:
        evidence.add(Unreadable("episode"))
        return
    if isinstance(event, EpisodeClosed):
        _take_closed(evidence, record, event)
    elif isinstance(event, EpisodeAmended):
        of = event.message_id
        message = None if of is None else digest_of_message(event.conversation_id, of, event.tenant_id)
        where = record.partition, record.offset
        evidence.add(Amended(*where, event.conversation_id, message, event.partition, event.offset))


def _take_closed(evidence: Evidence, record: ConsumerRecord, episode: EpisodeClosed) -> None:
    number = number_of(record.partition, record.offset)
    for place, message in enumerate(episode.messages):
        key = digest_of_message(episode.conversation_id, message.id, episode.tenant_id)
        sent_ms = milliseconds(message.sent_at) if message.sent_at else 0
        evidence.add(Core(number, place, key, digest(message.content), sent_ms))
    evidence.add(
        Closed(
            partition=record.partition,
            offset=record.offset,
            episode_id=episode.episode_id,
            revision=episode.revision,
            conversation=episode.conversation_id,
            ordinal=episode.ordinal,
            fingerprint=episode.fingerprint,
            recomputed=fingerprint(episode.messages),
            message_ids=digest_of_all(m.id for m in episode.messages),
            scope=scope_in(episode.episode_id),
            number=number,
            first_offset=episode.source.first_offset,
            last_offset=episode.source.last_offset,
            truncated=episode.truncated,
            ended_ms=milliseconds(episode.ended_at),
        )
    )


def take_summary(evidence: Evidence, record: ConsumerRecord) -> None:
    """Add a record of `summary.created`."""
    try:
        event = validate(SummaryCreated, record.value or b"")
    except InvalidRecord:
        evidence.add(Unreadable("summary"))
        return
    evidence.add(
        Announced(
            event_id=event.event_id,
            episode_id=event.episode_id,
            revision=event.revision,
            event=digest(event.model_dump_json()),
            message_ids=digest_of_all(event.message_ids),
        )
    )


def take_deletion(evidence: Evidence, record: ConsumerRecord) -> None:
    """Add a record of `summary.deleted`."""
    try:
        event = validate(SummaryDeleted, record.value or b"")
    except InvalidRecord:
        evidence.add(Unreadable("summary"))
        return
    evidence.add(AnnouncedDeletion(event.event_id, event.episode_id))


def take_current_episode(evidence: Evidence, record: ConsumerRecord) -> None:
    """Add a record of the compacted topic of episodes."""
    name, _, revision = (header(record.headers, CE_ID) or "").rpartition(":")
    if not is_offset(revision) or name.encode() != record.key:
        evidence.add(Unreadable("summary"))
        return
    evidence.add(Current(name, record.partition, record.offset, record.value is None, int(revision)))


def take_current_conversation(evidence: Evidence, record: ConsumerRecord) -> None:
    """Add a record of the compacted topic of conversations."""
    scope = scope_name(*conversation_of_scope((record.key or b"").decode(errors="replace")))
    evidence.add(Current(scope, record.partition, record.offset, record.value is None))


def take_dead_letter(evidence: Evidence, kind: str, topic: str, record: ConsumerRecord) -> None:
    """Add a record of a dead-letter topic."""
    found = dead_letter_of(kind, topic, record)
    if found is not None:
        evidence.add(found)


def dead_letter_of(kind: str, topic: str, record: ConsumerRecord) -> DeadLetter | None:
    """Return the original position of a dead letter; None if it is not in `topic`.

    It is also None if only the archiver rejected the message, which is in an episode anyway.
    """
    names = ("stage", "topic", "partition", "offset", "type")
    stage, origin, partition, offset, error = (header(record.headers, DEAD_LETTER_PREFIX + one) or "" for one in names)
    if stage == ARCHIVE or origin != topic or not (is_offset(partition) and is_offset(offset)):
        return None
    return DeadLetter(kind, int(partition), int(offset), quarantined=error == "state_unreadable")
