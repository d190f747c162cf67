"""A made-up deployment that tests can break: plain data, which `judge` puts into the audit's tables."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from afterword.operating.audit import Report, judge
from afterword.operating.evidence import Circumstances, open_evidence, scope_in, scope_name
from afterword.streams.kafka.clients import Position

TableRow = tuple[Any, ...]
"""The name of a table, and the values of its columns."""


class Pending(NamedTuple):
    position: Position
    scope: str


class AgentFlush(NamedTuple):
    position: Position
    conversation_id: str
    agent_id: str


class ProducedMessage(NamedTuple):
    position: Position
    conversation_id: str
    message: bytes
    content: bytes
    skipped: bool = False
    agent_id: str | None = None
    tenant_id: str | None = None
    record_ms: int = 0
    sent_ms: int = 0


class MessageChange(NamedTuple):
    """Without a message, it is a deletion of the conversation."""

    position: Position
    conversation_id: str
    tenant_id: str | None
    message: bytes | None
    content: bytes | None = None
    is_deletion: bool = True
    leaves: bool = True


class AmendmentRecord(NamedTuple):
    position: Position
    conversation_id: str
    message: bytes | None
    change: Position


class Core(NamedTuple):
    message: bytes
    content: bytes
    sent_ms: int = 0


class Closed(NamedTuple):
    position: Position
    episode_id: str
    revision: int
    conversation_id: str
    ordinal: int
    fingerprint: str
    recomputed: str
    core: tuple[Core, ...]
    message_ids: int
    first_offset: int = -1
    last_offset: int = -1
    truncated: bool = False

    @property
    def scope(self) -> str:
        return scope_in(self.episode_id)

    def rows(self, number: int) -> Iterator[TableRow]:
        """Yield the rows of the episode that is added as the `number`th."""
        yield from (("core", number, place, *core) for place, core in enumerate(self.core))
        yield (
            "closed",
            number,
            *self.position,
            self.episode_id,
            self.revision,
            self.conversation_id,
            self.ordinal,
            self.fingerprint,
            self.recomputed,
            self.message_ids,
            self.scope,
            self.first_offset,
            self.last_offset,
            self.truncated,
            self.core[-1].sent_ms if self.core else 0,
        )


class Announced(NamedTuple):
    event_id: str
    episode_id: str
    revision: int
    event: bytes
    message_ids: int

    def row(self) -> TableRow:
        return "announced", *self


class Stored(NamedTuple):
    fingerprint: str
    messages: frozenset[bytes] = frozenset()
    changes: tuple[tuple[bytes, int], ...] = ()
    sources: frozenset[bytes] = frozenset()
    """Messages that its facts name."""
    revision: int = 1

    def rows(self, name: str) -> Iterator[TableRow]:
        sourceless = not self.sources <= self.messages
        yield (
            "stored_episode",
            name,
            self.revision,
            self.fingerprint,
            b"".join(self.messages),
            bool(self.sources),
            sourceless,
        )
        yield from (("stored_change", name, *change) for change in self.changes)


class Archived(NamedTuple):
    episode_id: str | None
    archived: bool
    """False for a tombstone."""
    content: bytes | None = None
    """None if it is unchanged."""
    position: Position | None = None
    changed: int = -1

    def row(self, message: bytes, produced: bytes | None) -> TableRow:
        content = self.content or produced if self.archived else None
        return "document", message, self.episode_id, content, *(self.position or (None, None)), self.changed


class Current(NamedTuple):
    kind: str
    name: str
    is_gone: bool
    revision: int | None = None
    partition: int = 0


@dataclass
class Snapshot(Circumstances):
    """Contents of topics and stores; tests leave out what should be missing."""

    consumed: dict[int, int] = field(default_factory=dict)
    archived_to: dict[int, int] = field(default_factory=dict)
    summarized_to: dict[int, int] = field(default_factory=dict)
    produced: list[ProducedMessage] = field(default_factory=list)
    flushed_agents: list[AgentFlush] = field(default_factory=list)
    changes: list[MessageChange] = field(default_factory=list)
    refused: set[Position] = field(default_factory=set)
    dead: set[Position] = field(default_factory=set)
    quarantined_records: set[Position] = field(default_factory=set)
    dead_episodes: set[Position] = field(default_factory=set)
    assigned: list[tuple[Any, ...]] = field(default_factory=list)
    users: list[tuple[Any, ...]] = field(default_factory=list)
    """Episode, conversation, tenant and user."""
    pending: set[Pending] = field(default_factory=set)
    handed_over: set[Pending] = field(default_factory=set)
    damaged: list[tuple[Any, ...]] = field(default_factory=list)
    closed: list[Closed] = field(default_factory=list)
    amended: list[AmendmentRecord] = field(default_factory=list)
    announced: list[Announced] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)
    current: list[Current] | None = None
    """The compacted topics; None stands for what was announced."""
    stored: dict[str, Stored] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    expired: set[str] = field(default_factory=set)
    messages: dict[bytes, Archived] = field(default_factory=dict)
    indexed: set[str] | None = None
    """None stands for all closed episodes."""

    def rows(self) -> Iterator[TableRow]:
        roles = {"segmenter": self.consumed, "archiver": self.archived_to, "summarizer": self.summarized_to}
        for role, offsets in roles.items():
            yield from (("consumed", role, *offset) for offset in offsets.items())
        for one in self.produced:
            yield "message", *one.position, one.conversation_id, scope_name(one.conversation_id), *one[2:]
        yield from (("flush", *flush.position, *flush[1:]) for flush in self.flushed_agents)
        yield from (("change", *change.position, *change[1:]) for change in self.changes)
        yield from (("assigned", *one) for one in self.assigned)
        yield from (("stored_user", *one) for one in self.users)
        yield from (("invalid", "message", *where) for where in self.refused)
        yield from (("dead_letter", "message", *where, where in self.quarantined_records) for where in self.dead)
        yield from (("dead_letter", "episode", *where, False) for where in self.dead_episodes)
        for pending in (*self.pending, *self.handed_over):
            conversation = pending.scope.partition("/")[0]
            yield "pending", *pending.position, pending.scope, conversation, pending not in self.pending
        yield from (("damage", *damage) for damage in self.damaged)
        for number, closed in enumerate(self.closed, 1):
            yield from closed.rows(number)
        yield from (("amended", *one.position, *one[1:3], *one.change) for one in self.amended)
        yield from (announced.row() for announced in self.announced)
        yield from (("announced_deletion", *ended) for ended in self.ended.items())
        announced = (Current("episode", one.episode_id, False, one.revision) for one in self.announced)
        for kind, name, is_gone, revision, partition in announced if self.current is None else self.current:
            yield "compacted", kind, name, partition, is_gone, revision
        for name, stored in self.stored.items():
            yield from stored.rows(name)
        yield from (("deleted_episode", gone, gone in self.expired) for gone in self.gone)
        contents = {one.message: one.content for one in reversed(self.produced)}
        yield from (document.row(message, contents.get(message)) for message, document in self.messages.items())
        indexed = {closed.episode_id for closed in self.closed} if self.indexed is None else self.indexed
        yield from (("indexed", episode, 1) for episode in indexed)


def judged(snapshot: Snapshot) -> Report:
    with open_evidence() as tables:
        for table, *row in snapshot.rows():
            tables.add(table, *row)
        tables.circumstances = snapshot
        return judge(tables)
