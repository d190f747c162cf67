"""An index in memory. It keeps the contract of the real one, without vectors."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from schemas import SummaryCreated
from streams.stores.index import Dense


@dataclass(frozen=True)
class IndexedEpisode:
    summary: SummaryCreated
    raw_text: str
    dense: Dense | None


class MemoryIndex:
    """An EpisodeIndex."""

    def __init__(self) -> None:
        self.points: dict[str, IndexedEpisode] = {}

    async def put(self, summary: SummaryCreated, raw_text: str, dense: Dense | None = None) -> None:
        known = self.points.get(summary.episode_id)
        if known is None or known.summary.revision <= summary.revision:
            self.points[summary.episode_id] = IndexedEpisode(summary, raw_text, dense)

    async def has(self, episode_ids: Sequence[str]) -> set[str]:
        return self.points.keys() & set(episode_ids)

    async def all_ids(self) -> AsyncIterator[str]:
        for episode_id in list(self.points):
            yield episode_id

    async def ping(self) -> None:
        """Always there."""

    async def close(self) -> None:
        """Nothing to let go of."""
