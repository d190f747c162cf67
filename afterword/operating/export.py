"""Exports a person's data as JSON Lines: messages, episodes with all texts, and rolling summaries."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from afterword.schemas.base import rfc3339
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import EpisodeQueries, RollingRow, StoredEpisode, scope_of
from afterword.streams.stores.messages import MessageArchive, Selection
from afterword.streams.stores.opening import open_stores
from afterword.version import running_version

PAGE = 100
ExportLine = dict[str, Any]


@dataclass
class ExportCounts:
    """Counts of what was exported. The last line has them, so a truncated file can be recognized by its end."""

    conversations: int = 0
    messages: int = 0
    episodes: int = 0
    rolling_summaries: int = 0


class Export:
    """Reads what is stored about one user and tenant (None for no tenant), one page at a time."""

    def __init__(self, episodes: EpisodeQueries, messages: MessageArchive, user_id: str, tenant_id: str | None) -> None:
        self._episodes = episodes
        self._messages = messages
        self._user_id = user_id
        self._tenant_id = tenant_id
        self._counts = ExportCounts()

    async def lines(self) -> AsyncGenerator[ExportLine, None]:
        """Yield a header line, the data conversation by conversation, and a last line with counts.

        Raises: StoreUnavailable.
        """
        self._counts = ExportCounts()
        yield {
            "type": "export",
            "user_id": self._user_id,
            "tenant_id": self._tenant_id,
            "exported_at": rfc3339(datetime.now(UTC)),
            "version": running_version(),
        }
        async for conversation in self._conversations():
            self._counts.conversations += 1
            async with aclosing(self._messages_of(conversation)) as messages:
                async for line in messages:
                    yield line
            async for line in self._episodes_of(conversation):
                yield line
        yield {"type": "end", **asdict(self._counts)}

    async def _conversations(self) -> AsyncIterator[str]:
        after: str | None = None
        while True:
            asked = self._user_id, self._tenant_id, after, PAGE
            written = await self._messages.conversations_of(*asked)
            summarized = await self._episodes.conversations_of(*asked)
            page = sorted({*written, *summarized}, key=str.encode)[:PAGE]
            if not page:
                return
            for conversation in page:
                yield conversation
            after = page[-1]

    async def _messages_of(self, conversation: str) -> AsyncGenerator[ExportLine, None]:
        selection = Selection(conversation, self._tenant_id, user_id=self._user_id)
        async with aclosing(self._messages.newest(selection)) as found:
            async for archived in found:
                self._counts.messages += 1
                yield {"type": "message", **archived.message.model_dump(mode="json")}

    async def _episodes_of(self, conversation: str) -> AsyncIterator[ExportLine]:
        """Yield the episodes that the user took part in, then the rolling summaries that cover them."""
        scopes: dict[str, int] = {}
        after: str | None = None
        while page := await self._episodes.page(after, PAGE, conversation):
            for stored in page:
                if isinstance(stored, StoredEpisode) and self._took_part(stored):
                    scope = scope_of(stored.summary)
                    scopes[scope] = min(stored.ordinal, scopes.get(scope, stored.ordinal))
                    self._counts.episodes += 1
                    yield {"type": "episode", **stored.summary.model_dump(mode="json")}
            after = page[-1].event.episode_id
        for scope, ordinal in scopes.items():
            for row in await self._episodes.rows(scope, ordinal):
                if row.content:
                    self._counts.rolling_summaries += 1
                    yield row_line(conversation, row)

    def _took_part(self, stored: StoredEpisode) -> bool:
        summary = stored.summary
        if summary.tenant_id != self._tenant_id:
            return False
        return self._user_id in (summary.user_id, *stored.participants)


def row_line(conversation: str, row: RollingRow) -> ExportLine:
    """Build the line of a rolling summary. `conversation` is the conversation's id; the row only has its scope's."""
    return {
        "type": "rolling_summary",
        "conversation_id": conversation,
        "content": row.content,
        "first_ordinal": row.first_ordinal,
        "last_ordinal": row.last_ordinal,
        "updated_at": rfc3339(row.updated_at),
    }


async def export(settings: Settings, user_id: str, tenant_id: str | None) -> AsyncGenerator[ExportLine, None]:
    """Yield the lines of an export. Raises: StoreUnavailable, ConfigurationError."""
    async with open_stores(settings) as stores:
        found = Export(stores.episodes, stores.messages, user_id, tenant_id)
        async with aclosing(found.lines()) as lines:
            async for line in lines:
                yield line
