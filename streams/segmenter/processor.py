"""A batch of records → what to send, with the changes of both tables made. No Kafka, no Faust, no clock."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

import structlog
from opentelemetry.trace import NoOpTracer, Tracer

from afterword.schemas import (
    ConversationDeleted,
    ConversationFlush,
    EpisodeAmended,
    InputEvent,
    InvalidRecord,
    MessageCreated,
    MessageDeleted,
    MessageEdited,
    decode_input,
)
from afterword.schemas.base import EPOCH
from afterword.schemas.dead_letters import DeadLetterRecord, dead_letter
from afterword.schemas.episodes import EPISODE_AMENDED, EPISODE_CLOSED
from afterword.schemas.headers import CE_ID, Headers, KafkaRecord, cloud_event
from afterword.schemas.ids import escape, event_id
from afterword.streams.errors import RowUnreadable, StateUnreadable
from afterword.streams.segmenter.arrival import MILLISECOND, Arrival, deleted, edited, from_record
from afterword.streams.segmenter.conversation import Amended, PerAgent, PerConversation, SegmentedConversation, Thread
from afterword.streams.segmenter.episodes import (
    REVISION,
    Amendment,
    ClosedEpisode,
    amended_event,
    event_of,
    fitting_json,
    span_headers,
)
from afterword.streams.segmenter.overrides import Rulebook
from afterword.streams.segmenter.rules import EpisodeRules
from afterword.streams.segmenter.state import (
    Body,
    Rows,
    Scope,
    State,
    decode_state,
    encode_state,
    id_digest,
    parse_scope,
    record_key,
    scope_key,
)
from afterword.streams.settings import Episodes
from afterword.streams.telemetry.tracing import trace_in

if TYPE_CHECKING:  # its libraries take 100 ms to import, and most workers redact nothing
    from afterword.streams.redaction.records import RecordRedaction

STAGE = "segmenter"
CE_SOURCE = "afterword/segmenter"
NO_TRACER = NoOpTracer()

READ_TOGETHER = 64
"""Records that are read together before the first of them is decided on."""
FORGOTTEN_AT_ONCE = 1000
"""Messages whose rows go at once when a conversation is forgotten: some 150 kB of tombstones."""
REPORTED = 10_000
"""Conversations whose damage a worker remembers having reported."""

log = structlog.get_logger()


class Outgoing(NamedTuple):
    """A record to be sent."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers


class Room(NamedTuple):
    """Bytes that a call may read and write before it stops taking more."""

    read: int
    write: int


ROOMY = Room(sys.maxsize, sys.maxsize)


@dataclass(slots=True)
class Outcome:
    """The result of a batch; `outgoing` is in order."""

    outgoing: list[Outgoing] = field(default_factory=list)
    messages: int = 0
    """Taken: each is pending or in one episode."""
    duplicates: int = 0
    skipped: int = 0
    flushes: int = 0
    amendments: int = 0
    """Edits and deletions that were applied here or handed on."""
    forgotten: int = 0
    """Conversations, or agents' parts of them, of which only the stub is left now."""
    dead_letters: Counter[str] = field(default_factory=Counter)
    """Count by error type."""
    episodes: Counter[str] = field(default_factory=Counter)
    """Count by close reason."""
    begun: list[bytes] = field(default_factory=list)
    """Keys of the first records of conversations that have begun."""
    unreadable: int = 0
    """Records and deadlines of conversations with a damaged row."""
    done: int = 0
    """Records or deadlines that were handled, from the first on."""
    written: int = 0
    """Bytes of `outgoing` and of rows."""


