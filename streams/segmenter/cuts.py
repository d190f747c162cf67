"""From messages that leave to episodes, and what an episode carries of the one before: pure functions."""

from collections.abc import Sequence
from itertools import accumulate, islice, takewhile
from typing import NamedTuple

from afterword.schemas import CloseReason

MAX_OVERLAP_BYTES = 100_000


class Emission(NamedTuple):
    """The messages `first … end` leave as episodes, split where they were sealed."""

    first: int
    end: int
    reason: CloseReason
    """Of the last episode, when it was not sealed."""


class Seals(NamedTuple):
    """Boundaries around one message, and why they are there."""

    before: CloseReason | None
    after: CloseReason | None


class Cut(NamedTuple):
    """The messages `first … end` are one episode."""

    first: int
    end: int
    reason: CloseReason


def split(emission: Emission, seals: Sequence[Seals]) -> list[Cut]:
    """The episodes of an emission.

    `seals`: of its messages in order, and of the message that follows them, if there is one: a boundary is on record
    with the message that made it.
    """
    cuts: list[Cut] = []
    start = emission.first
    for seq, (before, after) in enumerate(seals, emission.first):
        if before and start < seq:
            cuts.append(Cut(start, seq, before))
            start = seq
        if after and seq < emission.end:
            cuts.append(Cut(start, seq + 1, after))
            start = seq + 1
    if start < emission.end:
        cuts.append(Cut(start, emission.end, emission.reason))
    return cuts


def overlap_size(sizes: Sequence[int], overlap: int) -> int:
    """How many of an episode's last messages the next one carries, `overlap` at most.

    `sizes`: bytes of JSON of each core message.
    """
    totals = accumulate(islice(reversed(sizes), overlap))
    return sum(1 for _ in takewhile(lambda total: total <= MAX_OVERLAP_BYTES, totals))
