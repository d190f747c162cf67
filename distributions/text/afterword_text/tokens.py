"""Token counts by a BPE tokenizer whose vocabulary is part of its wheel, and what fits into a budget of them."""

import ctypes
import mmap
import sys
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from afterword_text.messages import Spoken
from afterword_text.visible import without_surrogates

PACKAGE = "bpe_openai"
EXTENSION = "_bindings"
ENCODING = "o200k_base"
"""The same for all models, so that limits stay the same when the model changes."""

TOKENIZER_MARGIN = 1.3
"""Upper bound for the ratio of other models' token counts to ours."""

PIECE_CHARACTERS = 50_000
"""Safe length of a text: the tokenizer refuses more than 200,000 tokens, and a character may take four."""

COUNTED_CHARACTERS = 10_000
"""Length up to which a message is counted as a whole; half a megabyte would take 20 ms and more."""

KEPT_COUNTS, KEPT_CHARACTERS = 2048, 1000
"""The counts of this many texts of at most this length are kept: several parts of a process count the same ones."""


def count_tokens(text: str) -> int:
    """Count BPE tokens; control tokens count as plain text.

    A text longer than PIECE_CHARACTERS is counted in pieces of that length; each cut may add a token.
    """
    if len(text) <= KEPT_CHARACTERS:
        return _kept_count(text)
    return sum(map(_count, (text[at : at + PIECE_CHARACTERS] for at in range(0, len(text), PIECE_CHARACTERS))))


def _count(text: str) -> int:
    return int(_tokenizer().count(without_surrogates(text)))


_kept_count = lru_cache(KEPT_COUNTS)(_count)


def message_tokens(content: str) -> int:
    """Count the tokens of a message. The middle of a long one is taken to have as many per character as its ends."""
    if len(content) <= COUNTED_CHARACTERS:
        return count_tokens(content)
    half = COUNTED_CHARACTERS // 2
    return round(count_tokens(content[:half] + content[-half:]) * len(content) / COUNTED_CHARACTERS)


def token_ids(text: str) -> list[int]:
    """Encode a short text. The lower an id, the more frequent the token was in the vocabulary's training data."""
    return list(_tokenizer().encode(without_surrogates(text)))


@cache
def _tokenizer() -> Any:
    """Load the extension with its built-in vocabulary: 50 ms and 33 MB, once per process.

    The package around it is not imported: it would decode all its vocabularies into dictionaries that nothing here
    uses, at a cost of 0.5 s and another 75 MB per worker. Raises: ImportError.
    """
    package = find_spec(PACKAGE)
    spec = package and PathFinder.find_spec(EXTENSION, package.submodule_search_locations)
    if not spec or not spec.loader:
        raise ImportError(f"{PACKAGE} has no extension {EXTENSION}", name=PACKAGE)
    extension = module_from_spec(spec)
    spec.loader.exec_module(extension)
    tokenizer = extension.tokenizer_for_encoding(ENCODING)
    if sys.platform == "linux":
        _release_constants(str(spec.origin))
    return tokenizer


def _release_constants(library: str) -> None:
    """Give back the memory of a shared library's constants: the packed vocabulary, 32 MB, was needed only once.

    These are pages of a file that nobody writes to, so pages that are needed again are read again. The constants are in
    the first mapping, unless the linker put them elsewhere; data that was written to, such as address tables, is never
    there.
    """
    libc = ctypes.CDLL(None)
    for mapping in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, offset, *_, name = mapping.split(maxsplit=5)
        if name.strip() == library and access == "r--p" and int(offset, 16) == 0:
            begin, end = (int(address, 16) for address in addresses.split("-"))
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


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
