"""Turns a batch of records into what to send, and changes the rows of both tables. No Kafka, no Faust, no clock."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import structlog
from opentelemetry.trace import NoOpTracer, Tracer
from pydantic import ValidationError

from afterword.schemas import (
    ConversationAssigned,
    ConversationDeleted,
    ConversationFlush,
    InputEvent,
    InvalidRecord,
    MessageCreated,
    MessageEdited,
    decode_input,
)
from afterword.schemas.base import escape, event_id, moment_at, user_digest
from afterword.schemas.episodes import EPISODE_AMENDED, EPISODE_CLOSED
from afterword.schemas.messages import givers, moved, owner
from afterword.schemas.records import KafkaRecord, cloud_event, owner_header, owner_in
from afterword.streams.dead_letters import DeadLetters
from afterword.streams.errors import RowUnreadable
from afterword.streams.segmenter.conversation import Amend, Amended, Conversation, ScopeLog
from afterword.streams.segmenter.episodes import (
    REVISION,
    Amendment,
    ClosedEpisode,
    amended_event,
    deleted,
    edited,
    event_of,
    fitting_json,
    from_record,
    shown_changes,
    span_headers,
)
from afterword.streams.segmenter.rules import MAX_PENDING_MESSAGES, EpisodeRules, episode_rules
from afterword.streams.segmenter.state import (
    WRITER_BYTES,
    Rows,
    Scope,
    StagedRows,
    StagedStates,
    State,
    id_digest,
    parse_scope,
    record_key,
    text_digest,
)
from afterword.streams.settings import Episodes
from afterword.streams.telemetry.tracing import trace_in
from faust_eos.transaction import Output

if TYPE_CHECKING:  # its libraries take 100 ms to import, and most workers redact nothing
    from afterword.streams.redactor import RecordRedaction

STAGE = "segmenter"
CE_SOURCE = "afterword/segmenter"

CHANGED_REPEAT = "changed_repeat"
REPORTED = 10_000
"""A worker remembers at most this many conversations that it has logged something about once."""

OVERRIDES = "afterword"
"""Key in a message's `metadata` under which settings of its conversation arrive; they stay until replaced."""
OVERRIDABLE = (
    "trigger",
    "trigger_tokens",
    "auto_summarize",
    "min_episode_size",
    "max_episode_size",
    "max_episode_tokens",
    "idle_seconds",
)
"""The settings that a conversation may override, all of which concern only the next message. Overlap and the duplicate
window reach back, so they are the deployment's."""
MAX_OVERRIDES_BYTES = 2000
"""Maximum number of bytes of their JSON, which is in the conversation's row and so is written with every batch."""
MAX_IDLE_SECONDS = 2_592_000
"""30 days, the longest idle timeout that a conversation may set for itself."""
MOST_OVERRIDES = 1024
"""Maximum number of overrides whose rules are kept."""

NO_TRACER = NoOpTracer()

log = structlog.get_logger()


class ByteBudget(NamedTuple):
    """A call stops taking records once it has read or written this many bytes."""

    read: int
    write: int


UNLIMITED = ByteBudget(sys.maxsize, sys.maxsize)


@dataclass(slots=True)
class Outcome:
    """The result of a batch; `outgoing` is in order."""

    outgoing: list[Output] = field(default_factory=list)
    messages: int = 0
    """Accepted messages; each is pending or in one episode."""
    duplicates: int = 0
    changed_repeats: int = 0
    """Messages with the id of an earlier one and another text, which edited it."""
    skipped: int = 0
    flushes: int = 0
    amendments: int = 0
    """Edits, deletions and assignments that were applied here or passed on."""
    dead_letters: Counter[str] = field(default_factory=Counter)
    """Count by error type."""
    episodes: Counter[str] = field(default_factory=Counter)
    """Count by close reason."""
    new_conversation_keys: list[bytes] = field(default_factory=list)
    """Keys of the first records of new conversations."""
    done: int = 0
    """Number of records or deadlines that were handled, from the first one on."""
    written: int = 0
    """Bytes of `outgoing` and of rows."""


