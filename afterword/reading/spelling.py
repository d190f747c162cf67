"""Slips of the keyboard in a query: the user's own words that are nearly spelled like the query's."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from afterword_text.language import fold, is_common, normalized, plausible

MOST_EPISODES = 500
"""Words are taken from this many of the user's newest episodes."""
SHORTEST = 5
"""Minimum length of a word that may be misspelt. Too many others differ from a shorter one by a letter."""
ALIKE = 0.8
"""Minimum similarity of two words, as difflib measures it: a slip in 5 letters, or two in 10."""
LONGER = 2
"""Maximum difference of their lengths."""

_WORD = re.compile(r"[^\W\d_]+")


def respelt(query: str, texts: Iterable[str]) -> str | None:
    """Return the query with the words that occur in the texts instead of those nearly spelled like them.

    They begin with the same letter. None unless half of the query's words, without stop words, have such a word.
    """
    known = sorted({word for text in texts for word in _WORD.findall(_folded(text)) if len(word) >= SHORTEST - 1})
    languages = plausible(query)
    respelling: dict[str, str] = {}
    asked = {word for word in _WORD.findall(query) if not any(is_common(word, code) for code in languages)}
    for word in asked:
        folded = _folded(word)
        if len(folded) >= SHORTEST:
            near = [one for one in known if one[0] == folded[0] and abs(len(one) - len(folded)) <= LONGER]
            for spelling in get_close_matches(folded, near, 1, ALIKE):
                respelling[word] = spelling
    if not respelling or 2 * len(respelling) < len(asked):
        return None
    return _WORD.sub(lambda match: respelling.get(match[0], match[0]), query)


def _folded(text: str) -> str:
    return fold(normalized("NFKC", text).casefold())
