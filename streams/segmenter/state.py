"""Rows of the segmenter's two tables, and their keys: what is kept between batches, and how it is written.

`conversations` has a row of counters for each scope. `messages` has a row for the body of each message and one for the
digest of its id. No two conversations or messages share a key, whatever characters their ids have.
"""

import struct
from collections.abc import Container
from hashlib import blake2b
from itertools import product
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

STATE_VERSION = 5
WITHOUT_GONE = 4
"""Version of a row without the counts of deleted messages, as most conversations have it."""
STUB_VERSION = 6
"""Version of a row of which only the stub is left."""
TOPIC_VERSION = 7
"""Version of a row with what the topic model keeps: its length in one byte, and itself, stand before the JSON."""
UNHEARD_VERSION = 8
"""Version of such a row with messages that the model has not heard yet."""
WITH_TOPIC = (TOPIC_VERSION, UNHEARD_VERSION)
DEADLINE_BYTES = 8
TOPIC_START = DEADLINE_BYTES + 2
SILENT = 1 << 63
"""Flag in the deadline's bytes: they say since when nothing is pending."""
MAX_DEADLINE_MS = 2**53
"""Milliseconds since 1970; later than any calendar, and still an exact float."""

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

BODY_VERSION = 1
HEADER = struct.Struct(">BIqBB")
HEADER_END = DIGEST_BYTES + HEADER.size
SHIFTS = 0x80
"""Flag in the byte of `sealed_before`: the message began another topic, whether or not that sealed an episode."""
CONTINUES = 0x40
"""Flag in the byte of `sealed_before`: the message says that it goes on, so that no text may say otherwise."""
RULES_BIT = 2
RULES = 0b1111 << RULES_BIT
"""Bits in the byte of `sealed_before`: version of the topic model that found the shift; 0: none did."""
TRACED = 0x80
"""Flag in the byte of `sealed_after`: a trace stands before the JSON."""
TRACE_BYTES = 25
SEALS: tuple[CloseReason | None, ...] = (None, "topic_shift", "max_size")
"""Their positions are stored: append only."""
_SEAL_NUMBERS = {seal: number for number, seal in enumerate(SEALS)}


class Rows(Protocol):
    """A table, or a dictionary of bytes."""

    def get(self, key: bytes, /) -> bytes | None: ...
    def __setitem__(self, key: bytes, value: bytes, /) -> None: ...
    def __delitem__(self, key: bytes, /) -> None: ...


class State(NamedTuple):
    """Counters of a conversation, or of an agent's part of one: the row stays small however long an episode gets.

    A `seq` numbers accepted messages from 0; ranges are half open. `overlap_first … first_pending`: shown again to the
    LLM with the next episode. `first_pending … open_first`: sealed, not emitted. `open_first … next_seq`: the open
    episode. Each `open_…` counter has a `pending_…` one, so that a tail that stays is counted exactly.
    """

    tenant_id: str | None
    next_seq: int = 0
    window_first: int = 0
    """Rows of messages before this one are deleted."""
    overlap_first: int = 0
    first_pending: int = 0
    open_first: int = 0
    open_tokens: int = 0
    open_bytes: int = 0
    pending_tokens: int = 0
    last_ordinal: int = 0
    last_sent_ms: int = 0
    latest_record_ms: int = 0
    """The latest of all records' timestamps so far."""
    open_turns: int = 0
    pending_turns: int = 0
    open_text_bytes: int = 0
    pending_text_bytes: int = 0
    open_longest: int = 0
    """Characters of the longest message, stripped of white space."""
    pending_longest: int = 0
    since_ms: int | None = None
    """Event time, milliseconds since 1970, from which `seconds` count; None: from the next message."""
    overrides: str = ""
    """JSON of the conversation's own settings; empty where it has none."""
    agents: list[str] | None = None
    """Active agents of the conversation, the one named last at the end; None with `scope = conversation`."""
    pending_bytes: int = 0
    latest_event_ms: int = 0
    """The latest of all event times so far, each at most its record's timestamp: a clock that never goes back."""
    taken_to: int = 0
    """Records before this offset were taken by a state that was lost: they are in episodes already."""
    open_gone: int = 0
    """Messages of the open episode that were deleted: their numbers stay."""
    pending_gone: int = 0
    unheard: int = 0
    """The last so many messages of the open episode, which the topic model has not heard yet: topics may end there."""
    deadline_ms: int = 0
    """Wall clock, milliseconds since 1970; 0: nothing is pending."""
    silent_ms: int = 0
    """Wall clock since which nothing is pending, milliseconds since 1970; 0: something is, or it is not known."""
    topic: bytes = b""
    """Row of the topic model that decides about the open episode; empty: none does."""

    @property
    def open_messages(self) -> int:
        return self.next_seq - self.open_first - self.open_gone

    @property
    def pending_messages(self) -> int:
        return self.next_seq - self.first_pending - self.pending_gone

    @property
    def stub(self) -> "State":
        """Remainder of a conversation that is forgotten: no id is used twice, and no tenant takes another's place."""
        return State(self.tenant_id, last_ordinal=self.last_ordinal, agents=None if self.agents is None else [])

    @property
    def is_stub(self) -> bool:
        return not self.next_seq and self == self.stub


