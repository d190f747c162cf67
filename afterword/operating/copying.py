"""Copies what is stored: everything from an SQLite file to servers, and a person's data as JSON Lines."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from afterword.operating.person import Person, conversations_of
from afterword.schemas.base import message_key, rfc3339
from afterword.streams.errors import ConfigurationError
from afterword.streams.installed import running_version
from afterword.streams.settings import Settings, Sqlite
from afterword.streams.stores.episodes import (
    EpisodeQueries,
    StoredEpisode,
    all_episodes,
    scope_of,
)
from afterword.streams.stores.messages import ArchivedMessage, MessageArchive, Selection
from afterword.streams.stores.opening import Stores, open_stores

PAGE_MESSAGES = 200
"""Number of messages read at a time. A message has up to 1 MB."""
COUNTED = {
    "conversation": "conversations",
    "message": "messages",
    "episode": "episodes",
    "rolling_summary": "rolling_summaries",
}
ExportLine = dict[str, Any]
T = TypeVar("T")


@dataclass
class Copied:
    """Counts of what was copied, including what the target already had."""

    messages: int = 0
    episodes: int = 0
    conversations: int = 0
    keys: int = 0


async def copy_stores(settings: Settings, file: Path, progress: Callable[[Copied], None]) -> Copied:
    """Copy everything, or what has changed since. The search index is not copied; rebuild it.

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
        await target.messages.copy_assignments(await source.messages.records.read_all("assignments"))
        keys = [message.key async for message in source.messages.all_messages()]
        for start in range(0, len(keys), PAGE_MESSAGES):
            page = await source.messages.states(keys[start : start + PAGE_MESSAGES])
            await target.messages.copy(page)  # with tombstones, so that a replay brings no deleted message back
            done.messages += sum(isinstance(message, ArchivedMessage) for message in page.values())
            progress(done)
        await _copy_episodes(source, target, done, progress)
        for key in await source.keys.list():
            await target.keys.put(key)
            done.keys += 1
        progress(done)
        return done


async def _copy_episodes(source: Stores, target: Stores, done: Copied, progress: Callable[[Copied], None]) -> None:
    scopes = set[str]()
    async for episode in all_episodes(source.episodes):
        stored = await target.episodes.lookup([episode.event.episode_id])
        await _put(target.episodes.put, episode, stored.get(episode.event.episode_id), lambda one: one.event.revision)
        if isinstance(episode, StoredEpisode):
            summary = episode.summary
            keys = [
                message_key(summary.conversation_id, message_id, summary.tenant_id) for message_id in episode.core_ids
            ]
            archived = await source.messages.get_many(keys)
            await target.messages.assign(summary.episode_id, list(archived.values()))
        if (scope := scope_of(episode.event)) not in scopes:
            scopes.add(scope)
            rows = {row.row: row for row in await target.episodes.rows(scope)}
            for row in await source.episodes.rows(scope):
                await _put(target.episodes.put_row, row, rows.get(row.row), lambda one: one.revision)
            if conversation := await source.episodes.conversation(scope):
                known = await target.episodes.conversation(scope)
                await _put(target.episodes.put_conversation, conversation, known, lambda one: one.revision)
                done.conversations += 1
        done.episodes += 1
        progress(done)


async def _put(
    put: Callable[[T, T | None], Awaitable[bool]], given: T, known: T | None, revision: Callable[[T], int]
) -> None:
    """Store what is given unless the same revision or a later one is stored."""
    if known is None or revision(known) < revision(given):
        await put(given, known)


async def export_lines(
    episodes: EpisodeQueries, messages: MessageArchive, user_id: str, tenant_id: str | None
) -> AsyncGenerator[ExportLine, None]:
    """Yield a header line, the data of a user and tenant, conversation by conversation, and a last line with counts.

    The counts show that a file is complete. `tenant_id` is None for no tenant. Raises: StoreUnavailable.
    """
    whose, person = {"user_id": user_id, "tenant_id": tenant_id}, Person(user_id, tenant_id)
    yield {"type": "export", **whose, "exported_at": rfc3339(datetime.now(UTC)), "version": running_version()}
    counts = Counter[str]()
    async for conversation in conversations_of(episodes, messages, person):
        counts["conversation"] += 1
        selection = Selection(conversation, tenant_id, user_id=user_id)
        async with aclosing(messages.newest(selection)) as archive:
            async for archived in archive:
                counts["message"] += 1
                yield {"type": "message", **archived.message.model_dump(mode="json")}
        async for line in _episode_lines(episodes, conversation, person):
            counts[line["type"]] += 1
            yield line
    yield {"type": "end", **{name: counts[kind] for kind, name in COUNTED.items()}}


async def _episode_lines(episodes: EpisodeQueries, conversation: str, person: Person) -> AsyncIterator[ExportLine]:
    """Yield the episodes that the person took part in, then the rolling summaries that cover them."""
    scopes: dict[str, int] = {}
    async for stored in all_episodes(episodes, conversation):
        if isinstance(stored, StoredEpisode) and person.took_part_in(stored):
            scope = scope_of(stored.summary)
            scopes[scope] = min(stored.ordinal, scopes.get(scope, stored.ordinal))
            yield {"type": "episode", **stored.summary.model_dump(mode="json")}
    for scope, ordinal in scopes.items():
        for row in await episodes.rows(scope, ordinal):
            if row.content:
                yield {
                    "type": "rolling_summary",
                    "conversation_id": conversation,
                    "content": row.content,
                    "first_ordinal": row.first_ordinal,
                    "last_ordinal": row.last_ordinal,
                    "updated_at": rfc3339(row.updated_at),
                }