class Rulebook:
    """Compiles the rules of the deployment and of conversations with overrides, and keeps them."""

    def __init__(self, limits: Episodes, max_pending: int = MAX_PENDING_MESSAGES) -> None:
        self._limits = limits
        self._max_pending = max_pending
        self._common = episode_rules(limits, max_pending)
        self._most = {"idle_seconds": MAX_IDLE_SECONDS, "max_episode_size": max_pending}
        self._settings = lru_cache(MOST_OVERRIDES)(self._validated)
        self._of = lru_cache(MOST_OVERRIDES)(self._compiled)

    def rules(self, overrides: str) -> EpisodeRules:
        """Return the rules for overrides that `read` returned, perhaps in a worker with other settings."""
        return self._of(overrides) if overrides else self._common

    def read(self, metadata: dict[str, Any], current: str) -> str:
        """Return the conversation's overrides after a message, as JSON; empty if it has none.

        Raises: InvalidRecord, without any content.
        """
        given = metadata.get(OVERRIDES)
        if given is None:
            return current
        if not isinstance(given, dict):
            raise _invalid("", "must be an object")
        if not given.keys() <= set(OVERRIDABLE):
            raise _invalid("", f"may have {', '.join(OVERRIDABLE)}, and nothing else")
        if not given:
            return ""
        text = orjson.dumps(given, option=orjson.OPT_SORT_KEYS)
        if len(text) > MAX_OVERRIDES_BYTES:
            raise _invalid("", f"{len(text)} bytes of JSON, at most {MAX_OVERRIDES_BYTES} can be taken")
        text_read = text.decode()
        try:
            self._settings(text_read)
        except ValidationError as error:
            raise _invalid(*_where_and_what(error)) from None
        return text_read

    def _validated(self, text: str) -> Episodes:
        """Raises: ValidationError, InvalidRecord."""
        overrides = orjson.loads(text)
        settings = Episodes.model_validate(self._limits.model_dump() | overrides, strict=True)
        for name, most in self._most.items():
            if name in overrides and getattr(settings, name) > most:
                raise _invalid(f".{name}", f"at most {most}")
        return settings

    def _compiled(self, overrides: str) -> EpisodeRules:
        try:
            return episode_rules(self._settings(overrides), self._max_pending)
        except (ValidationError, InvalidRecord) as error:  # accepted by a worker with other settings or limits
            problem = error.detail if isinstance(error, InvalidRecord) else _where_and_what(error)[1]
            log.warning("overrides_ignored", stage=STAGE, error_type="invalid_override", problem=problem)
            return self._common


def _where_and_what(error: ValidationError) -> tuple[str, str]:
    first = error.errors(include_input=False, include_url=False)[0]
    return "".join(f".{part}" for part in first["loc"]), first["msg"].removeprefix("Value error, ")


def _invalid(where: str, problem: str) -> InvalidRecord:
    return InvalidRecord("invalid_override", f"metadata.{OVERRIDES}{where}: {problem}")


@dataclass(slots=True)
class Segmenter:
    """Makes episodes of records. It keeps nothing between batches: all state is in the two tables.

    `conversations` has a row of counters for each scope, whose deadline `state.deadline_of` reads. `messages` has
    bodies and ids that were seen. A call that raises may have changed some rows, so the tables must drop what a failed
    batch has written, as the engine's do.
    """

    limits: Episodes
    episodes_topic: str
    dead_letters_topic: str
    conversations: Rows
    messages: Rows
    count_tokens: Callable[[str], int]
    tracer: Tracer = NO_TRACER
    redaction: "RecordRedaction | None" = None
    """Removes personal data and secrets from every event before anything of it is stored, and from dead letters."""
    max_pending: int = MAX_PENDING_MESSAGES
    """Maximum number of messages that may wait in a conversation's state."""
    traced: bool = field(init=False)
    rulebook: Rulebook = field(init=False)
    dead_letters: DeadLetters = field(init=False)
    reported: set[tuple[str, bytes]] = field(init=False, default_factory=set)
    """Log events, each with the key of a conversation that it was logged for."""

    def __post_init__(self) -> None:
        self.traced = not isinstance(self.tracer, NoOpTracer)
        self.rulebook = Rulebook(self.limits, self.max_pending)
        self.dead_letters = DeadLetters(STAGE, self.dead_letters_topic, self.redaction)

    @property
    def per_agent(self) -> bool:
        return self.limits.scope == "agent"

    def process(self, records: Iterable[KafkaRecord], now_ms: int, budget: ByteBudget = UNLIMITED) -> Outcome:
        """Process records of one partition in order. `now_ms` is the wall clock in milliseconds since 1970.

        Once the budget is spent, no further record is processed. A flush of many agents may be left unfinished; it
        continues when its record is given again. A conversation with a damaged row is in quarantine: records that need
        the row become dead letters (`state_unreadable`), and its rows stay as they are.

        Raises: StateUnreadable for state of a different configuration, but never because of what is in a record.
        """
        batch = _Batch(self, now_ms, budget)
        for record in records:
            if not batch.take(record) or batch.is_full:
                break
        return batch.finish()

    def tick(
        self, due: Iterable[bytes], now_ms: int, topic: str, partition: int, budget: ByteBudget = UNLIMITED
    ) -> Outcome:
        """Close what is pending in the scopes `due` (keys of the first table) whose deadline has passed.

        Scopes in which nothing has been pending for `episodes.forget_after_days` are forgotten. `topic` and `partition`
        are where the messages were read. A scope that cannot be read stays as it is, and is no longer due.

        Raises: StateUnreadable.
        """
        batch = _Batch(self, now_ms, budget)
        for key in due:
            batch.expire(key, topic, partition)
            if batch.is_full:
                break
        return batch.finish()


