"""Passages: the few messages of an episode that match a query best, by BM25.

An episode has several subjects, and its score as a whole says little about one of them. A passage is a window of
WINDOW messages in a row: a question is often answered by a message that has none of its words, beside one that has.
"""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from afterword.streams.language import UNDETERMINED, detect, plausible, stem, stems, words

WINDOW = 3
MESSAGE_CHARACTERS = 300
"""Characters of a message that are compared. People say what matters first, and the many words of an assistant's long
answer would match any question: on BEAM, recall at 1 rises from .135 to .233 compared with 4,000 characters."""
K1, B = 1.2, 0.75
"""Robertson and Zaragoza's defaults, as for whole episodes."""
FUSION_K = 10
"""Constant of the fusion of several orders, which have the same weight."""
ASKED_TIME_WEIGHT = 1.5
"""Weight of the ranking of the episodes at the time that a query names. It is no filter: what is planned for May is
said in April."""
ABOUT_AS_GOOD = 1.1
"""Ratio of the scores within one step."""
LIKELY_LANGUAGES = 2
"""Languages of a query: a few words are plausible in many, and each costs a stem of every word that is read."""
SAMPLED_EPISODES, SAMPLED_MESSAGES, SAMPLE_CHARACTERS = 10, 2, 100
"""Sample in which the language of the best episodes is detected: the beginnings of their first messages."""

_Place = int


class Passage(NamedTuple):
    """The best window of an episode."""

    score: float
    """BM25 among all windows of the episodes that were compared."""
    matching: Mapping[_Place, float]
    """The messages of the window that have a word of the query, by their places in the episode, in order. Each has the
    sum of the inverse document frequencies of the query's stems that it has."""


class QueryWords:
    """The words of a query, and which others match them: those with the same stem."""

    def __init__(self, query: str, episodes: Sequence["EpisodeWords"] = ()) -> None:
        """`episodes`: those that are searched, best first; their language counts."""
        asked = words(query)
        self._stems = [(one, frozenset(stems(asked, one))) for one in _languages(query, episodes)]

    def matching(self, said: Collection[str]) -> dict[str, str]:
        """Find the words that match, each with its stem. Of several languages, the first counts."""
        found: dict[str, str] = {}
        for language, asked in reversed(self._stems):
            found |= {word: stemmed for word in said if (stemmed := stem(word, language)) in asked}
        return found


