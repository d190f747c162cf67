"""Where an episode may be cut into parts, and where it is."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from afterword.schemas.messages import Role


class Spoken(Protocol):
    """A message, of an episode or of the archive."""

    @property
    def role(self) -> Role: ...

    @property
    def tools(self) -> Sequence[str]: ...


def groups(messages: Sequence[Spoken]) -> list[range]:
    """Runs of messages, by index, that are never torn apart: a tool's call and its results; any other message alone.

    A message of the role `tool` is a result. Its call is the latest message that names `tools`, unless the user has
    spoken since: then, and where no message names any, the one right before it.
    """
    starts: list[int] = []
    call, answered = -1, True
    for at, message in enumerate(messages):
        if message.role == "tool" and starts:
            while starts[-1] > call >= 0:
                starts.pop()
            answered = True
            continue
        starts.append(at)
        if message.tools and (answered or call < 0):
            call, answered = at, False
        elif message.role == "user":
            call = -1
    return _runs(starts, len(messages))


def packed(sizes: Sequence[int], room: int) -> list[range]:
    """Neighbours put together, by index, as long as they fit into the room: as few runs as can be, and even ones.

    Whatever is larger than the room is a run of its own.
    """
    fewest = len(_filled(sizes, room))
    even = bisect_left(range(room), True, key=lambda smaller: len(_filled(sizes, smaller)) <= fewest)
    return _filled(sizes, even)


def _filled(sizes: Sequence[int], room: int) -> list[range]:
    starts: list[int] = []
    taken = 0
    for at, size in enumerate(sizes):
        if not starts or taken + size > room:
            starts.append(at)
            taken = 0
        taken += size
    return _runs(starts, len(sizes))


def _runs(starts: Sequence[int], end: int) -> list[range]:
    return [range(first, following) for first, following in pairwise([*starts, end])]
