"""Redoes summaries with the current prompt and model: it marks them as due, and the summarizers replace them.

The summarizers' timer, which also replaces fallbacks, requests what is due, a few at a time and within the budgets.
"""

from datetime import UTC, datetime

from afterword.streams.errors import ConfigurationError
from afterword.streams.settings import Settings, variable
from afterword.streams.stores.opening import open_stores
from afterword.streams.summarizer.providers import Maker, maker_of
from afterword.streams.summarizer.timers import RedoCounts, mark_as_due, was_refused


def today_of(settings: Settings) -> Maker:
    """Return the current prompt and model. Raises: ConfigurationError if there is no LLM."""
    if settings.llm.provider == "extractive":
        raise ConfigurationError(setting=variable(("llm", "provider")), problem="extractive: there is no LLM to ask")
    return maker_of(settings)


async def redo(
    settings: Settings, since: datetime | None, conversation_id: str | None, limit: int | None, *, refused: bool = False
) -> RedoCounts:
    """Have up to `limit` summaries redone; 0 only counts them. Those whose messages have expired are left out.

    Raises: ConfigurationError, StoreUnavailable.
    """
    today, archived_since = today_of(settings), settings.retention.messages_before(datetime.now(UTC))
    since = max(filter(None, (since, archived_since)), default=None)
    async with open_stores(settings) as stores:
        is_wanted = was_refused if refused else None
        return await mark_as_due(stores.episodes, today, since, conversation_id, limit, is_wanted)
