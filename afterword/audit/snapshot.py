"""Snapshot that an audit judges: plain data, read from topics and stores, or made up by a test.

No message content is kept. A message is known by the digest of its `message_key`, a content and a list of ids by their
digests.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, MutableSet
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from aiokafka import ConsumerRecord

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
from afterword.schemas.headers import header
from afterword.schemas.ids import episode_id, message_key
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

if TYPE_CHECKING:  # its libraries take 100 ms to import, and most deployments redact nothing
    from afterword.streams.redaction.records import RecordRedaction

DIGEST_BYTES = 16
"""128 bits: no two of a billion messages share one by chance."""


BITS = 4096
"""Offsets in one integer of `Positions`."""


class Position(NamedTuple):
    """Partition and offset of a record; the context names the topic."""

    partition: int
    offset: int


class Positions(MutableSet[Position]):
    """A set of positions, one bit each, so that it is bounded by the topic's length; iterated in order."""

    def __init__(self) -> None:
        self._bits: defaultdict[tuple[int, int], int] = defaultdict(int)

    def add(self, value: Position) -> None:
        self._bits[value.partition, value.offset // BITS] |= 1 << value.offset % BITS

    def discard(self, value: Position) -> None:
        if value in self:
            self._bits[value.partition, value.offset // BITS] ^= 1 << value.offset % BITS

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, Position):
            return False
        return bool(self._bits.get((value.partition, value.offset // BITS), 0) >> value.offset % BITS & 1)

    def __iter__(self) -> Iterator[Position]:
        for (partition, block), bits in sorted(self._bits.items()):
            for offset in range(block * BITS, block * BITS + bits.bit_length()):
                if bits >> offset % BITS & 1:
                    yield Position(partition, offset)

    def __len__(self) -> int:
        return sum(bits.bit_count() for bits in self._bits.values())


class Pending(NamedTuple):
    """A message that waits in the segmenter's state."""

    position: Position
    """Position in `messages`."""
    scope: str
    """Scope whose episodes are numbered together, in the form of `scope_name`."""


class AgentFlush(NamedTuple):
    """A `conversation.flush` that names an agent."""

    position: Position
    conversation_id: str
    agent_id: str


class ProducedMessage(NamedTuple):
    """A message on `messages`."""

    position: Position
    conversation_id: str
    message: bytes
    content: bytes
    skipped: bool = False
    """Its `skip_summarization`."""
    agent_id: str | None = None
    tenant_id: str | None = None
    record_ms: int = 0
    """Timestamp of the record, milliseconds since 1970."""
    sent_ms: int = 0
    """Its `sent_at`, milliseconds since 1970; 0: not known."""


class MessageChange(NamedTuple):
    """An edit or a deletion on `messages`."""

    position: Position
    conversation_id: str
    tenant_id: str | None
    message: bytes | None
    """None: all messages of the conversation so far."""
    content: bytes | None = None
    """New content, if an edit changed it."""
    is_deletion: bool = True
    leaves: bool = True
    """The message is to be in no episode."""


class AmendmentRecord(NamedTuple):
    """A record of `episode.amended`."""

    position: Position
    conversation_id: str
    message: bytes | None
    change: Position
    """Position of the change on `messages`."""


class Core(NamedTuple):
    """A message in the core of an episode."""

    message: bytes
    content: bytes
    sent_ms: int = 0
    """Its `sent_at`, milliseconds since 1970; 0: not known."""


class Closed(NamedTuple):
    """A record of `episode.closed`."""

    position: Position
    episode_id: str
    revision: int
    conversation_id: str
    ordinal: int
    fingerprint: str
    recomputed: str
    """The fingerprint of the messages that it carries."""
    core: tuple[Core, ...]
    message_ids: bytes
    """Digest of the core's ids, in order."""
    first_offset: int = -1
    """Position of its first core message in `messages`."""
    last_offset: int = -1
    truncated: bool = False
    """Its contents are not compared: edits made it too large, and they were cut, or they are sealed."""

    @property
    def scope(self) -> str:
        return self.episode_id.rpartition(":")[0]

    @property
    def ended_ms(self) -> int:
        """`sent_at` of its last message."""
        return self.core[-1].sent_ms if self.core else 0


class Announced(NamedTuple):
    """A record of `summary.created`."""

    event_id: str
    episode_id: str
    revision: int
    event: bytes
    """Digest of the whole event."""
    message_ids: bytes
    episode_revision: int | None = None
    supersedes: str | None = None
    reason: str | None = None
    """Reason why it supersedes another; None for a fallback that was replaced."""

    @property
    def made_from(self) -> int:
        """Revision of its `episode.closed`."""
        return self.episode_revision or self.revision


class Damage(NamedTuple):
    """A row of the segmenter's state that cannot be read."""

    conversation_id: str | None
    """None: its key names none."""
    partition: int
    problem: str


class Stored(NamedTuple):
    """A stored episode."""

    revision: int
    """Revision of the `episode.closed` that its summary was made from."""
    fingerprint: str
    messages: frozenset[bytes] = frozenset()
    changes: tuple[tuple[bytes, int], ...] = ()
    """Messages that were changed before it was made, with the offset of the change."""
    as_of: int = -1
    """Its rolling summary has all changes up to this offset."""


class Archived(NamedTuple):
    """An archived message."""

    episode_id: str | None
    archived: bool
    """False while the document has only an `episode_id`."""
    content: bytes | None = None
    position: Position | None = None
    """Position in `messages` of the record that it was archived from."""
    deleted: bool = False
    changed: int = -1
    """Offset of its last change."""


@dataclass
class Snapshot:
    """Content of topics, consumer groups and stores.

    They are not read at one instant. The groups' offsets come first, then the segmenter's state, the ends of
    `episode.closed`, `summary.created` and `messages`, then the stores and those topics up to these ends. A message
    moves in this direction only, so work in progress never looks like a loss.
    """

    produced: list[ProducedMessage] = field(default_factory=list)
    """Ordered within each partition."""
    flushes: int = 0
    flushed_agents: list[AgentFlush] = field(default_factory=list)
    """Ordered within each partition."""
    changes: list[MessageChange] = field(default_factory=list)
    """Ordered within each partition."""
    refused: MutableSet[Position] = field(default_factory=Positions)
    """Invalid records of `messages`."""
    consumed: dict[int, int] = field(default_factory=dict)
    """Committed offset of the segmenter, by partition of `messages`."""
    archived_to: dict[int, int] = field(default_factory=dict)
    """Committed offset of the archiver."""
    dead: MutableSet[Position] = field(default_factory=Positions)
    """Records of `messages` that have a dead letter."""
    pending: set[Pending] = field(default_factory=set)
    """Messages that wait in the segmenter's state for their episode to close."""
    handed_over: set[Position] = field(default_factory=set)
    """Messages that waited for an agent when the state was first read, and no longer a moment later."""
    damaged: list[Damage] = field(default_factory=list)
    quarantined: set[str] = field(default_factory=set)
    """Conversations that have a damaged row: what waits there is unknown."""
    closed: list[Closed] = field(default_factory=list)
    """Every committed record, in order within each partition."""
    unreadable: int = 0
    """Number of invalid records of `episode.closed`."""
    amended: list[AmendmentRecord] = field(default_factory=list)
    summarized_to: dict[int, int] = field(default_factory=dict)
    """Committed offset of the summarizer, by partition of `episode.closed`."""
    dead_episodes: MutableSet[Position] = field(default_factory=Positions)
    announced: list[Announced] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)
    """Episodes by the `event_id` of their announced deletion."""
    retries_wait: bool = False
    """Records of `episode.retry` are not handled yet: a change may be among them."""
    unreadable_announcements: int = 0
    stored: dict[str, Stored] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    """Deleted episodes of which the store has what stays, with the offset of the change that ended each."""
    expired: set[str] = field(default_factory=set)
    """Those of `gone` that were older than they are kept."""
    messages: dict[bytes, Archived] = field(default_factory=dict)
    """Documents of messages, by digest."""
    indexed: set[str] | None = None
    """Episodes that have a point; None if the index could not be read."""
    dedupe_window: int = 1000
    forget_after_ms: int = 0
    """Silence after which the segmenter forgets a conversation; 0: never."""
    max_agents: int | None = None
    """Number of agents active at a time, with `scope = agent`."""
    messages_before_ms: int = 0
    """Messages sent before may have expired in the archive; 0: none."""
    episodes_before_ms: int = 0
    """Episodes that ended before may have expired; 0: none."""
    quiet: bool = True
    """True if nothing was consumed or closed while the snapshot was read."""
    truncated: set[str] = field(default_factory=set)
    """Topics whose oldest records were deleted."""
    notes: list[str] = field(default_factory=list)

    def may_have_expired(self, one: ProducedMessage | Core) -> bool:
        """Return whether a message that is not in the archive may have been there for as long as it is kept."""
        return 0 < one.sent_ms < self.messages_before_ms


def latest_revisions(closed: Iterable[Closed]) -> list[Closed]:
    """Select one record for each episode: the first of its highest revision."""
    latest: dict[str, Closed] = {}
    for episode in closed:
        known = latest.get(episode.episode_id)
        if known is None or known.revision < episode.revision:
            latest[episode.episode_id] = episode
    return list(latest.values())


def by_scope(episodes: Iterable[Closed]) -> list[list[Closed]]:
    """Group episodes that are numbered together, by ordinal."""
    scopes: dict[str, list[Closed]] = defaultdict(list)
    for episode in episodes:
        scopes[episode.scope].append(episode)
    return [sorted(scope, key=lambda e: e.ordinal) for scope in scopes.values()]


def scope_name(conversation_id: str, agent_id: str | None = None) -> str:
    """Prefix of the ids of all episodes in the scope."""
    return episode_id(conversation_id, 0, agent_id).rpartition(":")[0]


def digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()


def digest_of_message(conversation_id: str, message_id: str, tenant_id: str | None = None) -> bytes:
    return digest(message_key(conversation_id, message_id, tenant_id))


def digest_of_all(ids: Iterable[str]) -> bytes:
    """Digest of ids in order; different lists have different digests."""
    return digest("".join(f"{len(i)}:{i}" for i in ids))


def milliseconds_if_known(moment: datetime | None) -> int:
    """Convert to milliseconds since 1970; 0 for None."""
    return milliseconds(moment) if moment else 0


def take_message(snapshot: Snapshot, record: ConsumerRecord, redaction: "RecordRedaction | None" = None) -> None:
    """Add a record of `messages`. `redaction`: as the segmenter and the archiver have it."""
    try:
        event = decode_input(record.key, record.value, record.headers, record.timestamp)
    except InvalidRecord:
        snapshot.refused.add(position_of(record))
        return
    if redaction:
        event = redaction.event(event)
    if isinstance(event, MessageEdited | MessageDeleted | ConversationDeleted):
        snapshot.changes.append(change_of(position_of(record), event))
        return
    if not isinstance(event, MessageCreated):
        snapshot.flushes += 1
        if event.agent_id:
            snapshot.flushed_agents.append(AgentFlush(position_of(record), event.conversation_id, event.agent_id))
        return
    message = digest_of_message(event.conversation_id, event.id, event.tenant_id)
    content = digest(event.content)
    snapshot.produced.append(
        ProducedMessage(
            position_of(record),
            event.conversation_id,
            message,
            content,
            event.skip_summarization,
            event.agent_id or None,
            event.tenant_id,
            record.timestamp,
            milliseconds_if_known(event.sent_at),
        )
    )


def change_of(where: Position, event: MessageEdited | MessageDeleted | ConversationDeleted) -> MessageChange:
    """Reduce an edit or a deletion to what the audit needs."""
    whose = where, event.conversation_id, event.tenant_id
    if isinstance(event, ConversationDeleted):
        return MessageChange(*whose, None)
    message = digest_of_message(event.conversation_id, event.id, event.tenant_id)
    if isinstance(event, MessageDeleted):
        return MessageChange(*whose, message)
    content = None if event.content is None else digest(event.content)
    return MessageChange(*whose, message, content, is_deletion=False, leaves=bool(event.skip_summarization))


def take_episode(snapshot: Snapshot, record: ConsumerRecord) -> None:
    """Add a record of `episode.closed`."""
    try:
        event = decode_closed(record.key, record.value, record.headers)
    except InvalidRecord:
        snapshot.unreadable += 1
        return
    if isinstance(event, EpisodeClosed):
        snapshot.closed.append(closed(position_of(record), event))
    if not isinstance(event, EpisodeAmended):
        return
    of = event.message_id
    message = None if of is None else digest_of_message(event.conversation_id, of, event.tenant_id)
    snapshot.amended.append(
        AmendmentRecord(position_of(record), event.conversation_id, message, Position(event.partition, event.offset))
    )


def closed(where: Position, episode: EpisodeClosed) -> Closed:
    """Reduce an episode to what the audit needs."""
    whose = episode.tenant_id
    return Closed(
        position=where,
        episode_id=episode.episode_id,
        revision=episode.revision,
        conversation_id=episode.conversation_id,
        ordinal=episode.ordinal,
        fingerprint=episode.fingerprint,
        recomputed=fingerprint(episode.messages),
        core=tuple(
            Core(
                digest_of_message(episode.conversation_id, m.id, whose),
                digest(m.content),
                milliseconds_if_known(m.sent_at),
            )
            for m in episode.messages
        ),
        message_ids=digest_of_all(m.id for m in episode.messages),
        first_offset=episode.source.first_offset,
        last_offset=episode.source.last_offset,
        truncated=episode.truncated or episode.sealed,
    )


def take_summary(snapshot: Snapshot, record: ConsumerRecord) -> None:
    """Add a record of `summary.created`."""
    try:
        event = validate(SummaryCreated, record.value or b"")
    except InvalidRecord:
        snapshot.unreadable_announcements += 1
        return
    snapshot.announced.append(
        Announced(
            event_id=event.event_id,
            episode_id=event.episode_id,
            revision=event.revision,
            event=digest(event.model_copy(update={"sealed_texts": None}).model_dump_json()),  # of its users then
            message_ids=digest_of_all(event.message_ids),
            episode_revision=event.episode_revision,
            supersedes=event.supersedes,
            reason=event.reason,
        )
    )


def take_deletion(snapshot: Snapshot, record: ConsumerRecord) -> None:
    """Add a record of `summary.deleted`."""
    try:
        event = validate(SummaryDeleted, record.value or b"")
    except InvalidRecord:
        snapshot.unreadable_announcements += 1
        return
    snapshot.ended[event.event_id] = event.episode_id


def take_dead_letter(dead: MutableSet[Position], topic: str, record: ConsumerRecord) -> None:
    """Add the original position of a record of `<topic>.dlq`, if the original was in this topic.

    Not of one that the archiver could not take: it is in an episode nevertheless.
    """
    if header(record.headers, DEAD_LETTER_PREFIX + "stage") == ARCHIVE:
        return
    found = [header(record.headers, DEAD_LETTER_PREFIX + name) or "" for name in ("topic", "partition", "offset")]
    if found[0] == topic and all(is_offset(part) for part in found[1:]):
        dead.add(Position(int(found[1]), int(found[2])))


def position_of(record: ConsumerRecord) -> Position:
    return Position(record.partition, record.offset)


class PendingRow(NamedTuple):
    scope: Scope
    seq: int
    position: Position
    """Position in `messages`; a changelog has the partitions of its source."""


class SegmenterState:
    """Segmenter state, read from the changelogs of its two tables; of a message it keeps only the position.

    The bodies must be read before the conversations: a message then moves from pending to closed, never back.
    """

    def __init__(self) -> None:
        self._bodies: dict[bytes, PendingRow] = {}
        self._first_pending: dict[Scope, int] = {}
        self._damage: dict[tuple[str, bytes], Damage] = {}

    @property
    def damaged(self) -> list[Damage]:
        """Rows that cannot be read, as they are now."""
        return list(self._damage.values())

    def take_body(self, record: ConsumerRecord) -> None:
        """Apply a record of the messages table's changelog. Raises: StateUnreadable for one of a later release."""
        if record.key != BOOKMARK_KEY:
            self._bodies.pop(record.key, None)
            self._apply(MESSAGES, record, self._apply_body)

    def take_conversation(self, record: ConsumerRecord) -> None:
        """Apply a record of the conversations table's changelog. Raises: StateUnreadable as `take_body`."""
        if record.key != BOOKMARK_KEY:
            self._apply(CONVERSATIONS, record, self._apply_conversation)

    def _apply(self, table: str, record: ConsumerRecord, apply: Callable[[bytes, bytes, int], None]) -> None:
        self._damage.pop((table, record.key), None)
        try:
            if record.value is not None:
                apply(record.key, record.value, record.partition)
        except RowUnreadable as error:
            known = conversation_of(table, record.key)
            self._damage[table, record.key] = Damage(known, record.partition, error.problem)

    def _apply_body(self, key: bytes, value: bytes, partition: int) -> None:
        parsed = parse_key(key)
        if parsed.seq is not None and (body := decode_body(value)) and not body.is_gone:
            self._bodies[key] = PendingRow(parsed.scope, parsed.seq, Position(partition, body.offset))

    def _apply_conversation(self, key: bytes, value: bytes, _: int) -> None:
        self._first_pending[parse_scope(key)] = decode_state(value).first_pending

    def pending(self) -> set[Pending]:
        """Messages that are in no episode yet; rows of the overlap are in one already."""
        return {Pending(b.position, scope_name(b.scope.conversation_id, b.scope.named_agent)) for b in self._waiting()}

    def handed_over(self) -> set[Position]:
        """Messages that may have moved to an agent's rows since their own row was read."""
        waiting = set(self._waiting())
        return {b.position for b in self._bodies.values() if b.scope.agent_id == NOBODY and b not in waiting}

    def _waiting(self) -> Iterator[PendingRow]:
        damaged = {damage.conversation_id for damage in self._damage.values()}
        return (
            body
            for body in self._bodies.values()
            if body.scope.conversation_id not in damaged and body.seq >= self._first_pending.get(body.scope, 0)
        )


def conversation_of(table: str, key: bytes) -> str | None:
    """The conversation that the key of a row names; None if it names none."""
    try:
        return (parse_scope(key) if table == CONVERSATIONS else parse_key(key).scope).conversation_id
    except RowUnreadable:
        return None
