"""Passages: the few messages of an episode that match a query best, by BM25.

An episode has several subjects, and its score as a whole says little about one of them. A passage is a window of
WINDOW messages in a row: a question is often answered by a message that has none of its words, beside one that has.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate, chain
from operator import itemgetter
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
SAMPLED_EPISODES, SAMPLED_MESSAGES, SAMPLE_CHARACTERS = 10, 2, 100
"""Sample in which the language of the episodes is detected: beginnings of the first messages of the best ones."""

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
    counted = [[_counted(text, vocabulary) for text in texts] for texts in episodes]
    windows = [_windows(messages) for messages in counted]
    number, read = sum(each.number for each in windows), sum(each.words for each in windows)
    having = Counter(chain.from_iterable(window.terms for each in windows for window in each.matching))
    weights = {term: math.log(1 + (number - n + 0.5) / (n + 0.5)) for term, n in having.items()}
    average = read / number if number else 0.0
    return [_best(each.matching, messages, weights, average) for each, messages in zip(windows, counted, strict=True)]


def _languages(query: str, episodes: Sequence[Sequence[str]]) -> list[str]:
    """Languages in which words are stemmed: those that the query may be in, and that of the episodes."""
    first = chain.from_iterable(texts[:SAMPLED_MESSAGES] for texts in episodes[:SAMPLED_EPISODES])
    sample = " ".join(text[:SAMPLE_CHARACTERS] for text in first)
    likely = [language for language in plausible(query) if language != UNDETERMINED][:LIKELY_LANGUAGES]
    return list(dict.fromkeys([detect(sample), *likely]))


def _counted(text: str, vocabulary: _Vocabulary) -> _Counted:
    found = words(text[:MESSAGE_CHARACTERS])
    terms: dict[str, int] = {}
    for term in filter(None, map(vocabulary.__getitem__, found)):
        terms[term] = terms.get(term, 0) + 1
    return _Counted(terms, len(found))


class _Window(NamedTuple):
    """Some messages in a row, the first one at `start`."""

    start: _Place
    terms: Mapping[str, int]
    words: int


class _Windows(NamedTuple):
    """Windows of an episode: those that have a word of the query, and of all of them number and words."""

    matching: Sequence[_Window]
    number: int
    words: int


def _windows(messages: Sequence[_Counted]) -> _Windows:
    until = [0, *accumulate(message.words for message in messages)]
    size = min(WINDOW, len(messages))
    lengths = [after - before for before, after in zip(until, until[size:], strict=False)] if messages else []
    terms = [message.terms for message in messages]
    rows = zip(*(terms[place:] for place in range(size)), strict=False)
    matching = [_Window(start, _summed(row), lengths[start]) for start, row in enumerate(rows) if any(row)]
    return _Windows(matching, len(lengths), sum(lengths))


def _summed(counts: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    first, *others = filter(None, counts)
    if not others:
        return first
    terms = dict(first)
    for one in others:
        for term, count in one.items():
            terms[term] = terms.get(term, 0) + count
    return terms


def _best(
    windows: Sequence[_Window], messages: Sequence[_Counted], weights: dict[str, float], average: float
) -> Passage | None:
    scored = [(_score(window, weights, average), window.start) for window in windows]
    if not scored:
        return None
    score, start = max(scored, key=itemgetter(0))
    places = range(start, min(start + WINDOW, len(messages)))
    return Passage(score, tuple(place for place in places if messages[place].terms))


def _score(window: _Window, weights: dict[str, float], average: float) -> float:
    length, score = K1 * (1 - B + B * window.words / average), 0.0
    for term, count in window.terms.items():
        score += weights[term] * count * (K1 + 1) / (count + length)
    return score


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
