"""Rows of the segmenter's two tables and their keys: what is kept between batches, and how it is encoded.

`conversations` has a row of counters for each scope. `messages` has a row for each message's body and one for the
digest of its id. No two conversations or messages share a key, whatever characters are in their ids.
"""

import struct
from hashlib import blake2b, sha256
from typing import NamedTuple, Protocol

import orjson
from pydantic import TypeAdapter, ValidationError

from afterword.schemas import CloseReason, MessageCreated
from afterword.schemas.base import user_digest
from afterword.schemas.messages import Move
from afterword.streams.errors import RowUnreadable, StateUnreadable
from faust_eos.database import IdleSince

CONVERSATIONS = "conversations"
MESSAGES = "messages"
TABLES = (CONVERSATIONS, MESSAGES)
"""Names of the tables; each has a changelog topic of its own."""

STATE_VERSION = 1
STATE_HEADER = struct.Struct(">QB")
"""Deadline and version, before the JSON."""
DEADLINE_BYTES = 8
SILENT = 1 << 63
"""Flag in the deadline: the field is instead the time since which nothing has been pending."""
MAX_DEADLINE_MS = 2**53
"""Milliseconds since 1970: later than any calendar, but still an exact float."""

BODY_VERSION = 1
BODY_HEADER = struct.Struct(">16sBIqBBBB")
"""Digest of the id, version, tokens, offset, both seals, continuation, and length of the trace.

The trace and the message's JSON follow.
"""
LATER_VERSIONS = range(2, 32)
"""Versions that a later release may write; any other version means damage."""
SEALS: tuple[CloseReason | None, ...] = (None, "topic_shift", "max_size")
"""Positions in this tuple are stored, so only append to it."""
CONTINUATIONS = (None, False, True)
"""Positions in this tuple are stored."""

BODY_KIND = b"m"
SEEN_KIND = b"i"
AGENT_SEPARATOR = b"\xff"
"""Separates the ids of a conversation and an agent; UTF-8 never has this byte."""
NOBODY = ""
"""Stands for an agent's id while no agent is active: messages that name none wait there for the first agent."""
LENGTH_BYTES = 2
SEQ_BYTES = 8
RECORD_BYTES = 60
"""What a row of the changelog takes besides its key and value, so that many deletions fill a transaction too."""
DIGEST_BYTES = 16
"""128 bits, so that two ids of one conversation collide once in 2⁶⁴ messages."""
WRITER_BYTES = 4
TEXT_BYTES = 8


class Rows(Protocol):
    """A table, or a dictionary of bytes."""

    def get(self, key: bytes, /) -> bytes | None: ...
    def __setitem__(self, key: bytes, value: bytes, /) -> None: ...
    def __delitem__(self, key: bytes, /) -> None: ...


class Totals(NamedTuple):
    """Counters of a range of messages. All but `gone` ignore deleted messages."""

    tokens: int = 0
    episode_bytes: int = 0
    """Bytes that the messages add to the JSON of their episodes."""
    turns: int = 0
    text_bytes: int = 0
    longest: int = 0
    """Characters of the longest message, stripped of white space."""
    gone: int = 0
    """Number of deleted messages in the range, which keep their numbers."""


