"""Ranks a search's candidates by their best message, their best passage, and as a whole, and finds what corrects it.

An episode has several subjects, so its words as a whole say little about any one of them. A message counts by the BM25
of its words and by its cosine. A passage is WINDOW messages in a row, because the answer is often a message without any
word of the question, next to one that has them. Each measure is a share of a maximum for the query, so that scores of
different queries are comparable.

A correction seldom has a word of the question ("no, Thursday"), so a search for the question does not find it. It comes
later in the episode, or at the beginning of one of the next.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from datetime import timedelta
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from afterword.streams.stores.index import Candidate, Noise, Query, QueryVector, RankingScores, Recalled
from afterword.streams.stores.messages import MessageText
from afterword.streams.stores.packing import ANSWER_END, LAST_END, WORD, cosines, packed_words
from afterword_text.corrections import Likelihood, likelihoods
from afterword_text.language import Word, hashed

WINDOW = 3
BEGINNING = 40
"""How many words of a message count in passages and episodes. People say what matters first, and the many words of an
assistant's long answer would match any question."""
LONG_SHARE = 0.6
"""Share of the query that a message covers with words beyond its beginning."""
EPISODE_WEIGHT = 0.5
"""Weight of the whole episode. Passage and message have weight 1."""
SUMMARY = 0.5
"""Weight of the summary's words, which nobody said."""
PAIR = 0.5
"""Weight of two words of the query that a text has in a row, beside theirs alone (Metzler and Croft, "A Markov Random
Field Model for Term Dependencies", 2005)."""
K1 = 1.2
"""Robertson and Zaragoza's default. Length normalization is applied in full."""

SHOWN, SHOWN_SHARE, ANSWERED = 5, 0.3, 3
"""A hit shows up to SHOWN messages that have at least SHOWN_SHARE of the best one's score, and those beside the
ANSWERED best ones, because an answer need not have a word of the question."""

BACKGROUND = 50
"""Number of imaginary texts without any word of the query that are added to the candidates. Without them, a word that
all messages of a small memory share would count as common."""

VECTOR_WEIGHT, NEAREST = 1.75, 5.0
"""Weight of a message's cosine, which counts as a share: 0 at the mean of the query's cosines with background
sentences, 1 at NEAREST standard deviations above it or, if there are higher ones, at the highest. In long talks about
one subject, most are higher."""
TELLING = 3
"""A message of fewer words, without stop words, counts less by its cosine: "ok" is near any query of a word or two."""
LONG_ANSWER = 0.9
"""Weight of a long answer of the assistant: much of it only repeats the question that it answers."""
CERTAIN, DOUBT = 2.5, 1.4
"""A cosine CERTAIN standard deviations above the model's mean covers the whole query. Coverage is raised to the power
of DOUBT, because cosines half as high are common among texts of one subject."""

ASKED_TIME_SHARE = 0.4
"""Share of the score for taking place at the time named in the query. It does not filter, because plans for May are
made in April."""

AS_GOOD = 0.8
"""A candidate without a word of the query in its best message counts as one of the named time if it has this share of
the best score, because vectors always match something."""

Numbers = NDArray[np.intp]
Scores = NDArray[np.float64]


class Ranked(NamedTuple):
    """A candidate and how well it matches the query."""

    candidate: Candidate
    score: float
    """0 to 1, comparable across queries."""
    coverage: float
    """Share of the query's total inverse document frequency that a single passage or the summary contains, or a long
    message, which counts LONG_SHARE; with vectors, the square of that share and the share of the best cosine, as
    probabilities of which at least one is enough, to the power of DOUBT."""
    message_scores: Sequence[float]
    """The scores of all its messages, in order."""
    best_words: Set[int]
    """The first words of its best message, as numbers."""
    scores: RankingScores
    of_time: float = 0.0
    """How well it matches the time named in the query, 0 to 1."""

    @classmethod
    def unranked(cls, candidate: Candidate) -> "Ranked":
        """Return a candidate that is wanted for its time, not for its words."""
        nothing = RankingScores(episode=0, passage=0, message=0, cosine=None)
        return cls(candidate, 1.0, 1.0, [0.0] * len(candidate.message_ids), frozenset(), nothing)

    def with_time(self, of_time: float) -> "Ranked":
        """Raise the score of an episode of the time that the query names, and its coverage by the same share."""
        share = ASKED_TIME_SHARE * of_time
        score, coverage = self.score * (1 - ASKED_TIME_SHARE) + share, self.coverage * (1 - share) + share
        return self._replace(score=score, coverage=coverage, of_time=of_time)

    @property
    def messages(self) -> dict[int, float]:
        """The scores of the messages to show, by position."""
        scores = self.message_scores
        best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:SHOWN]
        best = [at for at in best if scores[at] >= SHOWN_SHARE * scores[best[0]]]
        beside = (at for place in best[:ANSWERED] for at in (place - 1, place + 1) if 0 <= at < len(scores))
        return {at: scores[at] for at in sorted({*best, *beside})}


