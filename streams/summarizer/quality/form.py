"""What is wrong with a text whatever it is about: repeated, copied, too long."""

import zlib
from collections import Counter
from collections.abc import Sequence

GRAM = 4
FEWEST_GRAMS = 12
REPEATED_SHARE = 0.3
"""Of its runs of four words, those that it has had before; plain prose has under 0.1."""
STUTTER = 4
"""Times in a row that the same words may not stand."""
LONGEST_STUTTER = 30
"""Words of what is said again and again."""
COMPRESSED_CHARACTERS = 200
COMPRESSION = 3.5
"""Characters over compressed bytes; prose of this length has 1.3 to 2.2."""


def repeats_itself(words: Sequence[str], text: str) -> bool:
    """It loops, as models do: the same words again and again."""
    return repeated_share(words) > REPEATED_SHARE or stutters(words) or _compresses(text)


def repeated_share(words: Sequence[str]) -> float:
    """0 … 1; 0 for a text too short to tell."""
    grams = Counter(tuple(words[i : i + GRAM]) for i in range(len(words) - GRAM + 1))
    total = grams.total()
    return 1 - len(grams) / total if total >= FEWEST_GRAMS else 0.0


def stutters(words: Sequence[str]) -> bool:
    """The same words, up to LONGEST_STUTTER of them, stand STUTTER times in a row."""
    for size in range(1, LONGEST_STUTTER + 1):
        same = 0
        for i in range(size, len(words)):
            same = same + 1 if words[i] == words[i - size] else 0
            if same >= size * (STUTTER - 1):
                return True
    return False


def has_common_run(words: Sequence[str], source: Sequence[str], size: int) -> bool:
    """Both have the same `size` words in a row somewhere. In time linear in both."""
    return len(words) >= size and not runs(words, size).isdisjoint(runs(source, size))


def runs(words: Sequence[str], size: int) -> set[int]:
    """Hashes of all runs of that many words; each in constant time from the one before (Rabin and Karp)."""
    lead = pow(_BASE, size, _MODULUS)
    codes = [hash(word) for word in words]
    value, found = 0, set()
    for i, code in enumerate(codes):
        value = value * _BASE + code - (codes[i - size] * lead if i >= size else 0)
        value %= _MODULUS
        if i >= size - 1:
            found.add(value)
    return found


_BASE = 1_000_003
_MODULUS = (1 << 61) - 1


def _compresses(text: str) -> bool:
    if len(text) < COMPRESSED_CHARACTERS:
        return False
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw)) > COMPRESSION
