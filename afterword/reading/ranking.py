"""Ranks a search's candidates by the sum of four measures.

An episode has several subjects, so its words as a whole say little about any one of them. In addition to the BM25 of
the whole episode, the ranking therefore uses three more measures. One is the BM25 of the best passage of WINDOW
consecutive messages, because the answer is often a message without any word of the question, next to one that has them.
The others are the BM25 of the best message and the best cosine of a message. Each measure is a share of the maximum for
the query, so that scores of different queries are comparable.
"""

from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from afterword.streams.stores.index import Candidate, Noise, QueryVector, RankingScores
from afterword.streams.stores.packing import ANSWER_END, LAST_END, WORD, cosines, packed_words
from afterword_text.search_words import Word, hashed

WINDOW = 3
PIECE_WORDS = 40
"""How many words of a message count in passages and episodes. People say what matters first, and the many words of an
assistant's long answer would match any question. The words after them form separate pieces with less weight."""
LATER_PIECE = 0.5
"""Weight of these later pieces and of the summary."""
EPISODE_WEIGHT = 0.5
"""Weight of the whole episode. The other measures have weight 1."""
K1, B, B_OF_PARTS = 1.2, 0.75, 1.0
"""Robertson and Zaragoza's defaults for episodes. For passages and messages, length normalization is applied in
full."""

SHOWN, SHOWN_SHARE, ANSWERED = 5, 0.3, 3
"""A hit shows up to SHOWN messages that have at least SHOWN_SHARE of the best one's score, and those beside the
ANSWERED best ones, because an answer need not have a word of the question."""

BACKGROUND = 50
"""Number of imaginary texts without any word of the query that are added to the candidates. Without them, a word that
all messages of a small memory share would count as common."""

VECTOR_WEIGHT, NEAREST = 2.0, 5.0
"""Weight of the best message's cosine, which counts as a share: 0 at the mean of the query's cosines with background
sentences, 1 at NEAREST standard deviations above it."""
LONG_ANSWER = 0.8
"""Weight of the cosine of a long answer of the assistant, whose vector stands for its beginning alone: much of it only
repeats the question that it answers."""
CERTAIN, DOUBT = 2.5, 1.4
"""A cosine CERTAIN standard deviations above the model's mean covers the whole query. Coverage is raised to the power
of DOUBT, because cosines half as high are common among texts of one subject."""

ASKED_TIME_SHARE = 0.4
"""Share of the score for taking place at the time named in the query. It does not filter, because plans for May are
made in April."""

AS_GOOD = 0.8
"""A candidate without a word of the query in its best message counts as one of the named time if it has this share of
the best score, because vectors always match something."""

ALIKE, NEAR = 0.4, 0.5
"""Near-duplicates share at least ALIKE of their words, but not all, including the best message's query words. They are
looked for among episodes with at least NEAR of the best score."""

Numbers = NDArray[np.intp]
Scores = NDArray[np.float64]