def rank(
    query: Sequence[Word],
    vector: QueryVector | None,
    candidates: Sequence[Candidate],
    of_time: Callable[[Ranked], float] = lambda _: 0.0,
) -> list[Ranked]:
    """Rank the candidates, best first, and newer ones first if equal. Linear in their words and vectors."""
    if not candidates:
        return []
    texts, count = _Texts(candidates), len(candidates)
    counts, in_beginnings = texts.counted(query)
    is_common = np.array([word.is_common for word in query], np.bool_)
    in_episodes, in_passages = texts.summed(in_beginnings)
    episodes, _ = _compared(in_episodes, texts.episode_lengths, is_common)
    passages, covered = _compared(in_passages, texts.passage_lengths, is_common)
    words, covered_by_texts = _compared(counts, texts.lengths, is_common)
    of_messages, of_summaries = words[texts.is_message], SUMMARY * words[~texts.is_message]
    best_passages = _best(texts.passage_owners, passages, count)
    best_words = np.maximum(_best(texts.owners, of_messages, count), of_summaries)
    coverage = np.maximum(_best(texts.passage_owners, covered, count), covered_by_texts[~texts.is_message])
    # more of any query's words occur by chance in a long message
    whole = np.where(texts.lengths > BEGINNING, LONG_SHARE, 1.0) * covered_by_texts
    coverage = np.maximum(coverage, _best(texts.owners, whole[texts.is_message], count))

    message_cosines = _cosines(vector, candidates, texts.message_counts)
    best_cosines = _best(texts.owners, message_cosines, count)
    weight = VECTOR_WEIGHT if vector else 0.0
    if vector:
        says = np.clip(texts.lengths[texts.is_message], 1, TELLING) / TELLING
        of_messages = of_messages + weight * says * nearness(message_cosines, vector.query)
    of_messages = np.where(texts.are_long_answers, LONG_ANSWER * of_messages, of_messages)
    best_messages = np.maximum(_best(texts.owners, of_messages, count), of_summaries)
    scores = (EPISODE_WEIGHT * episodes + best_passages + best_messages) / (EPISODE_WEIGHT + 2 + weight)
    if vector:
        # squared, because a few words in common say little
        certain = np.clip(_deviations(message_cosines, vector.model) / CERTAIN, 0.0, 1.0)
        coverage = (1 - (1 - coverage**2) * (1 - _best(texts.owners, certain, count))) ** DOUBT
    message_scores = texts.by_candidate(of_messages)
    ranked = [
        Ranked(
            candidate,
            float(scores[at]),
            float(coverage[at]),
            message_scores[at],
            texts.beginning(at, message_scores[at]),
            RankingScores(
                episode=float(episodes[at]),
                passage=float(best_passages[at]),
                message=float(best_words[at]),
                cosine=None if vector is None else float(best_cosines[at]),
            ),
        )
        for at, candidate in enumerate(candidates)
    ]
    good = AS_GOOD * max(each.score for each in ranked)
    times = [of_time(each) if each.scores.message or each.score >= good > 0 else 0.0 for each in ranked]
    if any(times):
        ranked = [each.with_time(share) for each, share in zip(ranked, times, strict=True)]
    return sorted(ranked, key=lambda each: (each.score, each.candidate.ended_at), reverse=True)


