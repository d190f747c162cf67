"""Cutting long input: messages that must stay together, and texts that lose their middle. Pure functions."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from afterword.schemas.messages import Role

MARKER_CHARACTERS = 40
"""Length of the note that replaces an omitted middle; omitting less than this would make the text longer."""
LONGEST_WORD = 40
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uff01-\uff0f\U00020000-\U0002ffff]"
)
"""Characters of scripts without spaces; a text may be cut next to each of them."""


class Spoken(Protocol):
    """A message of an episode or of the archive."""

    @property
    def role(self) -> Role: ...

    @property
    def tools(self) -> Sequence[str]: ...


def groups(messages: Sequence[Spoken]) -> list[range]:
    """Group messages, by index, that are never split: a tool's call with its results. Any other message is a group of
    its own.

    A message with the role `tool` is a result. It belongs to the latest message that names `tools`, unless the user has
    spoken since; then, or if no message names any, to the message right before it.
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
    """Pack adjacent items, by index, into as few runs of at most `room` as possible, and as evenly as possible.

    An item over the limit gets a run to itself.
    """
    fewest = len(_filled(sizes, room))
    even = bisect_left(range(room), True, key=lambda smaller: len(_filled(sizes, smaller)) <= fewest)
    return _filled(sizes, even)


def water_level(sizes: Sequence[int], total: int) -> int:
    """Find the largest size to which all larger ones can be cut so that their sum is at most `total`."""
    left = total
    for taken, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - taken)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0)


def without_middle(text: str, characters: int) -> str:
    """Keep at most `characters` of the beginning and the end, where people say what they want.

    A note between them says how many characters are omitted. Where words are separated by spaces, no word or number is
    cut in two: half of 4711 would be a different number.
    """
    if len(text) <= characters + MARKER_CHARACTERS:
        return text
    head, tail = both_ends(text, characters)
    return f"{head} [… {len(text) - len(head) - len(tail):,} characters left out …] {tail}"


def both_ends(text: str, characters: int) -> tuple[str, str]:
    """Return the beginning and the end of a longer text, at most `characters` together, cut as in `without_middle`."""
    half = characters // 2
    return text[: word_boundary(text, characters - half, -1)], text[word_boundary(text, len(text) - half, 1) :]


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


def word_boundary(text: str, at: int, step: int) -> int:
    """Find the next place in the direction of `step` that is not inside a word, or return `at` if none is near."""
    near = range(at, at + step * LONGEST_WORD, step)
    return next((place for place in near if not 0 < place < len(text) or not _inside_word(text, place)), at)


def _inside_word(text: str, place: int) -> bool:
    before, after = text[place - 1], text[place]
    return not (before.isspace() or after.isspace() or _UNSPACED.match(before) or _UNSPACED.match(after))
