"""Passages: the few messages of an episode that match a query best, by BM25.

An episode has several subjects, and its score as a whole says little about one of them. A passage is a window of
WINDOW messages in a row: a question is often answered by a message that has none of its words, beside one that has.
"""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from datetime import datetime
from functools import cached_property, reduce
from itertools import accumulate, chain, pairwise
from operator import add
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
CHANGE_WORDS = frozenset(
    """
now nowadays anymore longer instead changed switched moved replaced stopped currently left quit
jetzt inzwischen mittlerweile nunmehr neuerdings stattdessen geändert gewechselt umgezogen verlassen aufgehört gekündigt
maintenant désormais dorénavant actuellement changé déménagé remplacé quitté arrêté
ahora actualmente cambiado cambié mudado mudé reemplazado dejado dejé
agora atualmente mudei mudou troquei trocou deixei larguei
adesso ormai attualmente invece cambiato traslocato lasciato smesso
nu tegenwoordig voortaan inmiddels veranderd verhuisd gestopt verlaten opgezegd
fremover længere skiftet ændret flyttet forladt opsagt stoppet
""".split()  # noqa: SIM905 – a list of seventy strings is hard to read
)
"""Words by which people say that something is not as it was, in the languages of the dates."""
CHANGE_PAIRS = {
    "more": frozenset(("any", "no")),
    "mehr": frozenset(("nicht",)),
    "plus": frozenset(("ne", "n")),
    "ya": frozenset(("no",)),
    "já": frozenset(("não",)),
    "mais": frozenset(("não",)),
    "più": frozenset(("non",)),
    "meer": frozenset(("niet",)),
    "mere": frozenset(("ikke",)),
}
"""Words of which a message says so that has one of the others, too."""
_CHANGE_HINTS = CHANGE_WORDS | CHANGE_PAIRS.keys()
NEARLY_ALL = 0.8
"""Share of the weight of the passage that has most of the query: passages with less are about something else."""
LEAST_ALIKE = 2
"""Stems that two passages share: one alone, as a name, does not tell that both are about the same."""
MOST_OF_IT = 0.5
"""Share of the query's stems of a message that one which replaces it has."""
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
    stems: frozenset[str] = frozenset()
    """Stems of the query's words that the window has."""
    weight: float = 0.0
    """Sum of their inverse document frequencies: what the window has of the query, however long it is."""


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

    def tells_change(self, places: Collection[_Place]) -> bool:
        """Return whether one of these messages says that something is not as it was."""
        return any(_tells_change(self.message(place)) for place in places)

    def message(self, place: _Place) -> frozenset[str]:
        """Words of a message."""
        return frozenset(self.said[self._until[place] : self._until[place + 1]])

    def changes(self) -> list[frozenset[str]]:
        """Words of each message that says that something is not as it was."""
        return list(map(self.message, self._changes))

    @cached_property
    def _changes(self) -> tuple[_Place, ...]:
        if _CHANGE_HINTS.isdisjoint(self.said):
            return ()
        return tuple(place for place in range(self.messages) if _tells_change(self.message(place)))

    @cached_property
    def language(self) -> str:
        """Language of the first messages."""
        return detect(" ".join(self._beginnings))


def _tells_change(said: Set[str]) -> bool:
    if not CHANGE_WORDS.isdisjoint(said):
        return True
    return any(word in said and not others.isdisjoint(said) for word, others in CHANGE_PAIRS.items())


def best_passages(matching: Mapping[str, str], episodes: Sequence[EpisodeWords]) -> list[Passage | None]:
    """Find the best passage of each episode; None: no word matches. `matching`: `matching_words` of these episodes.

    Inverse document frequencies are those among all windows of these episodes, so a word that every candidate has
    counts little. Linear in the episodes' words, and for each stem of the query in their windows.
    """
    return _Windows(episodes).best(matching)


