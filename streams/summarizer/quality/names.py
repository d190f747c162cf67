"""Finds capitalized names, in languages that write names with capitals and other words without."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from afterword.streams.summarizer.quality.quantities import CURRENCIES
from afterword.streams.text.language import is_common
from afterword.streams.text.search_words import fold as without_accents
from afterword.streams.text.tokens import token_ids
from afterword.streams.text.vocabulary import word_set

NOUN_CAPITALS = frozenset({"de", "lb"})
"""These languages capitalize every noun, so only words marked as names count in them."""
TITLE_CASE = 0.6
"""A text with at least this share of capitalized words is a heading that capitalizes ordinary words too."""
LONGEST = 40
"""A word with at least this many characters is not taken for a name."""

ROLES = word_set("names", "roles")
_NO_NAMES = word_set("names", "others") | CURRENCIES.keys() | ROLES
_ENDINGS = tuple(word_set("names", "endings"))
_OPENERS = word_set("names", "openers")
SHORTEST_ADVERB = 9
"""Letters. A shorter word in -ly may be a name such as Sally or Kimberly."""

# letters of scripts that put spaces between words
_LETTERS = r"[^\W\d_\u0e00-\u0e7f\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
_WORD = re.compile(rf"(?<![A-Za-zÀ-ɏ\d_]){_LETTERS}++(?:[’']{_LETTERS}++)*+(?![\d_])")
_BEFORE_START = re.compile(r"(?:\A|[.!?…:;。！？\n•*\"“”„«»(\[–—|])[\s\"'“”„«»(\[*#-]*\Z")
_ADDRESSED = re.compile(r"\b(?:Herrn?|Frau|Familie|Firma|Dr\.|Prof\.)\s*(?:[^\W\d_]\.\s*)*$")
_SPACE = re.compile(r"\s+")
_POSSESSIVE = re.compile(r"[’'][sS]?$")


def names(text: str, language: str) -> Iterator[tuple[str, str]]:
    """Yield each name in a summary, in order, as it is written and folded. Linear in the length."""
    written = list(_WORD.finditer(text))
    capitals = [match for match in written if match[0][0].isupper() and len(match[0]) < LONGEST]
    if language in NOUN_CAPITALS:
        capitals = list(_marked(text, capitals, language))
    else:
        is_heading = len(capitals) >= TITLE_CASE * len(written)
        placed = [is_heading or _begins_sentence(text, match) for match in capitals]
        inside = {fold(match[0]) for match, is_placed in zip(capitals, placed, strict=True) if not is_placed}
        capitals = [
            match
            for match, is_placed in zip(capitals, placed, strict=True)
            if not is_placed or fold(match[0]) in inside or _has_inner_capital(match) or not _opens_sentences(match[0])
        ]
    for match in capitals:
        word = fold(match[0])
        if len(word) > 1 and not {word, word.removesuffix("s")} & _NO_NAMES and not is_common(match[0], language):
            yield _POSSESSIVE.sub("", match[0]), word


def _marked(text: str, capitals: Sequence[re.Match[str]], language: str) -> Iterator[re.Match[str]]:
    """Yield the words that a title or a neighbouring name marks as names. Nouns rarely follow each other; names do."""
    # "39,5 Grad Fieber" names nobody
    capitals = [
        m
        for m in capitals
        if not is_common(m[0], language) and not text[max(0, m.start() - 8) : m.start()].rstrip()[-1:].isdigit()
    ]
    for before, match, after in zip([None, *capitals], capitals, [*capitals[1:], None], strict=False):
        has_neighbour = (before and _SPACE.fullmatch(text, before.end(), match.start())) or (
            after and _SPACE.fullmatch(text, match.end(), after.start())
        )
        is_addressed = _ADDRESSED.search(text, max(0, match.start() - 30), match.start())
        if _has_inner_capital(match) or is_addressed or (has_neighbour and not _begins_sentence(text, match)):
            yield match


def fold(word: str) -> str:
    """Fold case, accents, possessive and elided article: "Zoë's" → "zoe", "l'Olympia" → "olympia"."""
    longest = max(re.split("[’']", word), key=len) if "'" in word or "’" in word else word
    return without_accents(longest.casefold())


def words_of(text: str) -> Iterator[str]:
    """Yield the text's distinct words, folded as names are."""
    return map(fold, set(_WORD.findall(text)))


def _begins_sentence(text: str, match: re.Match[str]) -> bool:
    return bool(_BEFORE_START.search(text, max(0, match.start() - 8), match.start()))


def _has_inner_capital(match: re.Match[str]) -> bool:
    return any(c.isupper() for c in match[0][1:])


def _opens_sentences(word: str) -> bool:
    """Return whether the word's capital comes from its place: beginning a sentence does not make a word a name."""
    is_adverb = len(word) >= SHORTEST_ADVERB and word.endswith("ly")
    return is_adverb or word.lower() in _OPENERS or is_ordinary(word)


@lru_cache(maxsize=4096)
def is_ordinary(word: str) -> bool:
    """Return whether the word is written without a capital more often than with one.

    This is read from a tokenizer's vocabulary, learned from web text: the more frequent a piece is, the lower is its
    id.
    """
    small, capital = token_ids(" " + word.lower()), token_ids(" " + word[:1].upper() + word[1:].lower())
    if len(small) != len(capital):
        return len(small) < len(capital)
    return small < capital if len(small) == 1 else word.endswith(_ENDINGS)
