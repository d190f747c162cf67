"""Snapshot that an audit judges: plain data, read from topics and stores, or made up by a test.

No message content is kept. A message is known by the digest of its `message_key`, a content and a list of ids by their
digests. What is read is reduced to facts, each of one conversation.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, MutableSet
from dataclasses import dataclass, field, fields
from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aiokafka import ConsumerRecord

from afterword.audit.parts import Parts
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
from afterword.schemas.ids import (
    episode_id,
    escape,
    message_key,
)
from afterword.streams.errors import RowUnreadable
from afterword.streams.log_reader import Position, Positions, position_of
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


def conversation_in(composite: str) -> str:
    """Return the conversation, escaped, of a `message_key`, an `event_id` or a `scope_name`."""
    return composite.partition(":")[0].partition("/")[0]


def scope_in(episode: str) -> str:
    """Return the scope that an `episode_id` is numbered in, in the form of `scope_name`."""
    return episode.rpartition(":")[0]


class AuditFact(Protocol):
    """Something that is known of a conversation."""

    @property
    def conversations(self) -> tuple[str, ...]:
        """Conversations that it names, escaped: several only if its ids contradict each other.

        The first is that of the id by which it is looked up.
        """
        ...

    def put(self, snapshot: "Snapshot") -> None:
        """Put it where it is judged."""
        ...


class Pending(NamedTuple):
    """A message that waits in the segmenter's state."""

    position: Position
    """Position in `messages`."""
    scope: str
    """Scope whose episodes are numbered together, in the form of `scope_name`."""

    @property
    def of_conversation(self) -> "Pending":
        """The same message as it would wait for no agent."""
        return Pending(self.position, conversation_in(self.scope))


class AgentFlush(NamedTuple):
    """A `conversation.flush` that names an agent."""

    position: Position
    conversation_id: str
    agent_id: str

    @property
    def conversations(self) -> tuple[str, ...]:
        return (escape(self.conversation_id),)

    def put(self, snapshot: "Snapshot") -> None:
        snapshot.flushed_agents.append(self)


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

    @property
    def conversations(self) -> tuple[str, ...]:
        return (escape(self.conversation_id),)

    def put(self, snapshot: "Snapshot") -> None:
        snapshot.produced.append(self)

    @property
    def as_pending(self) -> Pending:
        """The message as it waits where its conversation has no agents."""
        return Pending(self.position, escape(self.conversation_id))


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

    @property
    def conversations(self) -> tuple[str, ...]:
        return (escape(self.conversation_id),)

    def put(self, snapshot: "Snapshot") -> None:
        snapshot.changes.append(self)


class AmendmentRecord(NamedTuple):
    """A record of `episode.amended`."""

    position: Position
    conversation_id: str
    message: bytes | None
    change: Position
    """Position of the change on `messages`."""

    @property
    def conversations(self) -> tuple[str, ...]:
        return (escape(self.conversation_id),)

    def put(self, snapshot: "Snapshot") -> None:
        snapshot.amended.append(self)


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
    """Its contents are not compared: edits made it too large, and they were cut."""

    @property
    def conversations(self) -> tuple[str, ...]:
        return conversation_in(self.scope), escape(self.conversation_id)

    def put(self, snapshot: "Snapshot") -> None:
        snapshot.closed.append(self)

    @property
    def scope(self) -> str:
        return scope_in(self.episode_id)

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
    def conversations(self) -> tuple[str, ...]:
        superseded = (conversation_in(self.supersedes),) if self.supersedes else ()
        return conversation_in(scope_in(self.episode_id)), conversation_in(self.event_id), *superseded

    def put(self, snapshot: "Snapshot") -> None:
        snapshot.announced.append(self)

    @property
    def made_from(self) -> int:
        """Revision of its `episode.closed`."""
        return self.episode_revision or self.revision


class AnnouncedDeletion(NamedTuple):
    """A record of `summary.deleted`."""

    event_id: str
    episode_id: str

    @property
    def conversations(self) -> tuple[str, ...]:
        return conversation_in(self.event_id), conversation_in(scope_in(self.episode_id))

    def put(self, snapshot: "Snapshot") -> None:
        snapshot.ended[self.event_id] = self.episode_id


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