class _Texts:
    """The texts of all candidates in sequence: for each, its messages, which form passages, and then its summary."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._words = packed_words(b"".join(candidate.words for candidate in candidates))
        self._ends = np.flatnonzero(self._words <= LAST_END)
        self._starts = np.concatenate([[0], self._ends[:-1] + 1])
        self.lengths = self._ends - self._starts
        self.message_counts = counts = np.array([len(candidate.message_ids) for candidate in candidates])
        self.is_message = np.ones(len(self._ends), np.bool_)
        self.is_message[np.cumsum(counts + 1) - 1] = False
        self.are_long_answers = self._words[self._ends[self.is_message]] == ANSWER_END
        """Which messages are long answers of the assistant."""
        self.owners = owners = np.repeat(np.arange(len(candidates)), counts)
        """The candidate that each message belongs to."""
        self._beginnings = np.minimum(self.lengths[self.is_message], BEGINNING)

        every = np.arange(len(owners))
        self._until = np.cumsum(counts)
        self._begins = self._until - counts
        self._passages = np.flatnonzero((every == self._begins[owners]) | (every + WINDOW <= self._until[owners]))
        """The first message of each passage."""
        self.passage_owners = owners[self._passages]
        self._passages_until = np.minimum(self._passages + WINDOW, self._until[self.passage_owners])
        self.episode_lengths, self.passage_lengths = self.summed(self._beginnings)

    def counted(self, query: Sequence[Word]) -> tuple[Scores, Scores]:
        """Count each word of the query, then each two in a row, in each text, and in the beginning of each message."""
        numbered = {number: at for at, word in enumerate(query) for number in hashed(word.forms)}
        # the last 16 bits rule out nearly all other words, which is faster than looking for each
        is_likely = np.zeros(1 << 16, np.bool_)
        is_likely[np.fromiter(numbered, WORD) & 0xFFFF] = True
        places = np.flatnonzero(is_likely[self._words & 0xFFFF])
        rows = np.array([numbered.get(number, -1) for number in self._words[places].tolist()], np.intp)
        places, rows = places[rows >= 0], rows[rows >= 0]
        pairs = np.flatnonzero((np.diff(places) == 1) & (np.diff(rows) == 1))
        places, rows = np.append(places, places[pairs]), np.append(rows, len(query) + rows[pairs])
        texts = np.searchsorted(self._ends, places)
        counts, in_beginnings = np.zeros((2, 2 * len(query), len(self._ends)))
        np.add.at(counts, (rows, texts), 1)
        np.add.at(in_beginnings, (rows, texts), places - self._starts[texts] < BEGINNING)
        return counts, in_beginnings[:, self.is_message]

    def beginning(self, candidate: int, message_scores: Sequence[float]) -> set[int]:
        """Return the first words of a candidate's best message. `message_scores` are in order."""
        if not message_scores:
            return set()
        message = self._begins[candidate] + message_scores.index(max(message_scores))
        start = self._starts[message + candidate]  # each candidate before it has a summary, too
        return set(self._words[start : start + self._beginnings[message]].tolist())

    def summed(self, of_messages: NDArray[Any]) -> tuple[Scores, Scores]:
        """Sum the values of messages for each episode and for each passage."""
        nothing = np.zeros((*of_messages.shape[:-1], 1))
        sums = np.concatenate([nothing, np.cumsum(of_messages, axis=-1)], axis=-1)
        return (
            sums[..., self._until] - sums[..., self._begins],
            sums[..., self._passages_until] - sums[..., self._passages],
        )

    def by_candidate(self, of_messages: Scores) -> list[list[float]]:
        scores = of_messages.tolist()  # lists, because NumPy is slow with so few numbers at a time
        return [scores[begin:until] for begin, until in zip(self._begins.tolist(), self._until.tolist(), strict=True)]


def _compared(counts: Scores, lengths: NDArray[Any], is_common: NDArray[np.bool_]) -> tuple[Scores, Scores]:
    """Compare texts by their `counts` of the query's words and pairs of words.

    Stop words and pairs that no text contains are ignored. Returns each text's BM25, as a share of the maximum that a
    text could have, and its share of the total inverse document frequency of the query's words.
    """
    is_there = counts > 0
    having = is_there.sum(axis=1)
    weights = np.log(1 + (BACKGROUND + counts.shape[1] - having + 0.5) / (having + 0.5))
    weights[np.append(is_common, np.ones_like(is_common)) & (having == 0)] = 0
    words, pairs = np.split(weights, 2)
    pairs *= PAIR
    average = lengths.sum() / max(np.count_nonzero(lengths), 1)
    norms = K1 * np.maximum(lengths, 1) / max(average, 1)
    covered = words @ is_there[: len(words)] / (words.sum() or 1.0)
    return weights @ (counts / (counts + norms)) / (weights.sum() or 1.0), covered


