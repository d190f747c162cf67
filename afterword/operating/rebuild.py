"""Rebuilds the search index from the stored episodes and the archived messages."""

from collections.abc import Callable
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


@dataclass
class IndexCounts:
    """Counts of episodes so far."""

    total: int
    """Number of episodes when the run started."""
    seen: int = 0
    written: int = 0
    incomplete: int = 0
    """Indexed episodes with messages that are not in the archive and cannot be searched for."""


IndexProgress = Callable[[IndexCounts], None]


async def index_episodes(
    episodes: EpisodeQueries,
    messages: MessageArchive,
    index: EpisodeIndex,
    embedder: Embedder | None,
    progress: IndexProgress,
    *,
    everything: bool = False,
) -> IndexCounts:
    """Index stored episodes in the order of their ids: those whose revision is not indexed, or `everything`.

    It may run beside the workers and be repeated: an older revision never replaces a newer one. `progress` is called
    after each page. Raises: StoreUnavailable.
    """
    done, last = IndexCounts(await episodes.count()), None
    while page := await episodes.page(last, PAGE_EPISODES):
        wanted = living(page)
        if not everything:
            indexed = await index.revisions(list(wanted))
            wanted = {name: s for name, s in wanted.items() if indexed.get(name, 0) < s.summary.revision}
        for stored in wanted.values():
            done.incomplete += not await _write(stored, messages, index, embedder)
        # those deleted since they were read, which a new index could not know
        for name, now in (await episodes.lookup(list(wanted))).items():
            if isinstance(now, DeletedEpisode):
                await index.remove(name, now.deletion.revision)
        last = page[-1].event.episode_id
        done.seen += len(page)
        done.written += len(wanted)
        progress(done)
    return done


async def _write(
    stored: StoredEpisode, messages: MessageArchive, index: EpisodeIndex, embedder: Embedder | None
) -> bool:
    """Index an episode, and return whether all of its messages are archived."""
    summary = stored.summary
    keys = [message_key(summary.conversation_id, one, summary.tenant_id) for one in summary.message_ids]
    found = await messages.get_many(keys)
    texts = {archived.message.id: archived.message.content for archived in found.values()}
    await index.put(stored, texts, await embed_messages(embedder, texts) if embedder else None)
    return len(found) == len(set(keys))


async def rebuild_index(settings: Settings, progress: IndexProgress, everything: bool) -> IndexCounts:
    """Rebuild the index of these settings. Raises: StoreUnavailable, ConfigurationError."""
    async with AsyncExitStack() as closing:
        stores = await closing.enter_async_context(open_stores(settings))
        if embedder := make_embedder(settings.embedder, settings.redaction.shown()):
            closing.push_async_callback(embedder.close)
        return await index_episodes(
            stores.episodes, stores.messages, stores.index, embedder, progress, everything=everything
        )
