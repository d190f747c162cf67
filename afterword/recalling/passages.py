"""Passages: the few messages of an episode that match a query best, by BM25.

An episode has several subjects, and its score as a whole says little about one of them. A passage is a window of
WINDOW messages in a row: a question is often answered by a message that has none of its words, beside one that has.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate, chain
from typing import NamedTuple

from afterword.streams.language import UNDETERMINED, detect, plausible, stem, stems, words

WINDOW = 3
MESSAGE_CHARACTERS = 4000
"""Characters of a message that are read: most of an episode's tokens, and so the time of a search, could be one."""
K1, B = 1.2, 0.75
"""Robertson and Zaragoza's defaults, as for whole episodes."""
FUSION_K = 10
"""Constant of the fusion of both stages, which have the same weight."""
ASKED_TIME_WEIGHT = 1.5
"""Weight of a third ranking: of the episodes at the time that a query names. No filter: what is planned for May is
said in April."""
ABOUT_AS_GOOD = 1.1
"""Ratio of the scores within one step."""
LIKELY_LANGUAGES = 2
"""Languages of a query: a few words are plausible in many, and each costs a stem of every word that is read."""
SAMPLE_CHARACTERS = 100

_Place = int


class Passage(NamedTuple):
    """The best window of an episode."""

    score: float
    """BM25 among all windows of the episodes that were compared."""
    matching: tuple[_Place, ...]
    """Places, among the episode's messages, of those in the window that have a word of the query."""


class _Counted(NamedTuple):
    """A message, or several."""

    terms: Mapping[str, int]
    """Stems of the query in it, each with its number. No Counter: it takes four times as long."""
    words: int


class _Vocabulary(dict[str, str | None]):
    """Words that were read, each with the stem of the query that it has, if any; a new word is stemmed once."""

    def __init__(self, query: str, languages: Iterable[str]) -> None:
        super().__init__()
        self._wanted = [(language, frozenset(stems(words(query), language))) for language in languages]

    def __missing__(self, word: str) -> str | None:
        found = None
        for language, wanted in self._wanted:
            if (found := stem(word, language)) in wanted:
                break
        else:
            found = None
        self[word] = found
        return found


def best_passages(query: str, episodes: Sequence[Sequence[str]]) -> list[Passage | None]:
    """Find the best passage of each episode, given by the texts of its messages in their order; None: no word matches.

    Inverse document frequencies are those among all windows of these episodes, so a word that every candidate has
    counts little. Linear in the texts, of which MESSAGE_CHARACTERS of each message are read.
    """
    vocabulary = _Vocabulary(query, _languages(query, episodes))
    windows = [_windows([_counted(text, vocabulary) for text in texts]) for texts in episodes]
    number, read = sum(each.number for each in windows), sum(each.words for each in windows)
    having = Counter(chain.from_iterable(window.terms for each in windows for _, window in each.matching))
    weights = {term: math.log(1 + (number - n + 0.5) / (n + 0.5)) for term, n in having.items()}
    average = read / number if number else 0.0
    return [_best(each.matching, weights, average) for each in windows]


def _languages(query: str, episodes: Sequence[Sequence[str]]) -> list[str]:
    """Languages in which words are stemmed: those that the query may be in, and that of the episodes."""
    sample = " ".join(text[:SAMPLE_CHARACTERS] for texts in episodes for text in texts[:2])
    likely = [language for language in plausible(query) if language != UNDETERMINED][:LIKELY_LANGUAGES]
    return list(dict.fromkeys([detect(sample), *likely]))


def _counted(text: str, vocabulary: _Vocabulary) -> _Counted:
    found = words(text[:MESSAGE_CHARACTERS])
    terms: dict[str, int] = {}
    for term in filter(None, map(vocabulary.__getitem__, found)):
        terms[term] = terms.get(term, 0) + 1
    return _Counted(terms, len(found))


_Window = tuple[Sequence[_Place], _Counted]
"""Places of the messages that have a word of the query, and the counts of all messages of the window."""


class _Windows(NamedTuple):
    """Windows of an episode: those that have a word of the query, and of all of them number and words."""

    matching: Sequence[_Window]
    number: int
    words: int


def _windows(messages: Sequence[_Counted]) -> _Windows:
    until = [0, *accumulate(message.words for message in messages)]
    size = min(WINDOW, len(messages))
    lengths = [until[start + size] - until[start] for start in range(len(messages) - size + 1)] if messages else []
    matching: list[_Window] = []
    for start, length in enumerate(lengths):
        if having := [place for place in range(start, start + size) if messages[place].terms]:
            matching.append((having, _Counted(_terms([messages[place].terms for place in having]), length)))
    return _Windows(matching, len(lengths), sum(lengths))


def _terms(counts: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    if len(counts) == 1:
        return counts[0]
    terms = dict(counts[0])
    for one in counts[1:]:
        for term, count in one.items():
            terms[term] = terms.get(term, 0) + count
    return terms


def _best(windows: Sequence[_Window], weights: dict[str, float], average: float) -> Passage | None:
    scored = [(_score(window, weights, average), places) for places, window in windows]
    if not scored:
        return None
    score, places = max(scored, key=lambda found: found[0])
    return Passage(score, tuple(places))


def _score(window: _Counted, weights: dict[str, float], average: float) -> float:
    length = K1 * (1 - B + B * window.words / average)
    return sum(weights[term] * n * (K1 + 1) / (n + length) for term, n in window.terms.items())


class FirstRanked(NamedTuple):
    """An episode in the order of the first stage."""

    passage_score: float | None
    """Score of its best passage, if any."""
    ended_at: datetime
    at_asked_time: bool = False
    """It was at the time that the query names; counts only with a passage: vectors find something at any time."""


def fused_ranks(episodes: Sequence[FirstRanked]) -> list[tuple[int, float]]:
    """Fuse the order of some episodes with that of their passages: places, best first, with new scores.

    Of passages that are about as good, the newer one is first: what was told again is what holds. Reciprocal rank
    fusion, ranks from 0.
    """
    new = {place: 1 / (FUSION_K + place) for place in range(len(episodes))}
    scored = [(_step(e.passage_score), e.ended_at, -place) for place, e in enumerate(episodes) if e.passage_score]
    for rank, (_, _, place) in enumerate(sorted(scored, reverse=True)):
        new[-place] += 1 / (FUSION_K + rank)
    asked = [place for place, _ in _best_first(new) if episodes[place].at_asked_time and episodes[place].passage_score]
    for rank, place in enumerate(asked):
        new[place] += ASKED_TIME_WEIGHT / (FUSION_K + rank)
    return _best_first(new)


def _best_first(scores: Mapping[int, float]) -> list[tuple[int, float]]:
    return sorted(scores.items(), key=lambda found: -found[1])


def _step(score: float) -> int:
    return math.floor(math.log(score, ABOUT_AS_GOOD))