COUNTERS = State._fields.index("deadline_ms")
NEXT_SEQ, FIRST_PENDING, PENDING_GONE = map(State._fields.index, ("next_seq", "first_pending", "pending_gone"))
COUNTERS_V1 = State._fields.index("open_turns")
COUNTERS_V2 = State._fields.index("pending_bytes")
COUNTERS_V3 = State._fields.index("taken_to")
COUNTERS_V4 = State._fields.index("open_gone")
COUNTERS_V5 = State._fields.index("unheard")
FIELDS = {
    1: COUNTERS_V1,
    2: COUNTERS_V2,
    3: COUNTERS_V3,
    WITHOUT_GONE: COUNTERS_V4,
    STATE_VERSION: COUNTERS_V5,
    TOPIC_VERSION: COUNTERS_V5,
    UNHEARD_VERSION: COUNTERS,
}
"""Number of the state's fields that a row has, by its version."""
ABSENT = {version: State(None)[count:COUNTERS] for version, count in FIELDS.items()}
"""Values of the counters that it does not have."""
LATER_VERSIONS = range(1, 32)
"""Versions that a later release may write, beside those known here; any other one is damage."""
NULL = type(None)
FIELD_TYPES = tuple(
    {"tenant_id": (str, NULL), "since_ms": (int, NULL), "overrides": (str,), "agents": (list, NULL)}.get(name, (int,))
    for name in State._fields
)
STUB_TYPES: tuple[tuple[type, ...], ...] = ((str, NULL), (int,), (list,))
"""The last one only where the conversation has agents."""
SIGNATURES = {version: frozenset(product(*FIELD_TYPES[:count])) for version, count in FIELDS.items()}
SIGNATURES[STUB_VERSION] = frozenset(product(*STUB_TYPES[:2])) | frozenset(product(*STUB_TYPES))
"""Types that the fields of a row may have, all together, by its version: one look-up checks a row."""


def encode_state(state: State) -> bytes:
    """8 bytes of deadline (big-endian milliseconds since 1970, 0 for none), a version byte, a JSON array.

    Where nothing is pending, the deadline is instead the moment since when, with the flag SILENT.
    """
    if state.is_stub:
        stub = [state.tenant_id, state.last_ordinal] + ([] if state.agents is None else [state.agents])
        return bytes(DEADLINE_BYTES) + bytes((STUB_VERSION,)) + orjson.dumps(stub)
    moment = (state.deadline_ms or (state.silent_ms and state.silent_ms | SILENT)).to_bytes(DEADLINE_BYTES)
    if state.topic:
        topic = state.topic
        version = UNHEARD_VERSION if state.unheard else TOPIC_VERSION
        return moment + bytes((version, len(topic))) + topic + orjson.dumps(state[: FIELDS[version]])
    has_gone = state.open_gone or state.pending_gone
    version = STATE_VERSION if has_gone else WITHOUT_GONE  # shorter, and the release before can read it
    return moment + bytes((version,)) + orjson.dumps(state[: FIELDS[version]])


def decode_state(row: bytes) -> State:
    """Read a row of this version, or of an earlier one, which has fewer fields. Raises: StateUnreadable.

    Turns, bytes of text and lengths, which version 1 did not have, start at 0. The bytes of what is pending, which
    version 2 did not have, start at the lowest number that they can be, and its clock at the last message.
    """
    version, start, fields = _fields_of(row)
    if version == STUB_VERSION:
        tenant_id, last_ordinal, *agents = fields
        return State(tenant_id, last_ordinal=last_ordinal, agents=[] if agents else None)
    moment = int.from_bytes(row[:DEADLINE_BYTES])
    deadline_ms, silent_ms = (0, moment ^ SILENT) if moment & SILENT else (moment, 0)
    topic = row[TOPIC_START:start] if start > TOPIC_START else b""
    state = State._make((*fields, *ABSENT[version], deadline_ms, silent_ms, topic))
    if len(fields) >= COUNTERS_V3:
        return state
    return state._replace(
        pending_bytes=max(state.open_bytes, state.pending_text_bytes),
        latest_event_ms=event_time(state.last_sent_ms, state.latest_record_ms),
    )