class _Batch:
    def __init__(self, segmenter: Segmenter, now_ms: int, budget: ByteBudget) -> None:
        self._segmenter = segmenter
        self._now_ms = now_ms
        self._budget = budget
        self._states = StagedStates(segmenter.conversations, per_agent=segmenter.per_agent)
        self._messages = StagedRows(segmenter.messages)
        self._outcome = Outcome()
        self._read = 0
        """Bytes of the records so far, and of the pending rows that changes have read."""

    @property
    def is_full(self) -> bool:
        return self._read >= self._budget.read or self._outcome.written >= self._budget.write

    def take(self, record: KafkaRecord) -> bool:
        """Process the record; return False for a flush to be given again."""
        self._read += len(record.value or b"")
        is_done = True
        try:
            is_done = self._apply(record)
        except InvalidRecord as error:
            self._drop()
            self._reject(record, error)
        except RowUnreadable as error:
            self._drop()
            self._report_damage(error, record.key or b"", record.topic, record.partition)
            self._reject(record, InvalidRecord("state_unreadable", str(error)))
        else:
            self._keep()
        self._outcome.done += is_done
        return is_done

    def expire(self, key: bytes, topic: str, partition: int) -> None:
        scope_log = self._log(parse_scope(key))
        try:
            if 0 < scope_log.state.deadline_ms <= self._now_ms:
                self._send(scope_log.close("idle"), topic, partition)
            elif not scope_log.is_pending:
                self._let_go(scope_log)
        except RowUnreadable as error:
            self._drop()
            self._report_damage(error, record_key(scope_log.scope.conversation_id), topic, partition)
            with suppress(RowUnreadable):  # a conversation whose own row is damaged has no deadline
                # due again after its next message, or another forgetting period
                silent_ms = 0 if scope_log.is_pending else self._now_ms
                scope_log.state = scope_log.state._replace(deadline_ms=0, silent_ms=silent_ms)
        self._keep()
        self._outcome.done += 1

    def _let_go(self, scope_log: ScopeLog) -> None:
        """Forget a silent scope when its time has come; a conversation waits until all of its agents are silent."""
        state, forget_ms = scope_log.state, self._segmenter.limits.forget_after_ms
        if not forget_ms or state.is_stub or self._now_ms < state.silent_ms + forget_ms:
            return
        is_root = scope_log.scope.agent_id is None
        if not state.silent_ms or (is_root and self._conversation(scope_log).is_pending):
            # a rebuilt scope has no record of when its silence began, and one of the agents may not be silent yet
            scope_log.state = state._replace(silent_ms=self._now_ms)
        else:
            scope_log.forget()

    def _keep(self) -> None:
        self._states.keep()
        self._outcome.written += self._messages.keep()

    def _drop(self) -> None:
        """Restore rows and states to what they were before the record."""
        self._states.drop()
        self._messages.drop()

    def _report_damage(self, error: RowUnreadable, key: bytes, topic: str, partition: int) -> None:
        fields = {"topic": topic, "partition": partition, "problem": str(error)}
        self._report(log.error, "conversation_quarantined", key, "state_unreadable", **fields)

    def _report(self, write: Callable[..., Any], event: str, key: bytes, error_type: str, **further: object) -> None:
        """Log an event, once per conversation."""
        reported = self._segmenter.reported
        if (event, key) in reported or len(reported) >= REPORTED:
            return
        reported.add((event, key))
        digest = id_digest(key.decode()).hex()
        write(event, stage=STAGE, error_type=error_type, conversation_digest=digest, **further)

    def finish(self) -> Outcome:
        self._states.write()
        return self._outcome

    def _apply(self, record: KafkaRecord) -> bool:
        """Apply the record; return False for a flush to be given again. Raises: InvalidRecord, RowUnreadable."""
        event: InputEvent = decode_input(record.key, record.value, record.headers, record.timestamp)
        if self._segmenter.redaction:
            event = self._segmenter.redaction.event(event)
        root = self._log(Scope(event.conversation_id))
        if (claim := owner_in(record.headers)) and root.state.user:
            user = user_digest(claim.user_id or "")
            if root.state.user not in (user, owner(root.state.moves, user, record.offset)):
                raise InvalidRecord("user_mismatch", "the conversation's first message is of another user")
        if isinstance(event, MessageCreated) and event.skip_summarization:
            self._outcome.skipped += 1
            return True
        self._require_tenant(root, event)
        if isinstance(event, MessageCreated):
            self._add(event, root, record)
        elif isinstance(event, ConversationFlush):
            return self._flush(event, root, record)
        else:
            self._amend(event, root, record)
            self._outcome.amendments += 1
        return True

    def _require_tenant(self, root: ScopeLog, event: InputEvent) -> None:
        """Raise InvalidRecord unless the event is of the tenant of the first message, which may be this one."""
        if (state := root.stored) is None or state.tenant_id == event.tenant_id:
            return
        if not (isinstance(event, MessageCreated) and state.is_empty):  # conversation ids are unique across tenants
            raise InvalidRecord("tenant_mismatch", "the conversation's first message has another tenant_id")
        root.state = self._new_state(event.tenant_id)

    def _flush(self, event: ConversationFlush, root: ScopeLog, record: KafkaRecord) -> bool:
        """Close the logs that fit into the budget; return whether that was all of them."""
        closed: list[ClosedEpisode] = []
        size, is_done = 0, True
        for episodes in self._conversation(root).flush(event.agent_id):
            closed += episodes
            size += sum(episode.size_bytes for episode in episodes)
            if episodes and self._outcome.written + size >= self._budget.write:
                is_done = False
                break
        self._send(closed, record.topic, record.partition)
        self._outcome.flushes += is_done
        return is_done

    def _amend(self, event: Amendment, root: ScopeLog, record: KafkaRecord) -> None:
        if isinstance(event, ConversationDeleted):
            self._conversation(root).clear()
            if root.stored:
                root.state = root.state._replace(overrides="", since_ms=None, user="", moves=())
            amended = Amended([], is_elsewhere=True)
        elif isinstance(event, ConversationAssigned):
            state = root.stored or self._new_state(event.tenant_id)._replace(is_empty=True)
            moves = moved(state.moves, event, record.offset)
            root.state = state._replace(moves=moves, user=owner(moves[-1:], state.user, record.offset))
            amended = Amended([], is_elsewhere=True)
        else:
            change: Amend = deleted
            if isinstance(event, MessageEdited):
                change = partial(edited, edit=event, offset=record.offset, count_tokens=self._segmenter.count_tokens)
            conversation = self._conversation(root)
            self._read += conversation.pending_bytes
            amended = conversation.amend(id_digest(event.id), change)
        self._send(amended.closed, record.topic, record.partition)
        is_of_metadata = isinstance(event, MessageEdited) and not shown_changes(event)  # episodes have no metadata
        if amended.is_elsewhere and not is_of_metadata:
            change_event = amended_event(event, record, amended.episode)
            key = record_key(event.conversation_id)
            ce_id = f"{escape(event.conversation_id)}:amended:{record.partition}:{record.offset}"
            headers = cloud_event(EPISODE_AMENDED, ce_id, CE_SOURCE, change_event.amended_at)
            self._put(Output(self._segmenter.episodes_topic, key, change_event.to_json(), headers=headers))

    def _add(self, message: MessageCreated, root: ScopeLog, record: KafkaRecord) -> None:
        digest, text = id_digest(message.id), text_digest(message)
        known = root.known_text(digest)
        user, moves = user_digest(message.user_id), root.state.moves
        present = owner(moves, user, record.offset)
        users = {present, *givers(moves, present)} if known not in (None, text) else ()
        texts = {text, *(text_digest(message, each) for each in users)}
        if known in texts:
            self._outcome.duplicates += 1
            return
        if known is not None:
            self._repeat(record, has_same_writer=known[:WRITER_BYTES] in {one[:WRITER_BYTES] for one in texts})
            root.remember(digest, text, is_new=False)
            self._amend(message.as_edit, root, record)
            return
        segmenter, before = self._segmenter, root.stored
        state = before or self._new_state(message.tenant_id)
        state = state._replace(user=state.user or present, is_empty=False)
        overrides = segmenter.rulebook.read(message.metadata, state.overrides)
        trace = trace_in(record.headers) if segmenter.traced else b""
        arrival = from_record(message, record, segmenter.count_tokens(message.content), trace)
        root.state = state._replace(overrides=overrides)
        root.remember(digest, text, is_new=True)
        self._send(self._conversation(root).take(arrival), record.topic, record.partition)
        if before is None:
            self._outcome.new_conversation_keys.append(record.key or b"")
        self._outcome.messages += 1

    def _new_state(self, tenant_id: str | None) -> State:
        return State(tenant_id, agents=[] if self._segmenter.per_agent else None)

    def _repeat(self, record: KafkaRecord, *, has_same_writer: bool) -> None:
        """Count and report a message that repeats an id with another text. Raises: InvalidRecord if it is no edit."""
        limits = self._segmenter.limits
        self._report(log.warning, "message_repeated_with_another_text", record.key or b"", CHANGED_REPEAT)
        if limits.on_changed_repeat == "reject" or not has_same_writer:
            what = "text" if has_same_writer else "role, user or agent"
            raise InvalidRecord(CHANGED_REPEAT, f"an earlier message has this id and another {what}")
        self._outcome.changed_repeats += 1

    def _conversation(self, root: ScopeLog) -> Conversation:
        limits, rules = self._segmenter.limits, self._segmenter.rulebook.rules(root.state.overrides)
        return Conversation(root, self._log, limits.max_agents if self._segmenter.per_agent else None, rules)

    def _log(self, scope: Scope) -> ScopeLog:
        limits = self._segmenter.limits
        return ScopeLog(
            scope,
            self._states,
            self._messages,
            overlap=limits.overlap,
            # ids are unique within a conversation, across agents
            window=limits.dedupe_window if scope.agent_id is None else 0,
            now_ms=self._now_ms,
        )

    def _send(self, episodes: Sequence[ClosedEpisode], topic: str, partition: int) -> None:
        """Send all of the episodes or none: a damaged one is found before anything is sent.

        Raises: RowUnreadable.
        """
        if not episodes:  # most messages close no episode
            return
        segmenter, closed_at = self._segmenter, moment_at(self._now_ms)
        events = [event_of(closed, topic, partition, self._now_ms) for closed in episodes]
        values = [fitting_json(event) for event in events]
        for closed, event, value in zip(episodes, events, values, strict=True):
            ce_id = event_id(closed.episode_id, REVISION)
            headers = cloud_event(EPISODE_CLOSED, ce_id, CE_SOURCE, closed_at)
            headers.append(owner_header(event.tenant_id, event.user_id))
            if segmenter.traced:
                headers += span_headers(segmenter.tracer, closed, segmenter.episodes_topic, ce_id)
            key = record_key(closed.scope.conversation_id)
            self._put(Output(segmenter.episodes_topic, key, value, headers=headers))
            self._outcome.episodes[closed.reason] += 1

    def _put(self, output: Output) -> None:
        self._outcome.outgoing.append(output)
        self._outcome.written += len(output.key or b"") + len(output.value or b"")

    def _reject(self, record: KafkaRecord, error: InvalidRecord) -> None:
        self._put(self._segmenter.dead_letters.of(record, error.error_type, error.detail, self._now_ms))
        self._outcome.dead_letters[error.error_type] += 1
