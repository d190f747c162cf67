"""A message in the table: what its episode will carry, and where episodes were sealed around it."""

import struct
from typing import NamedTuple

from afterword.schemas import CloseReason
from afterword.streams.errors import StateUnreadable
from afterword.streams.segmenter.keys import DIGEST_BYTES

VERSION = 1
HEADER = struct.Struct(">BIqBB")
HEADER_END = DIGEST_BYTES + HEADER.size
SHIFTS = 0x80
"""In the byte of the seal before: the message began another topic, whether or not that sealed anything."""
TRACED = 0x80
"""In the byte of the seal after: a trace stands before the JSON."""
TRACE_BYTES = 25

SEALS: tuple[CloseReason | None, ...] = (None, "topic_shift", "max_size")
"""Their positions are stored: append only."""


class Body(NamedTuple):
    json: bytes
    """An `EpisodeMessage` as the episode will carry it."""
    tokens: int
    offset: int
    """Where it was read."""
    sealed_before: CloseReason | None
    """Why the episode before this message was sealed with it."""
    sealed_after: CloseReason | None
    shifts: bool = False
    """Its `is_continuation` is false."""
    trace: bytes = b""
    """Where tracing is on and the message's record named one: its trace id, span id and flags. Not for the event."""


def encode_body(digest: bytes, body: Body) -> bytes:
    """`digest`: of the message's id."""
    before = SEALS.index(body.sealed_before) | (SHIFTS if body.shifts else 0)
    after = SEALS.index(body.sealed_after) | (TRACED if body.trace else 0)
    return digest + HEADER.pack(VERSION, body.tokens, body.offset, before, after) + body.trace + body.json


def decode_body(value: bytes) -> Body | None:
    """None for a stripped row: the message is in an episode that was emitted. Raises: StateUnreadable."""
    if len(value) == DIGEST_BYTES:
        return None
    if value[DIGEST_BYTES : DIGEST_BYTES + 1] != bytes((VERSION,)):
        raise StateUnreadable(problem=f"a message's row is not of version {VERSION}")
    _, tokens, offset, before, after = HEADER.unpack_from(value, DIGEST_BYTES)
    end = HEADER_END + (TRACE_BYTES if after & TRACED else 0)
    seals = SEALS[before & ~SHIFTS], SEALS[after & ~TRACED]
    return Body(value[end:], tokens, offset, *seals, bool(before & SHIFTS), value[HEADER_END:end])


def digest_of(value: bytes) -> bytes:
    """Of the message's id; whole rows and stripped ones both begin with it."""
    return value[:DIGEST_BYTES]