class AuditedEpisode(NamedTuple):
    """An episode in the store."""

    episode_id: str
    conversation_id: str
    stored: Stored

    @property
    def conversations(self) -> tuple[str, ...]:
        return conversation_in(scope_in(self.episode_id)), escape(self.conversation_id)

    def put(self, snapshot: "Snapshot") -> None:
        snapshot.stored[self.episode_id] = self.stored


class DeletedDocument(NamedTuple):
    """Document that stays in the store of a deleted episode."""

    episode_id: str
    as_of: int
    """Offset of the change that ended it."""
    has_expired: bool

    @property
    def conversations(self) -> tuple[str, ...]:
        return (conversation_in(scope_in(self.episode_id)),)

    def put(self, snapshot: "Snapshot") -> None:
        snapshot.gone[self.episode_id] = self.as_of
        if self.has_expired:
            snapshot.expired.add(self.episode_id)


class MessageDocument(NamedTuple):
    """A message in the archive, or only its label, if the summarizer has written it and the archiver has not."""

    key: str
    archived: Archived

    @property
    def conversations(self) -> tuple[str, ...]:
        return (conversation_in(self.key),)

    def put(self, snapshot: "Snapshot") -> None:
        snapshot.messages[digest(self.key)] = self.archived


@dataclass
class Shared:
    """Facts of no single conversation: small, and the same for all parts of a snapshot."""

    consumed: dict[int, int] = field(default_factory=dict)
    """Committed offset of the segmenter, by partition of `messages`."""
    archived_to: dict[int, int] = field(default_factory=dict)
    """Committed offset of the archiver."""
    dead: MutableSet[Position] = field(default_factory=Positions)
    """Records of `messages` that have a dead letter."""
    quarantined_records: MutableSet[Position] = field(default_factory=Positions)
    """Those rejected because their conversation's state was damaged; rebuilding the state reads them again."""
    summarized_to: dict[int, int] = field(default_factory=dict)
    """Committed offset of the summarizer, by partition of `episode.closed`."""
    dead_episodes: MutableSet[Position] = field(default_factory=Positions)
    first_offsets: dict[int, int] = field(default_factory=dict)
    """Offset of the first message that is left, by partition."""
    retries_wait: bool = False
    """Records of `episode.retry` are not handled yet: a change may be among them."""
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


OF_NO_CONVERSATION = ("refused", "flushes", "unreadable", "unreadable_announcements", "notes")
"""Facts that only the first part of a snapshot has."""