class State(NamedTuple):
    """Counters of a conversation, or of an agent's part of one; the row stays small however long an episode gets.

    A `seq` numbers accepted messages from 0, and ranges are half open. The messages `overlap_first … first_pending` are
    shown to the LLM again with the next episode. The messages `first_pending … open_first` are sealed but not emitted,
    and `open_first … next_seq` is the open episode.
    """

    tenant_id: str | None
    last_ordinal: int = 0
    agents: list[str] | None = None
    """Active agents of the conversation, the most recently named last; None with `scope = conversation`."""
    overrides: str = ""
    """JSON of the conversation's own settings; empty if it has none."""
    since_ms: int | None = None
    """Event time from which `seconds` count, in milliseconds since 1970; None means from the next message."""
    user: str = ""
    """Digest of the user of the conversation's first message, to whom it belongs; empty if unknown."""
    moves: tuple[Move, ...] = ()
    """Assignments of its messages to other users."""
    next_seq: int = 0
    window_first: int = 0
    """Rows of messages before this one are deleted."""
    overlap_first: int = 0
    first_pending: int = 0
    open_first: int = 0
    last_sent_ms: int = 0
    latest_record_ms: int = 0
    """The latest record timestamp so far."""
    latest_event_ms: int = 0
    """The latest event time so far, where each counts as at most its record's timestamp; it never goes back."""
    taken_to: int = 0
    """Records before this offset were accepted under an earlier state that was lost; they are already in episodes."""
    pending: Totals = Totals()
    """Counters of everything pending, including the open episode."""
    open: Totals = Totals()
    """Counters of the open episode."""
    is_empty: bool = False
    """True if there has been no message, but an assignment of messages; then the tenant is that of the first one."""
    deadline_ms: int = 0
    """Wall-clock deadline in milliseconds since 1970; 0 if nothing is pending."""
    silent_ms: int = 0
    """Wall-clock time since which nothing has been pending, in milliseconds since 1970; 0 if something is, or if it is
    unknown."""

    @property
    def open_messages(self) -> int:
        return self.next_seq - self.open_first - self.open.gone

    @property
    def pending_messages(self) -> int:
        return self.next_seq - self.first_pending - self.pending.gone

    @property
    def stub(self) -> "State":
        """The remains of a forgotten conversation, so that no id is used twice and no other tenant takes its place."""
        agents: list[str] | None = None if self.agents is None else []
        return State(self.tenant_id, last_ordinal=self.last_ordinal, agents=agents, is_empty=self.is_empty)

    @property
    def is_stub(self) -> bool:
        return not self.next_seq and self == self.stub


_STATE = TypeAdapter(State)
_DEFAULTS = State(None)
_KEPT = State._fields.index("deadline_ms")
"""Number of fields in a row's JSON; the others are in its header."""


def encode_state(state: State) -> bytes:
    """Encode STATE_HEADER and a JSON array of the fields, without trailing default values."""
    number = _KEPT
    while number > 1 and state[number - 1] == _DEFAULTS[number - 1]:
        number -= 1
    moment = state.deadline_ms or (state.silent_ms and state.silent_ms | SILENT)
    return STATE_HEADER.pack(moment, STATE_VERSION) + orjson.dumps(state[:number], default=list)


def decode_state(row: bytes) -> State:
    """Decode a row. Raises: RowUnreadable if it is damaged; StateUnreadable if a later release wrote it."""
    check_version(row, STATE_HEADER, DEADLINE_BYTES, STATE_VERSION, "a conversation's row")
    moment, _ = STATE_HEADER.unpack_from(row)
    try:
        state = _STATE.validate_json(row[STATE_HEADER.size :], strict=True)
    except ValidationError:  # its text quotes the row
        raise RowUnreadable(problem="a conversation's row is not an array of its fields") from None
    deadline_ms, silent_ms = (0, moment ^ SILENT) if moment & SILENT else (moment, 0)
    return state._replace(deadline_ms=deadline_ms, silent_ms=silent_ms)


def check_version(row: bytes, header: struct.Struct, place: int, known: int, name: str) -> None:
    """Refuse rows of other versions.

    `place` is the position of the version byte, and `name` describes the row in the error. Raises: RowUnreadable for a
    damaged row; StateUnreadable for one that a later release may have written, because then this worker is wrong about
    every row.
    """
    version = int.from_bytes(row[place : place + 1])
    if version in LATER_VERSIONS:
        raise StateUnreadable(problem=f"{name} is of version {version}, which only a later release can read")
    if version != known:
        raise RowUnreadable(problem=f"{name} has no valid version")
    if len(row) < header.size:
        raise RowUnreadable(problem=f"{name} is cut off")


def event_time(sent_ms: int, record_ms: int) -> int:
    """Return when a message was sent, in milliseconds since 1970, but no later than its record's timestamp.

    Nothing is sent after it was recorded, so a `sent_at` later than the record's timestamp comes from a clock that is
    ahead. A record without a timestamp (−1) neither confirms nor refutes anything.
    """
    return min(sent_ms, record_ms) if record_ms > 0 else sent_ms