@dataclass(slots=True)
class Segmenter:
    """Keeps nothing between batches: all state is in the two tables.

    `conversations`: a row of counters for each scope, whose deadline `state.deadline_of` reads. `messages`: bodies and
    ids that were seen. A call that raises may have changed some rows: the tables must drop what a failed batch has
    written, as those of the engine do.
    """

    limits: Episodes
    episodes_topic: str
    dead_letters_topic: str
    conversations: Rows
    messages: Rows
    count_tokens: Callable[[str], int]
    tracer: Tracer = NO_TRACER
    redaction: "RecordRedaction | None" = None
    """Takes personal data and secrets out of every event before anything is kept of it, and out of dead letters."""
    traced: bool = field(init=False)
    rulebook: Rulebook = field(init=False)
    reported: set[bytes] = field(init=False, default_factory=set)
    """Keys of conversations whose damage was reported."""

    def __post_init__(self) -> None:
        self.traced = not isinstance(self.tracer, NoOpTracer)
        self.rulebook = Rulebook(self.limits)

    def safe_dead_letter(self, rejected: DeadLetterRecord) -> DeadLetterRecord:
        """The dead letter with nothing in it that is not to be kept."""
        return self.redaction.dead_letter(*rejected) if self.redaction else rejected

    @property
    def per_agent(self) -> bool:
        return self.limits.scope == "agent"

    def process(self, records: Iterable[KafkaRecord], now_ms: int, room: Room = ROOMY) -> Outcome:
        """Take records of one partition in order. `now_ms`: wall clock, milliseconds since 1970.

        No further record is taken when the room is used up; a flush that would empty many agents is even left undone in
        part, and goes on when it is given again.
        A conversation with a damaged row is in quarantine: records that need the row are dead letters
        (`state_unreadable`), and its rows stay as they are.

        Raises: StateUnreadable for state of another configuration, never for what is in a record.
        """
        batch = _Batch(self, now_ms, room)
        waiting = iter(records)
        while some := batch.within_room(waiting):
            found = self._read(some)
            batch.open(found)
            for record, read in zip(some, found, strict=True):
                if not batch.take(record, read) or batch.is_full:
                    return batch.finish()
        return batch.finish()

    def _read(self, records: Sequence[KafkaRecord]) -> list["ReadRecord"]:
        """Read what records say by themselves, one step for all of them after the other.

        The processor's caches hold the code of a step, but not that of all steps: a message takes a sixth less.
        """
        events = [self._decoded(record) for record in records]
        told = [event if is_taken(event) else None for event in events]
        tokens = [self.count_tokens(each.content) if each else 0 for each in told]
        return [
            ReadRecord(event, self._arrival(message, record, number) if message else None)
            for event, message, record, number in zip(events, told, records, tokens, strict=True)
        ]

    def _decoded(self, record: KafkaRecord) -> InputEvent | InvalidRecord:
        try:
            event = decode_input(record.key, record.value, record.headers, record.timestamp)
            return self.redaction.event(event) if self.redaction else event
        except InvalidRecord as error:
            return without_frames(error)

    def _arrival(self, message: MessageCreated, record: KafkaRecord, tokens: int) -> Arrival | InvalidRecord:
        trace = trace_in(record.headers) if self.traced else b""
        try:
            return from_record(message, record, id_digest(message.id), trace, tokens)
        except InvalidRecord as error:
            return without_frames(error)

    def tick(self, due: Sequence[bytes], now_ms: int, topic: str, partition: int, room: Room = ROOMY) -> Outcome:
        """Close what is pending in the scopes `due` (keys of the first table), if its deadline has passed.

        Forget those in which nothing was pending for as long as is set; one of many rows stays due until all are gone.
        `topic`, `partition`: where their messages were read. What cannot be read stays, and is not due any more.
        Raises: StateUnreadable.
        """
        batch = _Batch(self, now_ms, room)
        for key in due:
            batch.expire(key, topic, partition)
            if batch.is_full:
                break
        return batch.finish()


class ReadRecord(NamedTuple):
    """A record as far as it needs no state."""

    event: InputEvent | InvalidRecord
    arrival: Arrival | InvalidRecord | None
    """The prepared message, or why it cannot be taken; None if the event is not a message, or one to skip."""


def is_taken(event: InputEvent | InvalidRecord) -> TypeGuard[MessageCreated]:
    """Return whether it is a message that an episode will have, unless it is a duplicate."""
    return isinstance(event, MessageCreated) and not event.skip_summarization


def without_frames(error: InvalidRecord) -> InvalidRecord:
    """The same, for a caller that keeps it: without traceback and context.

    These know the frames that it has passed, and their callers. Where one of them has it as well, only the collector
    frees both, with all records of the batch: a flood of refused records took 2 GB until it came.
    """
    return InvalidRecord(error.error_type, error.detail)


