"""A batch of records → what to send, with the changes of both tables made. No Kafka, no Faust, no clock."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import structlog

from afterword.schemas import ConversationFlush, InvalidRecord, MessageCreated, decode_input
from afterword.schemas.dead_letters import dead_letter
from afterword.schemas.episodes import EPISODE_CLOSED
from afterword.schemas.headers import KafkaRecord, cloud_event
from afterword.schemas.ids import event_id
from afterword.streams.errors import StateUnreadable
from afterword.streams.segmenter import keys
from afterword.streams.segmenter.conversation import Arrival, Conversation, OfAgents, Whole, fits
from afterword.streams.segmenter.episodes import Closed, build, carried
from afterword.streams.segmenter.facts import added_bytes, facts
from afterword.streams.segmenter.outcome import Outcome, Outgoing
from afterword.streams.segmenter.overrides import Rulebook
from afterword.streams.segmenter.rows import BufferedRows, Rows
from afterword.streams.segmenter.state import State, decode_state, encode_state
from afterword.streams.segmenter.thread import Taken, Thread
from afterword.streams.segmenter.tracing import EpisodeTracing
from afterword.streams.settings import Episodes
from afterword.streams.telemetry.tracing import trace_in

STAGE = "segmenter"
CE_SOURCE = "afterword/segmenter"
MAX_MESSAGE_BYTES = 800_000
"""What one message may add to an episode; with overlap and envelope that stays below a megabyte."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Segmenter:
    """Keeps nothing between batches: what it knows is in the two tables.

    `conversations`: a row of counters for each, whose deadline `state.deadline_of` reads. `messages`: their bodies and
    the ids that were seen. `count_tokens`: of a text. `tracing`: None when it is off. A call changes the tables at its
    end or, when it raises, not at all, so that it can be run again.
    """

    limits: Episodes
    episodes_topic: str
    dead_letters_topic: str
    conversations: Rows
    messages: Rows
    count_tokens: Callable[[str], int]
    tracing: EpisodeTracing | None = None
    rulebook: Rulebook = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rulebook", Rulebook(self.limits))

    @property
    def of_agents(self) -> bool:
        return self.limits.scope == "agent"

    def process(self, records: Iterable[KafkaRecord], now_ms: int) -> Outcome:
        """Records of one partition in order. `now_ms`: wall clock, milliseconds since 1970.

        Raises: StateUnreadable, never for what is in a record.
        """
        batch = _Batch(self, now_ms)
        for record in records:
            batch.take(record)
        return batch.finish()

    def tick(self, due: Sequence[bytes], now_ms: int, topic: str, partition: int) -> Outcome:
        """Closes what is pending in the scopes `due` (keys of the first table), if its deadline has passed.

        `topic`, `partition`: where their messages were read. Raises: StateUnreadable.
        """
        batch = _Batch(self, now_ms)
        for key in due:
            batch.expire(key, topic, partition)
        return batch.finish()


