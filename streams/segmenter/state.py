"""Rows of the segmenter's two tables, and their keys: what is kept between batches, and how it is written.

`conversations` has a row of counters for each scope. `messages` has a row for the body of each message and one for the
digest of its id. No two conversations or messages share a key, whatever characters their ids have.
"""

import struct
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, Protocol

import orjson

from afterword.schemas import CloseReason
from afterword.streams.errors import RowUnreadable, StateUnreadable
from afterword.streams.runtime.database import Expiry
from afterword.streams.segmenter import shifts

CONVERSATIONS = "conversations"
MESSAGES = "messages"
TABLES = (CONVERSATIONS, MESSAGES)
"""Names of the tables; each has a changelog topic of its own."""

STATE_VERSION = 1
STATE_HEADER = struct.Struct(">QBB")
"""Deadline, version, and length of the topic model's row, which follows before the JSON."""
DEADLINE_BYTES = 8
SILENT = 1 << 63
"""Flag in the deadline: it is instead the time since when nothing is pending."""
MAX_DEADLINE_MS = 2**53
"""Milliseconds since 1970; later than any calendar, and still an exact float."""

BODY_VERSION = 1
BODY_HEADER = struct.Struct(">16sBIqBBBBB")
"""Digest of the id, version, tokens, offset, both seals, continuation, topic model, and length of the trace.

The trace and the message's JSON follow.
"""
LATER_VERSIONS = range(2, 32)
"""Versions that a later release may write; any other one is damage."""
SEALS: tuple[CloseReason | None, ...] = (None, "topic_shift", "max_size")
"""Their positions are stored: append only."""
CONTINUATIONS = (None, False, True)
"""Their positions are stored."""

BODY_KIND = b"m"
SEEN_KIND = b"i"
AGENT_SEPARATOR = b"\xff"
"""Separator of the ids of a conversation and an agent: a byte that UTF-8 never has."""
NOBODY = ""
"""Stands for an agent's id where no agent is active: messages that name none wait there for the first one."""
LENGTH_BYTES = 2
SEQ_BYTES = 8
DIGEST_BYTES = 16
"""128 bits: two ids of one conversation collide once in 2⁶⁴ messages."""


class Rows(Protocol):
    """A table, or a dictionary of bytes."""

    def get(self, key: bytes, /) -> bytes | None: ...
    def __setitem__(self, key: bytes, value: bytes, /) -> None: ...
    def __delitem__(self, key: bytes, /) -> None: ...


class Totals(NamedTuple):
    """Counters of a range of messages. All but `gone` count only those that were not deleted."""

    tokens: int = 0
    episode_bytes: int = 0
    """Bytes that they add to the JSON of their episodes."""
    turns: int = 0
    text_bytes: int = 0
    longest: int = 0
    """Characters of the longest message, stripped of white space."""
    gone: int = 0
    """Messages of the range that were deleted: their numbers stay."""


class State(NamedTuple):
    """Counters of a conversation, or of an agent's part of one: the row stays small however long an episode gets.

    A `seq` numbers accepted messages from 0; ranges are half open. `overlap_first … first_pending`: shown again to the
    LLM with the next episode. `first_pending … open_first`: sealed, not emitted. `open_first … next_seq`: the open
    episode.
    """

    tenant_id: str | None
    last_ordinal: int = 0
    agents: list[str] | None = None
    """Active agents of the conversation, the one named last at the end; None with `scope = conversation`."""
    overrides: str = ""
    """JSON of the conversation's own settings; empty where it has none."""
    since_ms: int | None = None
    """Event time, milliseconds since 1970, from which `seconds` count; None: from the next message."""
    next_seq: int = 0
    window_first: int = 0
    """Rows of messages before this one are deleted."""
    overlap_first: int = 0
    first_pending: int = 0
    open_first: int = 0
    last_sent_ms: int = 0
    latest_record_ms: int = 0
    """The latest of all records' timestamps so far."""
    latest_event_ms: int = 0
    """The latest of all event times so far, each at most its record's timestamp: a clock that never goes back."""
    taken_to: int = 0
    """Records before this offset were taken by a state that was lost: they are in episodes already."""
    pending: Totals = Totals()
    """Of all that is pending, the open episode included."""
    open: Totals = Totals()
    """Of the open episode."""
    topic: bytes = b""
    """Row of the topic model that decides about the open episode; empty: none does."""
    deadline_ms: int = 0
    """Wall clock, milliseconds since 1970; 0: nothing is pending."""
    silent_ms: int = 0
    """Wall clock since which nothing is pending, milliseconds since 1970; 0: something is, or it is not known."""

    @property
    def open_messages(self) -> int:
        return self.next_seq - self.open_first - self.open.gone

    @property
    def pending_messages(self) -> int:
        return self.next_seq - self.first_pending - self.pending.gone

    @property
    def stub(self) -> "State":
        """Remainder of a conversation that is forgotten: no id is used twice, and no tenant takes another's place."""
        return State(self.tenant_id, last_ordinal=self.last_ordinal, agents=None if self.agents is None else [])

    @property
    def is_stub(self) -> bool:
        return not self.next_seq and self == self.stub