def deadline_of(row: bytes) -> int | None:
    """Return the moment at which a row is due, in milliseconds since 1970; None if never, or if the row is damaged.

    While messages are pending, this is their idle timeout. Otherwise it is the time at which the conversation fell
    silent, or 0 if the row does not say; the engine adds the forgetting period. A damaged row is never due, since it
    would stay due for ever.
    """
    try:
        state = decode_state(row)
    except RowUnreadable:
        return None
    except StateUnreadable:  # the worker must stop at such a row, so the row has to come due
        return (int.from_bytes(row[:DEADLINE_BYTES]) & ~SILENT) or None
    if state.pending_messages:
        return state.deadline_ms or None
    return None if state.is_stub else IdleSince(state.silent_ms)


class Body(NamedTuple):
    """A message's row: what its episode will carry, and where episodes were sealed around it."""

    digest: bytes
    """Digest of the message's id."""
    json: bytes
    """An `EpisodeMessage` as the episode will carry it; empty if the message was deleted while it was here."""
    tokens: int
    offset: int
    """Offset of its record."""
    is_continuation: bool | None = None
    """False if the message says that it begins another topic."""
    sealed_before: CloseReason | None = None
    """Reason for which the episode before this message was sealed, if it was."""
    sealed_after: CloseReason | None = None
    trace: bytes = b""
    """Trace id, span id and flags of the message's record, if tracing is on and it had them. The event does not carry
    them."""

    @property
    def is_gone(self) -> bool:
        return not self.json


def encode_body(body: Body) -> bytes:
    header = BODY_HEADER.pack(
        body.digest,
        BODY_VERSION,
        body.tokens,
        body.offset,
        SEALS.index(body.sealed_before),
        SEALS.index(body.sealed_after),
        CONTINUATIONS.index(body.is_continuation),
        len(body.trace),
    )
    return header + body.trace + body.json


def decode_body(row: bytes) -> Body | None:
    """Decode a row; None for a stripped one, whose message is in an emitted episode.

    Raises: RowUnreadable, StateUnreadable.
    """
    if len(row) == DIGEST_BYTES:
        return None
    check_version(row, BODY_HEADER, DIGEST_BYTES, BODY_VERSION, "a message's row")
    digest, _, tokens, offset, before, after, continuation, trace_length = BODY_HEADER.unpack_from(row)
    end = BODY_HEADER.size + trace_length
    if max(before, after) >= len(SEALS) or continuation >= len(CONTINUATIONS) or end > len(row):
        raise RowUnreadable(problem="a message's row has an unknown seal, continuation or trace")
    return Body(
        digest=digest,
        json=row[end:],
        tokens=tokens,
        offset=offset,
        is_continuation=CONTINUATIONS[continuation],
        sealed_before=SEALS[before],
        sealed_after=SEALS[after],
        trace=row[BODY_HEADER.size : end],
    )


def digest_of(row: bytes) -> bytes:
    """Return the digest of the message's id, with which both whole and stripped rows begin."""
    return row[:DIGEST_BYTES]


class Scope(NamedTuple):
    """A conversation, or an agent's part of one, whose messages share one numbering and are pending together."""

    conversation_id: str
    agent_id: str | None = None

    @property
    def named_agent(self) -> str | None:
        """The agent's id as episodes carry it."""
        return self.agent_id or None


def record_key(conversation_id: str) -> bytes:
    """Return the key of a conversation's records on both topics."""
    return conversation_id.encode()


def scope_key(scope: Scope) -> bytes:
    """Return the scope's key in the table of conversations. For a whole conversation it is the key of its records."""
    agent = b"" if scope.agent_id is None else AGENT_SEPARATOR + scope.agent_id.encode()
    return scope.conversation_id.encode() + agent


def parse_scope(key: bytes) -> Scope:
    """Return the scope that a key of the table of conversations stands for. Raises: RowUnreadable."""
    conversation, separator, agent = key.partition(AGENT_SEPARATOR)
    try:
        return Scope(conversation.decode(), agent.decode() if separator else None)
    except UnicodeDecodeError:
        raise RowUnreadable(problem="the row's key is not UTF-8") from None


def prefix(scope: Scope) -> bytes:
    """Return the prefix of the keys of a scope's messages: the length of its key (2 bytes, big-endian) and the key."""
    name = scope_key(scope)
    return len(name).to_bytes(LENGTH_BYTES) + name


def body_key(prefix: bytes, seq: int) -> bytes:
    """Return the key of a body; keys are ordered as the messages are."""
    return prefix + BODY_KIND + seq.to_bytes(SEQ_BYTES)


