"""An index in memory, which passes the same contract tests as Qdrant's and ranks as it does, over all episodes."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from afterword.schemas import SummaryCreated
from afterword.streams.stores.arguments import require_texts
from afterword.streams.stores.index import (
    DENSE,
    DEPTH,
    SUMMARY,
    TEXT,
    Dense,
    Query,
    RankingScores,
    Recalled,
    fused,
    payload,
    recalled,
    summary_text,
)
from afterword.streams.stores.sparse import SparseVector, document_vector, query_vector


@dataclass(frozen=True)
class IndexedEpisode:
    summary: SummaryCreated
    raw_text: str
    dense: Dense | None


class MemoryIndex:
    """An EpisodeIndex."""

    def __init__(self) -> None:
        self.points: dict[str, IndexedEpisode] = {}
        self.removed: dict[str, int] = {}
        """Revisions up to which an episode does not come back."""

    async def put(self, summary: SummaryCreated, raw_text: str, dense: Dense | None = None) -> None:
        if self.removed.get(summary.episode_id, 0) > summary.revision:
            return
        known = self.points.get(summary.episode_id)
        if known is None or known.summary.revision <= summary.revision:
            self.points[summary.episode_id] = IndexedEpisode(summary, raw_text, dense)

    async def remove(self, episode_id: str, revision: int) -> None:
        known = self.points.get(episode_id)
        if known is None or known.summary.revision <= revision:
            self.points.pop(episode_id, None)
            self.removed[episode_id] = max(revision, self.removed.get(episode_id, 0))

    async def search(self, query: Query, dense: Dense | None = None) -> list[Recalled]:
        scores = {
            TEXT: self._bm25(query.text, lambda point: point.raw_text),
            SUMMARY: self._bm25(query.text, lambda point: summary_text(point.summary)),
            DENSE: self._cosines(dense) if dense else {},
        }
        hits = fused({name: self._ranking(query, found) for name, found in scores.items()})[: query.k]
        explained = {hit: RankingScores(**{name: of.get(hit) for name, of in scores.items()}) for hit, _ in hits}
        return [
            recalled(payload(self.points[hit].summary), score, explained[hit] if query.explain else None)
            for hit, score in hits
        ]

    async def revisions(self, episode_ids: Sequence[str]) -> dict[str, int]:
        require_texts(episode_ids=episode_ids)
        return {i: self.points[i].summary.revision for i in episode_ids if i in self.points}

    async def ping(self) -> None:
        """Always there."""

    async def close(self) -> None:
        """Nothing to let go of."""

    def _bm25(self, text: str, text_of: Callable[[IndexedEpisode], str]) -> dict[str, float]:
        vectors = {i: document_vector(text_of(point)) for i, point in self.points.items()}
        wanted = _idf(query_vector(text).indices, vectors.values())
        scores = {i: sum(wanted.get(term, 0.0) * w for term, w in terms(v)) for i, v in vectors.items()}
        return {i: score for i, score in scores.items() if score > 0}

    def _cosines(self, dense: Dense) -> dict[str, float]:
        return {i: _cosine(dense, point.dense) for i, point in self.points.items() if point.dense}

    def _ranking(self, query: Query, scores: dict[str, float]) -> list[str]:
        allowed = [i for i in scores if query.allows(self.points[i].summary)]
        return sorted(allowed, key=lambda i: -scores[i])[: max(DEPTH, query.k)]


def terms(vector: SparseVector) -> Iterable[tuple[int, float]]:
    return zip(vector.indices, vector.values, strict=True)


def _idf(wanted: Sequence[int], documents: Iterable[SparseVector]) -> dict[int, float]:
    """Inverse document frequency like Qdrant's: ln(1 + (N − n + ½) / (n + ½)), over all documents of the collection."""
    vectors = list(documents)
    frequencies = Counter(term for vector in vectors for term in vector.indices)
    return {t: math.log(1 + (len(vectors) - frequencies[t] + 0.5) / (frequencies[t] + 0.5)) for t in wanted}


def _cosine(one: Dense, other: Dense) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other) or 1.0)
