"""A short phrase that says what an episode is about."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

from afterword.streams.summarizer.extractive.candidates import Terms
from afterword.streams.summarizer.sentences import cut_at_word

TITLE_CHARACTERS = 60
MAX_PHRASE_WORDS = 7
FILLER = 0.2
"""What a stop word inside a phrase costs: "proof of citizenship" is worth it, a whole clause is not."""
SINGLE = 5
"""A word alone says little: it counts as if that many stop words stood beside it."""
NUMBER = 0.3
"""A number is for the summary; in a title it is worth less than any word."""
_WORD = re.compile(r"[^\W_]+(?:['’.,:/&-][^\W_]+)*")
_CLAUSE_END = re.compile(r"(?<!\d)[,:.]|[,:.](?!\d|\w)|[;!?()\[\]…–—\"“”，、；：。！？「」（）]")


def phrase(weighted: Sequence[tuple[str, float]], used: Counter[str], terms: Terms) -> str:
    """The run of words, of at most 60 characters, whose terms are used most, with a content word at either end.

    `weighted`: sentences to look in, with their weights; `used`: in how many sentences of the episode a term occurs.

    As keyphrases are found in RAKE (Rose et al., "Automatic keyword extraction from individual documents", 2010), but
    stop words may stand inside. Empty when no sentence has a term.
    """
    best, best_score = "", 0.0
    for sentence, weight in weighted:
        for text, score in _phrases(sentence, used, terms):
            if score * weight > best_score:
                best, best_score = text, score * weight
    return best[:1].upper() + best[1:]


def _phrases(sentence: str, used: Counter[str], terms: Terms) -> Iterator[tuple[str, float]]:
    for clause in _CLAUSE_END.split(sentence):
        found = list(_WORD.finditer(clause))
        values = [_value(word[0], used, terms) for word in found]
        yield from _runs(clause, [word.span() for word in found], values)


def _runs(clause: str, spans: list[tuple[int, int]], values: list[float]) -> Iterator[tuple[str, float]]:
    total = [0.0, *accumulate(values)]
    for first in (i for i, value in enumerate(values) if value):
        for last in range(first, min(len(values), first + MAX_PHRASE_WORDS)):
            text = clause[spans[first][0] : spans[last][1]]
            if values[last] and (len(text) <= TITLE_CHARACTERS or first == last):
                fillers = values[first:last].count(0.0) + (SINGLE if first == last else 0)
                yield cut_at_word(text, TITLE_CHARACTERS), (total[last + 1] - total[first]) / (1 + FILLER * fillers)


def _value(word: str, used: Counter[str], terms: Terms) -> float:
    told = max((math.log1p(used[term]) for term in terms(word)), default=0.0)
    return told if any(c.isalpha() for c in word) else min(told, NUMBER)
