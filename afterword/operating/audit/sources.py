"""Reduces what topics, changelogs and stores hold to the rows that an audit keeps."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from aiokafka import ConsumerRecord

from afterword.operating.audit import evidence as rows
from afterword.operating.audit.evidence import (
    Amended,
    Announced,
    AnnouncedDeletion,
    Change,
    Closed,
    Core,
    Current,
    Damage,
    DeadLetter,
    Document,
    Evidence,
    Flush,
    Message,
    Pending,
    Refused,
    StoredChange,
    StoredFact,
    StoredMessage,
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
from afterword.streams.errors import RowUnreadable
from afterword.streams.runtime.changelog import BOOKMARK_KEY
from afterword.streams.segmenter.arrival import milliseconds
from afterword.streams.segmenter.state import (
    CONVERSATIONS,
    MESSAGES,
    NOBODY,
    Scope,
    decode_body,
    decode_state,
    parse_key,
    parse_scope,
)
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import DeletedEpisode, EpisodeRef
from afterword.streams.stores.messages import MessageRef
from afterword.streams.stores.opening import Stores, open_stores

if TYPE_CHECKING:
    from afterword.streams.redaction.records import RecordRedaction

ReadIndex = Callable[[Settings, Sequence[str]], Awaitable[set[str]]]
"""Returns which of these episode ids are indexed. Raises: StoreUnavailable."""

COUNTED_AT_A_TIME = 200

T = TypeVar("T")


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


async def read_stores(stores: Stores, evidence: Evidence, read: Callable[[int], None]) -> None:
    """Add every episode and message. `read` is called with numbers of messages. Raises: StoreUnavailable, NoRoom."""
    async for episode in stores.episodes.all_episodes():
        take_stored(evidence, episode)
    async for message in _counted(stores.messages.all_messages(), read):
        evidence.add(document_of(message))


def take_stored(evidence: Evidence, episode: EpisodeRef | DeletedEpisode) -> None:
    if isinstance(episode, DeletedEpisode):
        deletion = episode.deletion
        evidence.add(rows.DeletedEpisode(deletion.episode_id, deletion.reason == "expired"))
        return
    name, whose = episode.episode_id, (episode.conversation_id, episode.tenant_id)
    evidence.add(rows.StoredEpisode(name, episode.fingerprint))
    for message_id in episode.message_ids:
        evidence.add(StoredMessage(name, digest_of_message(whose[0], message_id, whose[1])))
    for message_id in episode.fact_message_ids:
        evidence.add(StoredFact(name, digest_of_message(whose[0], message_id, whose[1])))
    for message_id, offset in episode.inputs:
        evidence.add(StoredChange(name, digest_of_message(whose[0], message_id, whose[1]), offset))


def document_of(message: MessageRef) -> Document:
    key = digest(message.key)
    if message.deleted:
        return Document(key, None, False, deleted=True, changed=message.changed)
    content = None if message.content is None else digest(message.content)
    partition, offset = message.source or (None, None)
    return Document(key, message.episode_id, message.archived, content, partition, offset, changed=message.changed)


async def _counted(items: AsyncIterator[T], read: Callable[[int], None]) -> AsyncIterator[T]:
    done = 0
    async for item in items:
        yield item
        done += 1
        if done == COUNTED_AT_A_TIME:
            read(done)
            done = 0
    read(done)


async def indexed_episodes(settings: Settings, episode_ids: Sequence[str]) -> set[str]:
    """Return which of the episodes are in the index. Raises: StoreUnavailable."""
    async with open_stores(settings) as stores:
        return set(await stores.index.revisions(episode_ids))


class Body(NamedTuple):
    """A message's row, reduced to its position."""

    scope: Scope
    seq: int
    partition: int
    """Partition on `messages`. A changelog has the partitions of its source."""
    offset: int


class SegmenterState:
    """What is waiting in the segmenter, and which rows are damaged.

    The messages must be read before the conversations, so that a message can only move from pending to closed.
    """

    def __init__(self) -> None:
        self._bodies: dict[bytes, Body] = {}
        self._first_pending: dict[Scope, int] = {}
        self._damage: dict[tuple[str, bytes], Damage] = {}

    @property
    def damaged(self) -> list[Damage]:
        """The rows that are currently unreadable."""
        return list(self._damage.values())

    def take(self, table: str, record: ConsumerRecord) -> None:
        """Apply a record of a table's changelog. Raises: StateUnreadable if a later release wrote it."""
        if record.key == BOOKMARK_KEY:
            return
        self._damage.pop((table, record.key), None)
        if table == MESSAGES:
            self._bodies.pop(record.key, None)
        try:
            if record.value is not None:
                self._read(table, record)
        except RowUnreadable as error:
            conversation = conversation_of(table, record.key)
            self._damage[table, record.key] = Damage(conversation, record.partition, error.problem)

    def rows(self) -> Iterator[Pending | Damage]:
        """Yield the rows that an audit keeps, except for the overlap, which is in an episode already."""
        damaged = {damage.conversation for damage in self._damage.values()}
        yield from self._damage.values()
        for body in self._bodies.values():
            scope = body.scope
            waits = scope.conversation_id not in damaged and body.seq >= self._first_pending.get(scope, 0)
            if waits or scope.agent_id == NOBODY:  # it may have moved to an agent's rows since its own row was read
                names = scope_name(scope.conversation_id, scope.named_agent), scope_name(scope.conversation_id)
                yield Pending(body.partition, body.offset, *names, handed_over=not waits)

    def _read(self, table: str, record: ConsumerRecord) -> None:
        if table == CONVERSATIONS:
            self._first_pending[parse_scope(record.key)] = decode_state(record.value).first_pending
            return
        key = parse_key(record.key)
        if key.seq is not None and (body := decode_body(record.value)) and not body.is_gone:
            self._bodies[record.key] = Body(key.scope, key.seq, record.partition, body.offset)


def conversation_of(table: str, key: bytes) -> str | None:
    """Return the conversation named by a row's key, or None."""
    try:
        return (parse_scope(key) if table == CONVERSATIONS else parse_key(key).scope).conversation_id
    except RowUnreadable:
        return None
