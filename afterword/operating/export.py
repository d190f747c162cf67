"""Exports a person's data as JSON Lines: messages, episodes with all texts, and rolling summaries."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from afterword.schemas.base import rfc3339
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import EpisodeQueries, StoredEpisode, all_episodes, scope_of
from afterword.streams.stores.messages import MessageArchive, Selection
from afterword.streams.stores.opening import open_stores
from afterword.version import running_version

PAGE = 100
COUNTED = {
    "conversation": "conversations",
    "message": "messages",
    "episode": "episodes",
    "rolling_summary": "rolling_summaries",
}
ExportLine = dict[str, Any]


async def conversations_of(
    episodes: EpisodeQueries, messages: MessageArchive, user_id: str, tenant_id: str | None, limit: int
) -> AsyncIterator[list[str]]:
    """Yield pages of the conversations that a user wrote or took part in, by id. Raises: StoreUnavailable."""
    after: str | None = None
    while True:
        asked = user_id, tenant_id, after, limit
        named = {*await messages.conversations_of(*asked), *await episodes.conversations_of(*asked)}
        page = sorted(named, key=str.encode)[:limit]
        if not page:
            return
        yield page
        after = page[-1]


def took_part(episode: StoredEpisode, user_id: str, tenant_id: str | None) -> bool:
    return episode.summary.tenant_id == tenant_id and user_id in episode.users


async def export_lines(
    episodes: EpisodeQueries, messages: MessageArchive, user_id: str, tenant_id: str | None
) -> AsyncGenerator[ExportLine, None]:
    """Yield a header line, the data of a user and tenant, conversation by conversation, and a last line with counts.

    The counts show that a file is complete. `tenant_id` is None for no tenant. Raises: StoreUnavailable.
    """
    whose = {"user_id": user_id, "tenant_id": tenant_id}
    yield {"type": "export", **whose, "exported_at": rfc3339(datetime.now(UTC)), "version": running_version()}
    counts = Counter[str]()
    async for page in conversations_of(episodes, messages, user_id, tenant_id, PAGE):
        for conversation in page:
            counts["conversation"] += 1
            selection = Selection(conversation, tenant_id, user_id=user_id)
            async with aclosing(messages.newest(selection)) as found:
                async for archived in found:
                    counts["message"] += 1
                    yield {"type": "message", **archived.message.model_dump(mode="json")}
            async for line in _episode_lines(episodes, conversation, user_id, tenant_id):
                counts[line["type"]] += 1
                yield line
    yield {"type": "end", **{name: counts[kind] for kind, name in COUNTED.items()}}


async def _episode_lines(
    episodes: EpisodeQueries, conversation: str, user_id: str, tenant_id: str | None
) -> AsyncIterator[ExportLine]:
    """Yield the episodes that the user took part in, then the rolling summaries that cover them."""
    scopes: dict[str, int] = {}
    async for stored in all_episodes(episodes, conversation):
        if isinstance(stored, StoredEpisode) and took_part(stored, user_id, tenant_id):
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


async def export(settings: Settings, user_id: str, tenant_id: str | None) -> AsyncGenerator[ExportLine, None]:
    """Yield the lines of an export. Raises: StoreUnavailable, ConfigurationError."""
    async with (
        open_stores(settings) as stores,
        aclosing(export_lines(stores.episodes, stores.messages, user_id, tenant_id)) as lines,
    ):
        async for line in lines:
            yield line