class _Batch:
    def __init__(self, segmenter: Segmenter, now_ms: int) -> None:
        self._own = segmenter
        self._now_ms = now_ms
        self._messages = BufferedRows(segmenter.messages)
        self._threads: dict[keys.Scope, tuple[Thread, bytes | None]] = {}
        """Threads of this batch, and their rows before it."""
        self._outcome = Outcome()

    def take(self, record: KafkaRecord) -> None:
        try:
            event = decode_input(record.key, record.value, record.headers, record.timestamp)
            self._apply(event, record)
        except InvalidRecord as error:
            self._refuse(record, error)

    def expire(self, key: bytes, topic: str, partition: int) -> None:
        thread = self._thread(keys.parse_scope(key))
        if thread.state and 0 < thread.state.deadline_ms <= self._now_ms:
            self._send(thread.close("idle"), topic, partition)

    def finish(self) -> Outcome:
        rows = {scope: row for scope, (thread, old) in self._threads.items() if (row := tidied(thread)) != old}
        self._messages.flush()
        for scope, row in rows.items():
            if row is not None:
                self._own.conversations[keys.scope_key(scope)] = row
        return self._outcome

    def _apply(self, event: MessageCreated | ConversationFlush, record: KafkaRecord) -> None:
        if isinstance(event, ConversationFlush):
            self._outcome.flushes += 1
            root = self._thread(keys.Scope(event.conversation_id))
            self._send(self._conversation(root).flush(event.agent_id), record.topic, record.partition)
        elif event.skip_summarization:
            self._outcome.skipped += 1
        else:
            self._add(event, record)

    def _add(self, message: MessageCreated, record: KafkaRecord) -> None:
        root = self._thread(keys.Scope(message.conversation_id))
        check_tenant(root, message.tenant_id)
        digest = keys.id_digest(message.id)
        if root.has(digest):
            self._outcome.duplicates += 1
            return
        overrides = self._own.rulebook.read(message.metadata, root.state.overrides if root.state else "")
        taken = self._taken(message, digest, record)
        if root.state is None:
            root.state = State(message.tenant_id, agents=[] if self._own.of_agents else None)
        if root.state.overrides != overrides:
            root.state = root.state._replace(overrides=overrides)
        rules = self._own.rulebook.rules(overrides)
        arrival = Arrival(taken, message.agent_id, message.tenant_id, rules, self._now_ms)
        closed = self._conversation(root).take(arrival)
        self._outcome.messages += 1
        self._send(closed, record.topic, record.partition)

    def _taken(self, message: MessageCreated, digest: bytes, record: KafkaRecord) -> Taken:
        json = carried(message)
        size = added_bytes(message, json)
        if size > MAX_MESSAGE_BYTES:
            raise InvalidRecord("too_large", f"takes {size} bytes of an episode, at most {MAX_MESSAGE_BYTES} fit")
        tokens = self._own.count_tokens(message.content)
        trace = trace_in(record.headers) if self._own.tracing else b""
        return Taken(facts(message, size, tokens, record.timestamp), json, digest, record.offset, trace)

    def _conversation(self, root: Thread) -> Conversation:
        return OfAgents(root, self._thread, self._own.limits.max_agents) if self._own.of_agents else Whole(root)

    def _thread(self, scope: keys.Scope) -> Thread:
        found = self._threads.get(scope)
        if found is None:
            row = self._own.conversations.get(keys.scope_key(scope))
            found = self._opened(scope, None if row is None else decode_state(row)), row
            self._threads[scope] = found
        return found[0]

    def _opened(self, scope: keys.Scope, state: State | None) -> Thread:
        limits = self._own.limits
        if state and not fits(state, scope, self._own.of_agents):
            raise StateUnreadable(
                problem="it was made with another episodes.scope, which needs ids and topics of its own"
            )
        remembers = scope.agent_id is None  # ids are unique in their conversation, whoever the agent is
        return Thread(scope, state, self._messages, limits.overlap, limits.dedupe_window if remembers else 0)

    def _send(self, episodes: Iterable[Closed], topic: str, partition: int) -> None:
        for closed in episodes:
            event = build(closed, topic, partition, self._now_ms)
            ce_id = event_id(event.episode_id, event.revision)
            headers = cloud_event(EPISODE_CLOSED, ce_id, CE_SOURCE, event.closed_at)
            if self._own.tracing:
                headers += self._own.tracing.headers(closed, ce_id)
            key = keys.record_key(event.conversation_id)
            self._outcome.outgoing.append(Outgoing(self._own.episodes_topic, key, event.to_json(), headers))
            self._outcome.episodes[closed.reason] += 1

    def _refuse(self, record: KafkaRecord, error: InvalidRecord) -> None:
        where = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        log.warning("record refused", stage=STAGE, error_type=error.error_type, problem=error.detail, **where)
        letter = dead_letter(
            record, stage=STAGE, error_type=error.error_type, message=error.detail, attempts=1, now_ms=self._now_ms
        )
        self._outcome.outgoing.append(Outgoing(self._own.dead_letters_topic, *letter))
        self._outcome.dead_letters[error.error_type] += 1


def check_tenant(root: Thread, tenant_id: str | None) -> None:
    """Conversation ids are unique across tenants: nothing may leak through one id. Raises: InvalidRecord."""
    if root.state is not None and root.state.tenant_id != tenant_id:
        raise InvalidRecord("tenant_mismatch", "the conversation's first message has another tenant_id")


def tidied(thread: Thread) -> bytes | None:
    """The row to keep; rows of messages that are not needed any more are deleted. None: there is nothing to keep."""
    thread.tidy()
    return thread.state and encode_state(thread.state)