def seen_key(prefix: bytes, digest: bytes) -> bytes:
    return prefix + SEEN_KIND + digest


def id_digest(message_id: str) -> bytes:
    return blake2b(message_id.encode(), digest_size=DIGEST_BYTES).digest()


def text_digest(message: MessageCreated, user: str | None = None) -> bytes:
    """Return digests of the writer and of the content, which tell a repeated message from a changed one.

    `user` is the `user_digest` of its user, if it is another than the message's. The id goes into them too, so that the
    state does not show which messages have the same text.
    """
    role, user_id, agent_id = message.writer
    named = "\0".join((message.id, role, user or user_digest(user_id), agent_id))
    writer = blake2b(named.encode(), digest_size=WRITER_BYTES).digest()
    text = sha256(f"{message.id}\0".encode())  # processors have instructions for it, which halve the time
    text.update(message.content.encode())
    return writer + text.digest()[:TEXT_BYTES]


def decode_seq(value: bytes) -> int:
    """Return the number that a row of a seen id begins with; the `text_digest` follows it."""
    return int.from_bytes(value[:SEQ_BYTES])


def parse_key(key: bytes) -> tuple[Scope, int | None]:
    """Return the scope of a row of messages and the number of its message, or None if the row only marks an id as seen.

    Raises: RowUnreadable.
    """
    end = LENGTH_BYTES + int.from_bytes(key[:LENGTH_BYTES])
    name, kind, rest = key[LENGTH_BYTES:end], key[end : end + 1], key[end + 1 :]
    if kind == BODY_KIND and len(rest) == SEQ_BYTES:
        return parse_scope(name), decode_seq(rest)
    if kind == SEEN_KIND and len(rest) == DIGEST_BYTES:
        return parse_scope(name), None
    raise RowUnreadable(problem="a row of the messages has a key of the wrong form")


class StagedStates:
    """States by scope, with the changes of one record, which are kept or dropped as a whole.

    Each row is read once per batch, and written once, at its end.
    """

    def __init__(self, table: Rows, *, per_agent: bool) -> None:
        self._table = table
        self._per_agent = per_agent
        self._before: dict[Scope, State | None] = {}
        """States as in the rows."""
        self._states: dict[Scope, State | None] = {}
        self._undo: dict[Scope, State | None] = {}
        """States as they were before the record."""

    def get(self, scope: Scope) -> State | None:
        """Raises: RowUnreadable, StateUnreadable (also if the row was made under another `episodes.scope`)."""
        if scope in self._states:
            return self._states[scope]
        row = self._table.get(scope_key(scope))
        state = None if row is None else decode_state(row)
        has_agents = state is not None and state.agents is not None
        should_have = self._per_agent and scope.agent_id is None
        if state and (has_agents != should_have or (scope.agent_id is not None and not self._per_agent)):
            problem = "it was made with another episodes.scope, which needs ids and topics of its own"
            raise StateUnreadable(problem=problem)
        self._before[scope] = self._states[scope] = state
        return state

    def __setitem__(self, scope: Scope, state: State) -> None:
        self._undo.setdefault(scope, self.get(scope))
        self._states[scope] = state

    def keep(self) -> None:
        self._undo.clear()

    def drop(self) -> None:
        self._states |= self._undo
        self._undo.clear()

    def write(self) -> None:
        for scope, state in self._states.items():
            if state and state != self._before[scope]:
                self._table[scope_key(scope)] = encode_state(state)


class StagedRows:
    """The table of messages with the changes of one record, which are kept or dropped as a whole."""

    def __init__(self, table: Rows) -> None:
        self._table = table
        self._changes: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> bytes | None:
        return self._changes[key] if key in self._changes else self._table.get(key)

    def __setitem__(self, key: bytes, row: bytes) -> None:
        self._changes[key] = row

    def __delitem__(self, key: bytes) -> None:
        self._changes[key] = None

    def keep(self) -> int:
        """Write the changes; return their bytes."""
        written = 0
        for key, row in self._changes.items():
            written += RECORD_BYTES + len(key) + len(row or b"")
            if row is not None:
                self._table[key] = row
            elif self._table.get(key) is not None:  # the row may be new, and deleted by the same record
                del self._table[key]
        self._changes.clear()
        return written

    def drop(self) -> None:
        self._changes.clear()