def _fields_of(row: bytes) -> tuple[int, int, list[Any]]:
    """Version of a row, position of its JSON, and the fields. Raises: StateUnreadable."""
    version = int.from_bytes(row[DEADLINE_BYTES : DEADLINE_BYTES + 1])
    check_version(version, SIGNATURES, "a conversation's row")
    start = DEADLINE_BYTES + 1
    if version in WITH_TOPIC:
        size = int.from_bytes(row[start:TOPIC_START])
        start = TOPIC_START + size
        if size not in shifts.ROW_BYTES:
            raise RowUnreadable(problem="a conversation's row has another length of topic")
    try:
        found = orjson.loads(row[start:])
    except orjson.JSONDecodeError:
        raise RowUnreadable(problem="a conversation's row is not JSON") from None
    fields = found[: FIELDS.get(version, len(STUB_TYPES))] if isinstance(found, list) else []
    if tuple(map(type, fields)) not in SIGNATURES[version]:
        raise RowUnreadable(problem="a conversation's row has other fields")
    return version, start, fields


def check_version(version: int, known: Container[int], row: str) -> None:
    """Refuse rows of other versions. `row`: what it is, for the error.

    Raises: RowUnreadable for a damaged row; StateUnreadable for one that a later release may have written, because then
    it is this worker that is wrong, and for all rows.
    """
    if version in known:
        return
    if version in LATER_VERSIONS:
        raise StateUnreadable(problem=f"{row} is of version {version}, which only a later release can read")
    raise RowUnreadable(problem=f"{row} is of no version")


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
    moment = int.from_bytes(row[:DEADLINE_BYTES])
    if not moment and not forget_after_ms:
        return None
    try:
        version, _, fields = _fields_of(row)
    except RowUnreadable:
        return None
    except StateUnreadable:  # it stops the worker, and is not to be overlooked
        return moment & ~SILENT or None
    if version == STUB_VERSION:
        return None
    gone = fields[PENDING_GONE] if len(fields) > PENDING_GONE else 0
    if fields[NEXT_SEQ] - fields[FIRST_PENDING] - gone:
        return moment or None
    return Expiry(min((moment & ~SILENT) + forget_after_ms, MAX_DEADLINE_MS)) if forget_after_ms else None


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

    json: bytes
    """An `EpisodeMessage` as the episode will carry it; empty for a message that was deleted while it was here."""
    tokens: int
    offset: int
    """Offset of its record."""
    sealed_before: CloseReason | None
    """Reason why the episode before this message was sealed with it."""
    sealed_after: CloseReason | None
    shifts: bool = False
    """Its `is_continuation` is false."""
    trace: bytes = b""
    """Trace id, span id and flags of the message's record, where tracing is on and it had them. Not for the event."""
    continues: bool = False
    """Its `is_continuation` is true; kept only where texts are looked at for topics."""
    topic_model: int = 0
    """Version of the model that found that it shifts; 0: none did."""

    @property
    def is_continuation(self) -> bool | None:
        return False if self.shifts else True if self.continues else None

    @property
    def is_gone(self) -> bool:
        return not self.json


def encode_body(digest: bytes, body: Body) -> bytes:
    """`digest`: of the message's id."""
    flags = (SHIFTS if body.shifts else 0) | (CONTINUES if body.continues else 0)
    before = _SEAL_NUMBERS[body.sealed_before] | flags | body.topic_model << RULES_BIT
    after = _SEAL_NUMBERS[body.sealed_after] | (TRACED if body.trace else 0)
    return digest + HEADER.pack(BODY_VERSION, body.tokens, body.offset, before, after) + body.trace + body.json


def decode_body(value: bytes) -> Body | None:
    """None for a stripped row, whose message is in an emitted episode. Raises: StateUnreadable."""
    if len(value) == DIGEST_BYTES:
        return None
    check_version(int.from_bytes(value[DIGEST_BYTES : DIGEST_BYTES + 1]), (BODY_VERSION,), "a message's row")
    if len(value) < HEADER_END:
        raise RowUnreadable(problem="a message's row is cut off")
    _, tokens, offset, before, after = HEADER.unpack_from(value, DIGEST_BYTES)
    seal_before, seal_after = before & ~(SHIFTS | CONTINUES | RULES), after & ~TRACED
    if max(seal_before, seal_after) >= len(SEALS):
        raise RowUnreadable(problem="a message's row has an unknown seal")
    end = HEADER_END + (TRACE_BYTES if after & TRACED else 0)
    seals = SEALS[seal_before], SEALS[seal_after]
    shifts, continues, model = bool(before & SHIFTS), bool(before & CONTINUES), (before & RULES) >> RULES_BIT
    return Body(value[end:], tokens, offset, *seals, shifts, value[HEADER_END:end], continues, model)


def digest_of(value: bytes) -> bytes:
    """Digest of the message's id: whole rows and stripped ones both begin with it."""
    return value[:DIGEST_BYTES]


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