@dataclass
class Snapshot(Shared):
    """Content of topics, consumer groups and stores.

    They are not read at one instant. The groups' offsets come first, then the segmenter's state, the ends of
    `episode.closed`, `summary.created` and `messages`, then the stores and those topics up to these ends. A message
    moves in this direction only, so work in progress never looks like a loss.

    A large one has its facts in `parts` on disk instead of here. Whatever is compared with each other is of one
    conversation, so each part is judged by itself.
    """

    parts: Parts | None = None
    produced: list[ProducedMessage] = field(default_factory=list)
    """Ordered within each partition."""
    flushes: int = 0
    flushed_agents: list[AgentFlush] = field(default_factory=list)
    """Ordered within each partition."""
    changes: list[MessageChange] = field(default_factory=list)
    """Ordered within each partition."""
    refused: MutableSet[Position] = field(default_factory=Positions)
    """Invalid records of `messages`."""
    pending: set[Pending] = field(default_factory=set)
    """Messages that wait in the segmenter's state for their episode to close."""
    handed_over: set[Pending] = field(default_factory=set)
    """Messages that waited for an agent when the state was first read, and no longer a moment later."""
    state: "SegmenterState" = field(default_factory=lambda: SegmenterState())
    """Rows of the segmenter's state, until they are settled."""
    damaged: list[Damage] = field(default_factory=list)
    quarantined: set[str] = field(default_factory=set)
    """Conversations that have a damaged row: what waits there is unknown."""
    closed: list[Closed] = field(default_factory=list)
    """Every committed record, in order within each partition."""
    unreadable: int = 0
    """Number of invalid records of `episode.closed`."""
    amended: list[AmendmentRecord] = field(default_factory=list)
    announced: list[Announced] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)
    """Episodes by the `event_id` of their announced deletion."""
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
    removed: set[str] = field(default_factory=set)
    """Episodes without a point that were deleted since the stores were read."""
    notes: list[str] = field(default_factory=list)

    def add(self, fact: AuditFact) -> None:
        """Take a fact in. Raises: NoRoom."""
        if self.parts is None:
            fact.put(self)
        else:
            self.parts.add(fact)

    def numbers(self) -> Iterable[int]:
        """Numbers of the parts, from 0."""
        return (0,) if self.parts is None else self.parts.numbers()

    def part(self, number: int) -> "Snapshot":
        """Read a part, to be judged by itself: all of it, if there are no others. Raises: NoRoom."""
        part = self
        if self.parts is not None:
            names = [each.name for each in fields(Shared)] + list(() if number else OF_NO_CONVERSATION)
            part = Snapshot(**{name: getattr(self, name) for name in names})
            for fact in self.parts.facts(number):
                fact.put(part)
        part.settle()
        return part

    def settle(self) -> None:
        """Work out what waits by the rows of the state."""
        state, self.state = self.state, SegmenterState()
        self.pending |= state.pending()
        self.handed_over |= state.handed_over()
        self.damaged += state.damaged
        self.quarantined |= {found.conversation_id for found in state.damaged if found.conversation_id is not None}

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
    where = position_of(record)
    try:
        event = decode_input(record.key, record.value, record.headers, record.timestamp)
    except InvalidRecord:
        snapshot.refused.add(where)
        return
    if redaction:
        event = redaction.event(event)
    if isinstance(event, MessageEdited | MessageDeleted | ConversationDeleted):
        snapshot.add(change_of(where, event))
        return
    if not isinstance(event, MessageCreated):
        snapshot.flushes += 1
        if event.agent_id:
            snapshot.add(AgentFlush(where, event.conversation_id, event.agent_id))
        return
    snapshot.first_offsets.setdefault(*where)
    message = digest_of_message(event.conversation_id, event.id, event.tenant_id)
    content = digest(event.content)
    snapshot.add(
        ProducedMessage(
            where,
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
        snapshot.add(closed(position_of(record), event))
    if not isinstance(event, EpisodeAmended):
        return
    of = event.message_id
    message = None if of is None else digest_of_message(event.conversation_id, of, event.tenant_id)
    snapshot.add(
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
        truncated=episode.truncated,
    )


def take_summary(snapshot: Snapshot, record: ConsumerRecord) -> None:
    """Add a record of `summary.created`."""
    try:
        event = validate(SummaryCreated, record.value or b"")
    except InvalidRecord:
        snapshot.unreadable_announcements += 1
        return
    snapshot.add(
        Announced(
            event_id=event.event_id,
            episode_id=event.episode_id,
            revision=event.revision,
            event=digest(event.model_dump_json()),
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
    snapshot.add(AnnouncedDeletion(event.event_id, event.episode_id))


def take_dead_letter(dead: MutableSet[Position], topic: str, record: ConsumerRecord) -> None:
    """Add the original position of a record of `<topic>.dlq`, if the original was in this topic.

    Not of one that the archiver could not take: it is in an episode nevertheless.
    """
    if header(record.headers, DEAD_LETTER_PREFIX + "stage") == ARCHIVE:
        return
    found = [header(record.headers, DEAD_LETTER_PREFIX + name) or "" for name in ("topic", "partition", "offset")]
    if found[0] == topic and all(is_offset(part) for part in found[1:]):
        dead.add(Position(int(found[1]), int(found[2])))


def take_rejected_message(snapshot: Snapshot, messages_topic: str, record: ConsumerRecord) -> None:
    """Add a record of `messages.dlq`."""
    take_dead_letter(snapshot.dead, messages_topic, record)
    if header(record.headers, DEAD_LETTER_PREFIX + "type") == "state_unreadable":
        take_dead_letter(snapshot.quarantined_records, messages_topic, record)


def take_state(snapshot: Snapshot, table: str, record: ConsumerRecord) -> None:
    """Add a record of a changelog of the segmenter's. Raises: StateUnreadable for one of a later release."""
    row = state_row(table, record)
    if row is not None:
        snapshot.add(row)


class PendingRow(NamedTuple):
    """A message's row."""

    scope: Scope
    seq: int
    position: Position
    """Position in `messages`; a changelog has the partitions of its source."""


class FirstPending(NamedTuple):
    """A conversation's row, or that of an agent in one."""

    scope: Scope
    seq: int


class StateRow(NamedTuple):
    """A record of a changelog; of a message it has only the position."""

    table: str
    key: bytes
    row: PendingRow | FirstPending | Damage | None
    """None: there is none, or no message that could wait."""

    @property
    def conversations(self) -> tuple[str, ...]:
        return (escape(conversation_of(self.table, self.key) or ""),)

    def put(self, snapshot: Snapshot) -> None:
        snapshot.state.apply(self)


def state_row(table: str, record: ConsumerRecord) -> StateRow | None:
    """Read a record of a table's changelog; None for a bookmark. Raises: StateUnreadable for one of a later release."""
    if record.key == BOOKMARK_KEY:
        return None
    row: PendingRow | FirstPending | Damage | None = None
    try:
        if record.value is not None:
            row = _first_pending(record) if table == CONVERSATIONS else _pending_row(record)
    except RowUnreadable as error:
        row = Damage(conversation_of(table, record.key), record.partition, error.problem)
    return StateRow(table, record.key, row)


def _pending_row(record: ConsumerRecord) -> PendingRow | None:
    parsed = parse_key(record.key)
    if parsed.seq is None or (body := decode_body(record.value)) is None or body.is_gone:
        return None
    return PendingRow(parsed.scope, parsed.seq, Position(record.partition, body.offset))


def _first_pending(record: ConsumerRecord) -> FirstPending:
    return FirstPending(parse_scope(record.key), decode_state(record.value).first_pending)


class SegmenterState:
    """Segmenter state, read from the changelogs of its two tables.

    The messages must be read before the conversations: a message then moves from pending to closed, never back.
    """

    def __init__(self) -> None:
        self._bodies: dict[bytes, PendingRow] = {}
        self._first_pending: dict[Scope, int] = {}
        self._damage: dict[tuple[str, bytes], Damage] = {}

    @property
    def damaged(self) -> list[Damage]:
        """Rows that cannot be read, as they are now."""
        return list(self._damage.values())

    def apply(self, changed: StateRow) -> None:
        """Apply a record of a changelog."""
        self._damage.pop((changed.table, changed.key), None)
        if changed.table == MESSAGES:
            self._bodies.pop(changed.key, None)
        if isinstance(changed.row, PendingRow):
            self._bodies[changed.key] = changed.row
        elif isinstance(changed.row, FirstPending):
            self._first_pending[changed.row.scope] = changed.row.seq
        elif changed.row is not None:
            self._damage[changed.table, changed.key] = changed.row

    def take(self, table: str, record: ConsumerRecord) -> None:
        """Apply a record of a table's changelog. Raises: StateUnreadable for one of a later release."""
        row = state_row(table, record)
        if row is not None:
            self.apply(row)

    def pending(self) -> set[Pending]:
        """Messages that are in no episode yet; rows of the overlap are in one already."""
        return {Pending(b.position, scope_name(b.scope.conversation_id, b.scope.named_agent)) for b in self._waiting()}

    def handed_over(self) -> set[Pending]:
        """Messages that may have moved to an agent's rows since their own row was read."""
        waiting = set(self._waiting())
        return {
            Pending(body.position, scope_name(body.scope.conversation_id))
            for body in self._bodies.values()
            if body.scope.agent_id == NOBODY and body not in waiting
        }

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