_SINGLE = State._fields.index("pending")
"""Fields before the two totals."""
_DEFAULTS = [*State(None)[:_SINGLE], *Totals(), *Totals()]
"""What a row's JSON has at most, by default."""


def encode_state(state: State) -> bytes:
    """STATE_HEADER, the topic model's row, and a JSON array of the fields up to the last that is not at its default."""
    fields: list[Any] = [*state[:_SINGLE], *state.pending, *state.open]
    number = len(fields)
    while number > 1 and fields[number - 1] == _DEFAULTS[number - 1]:
        number -= 1
    moment = state.deadline_ms or (state.silent_ms and state.silent_ms | SILENT)
    header = STATE_HEADER.pack(moment, STATE_VERSION, len(state.topic))
    return header + state.topic + orjson.dumps(fields[:number])


def decode_state(row: bytes) -> State:
    """Raises: RowUnreadable for a damaged row; StateUnreadable for one of a later release."""
    check_version(row, STATE_HEADER, DEADLINE_BYTES, STATE_VERSION, "a conversation's row")
    moment, _, size = STATE_HEADER.unpack_from(row)
    start = STATE_HEADER.size + size
    if size and size not in shifts.ROW_BYTES:
        raise RowUnreadable(problem="a conversation's row has another length of topic")
    try:
        found = orjson.loads(row[start:])
    except orjson.JSONDecodeError:
        raise RowUnreadable(problem="a conversation's row is not JSON") from None
    if not isinstance(found, list) or not 0 < len(found) <= len(_DEFAULTS):
        raise RowUnreadable(problem="a conversation's row has another number of fields")
    fields: list[Any] = found + _DEFAULTS[len(found) :]
    if not _have_types(*fields):
        raise RowUnreadable(problem="a conversation's row has other fields")
    pending, unsealed = fields[_SINGLE : _SINGLE + len(Totals._fields)], fields[_SINGLE + len(Totals._fields) :]
    deadline_ms, silent_ms = (0, moment ^ SILENT) if moment & SILENT else (moment, 0)
    topic = row[STATE_HEADER.size : start]
    return State._make((*fields[:_SINGLE], Totals(*pending), Totals(*unsealed), topic, deadline_ms, silent_ms))


def _have_types(
    tenant_id: object, last_ordinal: object, agents: object, overrides: object, since_ms: object, *numbers: object
) -> bool:
    """Compare the types of numbers themselves, because a boolean is an integer for `isinstance`."""
    texts = (tenant_id is None or isinstance(tenant_id, str)) and isinstance(overrides, str)
    times = since_ms is None or type(since_ms) is int
    return texts and times and isinstance(agents, list | None) and {type(last_ordinal), *map(type, numbers)} == {int}


def check_version(row: bytes, header: struct.Struct, place: int, known: int, name: str) -> None:
    """Refuse rows of other versions. `place`: of the version's byte; `name`: what the row is, for the error.

    Raises: RowUnreadable for a damaged row; StateUnreadable for one that a later release may have written, because then
    it is this worker that is wrong, and for all rows.
    """
    version = int.from_bytes(row[place : place + 1])
    if version in LATER_VERSIONS:
        raise StateUnreadable(problem=f"{name} is of version {version}, which only a later release can read")
    if version != known:
        raise RowUnreadable(problem=f"{name} is of no version")
    if len(row) < header.size:
        raise RowUnreadable(problem=f"{name} is cut off")


def event_time(sent_ms: int, record_ms: int) -> int:
    """Return when a message was sent as far as its record confirms it; milliseconds since 1970.

    Nothing is sent after it was recorded: a `sent_at` beyond the record's timestamp is from a clock that is ahead.
    A record without a timestamp (-1) confirms nothing, and refutes nothing.
    """
    return min(sent_ms, record_ms) if record_ms > 0 else sent_ms


def deadline_of(row: bytes, forget_after_ms: int = 0) -> int | None:
    """Moment at which a row is due, in milliseconds since 1970; None: never, or the row is damaged.

    The idle timeout of what is pending. Where nothing is, an `Expiry`: when the conversation is forgotten, which is at
    once where the row does not say since when. `forget_after_ms`: 0: never. A damaged row is never due, or it would be
    due for ever.
    """
    try:
        state = decode_state(row)
    except RowUnreadable:
        return None
    except StateUnreadable:  # it stops the worker, and is not to be overlooked
        return (int.from_bytes(row[:DEADLINE_BYTES]) & ~SILENT) or None
    if state.pending_messages:
        return state.deadline_ms or None
    if not forget_after_ms or state.is_stub:
        return None
    return Expiry(min(state.silent_ms + forget_after_ms, MAX_DEADLINE_MS))


class Deadlines(NamedTuple):
    """`deadline_of` with the setting, for the engine."""

    forget_after_ms: int

    @property
    def rule(self) -> str:
        """Changes when rows that were written before may be due at another time."""
        return f"forgotten after {self.forget_after_ms} ms"

    def __call__(self, row: bytes) -> int | None:
        return deadline_of(row, self.forget_after_ms)


