"""An index in memory, which passes the same contract tests as the others."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from afterword.schemas import SummaryCreated
from afterword.streams.stores.arguments import require_texts
from afterword.streams.stores.index import (
    DEPTH,
    Candidate,
    Dense,
    Query,
    packed_texts,
    payload,
    recalled,
)
from afterword.streams.stores.sparse import document_vector, query_vector


@dataclass(frozen=True)
class IndexedEpisode:
    summary: SummaryCreated
    texts: dict[str, str]
    vectors: dict[str, Dense]

    @property
    def raw_text(self) -> str:
        return "\n".join(self.texts.values())


class MemoryIndex:
    """An EpisodeIndex."""

    def __init__(self) -> None:
        self.points: dict[str, IndexedEpisode] = {}
        self.removed: dict[str, int] = {}
        """Revisions up to which an episode does not come back."""

    async def put(
        self, summary: SummaryCreated, texts: Mapping[str, str], vectors: Mapping[str, Dense] | None = None
    ) -> None:
        if self.removed.get(summary.episode_id, 0) > summary.revision:
            return
        known = self.points.get(summary.episode_id)
        if known is None or known.summary.revision <= summary.revision:
            self.points[summary.episode_id] = IndexedEpisode(summary, dict(texts), dict(vectors or {}))

    async def remove(self, episode_id: str, revision: int) -> None:
        known = self.points.get(episode_id)
        if known is None or known.summary.revision <= revision:
            self.points.pop(episode_id, None)
            self.removed[episode_id] = max(revision, self.removed.get(episode_id, 0))

    async def search(self, query: Query, dense: Dense | None = None) -> list[Candidate]:
        allowed = {name: point for name, point in self.points.items() if query.allows(point.summary)}
        asked, most = query_vector(query.text).indices, max(DEPTH, query.k)
        packed = {name: packed_texts(point.summary, point.texts, point.vectors) for name, point in allowed.items()}
        matching = {name: len(set(asked) & set(document_vector(words).indices)) for name, (words, _) in packed.items()}
        cosines = {
            name: max(_cosine(dense, vector) for vector in point.vectors.values())
            for name, point in allowed.items()
            if dense and point.vectors
        }
        found = dict.fromkeys([*_best({name: n for name, n in matching.items() if n}, most), *_best(cosines, most)])
        return [Candidate(recalled(payload(allowed[name].summary)), *packed[name]) for name in found]

    async def revisions(self, episode_ids: Sequence[str]) -> dict[str, int]:
        require_texts(episode_ids=episode_ids)
        return {i: self.points[i].summary.revision for i in episode_ids if i in self.points}

    async def ping(self) -> None:
        """Always there."""

    async def close(self) -> None:
        """Nothing to let go of."""


def _best(scores: Mapping[str, float], most: int) -> list[str]:
    return sorted(scores, key=lambda name: -scores[name])[:most]


def _cosine(one: Dense, other: Dense) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other) or 1.0)
