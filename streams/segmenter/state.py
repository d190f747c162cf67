"""What is known of messages that are numbered together: counters only, so that the row stays small however long an
episode gets."""

from typing import NamedTuple

import orjson

from afterword.streams.errors import StateUnreadable

VERSION = 2
DEADLINE_BYTES = 8
MAX_DEADLINE_MS = 2**53
"""Milliseconds since 1970; later than any calendar, and still an exact float."""


class State(NamedTuple):
    """A conversation, or an agent's part of one. A `seq` numbers its accepted messages from 0; ranges are half open.

    `overlap_first … first_pending`: shown again to the LLM with the next episode. `first_pending … open_first`: sealed,
    not emitted. `open_first … next_seq`: the open episode. What is counted of the open episode is counted of all that
    is pending too: a tail that stays is counted exactly when the rest was emitted.
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
    last_record_ms: int = 0
    open_turns: int = 0
    pending_turns: int = 0
    open_text_bytes: int = 0
    pending_text_bytes: int = 0
    open_longest: int = 0
    """Characters of the longest message, white space around it aside."""
    pending_longest: int = 0
    since_ms: int | None = None
    """Event time, milliseconds since 1970, from which `seconds` count; None: from the next message."""
    overrides: str = ""
    """JSON of the settings that the conversation has for itself; empty where it has none."""
    agents: list[str] | None = None
    """Active in the conversation, the one last named at the end; None where agents have no part of their own."""
    deadline_ms: int = 0
    """Wall clock, milliseconds since 1970; 0: nothing is pending."""

    @property
    def open_messages(self) -> int:
        return self.next_seq - self.open_first

    @property
    def pending_messages(self) -> int:
        return self.next_seq - self.first_pending


COUNTERS = len(State._fields) - 1
COUNTERS_V1 = State._fields.index("open_turns")


def encode_state(state: State) -> bytes:
    """8 bytes of deadline (big-endian milliseconds since 1970, 0 for none), a version byte, a JSON array."""
    return state.deadline_ms.to_bytes(DEADLINE_BYTES) + bytes((VERSION,)) + orjson.dumps(state[:COUNTERS])


def decode_state(row: bytes) -> State:
    """Of version 1, too, which did not count turns, bytes of text and length: then they count from here on.

    Raises: StateUnreadable when the row was written by another version.
    """
    version = row[DEADLINE_BYTES : DEADLINE_BYTES + 1]
    deadline_ms = int.from_bytes(row[:DEADLINE_BYTES])
    if version == b"\1":
        return State(*orjson.loads(row[DEADLINE_BYTES + 1 :])[:COUNTERS_V1])._replace(deadline_ms=deadline_ms)
    if version != bytes((VERSION,)):
        raise StateUnreadable(problem=f"a conversation's row is not of version {VERSION}")
    return State._make([*orjson.loads(row[DEADLINE_BYTES + 1 :]), deadline_ms])


def deadline_of(row: bytes) -> int | None:
    """When silence closes what is pending, in milliseconds since 1970; None when nothing is."""
    return int.from_bytes(row[:DEADLINE_BYTES]) or None