class Body(NamedTuple):
    """A message's row: what its episode will carry, and where episodes were sealed around it."""

    digest: bytes
    """Digest of the message's id."""
    json: bytes
    """An `EpisodeMessage` as the episode will carry it; empty for a message that was deleted while it was here."""
    tokens: int
    offset: int
    """Offset of its record."""
    is_continuation: bool | None = None
    """False: another topic begins with it, by what it says or by its text."""
    topic_model: int = 0
    """Version of the model that found that another topic begins with it; 0: none did."""
    sealed_before: CloseReason | None = None
    """Reason why the episode before this message was sealed with it."""
    sealed_after: CloseReason | None = None
    trace: bytes = b""
    """Trace id, span id and flags of the message's record, where tracing is on and it had them. Not for the event."""

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
        body.topic_model,
        len(body.trace),
    )
    return header + body.trace + body.json


def decode_body(row: bytes) -> Body | None:
    """None for a stripped row, whose message is in an emitted episode. Raises: RowUnreadable, StateUnreadable."""
    if len(row) == DIGEST_BYTES:
        return None
    check_version(row, BODY_HEADER, DIGEST_BYTES, BODY_VERSION, "a message's row")
    digest, _, tokens, offset, before, after, continuation, topic_model, trace_length = BODY_HEADER.unpack_from(row)
    end = BODY_HEADER.size + trace_length
    if max(before, after) >= len(SEALS) or continuation >= len(CONTINUATIONS) or end > len(row):
        raise RowUnreadable(problem="a message's row has an unknown seal, continuation or trace")
    return Body(
        digest=digest,
        json=row[end:],
        tokens=tokens,
        offset=offset,
        is_continuation=CONTINUATIONS[continuation],
        topic_model=topic_model,
        sealed_before=SEALS[before],
        sealed_after=SEALS[after],
        trace=row[BODY_HEADER.size : end],
    )


def digest_of(row: bytes) -> bytes:
    """Digest of the message's id: whole rows and stripped ones both begin with it."""
    return row[:DIGEST_BYTES]


class Scope(NamedTuple):
    """A set of messages that are pending and numbered together: those of a conversation, or an agent's part of one."""

    conversation_id: str
    agent_id: str | None = None

    @property
    def named_agent(self) -> str | None:
        """The agent's id as episodes carry it."""
        return self.agent_id or None


class Key(NamedTuple):
    """A parsed key of the table of messages."""

    scope: Scope
    kind: Literal["body", "seen"]
    seq: int | None
    """The number of a body's message."""
    digest: bytes | None
    """The digest of an id that was seen."""


def record_key(conversation_id: str) -> bytes:
    """Key of the records on both topics."""
    return conversation_id.encode()


def scope_key(scope: Scope) -> bytes:
    """Key in the table of conversations; that of a whole conversation is its records' key."""
    agent = b"" if scope.agent_id is None else AGENT_SEPARATOR + scope.agent_id.encode()
    return scope.conversation_id.encode() + agent


def parse_scope(key: bytes) -> Scope:
    """The scope of a key of the table of conversations. Raises: RowUnreadable."""
    conversation, found, agent = key.partition(AGENT_SEPARATOR)
    try:
        return Scope(conversation.decode(), agent.decode() if found else None)
    except UnicodeDecodeError:
        raise RowUnreadable(problem="its key is not UTF-8") from None


def prefix(scope: Scope) -> bytes:
    """The start of the keys of all its messages: length (2 bytes, big-endian) and key of the scope."""
    name = scope_key(scope)
    return len(name).to_bytes(LENGTH_BYTES) + name


def body_key(prefix: bytes, seq: int) -> bytes:
    """Key of a body; keys are ordered as the messages are."""
    return prefix + BODY_KIND + seq.to_bytes(SEQ_BYTES)


def seen_key(prefix: bytes, digest: bytes) -> bytes:
    """Key of an id that was seen. `digest`: of the message's id."""
    return prefix + SEEN_KIND + digest


def id_digest(message_id: str) -> bytes:
    return blake2b(message_id.encode(), digest_size=DIGEST_BYTES).digest()


def encode_seq(seq: int) -> bytes:
    """Row of an id that was seen."""
    return seq.to_bytes(SEQ_BYTES)


def decode_seq(value: bytes) -> int:
    return int.from_bytes(value)


def parse_key(key: bytes) -> Key:
    """Parse a key of the table of messages. Raises: RowUnreadable."""
    end = LENGTH_BYTES + int.from_bytes(key[:LENGTH_BYTES])
    name, kind, rest = key[LENGTH_BYTES:end], key[end : end + 1], key[end + 1 :]
    if kind == BODY_KIND and len(rest) == SEQ_BYTES:
        return Key(parse_scope(name), "body", int.from_bytes(rest), None)
    if kind == SEEN_KIND and len(rest) == DIGEST_BYTES:
        return Key(parse_scope(name), "seen", None, rest)
    raise RowUnreadable(problem="a row of the messages has a key of another form")
