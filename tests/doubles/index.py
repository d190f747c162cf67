"""The tests' index: SQLite's in memory, with a view of what was put into it."""

from collections.abc import Mapping
from dataclasses import dataclass

from afterword.schemas import SummaryCreated
from afterword.streams.stores.episodes import StoredEpisode
from afterword.streams.stores.index import Dense, SearchText
from afterword.streams.stores.sqlite import SqliteFile
from afterword.streams.stores.sqlite_index import SqliteIndex
from tests.doubles.stores import View, at_once


@dataclass(frozen=True)
class IndexedEpisode:
    episode: StoredEpisode
    texts: dict[str, SearchText]
    vectors: dict[str, Dense]

    @property
    def summary(self) -> SummaryCreated:
        return self.episode.summary

    @property
    def raw_text(self) -> str:
        return "\n".join(one.text for one in self.texts.values())


class MemoryIndex(SqliteIndex):
    def __init__(self) -> None:
        super().__init__(SqliteFile(None))
        self._put: dict[tuple[str, int], IndexedEpisode] = {}

    @property
    def points(self) -> View[IndexedEpisode]:
        """The indexed episodes by id; setting one indexes it."""
        ids = dict.fromkeys(episode_id for episode_id, _ in self._put)
        there = at_once(self.revisions(list(ids)))
        return View({name: self._put[name, there[name]] for name in ids if name in there}, self._set)

    async def put(
        self, episode: StoredEpisode, texts: Mapping[str, SearchText], vectors: Mapping[str, Dense] | None = None
    ) -> None:
        await super().put(episode, texts, vectors)
        key = episode.summary.episode_id, episode.summary.revision
        self._put[key] = IndexedEpisode(episode, dict(texts), dict(vectors or {}))

    async def hand_over(self, episode: StoredEpisode) -> bool:
        name, revision = episode.summary.episode_id, episode.summary.revision
        before = self.points.get(name)
        is_indexed = await super().hand_over(episode)
        if before and before.summary.revision <= revision:
            self._put[name, revision] = IndexedEpisode(episode, before.texts, before.vectors)
        return is_indexed

    def _set(self, key: str, point: IndexedEpisode | None) -> None:
        if point:
            at_once(self.put(point.episode, point.texts, point.vectors))
