"""Rebuilds the search index from the stored episodes and the archived messages."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from afterword.schemas.ids import message_key
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import DeletedEpisode, EpisodeQueries, StoredEpisode, living
from afterword.streams.stores.index import EpisodeIndex
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.opening import open_stores
from afterword.streams.summarizer.embedders import Embedder, embed_messages, make_embedder

PAGE_EPISODES = 100
"""Number of episodes held in memory at a time. Their messages are loaded one episode after another."""


@dataclass(frozen=True)
class IndexCounts:
    """Counts of episodes so far."""

    seen: int = 0
    written: int = 0
    incomplete: int = 0
    """Indexed episodes with messages that are not in the archive and cannot be searched for."""
    total: int | None = None
    """Number of episodes to process when the run started."""
    last: str | None = None
    """The last `episode_id`. A later run can resume with it as `after`."""


IndexProgress = Callable[[IndexCounts], None]


@dataclass(frozen=True)
class IndexRebuild:
    """Indexes stored episodes in the order of their ids: those whose revision is not indexed, or `everything`.

    It may run beside the workers and be repeated: an older revision never replaces a newer one.
    """

    episodes: EpisodeQueries
    messages: MessageArchive
    index: EpisodeIndex
    embedder: Embedder | None
    everything: bool = False

    async def run(self, progress: IndexProgress, after: str | None = None) -> IndexCounts:
        """Start with the first episode after `after`, and call `progress` after each page. Raises: StoreUnavailable."""
        total = await self.episodes.count(after)
        done = IndexCounts(last=after, total=total)
        while page := await self.episodes.page(done.last, PAGE_EPISODES):
            wanted = await self._wanted([*living(page).values()])
            whole = [await self._write(stored) for stored in wanted]
            # those deleted since they were read, which a new index could not know
            now = await self.episodes.lookup([stored.summary.episode_id for stored in wanted])
            for name, episode in now.items():
                if isinstance(episode, DeletedEpisode):
                    await self.index.remove(name, episode.deletion.revision)
            last = page[-1].event.episode_id
            done = IndexCounts(
                done.seen + len(page), done.written + len(whole), done.incomplete + whole.count(False), total, last
            )
            progress(done)
        return done

    async def _wanted(self, page: Sequence[StoredEpisode]) -> Sequence[StoredEpisode]:
        if self.everything:
            return page
        indexed = await self.index.revisions([stored.summary.episode_id for stored in page])
        return [s for s in page if indexed.get(s.summary.episode_id, 0) < s.summary.revision]

    async def _write(self, stored: StoredEpisode) -> bool:
        summary = stored.summary
        keys = [message_key(summary.conversation_id, one, summary.tenant_id) for one in summary.message_ids]
        found = await self.messages.get_many(keys)
        texts = {archived.message.id: archived.message.content for archived in found.values()}
        vectors = await embed_messages(self.embedder, texts) if self.embedder else None
        await self.index.put(stored, texts, vectors)
        return len(found) == len(set(keys))


async def rebuild_index(
    settings: Settings, progress: IndexProgress, after: str | None, everything: bool
) -> IndexCounts:
    """Rebuild the index of these settings. Raises: StoreUnavailable, ConfigurationError."""
    async with AsyncExitStack() as closing:
        stores = await closing.enter_async_context(open_stores(settings))
        if embedder := make_embedder(settings.embedder, settings.redaction.shown()):
            closing.push_async_callback(embedder.close)
        work = IndexRebuild(stores.episodes, stores.messages, stores.index, embedder, everything)
        return await work.run(progress, after)
