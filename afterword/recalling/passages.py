"""Passages: the few messages of an episode that match a query best, by BM25.

An episode has several subjects, and its score as a whole says little about one of them. A passage is a window of
WINDOW messages in a row: a question is often answered by a message that has none of its words, beside one that has.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import accumulate, chain, islice
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
"""Sample in which the language of the best episodes is detected: the beginnings of their first messages."""

_Place = int


class Passage(NamedTuple):
    """The best window of an episode."""

    score: float
    """BM25 among all windows of the episodes that were compared."""
    matching: tuple[_Place, ...]
    """Places, among the episode's messages, of those in the window that have a word of the query."""


class EpisodeWords:
    """The messages of an episode, read once for all searches: which words they have, and where.

    Of a message, MESSAGE_CHARACTERS are read. Linear in the texts.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._beginnings = [text[:SAMPLE_CHARACTERS] for text in texts[:SAMPLED_MESSAGES]]
        said = [words(text[:MESSAGE_CHARACTERS]) for text in texts]
        places = defaultdict[str, list[_Place]](list)
        for place, found in enumerate(said):
            for word in found:
                places[word].append(place)
        self.places: Mapping[str, tuple[_Place, ...]] = {word: tuple(found) for word, found in places.items()}
        """Messages that have a word: one twice if it has it twice."""
        until = [0, *accumulate(map(len, said))]
        self.window = min(WINDOW, len(said))
        self.lengths = (
            [after - before for before, after in zip(until, until[self.window :], strict=False)] if said else []
        )
        """Words of each window, by its first message."""
        self.words = sum(self.lengths)

    @cached_property
    def language(self) -> str:
        """Language of the first messages."""
        return detect(" ".join(self._beginnings))


class _Window(NamedTuple):
    """Some messages in a row, the first one at `start`, that have a word of the query."""

    start: _Place
    terms: Mapping[str, int]
    """Stems of the query in them, each with its number."""
    words: int


class _Found(NamedTuple):
    """What an episode has of a query."""

    places: Collection[_Place]
    """Messages that have a word of it."""
    windows: Sequence[_Window]


def best_passages(query: str, episodes: Sequence[EpisodeWords]) -> list[Passage | None]:
    """Find the best passage of each episode; None: no word matches.

    Inverse document frequencies are those among all windows of these episodes, so a word that every candidate has
    counts little. Linear in the number of different words.
    """
    matching = _matching(query, episodes)
    found = [_found(each, matching) for each in episodes]
    number, read = sum(len(each.lengths) for each in episodes), sum(each.words for each in episodes)
    having = Counter(chain.from_iterable(window.terms for each in found for window in each.windows))
    weights = {term: math.log(1 + (number - n + 0.5) / (n + 0.5)) for term, n in having.items()}
    average = read / number if number else 0.0
    return [_best(each, weights, average) for each in found]


def _matching(query: str, episodes: Iterable[EpisodeWords]) -> Mapping[str, str]:
    """Words of the episodes that have a stem of the query, each with that."""
    asked = words(query)
    wanted = [(language, frozenset(stems(asked, language))) for language in _languages(query, episodes)]
    found = {}
    for word in set[str]().union(*(each.places for each in episodes)):
        for language, stems_of_query in wanted:
            if (stemmed := stem(word, language)) in stems_of_query:
                found[word] = stemmed
                break
    return found


def _languages(query: str, episodes: Iterable[EpisodeWords]) -> list[str]:
    """Languages in which words are stemmed: the one that most of the best episodes have, and those of the query."""
    of_episodes = Counter(each.language for each in islice(episodes, SAMPLED_EPISODES))
    most = [language for language, _ in of_episodes.most_common(1)]
    likely = [language for language in plausible(query) if language != UNDETERMINED][:LIKELY_LANGUAGES]
    return list(dict.fromkeys([*most, *likely]))


def _found(episode: EpisodeWords, matching: Mapping[str, str]) -> _Found:
    terms: dict[_Place, dict[str, int]] = {}
    for word in matching.keys() & episode.places.keys():
        term = matching[word]
        for place in episode.places[word]:
            counts = terms.setdefault(place, {})
            counts[term] = counts.get(term, 0) + 1
    last = len(episode.lengths) - 1
    starts = {start for place in terms for start in range(max(place - episode.window + 1, 0), min(place, last) + 1)}
    spans = [range(start, start + episode.window) for start in sorted(starts)]
    windows = [_Window(span.start, _summed(span, terms), episode.lengths[span.start]) for span in spans]
    return _Found(terms.keys(), windows)


def _summed(span: Iterable[_Place], terms: Mapping[_Place, Mapping[str, int]]) -> Mapping[str, int]:
    first, *others = [terms[place] for place in span if place in terms]
    if not others:
        return first
    summed = dict(first)
    for one in others:
        for term, count in one.items():
            summed[term] = summed.get(term, 0) + count
    return summed


def _best(found: _Found, weights: Mapping[str, float], average: float) -> Passage | None:
    scored = [(_score(window, weights, average), window.start) for window in found.windows]
    if not scored:
        return None
    score, start = max(scored, key=itemgetter(0))
    return Passage(score, tuple(place for place in range(start, start + WINDOW) if place in found.places))


def _score(window: _Window, weights: Mapping[str, float], average: float) -> float:
    length = K1 * (1 - B + B * window.words / average)
    # exact, so that the order of the words makes no difference
    return math.fsum(weights[term] * count * (K1 + 1) / (count + length) for term, count in window.terms.items())


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
