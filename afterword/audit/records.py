"""From records to facts."""

from aiokafka import ConsumerRecord

from afterword.audit.facts import (
    Announced,
    Closed,
    Core,
    Facts,
    Flush,
    Position,
    Produced,
    digest,
    digest_of_all,
    digest_of_message,
)
from afterword.schemas import EpisodeClosed, InvalidRecord, MessageCreated, SummaryCreated, decode_episode, decode_input
from afterword.schemas.dead_letters import DEAD_LETTER_PREFIX
from afterword.schemas.decoding import validate
from afterword.schemas.episodes import fingerprint
from afterword.schemas.headers import header


def take_message(facts: Facts, record: ConsumerRecord) -> None:
    """A record of `messages`."""
    try:
        event = decode_input(record.key, record.value, record.headers, record.timestamp)
    except InvalidRecord:
        facts.refused.add(position(record))
        return
    if not isinstance(event, MessageCreated):
        facts.flushes += 1
        if event.agent_id:
            facts.flushed_agents.append(Flush(position(record), event.conversation_id, event.agent_id))
        return
    message = digest_of_message(event.conversation_id, event.id)
    content = digest(event.content)
    facts.produced.append(
        Produced(
            position(record), event.conversation_id, message, content, event.skip_summarization, event.agent_id or None
        )
    )


def take_episode(facts: Facts, record: ConsumerRecord) -> None:
    """A record of `episode.closed`."""
    try:
        facts.closed.append(closed(position(record), decode_episode(record.key, record.value)))
    except InvalidRecord:
        facts.unreadable.add(position(record))


def closed(where: Position, episode: EpisodeClosed) -> Closed:
    """What is kept of an episode."""
    return Closed(
        position=where,
        episode_id=episode.episode_id,
        revision=episode.revision,
        conversation_id=episode.conversation_id,
        ordinal=episode.ordinal,
        fingerprint=episode.fingerprint,
        recomputed=fingerprint(episode.messages),
        core=tuple(Core(digest_of_message(episode.conversation_id, m.id), digest(m.content)) for m in episode.messages),
        message_ids=digest_of_all(m.id for m in episode.messages),
        first_offset=episode.source.first_offset,
        last_offset=episode.source.last_offset,
    )


def take_summary(facts: Facts, record: ConsumerRecord) -> None:
    """A record of `summary.created`."""
    try:
        event = validate(SummaryCreated, record.value or b"")
    except InvalidRecord:
        facts.unreadable_announcements += 1
        return
    facts.announced.append(
        Announced(
            event_id=event.event_id,
            episode_id=event.episode_id,
            revision=event.revision,
            event=digest(event.model_dump_json()),
            message_ids=digest_of_all(event.message_ids),
            episode_revision=event.episode_revision,
            supersedes=event.supersedes,
        )
    )


def take_dead_letter(dead: set[Position], topic: str, record: ConsumerRecord) -> None:
    """A record of `<topic>.dlq`: notes where the original was, if it was in this topic."""
    found = [header(record.headers, DEAD_LETTER_PREFIX + name) or "" for name in ("topic", "partition", "offset")]
    if found[0] == topic and all(part.isdecimal() for part in found[1:]):
        dead.add(Position(int(found[1]), int(found[2])))


def position(record: ConsumerRecord) -> Position:
    return Position(record.partition, record.offset)