def nearness(cosines: NDArray[Any], noise: Noise) -> Scores:
    """Return cosines as shares: 0 at the noise's mean, 1 at NEAREST deviations above it or at the highest cosine."""
    above = np.maximum(_deviations(cosines, noise), 0.0)
    return above / max(NEAREST, float(above.max(initial=0.0)))


def _deviations(cosines: NDArray[Any], noise: Noise) -> Scores:
    return np.asarray((cosines - noise.mean) / noise.deviation, np.float64)


def _cosines(vector: QueryVector | None, candidates: Sequence[Candidate], messages: Numbers) -> Scores:
    """Return the cosines between the query's vector and the messages'; the lowest, -1, for one without a vector."""
    if vector is None:
        return np.zeros(int(messages.sum()))
    sizes = (messages * len(vector.vector)).tolist()
    packed = b"".join(
        candidate.vectors if len(candidate.vectors) == size else bytes(size)
        for candidate, size in zip(candidates, sizes, strict=True)
    )
    return cosines(packed, vector.vector).astype(np.float64)


def _best(owners: Numbers, values: Scores, count: int) -> Scores:
    best = np.zeros(count)
    np.maximum.at(best, owners, values)
    return best


CORRECTED_WITHIN = timedelta(days=2)
"""How much later a correction may come."""
EPISODES_AFTER = 3
"""Number of next episodes of the user that are looked at."""
MESSAGES_AFTER, OPENING, OPENING_ELSEWHERE = 12, 4, 2
"""Number of messages that are looked at: in the episode, at the beginning of a later one of the same conversation, and
of another conversation."""
MOST_CORRECTIONS = 2
"""Maximum number of corrections that are shown with a hit."""


class Place(NamedTuple):
    """A message that may correct a hit's."""

    conversation_id: str
    message_id: str
    least: Likelihood
    """How likely it has to look to be shown."""


Later = Mapping[Place, MessageText]
"""The messages that may correct a hit, in order."""


def later_query(query: Query, hit: Recalled) -> Query:
    """Return the query for the user's next episodes after a hit."""
    begin = max(hit.ended_at, query.started_after or hit.ended_at)
    times = {"started_after": begin, "started_before": hit.ended_at + CORRECTED_WITHIN}
    return query.model_copy(update={**times, "order": "oldest", "k": EPISODES_AFTER})


def places_after(hit: Recalled, best: str) -> list[Place]:
    """Return the messages of the hit after its `best` one."""
    after = hit.message_ids.index(best) + 1
    return [
        Place(hit.conversation_id, message_id, Likelihood.SAME_SUBJECT)
        for message_id in hit.message_ids[after:][:MESSAGES_AFTER]
    ]


def places_in(episodes: Sequence[Candidate], hit: Recalled) -> list[Place]:
    """Return the first messages of later episodes."""
    places: list[Place] = []
    for episode in sorted(episodes, key=attrgetter("started_at")):
        if episode.episode_id == hit.episode_id:
            continue
        if episode.conversation_id != hit.conversation_id:
            names, least = episode.message_ids[:OPENING_ELSEWHERE], Likelihood.OTHER_VALUE
        else:
            names, least = episode.message_ids[:OPENING], Likelihood.SAME_SUBJECT
        places += [Place(episode.conversation_id, name, least) for name in names]
    return places


def corrections(answer: MessageText | None, later: Later, languages: Sequence[str]) -> Later:
    """Select the messages that correct the best message of a hit, newest first."""
    if answer is None or not later:
        return {}
    own = {
        place: text
        for place, text in later.items()
        if text.sent_at >= answer.sent_at and text.content != answer.content
    }
    found = likelihoods([text.content for text in own.values()], answer.content, languages)
    likely = {place: how for place, how in zip(own, found, strict=True) if how is not None and how >= place.least}
    best = sorted(likely, key=likely.__getitem__, reverse=True)[:MOST_CORRECTIONS]
    return {place: own[place] for place in reversed(own) if place in best}
