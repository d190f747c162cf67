"""Copies everything from an SQLite file into the configured stores, for a deployment that moves to servers."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from afterword.schemas.ids import message_key
from afterword.streams.errors import ConfigurationError
from afterword.streams.settings import Settings, Sqlite
from afterword.streams.stores.episodes import StoredEpisode, all_episodes, scope_of
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.stores.opening import Stores, open_stores

PAGE_MESSAGES = 200
"""Number of messages read at a time. A message has up to 1 MB."""


@dataclass
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
        raise ConfigurationError(
            setting="AFTERWORD_SQLITE__PATH", problem="is set; use the settings of the servers to copy to"
        )
    if not file.is_file():  # noqa: ASYNC240 – nothing else is running yet
        raise ConfigurationError(setting="FILE", problem=f"{file} is not a file")
    async with AsyncExitStack() as closing:
        target = await closing.enter_async_context(open_stores(settings))
        source = await closing.enter_async_context(
            open_stores(settings.model_copy(update={"sqlite": Sqlite(path=file)}))
        )
        await target.prepare_database()
        done = Copied()
        keys = [one.key async for one in source.messages.all_messages()]
        for start in range(0, len(keys), PAGE_MESSAGES):
            page = await source.messages.states(keys[start : start + PAGE_MESSAGES])
            await target.messages.copy(page)  # with tombstones, so that a replay brings no deleted message back
            done.messages += sum(isinstance(one, ArchivedMessage) for one in page.values())
            progress(done)
        await _copy_episodes(source, target, done, progress)
        for key in await source.keys.list():
            await target.keys.put(key)
            done.keys += 1
        progress(done)
        return done


async def _copy_episodes(source: Stores, target: Stores, done: Copied, progress: CopyProgress) -> None:
    scopes = set[str]()
    async for episode in all_episodes(source.episodes):
        await target.episodes.put(episode, None)
        if isinstance(episode, StoredEpisode):
            summary = episode.summary
            keys = [message_key(summary.conversation_id, one, summary.tenant_id) for one in episode.core_ids]
            found = await source.messages.get_many(keys)
            await target.messages.assign(summary.episode_id, list(found.values()))
        if (scope := scope_of(episode.event)) not in scopes:
            scopes.add(scope)
            for row in await source.episodes.rows(scope):
                await target.episodes.put_row(row, None)
            if conversation := await source.episodes.conversation(scope):
                await target.episodes.put_conversation(conversation, None)
                done.conversations += 1
        done.episodes += 1
        progress(done)
