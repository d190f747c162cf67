"""The index anew from MongoDB: what was indexed can always be made again."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from afterword.schemas.ids import message_key
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import EpisodeStore, StoredEpisode
from afterword.streams.stores.index import EpisodeIndex, raw_text, summary_text
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.opening import open_stores
from afterword.streams.summarizer.embedders import Embedder, make_embedder

PAGE_EPISODES = 100
"""Held in memory at a time, their messages one episode after another."""


@dataclass(frozen=True)
class Rebuilt:
    """Episodes so far."""

    seen: int = 0
    written: int = 0
    incomplete: int = 0
    """Of those written: some message is not in the archive, and cannot be searched for."""
    last: str | None = None
    """`episode_id` of the last one: where `after` goes on."""


Progress = Callable[[Rebuilt], None]


class Rebuild:
    """Goes through all stored episodes in the order of their ids.

    `everything`: also what is indexed with its revision already. May run beside the workers, and again after it was
    stopped: an older revision never replaces a newer one.
    """

    def __init__(
        self,
        episodes: EpisodeStore,
        messages: MessageArchive,
        index: EpisodeIndex,
        embedder: Embedder | None,
        everything: bool = False,
    ) -> None:
        self._episodes = episodes
        self._messages = messages
        self._index = index
        self._embedder = embedder
        self._everything = everything

    async def run(self, progress: Progress, after: str | None = None) -> Rebuilt:
        """From the first episode after `after` on; tells `progress` after each page. Raises: StoreUnavailable."""
        done = Rebuilt(last=after)
        while page := await self._episodes.following(done.last, PAGE_EPISODES):
            wanted = await self._wanted(page)
            whole = [await self._write(stored) for stored in wanted]
            last = page[-1].summary.episode_id
            done = Rebuilt(done.seen + len(page), done.written + len(whole), done.incomplete + whole.count(False), last)
            progress(done)
        return done

    async def _wanted(self, page: Sequence[StoredEpisode]) -> Sequence[StoredEpisode]:
        if self._everything:
            return page
        indexed = await self._index.revisions([stored.summary.episode_id for stored in page])
        return [s for s in page if indexed.get(s.summary.episode_id, 0) < s.summary.revision]

    async def _write(self, stored: StoredEpisode) -> bool:
        """Whether all of its messages were there."""
        summary = stored.summary
        keys = [message_key(summary.conversation_id, message_id) for message_id in summary.message_ids]
        found = await self._messages.get_many(keys)
        text = raw_text(found[key].message.content for key in keys if key in found)
        dense = await self._embedder.embed(summary_text(summary)) if self._embedder else None
        await self._index.put(summary, text, dense)
        return len(found) == len(set(keys))


async def rebuild(settings: Settings, progress: Progress, after: str | None, everything: bool) -> Rebuilt:
    """Raises: StoreUnavailable (of which StoreInUse: a summarizer has the directory open), ConfigurationError."""
    async with AsyncExitStack() as closing:
        stores = await closing.enter_async_context(open_stores(settings))
        if embedder := make_embedder(settings.embedder):
            closing.push_async_callback(embedder.close)
        work = Rebuild(stores.episodes, stores.messages, stores.index, embedder, everything)
        return await work.run(progress, after)