class EpisodeWords:
    """The messages of an episode, read once for all searches: their words.

    Of a message, MESSAGE_CHARACTERS are read. Linear in the texts.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._beginnings = [text[:SAMPLE_CHARACTERS] for text in texts[:SAMPLED_MESSAGES]]
        said = [words(text[:MESSAGE_CHARACTERS]) for text in texts]
        self.said = list(chain.from_iterable(said))
        """All words, in their order."""
        self._until = [0, *accumulate(map(len, said))]
        self.messages = len(said)
        ends = self._until[min(WINDOW, len(said)) :] if said else ()
        self.lengths = [after - before for before, after in zip(self._until, ends, strict=False)]
        """Words of each window, by its first message; one of all messages, if they are fewer than WINDOW."""

    def places(self, wanted: Collection[str]) -> Iterator[tuple[str, _Place]]:
        """Find words, each with its message, as often as they are there."""
        for at, word in enumerate(self.said):
            if word in wanted:
                yield word, bisect_right(self._until, at) - 1

    @cached_property
    def language(self) -> str:
        """Language of the first messages."""
        return detect(" ".join(self._beginnings))


def best_passages(query: QueryWords, episodes: Sequence[EpisodeWords]) -> list[Passage | None]:
    """Find the best passage of each episode; None if no word matches.

    Inverse document frequencies are those among all windows of these episodes, so a word that every candidate has
    counts little. Linear in the episodes' words, and for each stem of the query in their windows.
    """
    every = set[str]().union(*(each.said for each in episodes))
    return _Windows(episodes).best(query.matching(every))


def _languages(query: str, episodes: Sequence[EpisodeWords]) -> list[str]:
    """Languages in which words are stemmed: the one that most of the best episodes have, and those of the query."""
    likely = [language for language in plausible(query) if language != UNDETERMINED][:LIKELY_LANGUAGES]
    return list(dict.fromkeys([*_most_frequent(episodes[:SAMPLED_EPISODES]), *likely]))


def _most_frequent(sample: Sequence[EpisodeWords]) -> list[str]:
    """The language that most of the episodes have, of several the first; none without an episode.

    To detect one takes as long as to read all words of ten messages: that stops where the first has half of them.
    """
    counts = Counter[str]()
    for each in sample:
        counts[each.language] += 1
        if 2 * counts[sample[0].language] >= len(sample):
            break
    return [language for language, _ in counts.most_common(1)]


class _Windows:
    """The windows of some episodes, one after the other: their scores are computed together.

    Messages are in slots: those of an episode in a row, and then as many empty ones as its last window passes over.
    """

    def __init__(self, episodes: Sequence[EpisodeWords]) -> None:
        self._episodes = episodes
        self._slots = [0, *accumulate(each.messages + WINDOW - 1 for each in episodes)]
        numbers = [len(each.lengths) for each in episodes]
        self._bounds = [0, *accumulate(numbers)]
        shifts = np.repeat(np.subtract(self._slots[:-1], self._bounds[:-1]), numbers)
        self._starts = np.arange(self._bounds[-1]) + shifts
        """Slot of the first message of each window."""

    def best(self, matching: Mapping[str, str]) -> list[Passage | None]:
        """Find the best window of each episode. `matching`: words, each with its stem."""
        found = self._counted(matching)
        if not found:
            return [None] * len(self._episodes)
        counts = [np.sum([slots[self._starts + place] for place in range(WINDOW)], axis=0) for slots in found.values()]
        weights = [_weight(each) for each in counts]
        scores: list[float] = self._scores(counts, weights).tolist()
        had = [weight * (slots > 0) for weight, slots in zip(weights, found.values(), strict=True)]
        in_slot: list[float] = np.sum(had, axis=0).tolist()
        passages: list[Passage | None] = []
        for (first, after), slot in zip(pairwise(self._bounds), self._slots, strict=False):
            best = max(scores[first:after], default=0.0)
            if not best:
                passages.append(None)
                continue
            start = scores.index(best, first) - first  # the first of the best ones
            window = range(start, start + WINDOW)
            passages.append(Passage(best, {at: in_slot[slot + at] for at in window if in_slot[slot + at]}))
        return passages

    def _counted(self, matching: Mapping[str, str]) -> Mapping[str, NDArray[np.intp]]:
        """Count a stem in each slot, for each stem that there is."""
        slots = defaultdict[str, list[int]](list)
        for episode, first in zip(self._episodes, self._slots, strict=False):
            for word, place in episode.places(matching):
                slots[matching[word]].append(first + place)
        # sums are in the order of the stems, so that the order of the words makes no difference
        return {term: np.bincount(slots[term], minlength=self._slots[-1]) for term in sorted(slots)}

    def _scores(self, counts: Sequence[NDArray[np.intp]], weights: Sequence[float]) -> NDArray[np.float64]:
        lengths = np.fromiter(chain.from_iterable(each.lengths for each in self._episodes), float)
        norms = K1 * (1 - B + B * lengths / lengths.mean())
        scores = np.zeros(len(lengths))
        for each, weight in zip(counts, weights, strict=True):
            scores += weight * each * (K1 + 1) / (each + norms)
        return scores


def _weight(counts: NDArray[np.intp]) -> float:
    """Inverse document frequency of a stem, from its counts in all windows."""
    having = np.count_nonzero(counts)
    return math.log(1 + (len(counts) - having + 0.5) / (having + 0.5))


def passage_order(passages: Sequence[Passage | None], ended_at: Sequence[datetime]) -> list[int]:
    """Order the places of the episodes that have a passage, best first.

    Of passages that are about as good, the newer one comes first: what was said again is what holds.
    """
    scored = [(_step(each.score), ended_at[place], -place) for place, each in enumerate(passages) if each]
    return [-place for _, _, place in sorted(scored, reverse=True)]


def fused(orders: Iterable[Sequence[int]], of_asked_time: Collection[int] = ()) -> list[tuple[int, float]]:
    """Fuse orders of the same places by reciprocal ranks, counted from 0: places, best first, with their scores.

    `of_asked_time`: places that come forward by one more ranking, in which they alone are.
    """
    scores = defaultdict[int, float](float)
    for order in orders:
        for rank, place in enumerate(order):
            scores[place] += 1 / (FUSION_K + rank)
    for rank, place in enumerate([place for place, _ in _best_first(scores) if place in of_asked_time]):
        scores[place] += ASKED_TIME_WEIGHT / (FUSION_K + rank)
    return _best_first(scores)


def _best_first(scores: Mapping[int, float]) -> list[tuple[int, float]]:
    return sorted(scores.items(), key=lambda found: -found[1])


def _step(score: float) -> int:
    return math.floor(math.log(score, ABOUT_AS_GOOD))