class Ranked(NamedTuple):
    """A candidate and how well it matches the query."""

    candidate: Candidate
    score: float
    """0 to 1, comparable across queries."""
    coverage: float
    """Share of the query's total inverse document frequency that a single passage or message contains; with vectors,
    the square of that share and the share of the best cosine, as probabilities of which at least one is enough, to the
    power of DOUBT."""
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
    """Rank the candidates, best first, and newer ones first if equal. Linear in their words and vectors.

    If the best message was said again later in nearly the same words, the latest such episode takes the place of the
    best one, unless `of_time` says that it matches the time named in the query less well.
    """
    if not candidates:
        return []
    texts = _Texts(candidates)
    counts = texts.counted(query)
    in_episodes, in_passages = texts.summed(counts)
    is_common = np.array([word.is_common for word in query], np.bool_)
    episodes, _ = _compared(in_episodes, texts.episode_lengths, is_common, B)
    passages, covered_by_passages = _compared(in_passages, texts.passage_lengths, is_common, B_OF_PARTS)
    pieces, covered_by_pieces = _compared(counts, texts.piece_lengths, is_common, B_OF_PARTS)

    weighted = pieces * texts.piece_weights
    weight = VECTOR_WEIGHT if vector else 0.0
    message_cosines = _cosines(vector, candidates, texts.message_counts)
    similar = share(message_cosines, vector.query, NEAREST) if vector else message_cosines
    similar = np.where(texts.are_long_answers, LONG_ANSWER * similar, similar)
    of_messages = _best(texts.piece_texts, weighted, len(texts.owners))[texts.messages] + weight * similar
    best_passages = _best(texts.passage_owners, passages, len(candidates))
    best_pieces = _best(texts.owners[texts.piece_texts], weighted, len(candidates))
    best_similar = _best(texts.message_owners, similar, len(candidates))
    best_cosines = _best(texts.message_owners, message_cosines, len(candidates))
    coverage = np.maximum(
        _best(texts.passage_owners, covered_by_passages, len(candidates)),
        _best(texts.owners[texts.piece_texts], covered_by_pieces, len(candidates)),
    )
    words = EPISODE_WEIGHT * episodes + best_passages + best_pieces
    scores = (words + weight * best_similar) / (EPISODE_WEIGHT + 2 + weight)
    if vector:
        # squared, because a few words in common say little
        certain = _best(texts.message_owners, share(message_cosines, vector.model, CERTAIN), len(candidates))
        coverage = (1 - (1 - coverage**2) * (1 - certain)) ** DOUBT
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
                message=float(best_pieces[at]),
                cosine=None if vector is None else float(best_cosines[at]),
            ),
        )
        for at, candidate in enumerate(candidates)
    ]
    good = AS_GOOD * max(each.score for each in ranked)
    times = [of_time(each) if each.scores.message or each.score >= good > 0 else 0.0 for each in ranked]
    if any(times):
        ranked = [each.with_time(share) for each, share in zip(ranked, times, strict=True)]
    latest, best = _latest_and_best(ranked, {number for word in query for number in hashed(word.forms)})
    ranked[latest] = ranked[latest]._replace(score=ranked[best].score)
    return sorted(ranked, key=lambda each: (each.score, each.candidate.ended_at), reverse=True)


def _latest_and_best(ranked: Sequence[Ranked], asked: Set[int]) -> tuple[int, int]:
    """Find the best candidate, and the latest of those near it whose best message says nearly the same."""
    best = max(range(len(ranked)), key=lambda at: (ranked[at].score, ranked[at].candidate.ended_at))
    words = ranked[best].best_words
    same = [best]
    for at, other in enumerate(ranked):
        is_alike = ALIKE <= len(other.best_words & words) / max(len(other.best_words | words), 1) < 1
        is_of_time = other.of_time >= ranked[best].of_time
        if is_alike and is_of_time and words & asked <= other.best_words and other.score >= NEAR * ranked[best].score:
            same.append(at)
    return max(same, key=lambda at: ranked[at].candidate.ended_at), best