def matching_words(query: str, episodes: Sequence[EpisodeWords]) -> Mapping[str, str]:
    """Find the words of the episodes that have a stem of the query, each with that."""
    asked = words(query)
    wanted = [(language, frozenset(stems(asked, language))) for language in _languages(query, episodes)]
    found: dict[str, str] = {}
    every = set[str]().union(*(each.said for each in episodes))
    for language, stems_of_query in reversed(wanted):  # of several languages, the first one is right
        found |= {word: stemmed for word in every if (stemmed := stem(word, language)) in stems_of_query}
    return found


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
        has_any: list[bool] = np.any(list(found.values()), axis=0).tolist()
        passages: list[Passage | None] = []
        for (first, after), slot in zip(pairwise(self._bounds), self._slots, strict=False):
            best = max(scores[first:after], default=0.0)
            if not best:
                passages.append(None)
                continue
            window = scores.index(best, first)  # the first of the best ones
            start = window - first
            matched = tuple(place for place in range(start, start + WINDOW) if has_any[slot + place])
            its = [(one, weight) for one, weight, each in zip(found, weights, counts, strict=True) if each[window]]
            stems_there = frozenset(found_stem for found_stem, _ in its)
            passages.append(Passage(best, matched, stems_there, reduce(add, (each for _, each in its), 0.0)))
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


class FirstRanked(NamedTuple):
    """An episode in the order of the first stage."""

    passage: Passage | None
    ended_at: datetime
    at_asked_time: bool = False
    """It was at the time that the query names, or its passage names that time."""
    tells_change: bool = False
    """Its passage says that something is not as it was."""

    @property
    def is_of_asked_time(self) -> bool:
        """Return whether the time counts: only with a passage, as vectors find something at any time."""
        return self.at_asked_time and self.passage is not None


def fused_ranks(episodes: Sequence[FirstRanked]) -> list[tuple[int, float]]:
    """Fuse the order of some episodes with that of their passages: places, best first, with new scores.

    Of passages that are about as good, the newer one is first: what was told again is what holds. Reciprocal rank
    fusion, ranks from 0.
    """
    new = {place: 1 / (FUSION_K + place) for place in range(len(episodes))}
    scored = [(_step(e.passage.score), e.ended_at, -place) for place, e in enumerate(episodes) if e.passage]
    for rank, (_, _, place) in enumerate(sorted(scored, reverse=True)):
        new[-place] += 1 / (FUSION_K + rank)
    asked = [place for place, _ in _best_first(new) if episodes[place].is_of_asked_time]
    for rank, place in enumerate(asked):
        new[place] += ASKED_TIME_WEIGHT / (FUSION_K + rank)
    return _best_first(new)


