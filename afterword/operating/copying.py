"""Copies everything from an SQLite file into the configured stores, for a deployment that moves to servers."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from afterword.schemas.ids import message_key
from afterword.streams.errors import ConfigurationError
from afterword.streams.settings import Settings, Sqlite
from afterword.streams.stores.episodes import Episode, StoredEpisode, scope_of
from afterword.streams.stores.opening import Stores, open_stores

PAGE_EPISODES = 100
PAGE_MESSAGES = 200
"""Number of messages read at a time. A message has up to 1 MB."""


@dataclass(frozen=True)
class Copied:
    """Counts of what was copied, including what the target already had, which is left unchanged."""

    messages: int = 0
    episodes: int = 0
    conversations: int = 0
    keys: int = 0


CopyProgress = Callable[[Copied], None]


async def copy_stores(settings: Settings, file: Path, progress: CopyProgress) -> Copied:
    """Copy everything. It can be repeated, even after an interruption. The search index is not copied; rebuild it.

    Raises: ConfigurationError, StoreUnavailable.
    """
    if settings.sqlite.path is not None:
        raise ConfigurationError(setting="AFTERWORD_SQLITE__PATH", problem="is set, so there are no servers to copy to")
    if not file.is_file():  # noqa: ASYNC240 – nothing else is running yet
        raise ConfigurationError(setting="FILE", problem=f"{file} is not a file")
    async with AsyncExitStack() as closing:
        target = await closing.enter_async_context(open_stores(settings))
        source = await closing.enter_async_context(
            open_stores(settings.model_copy(update={"sqlite": Sqlite(path=file)}))
        )
        await target.prepare_database()
        return await StoreCopy(source, target, progress).run()


class StoreCopy:
    """Copies one kind of record after another, with the stores' own methods."""

    def __init__(self, source: Stores, target: Stores, progress: CopyProgress) -> None:
        self._source = source
        self._target = target
        self._progress = progress
        self._done = Copied()

    async def run(self) -> Copied:
        await self._copy_messages()
        await self._copy_episodes()
        for key in await self._source.keys.list():
            await self._target.keys.put(key)
            self._count(keys=1)
        return self._done

    async def _copy_messages(self) -> None:
        keys: list[str] = []
        async for ref in self._source.messages.all_messages():
            if not ref.deleted:
                keys.append(ref.key)
            if len(keys) == PAGE_MESSAGES:
                await self._put_messages(keys)
                keys = []
        await self._put_messages(keys)

    async def _put_messages(self, keys: list[str]) -> None:
        found = await self._source.messages.get_many(keys)
        await self._target.messages.put_many(list(found.values()))
        self._count(messages=len(found))

    async def _copy_episodes(self) -> None:
        after = None
        scopes = set[str]()
        while page := await self._source.episodes.page(after, PAGE_EPISODES):
            for episode in page:
                await self._target.episodes.put(episode, None)
                await self._assign(episode)
                scope = scope_of(episode.event)
                if scope not in scopes:
                    scopes.add(scope)
                    await self._copy_conversation(scope)
            after = page[-1].event.episode_id
            self._count(episodes=len(page))

    async def _assign(self, episode: Episode) -> None:
        if isinstance(episode, StoredEpisode):
            summary = episode.summary
            keys = [message_key(summary.conversation_id, one, summary.tenant_id) for one in episode.core_ids]
            found = await self._source.messages.get_many(keys)
            await self._target.messages.assign(summary.episode_id, list(found.values()))

    async def _copy_conversation(self, scope: str) -> None:
        for row in await self._source.episodes.rows(scope):
            await self._target.episodes.put_row(row, None)
        if conversation := await self._source.episodes.conversation(scope):
            await self._target.episodes.put_conversation(conversation, None)
            self._count(conversations=1)

    def _count(self, **more: int) -> None:
        self._done = replace(self._done, **{name: getattr(self._done, name) + count for name, count in more.items()})
        self._progress(self._done)