class _Texts:
    """The texts of all candidates in sequence: for each, its messages and then its summary.

    Texts are split into pieces of PIECE_WORDS. Passages consist of the first pieces of messages.
    """

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._words = packed_words(b"".join(candidate.words for candidate in candidates))
        self._ends = np.flatnonzero(self._words <= LAST_END)
        counts = np.array([len(candidate.message_ids) + 1 for candidate in candidates])
        self.owners = np.repeat(np.arange(len(candidates)), counts)
        """The candidate that each text belongs to."""
        self.message_counts = counts - 1
        is_message = np.ones(len(self._ends), np.bool_)
        is_message[np.cumsum(counts) - 1] = False
        self.messages = np.flatnonzero(is_message)
        """Which texts are messages."""
        self.are_long_answers = self._words[self._ends[self.messages]] == ANSWER_END
        """Which messages are long answers of the assistant."""
        self.message_owners = owners = self.owners[self.messages]

        lengths = np.diff(self._ends, prepend=-1) - 1
        self._starts = self._ends - lengths
        numbers = np.maximum(-(-lengths // PIECE_WORDS), 1)
        self._first = np.cumsum(numbers) - numbers
        """The first piece of each text."""
        self.piece_texts = np.repeat(np.arange(len(numbers)), numbers)
        places = np.arange(len(self.piece_texts)) - self._first[self.piece_texts]
        self.piece_lengths = np.minimum(lengths[self.piece_texts] - PIECE_WORDS * places, PIECE_WORDS)
        is_first = (places == 0) & is_message[self.piece_texts]
        self.piece_weights = np.where(is_first, 1.0, LATER_PIECE)

        every = np.arange(len(self.messages))
        self._begins = np.searchsorted(owners, np.arange(len(candidates)))
        self._until = np.searchsorted(owners, np.arange(len(candidates)), "right")
        is_start = (every == self._begins[owners]) | (every + WINDOW <= self._until[owners])
        self._passages = np.flatnonzero(is_start)
        """The first message of each passage."""
        self.passage_owners = owners[self._passages]
        self._passages_until = np.minimum(self._passages + WINDOW, self._until[self.passage_owners])
        self.episode_lengths, self.passage_lengths = self.summed(self.piece_lengths)

    def counted(self, query: Sequence[Word]) -> Scores:
        """Count each word of the query in each piece."""
        counts = np.zeros((len(query), len(self.piece_texts)))
        numbered = {number: at for at, word in enumerate(query) for number in hashed(word.forms)}
        # the last 16 bits rule out nearly all other words, which is faster than looking for each
        is_likely = np.zeros(1 << 16, np.bool_)
        is_likely[np.fromiter(numbered, WORD) & 0xFFFF] = True
        places = np.flatnonzero(is_likely[self._words & 0xFFFF])
        rows = np.array([numbered.get(number, -1) for number in self._words[places].tolist()], np.intp)
        places, rows = places[rows >= 0], rows[rows >= 0]
        texts = np.searchsorted(self._ends, places)
        pieces = self._first[texts] + (places - self._starts[texts]) // PIECE_WORDS
        np.add.at(counts, (rows, pieces), 1)
        return counts

    def beginning(self, candidate: int, message_scores: Sequence[float]) -> set[int]:
        """Return the first words of a candidate's best message. `message_scores` are in order."""
        if not message_scores:
            return set()
        text = self.messages[self._begins[candidate] + message_scores.index(max(message_scores))]
        start = self._starts[text]
        return set(self._words[start : min(start + PIECE_WORDS, self._ends[text])].tolist())

    def summed(self, of_pieces: NDArray[Any]) -> tuple[Scores, Scores]:
        """Sum the values of messages' first pieces, for each episode and for each passage."""
        of_messages = of_pieces[..., self._first[self.messages]]
        nothing = np.zeros((*of_messages.shape[:-1], 1))
        sums = np.concatenate([nothing, np.cumsum(of_messages, axis=-1)], axis=-1)
        return (
            sums[..., self._until] - sums[..., self._begins],
            sums[..., self._passages_until] - sums[..., self._passages],
        )

    def by_candidate(self, of_messages: Scores) -> list[list[float]]:
        scores = of_messages.tolist()  # lists, because NumPy is slow with so few numbers at a time
        return [scores[begin:until] for begin, until in zip(self._begins.tolist(), self._until.tolist(), strict=True)]


def _compared(counts: Scores, lengths: NDArray[Any], is_common: NDArray[np.bool_], b: float) -> tuple[Scores, Scores]:
    """Compare texts by their `counts` of the query's words. Stop words that no text contains are ignored.

    Returns each text's BM25, as a share of the maximum that a text could have, and its share of the query's total
    inverse document frequency.
    """
    is_there = counts > 0
    having = is_there.sum(axis=1)
    weights = np.log(1 + (BACKGROUND + counts.shape[1] - having + 0.5) / (having + 0.5))
    weights[is_common & (having == 0)] = 0
    total = weights.sum() or 1.0
    average = lengths.sum() / max(np.count_nonzero(lengths), 1)
    norms = K1 * (1 - b + b * np.maximum(lengths, 1) / max(average, 1))
    return weights @ (counts / (counts + norms)) / total, weights @ is_there / total


def share(cosines: NDArray[Any], noise: Noise, highest: float) -> Scores:
    """Place cosines between the noise's mean, which is 0, and `highest` standard deviations above it, which is 1."""
    return np.clip((cosines - noise.mean) / noise.deviation / highest, 0.0, 1.0)


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