class Precedence(NamedTuple):
    """Puts episodes in order by times and changes, whoever has put them in order by what they are about.

    Orders are places of the episodes, each once, the best first.
    """

    ranked: Sequence[FirstRanked]
    episodes: Sequence[EpisodeWords]
    matching: Mapping[str, str]
    """The query's stems, as in `matching_words`."""
    asks_for_past: bool = False
    """The query names a time that is over: what was told last need not hold."""

    def changes_first(self, order: Sequence[int]) -> list[int]:
        """Put what tells a change before what it has changed, unless there are episodes of a time that is over."""
        if self.asks_for_past and any(each.is_of_asked_time for each in self.ranked):
            return list(order)
        return latest_first(changes_first(order, self.ranked), self.ranked, self.episodes, self.matching)

    def kept(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """The order `after`, which somebody made without knowing of times and changes, with what `before` had of them.

        Episodes of the time that the query names share the ranks that they had.
        """
        of_time = [self.ranked[place].is_of_asked_time for place in before]
        inside = iter([place for place in after if self.ranked[place].is_of_asked_time])
        outside = iter([place for place in after if not self.ranked[place].is_of_asked_time])
        return self.changes_first([next(inside if is_of_time else outside) for is_of_time in of_time])


def changes_first(order: Sequence[int], episodes: Sequence[FirstRanked]) -> list[int]:
    """Move what tells a change before the first earlier episode whose passage has the very same words of the query.

    The words, not the scores, tell what is about the same: those differ with the lengths of the windows. Of what
    changed again, the latest comes first. Only among passages that have NEARLY_ALL of the query that any has, and at
    least LEAST_ALIKE stems of it.
    """
    most = max((each.passage.weight for each in episodes if each.passage), default=0.0)
    alike = defaultdict[frozenset[str], list[int]](list)
    for rank, place in enumerate(order):
        passage = episodes[place].passage
        if passage and len(passage.stems) >= LEAST_ALIKE and passage.weight >= NEARLY_ALL * most:
            alike[passage.stems].append(rank)
    changed = list(order)
    for ranks in alike.values():
        for rank, place in zip(ranks, _latest_changes_first([order[rank] for rank in ranks], episodes), strict=True):
            changed[rank] = place
    return changed


def _latest_changes_first(places: Sequence[int], episodes: Sequence[FirstRanked]) -> list[int]:
    moved = list(places)
    changes = [place for place in places if episodes[place].tells_change]
    for place in sorted(changes, key=lambda one: episodes[one].ended_at):
        at = moved.index(place)
        earlier = (to for to in range(at) if episodes[moved[to]].ended_at < episodes[place].ended_at)
        moved.insert(next(earlier, at), moved.pop(at))
    return moved


class _Told(NamedTuple):
    """A message that answers, as far as its words say."""

    place: int
    """Place of its episode."""
    words: frozenset[str]
    stems: Set[str]
    """Those of the query that it has."""


def latest_first(
    order: Sequence[int],
    ranked: Sequence[FirstRanked],
    episodes: Sequence[EpisodeWords],
    matching: Mapping[str, str],
) -> list[int]:
    """Move to the first place what says that the best has changed, by the value that was: "Boyle instead of Amsel".

    Of the best passage, the message counts that has more stems of the query than any other. A later one replaces it
    that tells a change, MOST_OF_IT of these stems, and another word of it that no third episode has; it may be
    replaced in its turn. Linear in the words of the episodes, for each that is replaced.
    """
    told = _told(order[0], ranked, episodes, matching) if order else None
    if told is None:
        return list(order)
    while later := _replacement(told, order, ranked, episodes, matching):
        told = later
    return [told.place, *(place for place in order if place != told.place)]


def _told(
    place: int, ranked: Sequence[FirstRanked], episodes: Sequence[EpisodeWords], matching: Mapping[str, str]
) -> _Told | None:
    """Find the message of an episode's passage that answers; None where several have the most stems of the query."""
    passage = ranked[place].passage
    said = [episodes[place].message(at) for at in passage.matching] if passage else []
    told = sorted((_Told(place, one, _stems(one, matching)) for one in said), key=lambda one: -len(one.stems))
    return told[0] if told and (len(told) == 1 or len(told[0].stems) > len(told[1].stems)) else None


def _replacement(
    told: _Told,
    order: Sequence[int],
    ranked: Sequence[FirstRanked],
    episodes: Sequence[EpisodeWords],
    matching: Mapping[str, str],
) -> _Told | None:
    """The latest message that replaces another; `order`: places of the episodes that may have it."""
    having = Counter(chain.from_iterable(told.words.intersection(each.said) for each in episodes))
    language = episodes[told.place].language
    values = {word for word, count in having.items() if count == 2 and stem(word, language) is not None}
    values -= matching.keys() | CHANGE_WORDS
    later = [place for place in sorted(order) if ranked[place].ended_at > ranked[told.place].ended_at]
    for place in sorted(later, key=lambda one: ranked[one].ended_at, reverse=True):
        for said in episodes[place].changes():
            stems = _stems(said, matching)
            if len(stems & told.stems) >= MOST_OF_IT * len(told.stems) and not values.isdisjoint(said):
                return _Told(place, said, stems)
    return None


def _stems(said: Set[str], matching: Mapping[str, str]) -> Set[str]:
    """Stems of the query that are among these words."""
    return {matching[word] for word in said if word in matching}


def _best_first(scores: Mapping[int, float]) -> list[tuple[int, float]]:
    return sorted(scores.items(), key=lambda found: -found[1])


def _step(score: float) -> int:
    return math.floor(math.log(score, ABOUT_AS_GOOD))