class _Batch:
    def __init__(self, segmenter: Segmenter, now_ms: int, room: Room) -> None:
        self._segmenter = segmenter
        self._room = room
        self._now_ms = now_ms
        self._threads: dict[Scope, tuple[Thread, bytes | None]] = {}
        """Threads of this batch, and their rows before it."""
        self._messages = Staged(segmenter.messages)
        self._touched: dict[Scope, State | None] = {}
        """States of the threads that a record has touched, as they were before it."""
        self._outcome = Outcome()
        self._headers = cloud_event(EPISODE_CLOSED, "", CE_SOURCE, EPOCH + now_ms * MILLISECOND)
        """Headers of an episode's event, the second one without its id."""
        self._read = 0
        """Bytes of the records so far, and of the pending rows that changes have read."""

    @property
    def is_full(self) -> bool:
        return self._read >= self._room.read or self._written >= self._room.write

    @property
    def _written(self) -> int:
        return self._outcome.written + self._messages.written

    def within_room(self, records: Iterator[KafkaRecord]) -> list[KafkaRecord]:
        """The next ones, so many at most as may be read before the room is used up."""
        some: list[KafkaRecord] = []
        size = self._read
        for record in islice(records, READ_TOGETHER):
            some.append(record)
            size += len(record.value or b"")
            if size >= self._room.read:
                break
        return some

    def open(self, records: Iterable[ReadRecord]) -> None:
        """Read the rows of their conversations, one after the other, for the reason that `Segmenter._read` has."""
        for event, _ in records:
            scope = None if isinstance(event, InvalidRecord) else Scope(event.conversation_id)
            if scope is not None and scope not in self._threads:
                with suppress(RowUnreadable):  # reported when the record that needs the row is handled
                    self._open(scope)

    def take(self, record: KafkaRecord, read: ReadRecord) -> bool:
        """Return False for a flush that is to be given again."""
        self._read += len(record.value or b"")
        is_done = True
        try:
            # not raised: see `without_frames`
            if isinstance(read.event, InvalidRecord):
                self._reject(record, read.event)
            else:
                is_done = self._apply(read.event, read.arrival, record)
        except InvalidRecord as error:
            self._undo()
            self._reject(record, error)
        except RowUnreadable as error:
            self._undo()
            self._report(error, record.key or b"", record.topic, record.partition)
            self._reject(record, InvalidRecord("state_unreadable", str(error)))
        else:
            self._keep()
        self._outcome.done += is_done
        return is_done

    def expire(self, key: bytes, topic: str, partition: int) -> None:
        scope = parse_scope(key)
        try:
            thread = self._thread(scope)
            if thread.state and 0 < thread.state.deadline_ms <= self._now_ms:
                # the rules say where topics end; without an unheard message the conversation's row is not needed
                limits = self._rules(scope).limits if thread.state.unheard else self._segmenter.limits
                self._send(thread.close("idle", limits), topic, partition)
            elif thread.state and not thread.is_pending:
                self._let_go(scope, thread, thread.state)
        except RowUnreadable as error:
            self._undo()
            self._report(error, record_key(scope.conversation_id), topic, partition)
            self._give_up_deadline(scope)
        else:
            self._keep()
        self._outcome.done += 1

    def _let_go(self, scope: Scope, thread: Thread, state: State) -> None:
        """Forget a silent scope when its time has come, and a conversation not before its agents are silent."""
        forget_ms = self._segmenter.limits.forget_after_ms
        if not forget_ms or state.is_stub or self._now_ms < state.silent_ms + forget_ms:
            return
        is_root = scope.agent_id is None
        if not state.silent_ms or (is_root and self._conversation(thread).is_pending):
            # its row is of an earlier release, which did not write since when; or it is not silent
            thread.state = state._replace(silent_ms=self._now_ms)
        else:
            self._outcome.forgotten += thread.forget(FORGOTTEN_AT_ONCE)

    def _keep(self) -> None:
        self._messages.keep()
        self._touched.clear()

    def _undo(self) -> None:
        """Leave rows and states as they were before the record."""
        self._messages.drop()
        for scope, state in self._touched.items():
            self._threads[scope][0].state = state
        self._touched.clear()

    def _give_up_deadline(self, scope: Scope) -> None:
        """Let a conversation with damaged rows not be due again until its next message, or for as long as it was."""
        if scope in self._threads:
            thread = self._threads[scope][0]
            silent_ms = 0 if thread.is_pending else self._now_ms
            thread.state = thread.state and thread.state._replace(deadline_ms=0, silent_ms=silent_ms)

    def _report(self, error: RowUnreadable, key: bytes, topic: str, partition: int) -> None:
        """Count the damage, and log it once for each conversation."""
        self._outcome.unreadable += 1
        reported = self._segmenter.reported
        if key in reported or len(reported) >= REPORTED:
            return
        reported.add(key)
        digest = id_digest(key.decode()).hex()
        where = {"topic": topic, "partition": partition, "conversation_digest": digest}
        log.error("conversation_quarantined", stage=STAGE, error_type="state_unreadable", problem=str(error), **where)

    def finish(self) -> Outcome:
        for thread, _ in self._threads.values():
            thread.tidy()
        self._messages.keep()
        for scope, (thread, before) in self._threads.items():
            row = encode_state(thread.state) if thread.state else None
            if row is not None and row != before:
                self._segmenter.conversations[scope_key(scope)] = row
        self._outcome.written += self._messages.written
        return self._outcome

    def _apply(self, event: InputEvent, arrival: Arrival | InvalidRecord | None, record: KafkaRecord) -> bool:
        """Return False for a flush that is to be given again."""
        if isinstance(event, MessageCreated):
            if arrival is None:
                self._outcome.skipped += 1
            else:
                self._add(event, arrival, record)
            return True
        root = self._thread(Scope(event.conversation_id))
        check_tenant(root, event.tenant_id)
        if isinstance(event, ConversationFlush):
            return self._flush(event, root, record)
        self._amend(event, root, record)
        return True

    def _flush(self, event: ConversationFlush, root: Thread, record: KafkaRecord) -> bool:
        """Close the threads for which there is room; return whether these are all."""
        closed: list[ClosedEpisode] = []
        size = 0
        threads = iter(self._conversation(root).flush(event.agent_id))
        for episodes in threads:
            closed += episodes
            size += sum(episode.size_bytes for episode in episodes)
            if episodes and self._written + size >= self._room.write:
                break
        else:
            self._send(closed, record.topic, record.partition)
            self._outcome.flushes += 1
            return True
        self._send(closed, record.topic, record.partition)
        return False

    def _amend(self, event: Amendment, root: Thread, record: KafkaRecord) -> None:
        if isinstance(event, ConversationDeleted):
            self._clear(root)
            amended = Amended([], is_elsewhere=True)
        else:
            change = deleted if isinstance(event, MessageDeleted) else partial(self._edited, event, record.offset)
            conversation = self._conversation(root)
            self._read += conversation.pending_bytes
            amended = conversation.amend(id_digest(event.id), change)
        self._send(amended.closed, record.topic, record.partition)
        if amended.is_elsewhere:
            self._send_amended(amended_event(event, record, amended.episode))
        self._outcome.amendments += 1

    def _edited(self, edit: MessageEdited, offset: int, body: Body) -> Body:
        return edited(body, edit, offset, self._segmenter.count_tokens)

    def _clear(self, root: Thread) -> None:
        """Let the conversation start over; ids and ordinals are not used again."""
        self._conversation(root).clear()
        if root.state:
            root.state = root.state._replace(overrides="", since_ms=None)

    def _send_amended(self, event: EpisodeAmended) -> None:
        ce_id = f"{escape(event.conversation_id)}:amended:{event.partition}:{event.offset}"
        headers = cloud_event(EPISODE_AMENDED, ce_id, CE_SOURCE, event.amended_at)
        key = record_key(event.conversation_id)
        self._put(Outgoing(self._segmenter.episodes_topic, key, event.to_json(), headers))

    def _add(self, message: MessageCreated, arrival: Arrival | InvalidRecord, record: KafkaRecord) -> None:
        root = self._thread(Scope(message.conversation_id))
        check_tenant(root, message.tenant_id)
        if root.has(arrival.digest if isinstance(arrival, Arrival) else id_digest(message.id)):
            self._outcome.duplicates += 1
            return
        overrides = self._segmenter.rulebook.read(message.metadata, root.state.overrides if root.state else "")
        if isinstance(arrival, InvalidRecord):  # raised anew: see `without_frames`
            raise InvalidRecord(arrival.error_type, arrival.detail)
        if root.state is None:
            root.state = State(message.tenant_id, agents=[] if self._segmenter.per_agent else None)
            self._outcome.begun.append(record.key or b"")
        if root.state.overrides != overrides:
            self._conversation(root).hear()
            root.state = root.state._replace(overrides=overrides)
        closed = self._conversation(root).take(arrival)
        self._send(closed, record.topic, record.partition)
        self._outcome.messages += 1

    def _conversation(self, root: Thread) -> SegmentedConversation:
        rules = self._segmenter.rulebook.rules(root.state.overrides if root.state else "")
        if self._segmenter.per_agent:
            return PerAgent(root, self._thread, self._segmenter.limits.max_agents, rules)
        return PerConversation(root, rules)

    def _rules(self, scope: Scope) -> EpisodeRules:
        """The rules of the scope's conversation. Raises: RowUnreadable."""
        root = self._thread(Scope(scope.conversation_id))
        return self._segmenter.rulebook.rules(root.state.overrides if root.state else "")

    def _thread(self, scope: Scope) -> Thread:
        thread, _ = self._threads.get(scope) or self._open(scope)
        self._touched.setdefault(scope, thread.state)
        return thread

    def _open(self, scope: Scope) -> tuple[Thread, bytes | None]:
        """Raises: RowUnreadable, StateUnreadable."""
        row = self._segmenter.conversations.get(scope_key(scope))
        found = self._threads[scope] = self._opened(scope, None if row is None else decode_state(row)), row
        return found

    def _opened(self, scope: Scope, state: State | None) -> Thread:
        limits = self._segmenter.limits
        if state:
            check_scope(state, scope, self._segmenter.per_agent)
        # ids are unique in their conversation, whoever the agent is
        window = limits.dedupe_window if scope.agent_id is None else 0
        return Thread(
            scope,
            state,
            self._messages,
            overlap=limits.overlap,
            window=window,
            now_ms=self._now_ms,
        )

    def _send(self, episodes: Sequence[ClosedEpisode], topic: str, partition: int) -> None:
        """Send all episodes, or none: a damaged one is found before anything is sent.

        Raises: RowUnreadable.
        """
        if not episodes:  # most messages close none
            return
        segmenter = self._segmenter
        before, _, *after = self._headers
        events = [event_of(closed, topic, partition, self._now_ms) for closed in episodes]
        values = list(map(fitting_json, events))
        for closed, value in zip(episodes, values, strict=True):
            ce_id = event_id(closed.episode_id, REVISION)
            headers = [before, (CE_ID, ce_id.encode()), *after]
            if segmenter.traced:
                headers += span_headers(segmenter.tracer, closed, segmenter.episodes_topic, ce_id)
            key = record_key(closed.scope.conversation_id)
            self._put(Outgoing(segmenter.episodes_topic, key, value, headers))
            self._outcome.episodes[closed.reason] += 1

    def _put(self, outgoing: Outgoing) -> None:
        self._outcome.outgoing.append(outgoing)
        self._outcome.written += len(outgoing.key or b"") + len(outgoing.value or b"")

    def _reject(self, record: KafkaRecord, error: InvalidRecord) -> None:
        where = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        log.warning("record_rejected", stage=STAGE, error_type=error.error_type, problem=error.detail, **where)
        rejected = dead_letter(
            record, stage=STAGE, error_type=error.error_type, message=error.detail, attempts=1, now_ms=self._now_ms
        )
        rejected = self._segmenter.safe_dead_letter(rejected)
        self._put(Outgoing(self._segmenter.dead_letters_topic, *rejected))
        self._outcome.dead_letters[error.error_type] += 1


class Staged:
    """The table of messages with the changes of one record, which are kept or dropped as a whole."""

    def __init__(self, table: Rows) -> None:
        self._table = table
        self._changes: dict[bytes, bytes | None] = {}
        self.written = 0
        """Bytes of the changes that were kept."""

    def get(self, key: bytes) -> bytes | None:
        return self._changes[key] if key in self._changes else self._table.get(key)

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._changes[key] = value

    def __delitem__(self, key: bytes) -> None:
        self._changes[key] = None

    def keep(self) -> None:
        for key, value in self._changes.items():
            self.written += len(key) + len(value or b"")
            if value is None:
                del self._table[key]
            else:
                self._table[key] = value
        self._changes.clear()

    def drop(self) -> None:
        self._changes.clear()


def check_tenant(root: Thread, tenant_id: str | None) -> None:
    """Refuse another tenant's message or flush: conversation ids are unique across tenants. Raises: InvalidRecord."""
    if root.state is not None and root.state.tenant_id != tenant_id:
        raise InvalidRecord("tenant_mismatch", "the conversation's first message has another tenant_id")


def check_scope(state: State, scope: Scope, per_agent: bool) -> None:
    """Refuse a row that was made with another setting of `episodes.scope`. Raises: StateUnreadable."""
    is_root = state.agents is not None
    if is_root != (per_agent and scope.agent_id is None) or not (per_agent or scope.agent_id is None):
        raise StateUnreadable(problem="it was made with another episodes.scope, which needs ids and topics of its own")
