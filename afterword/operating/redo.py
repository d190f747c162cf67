"""Redoes summaries with the current prompt and model: it marks them as due, and the summarizers replace them.

The summarizers' timer, which also replaces fallbacks, requests what is due, a few at a time and within the budgets.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from afterword.schemas.base import utc_milliseconds
from afterword.streams.errors import ConfigurationError, PromptRefused, snake_case
from afterword.streams.settings import Settings, variable
from afterword.streams.stores.episodes import DeletedEpisode, EpisodeStore, all_episodes
from afterword.streams.stores.opening import open_stores
from afterword.streams.summarizer.providers import Maker, maker_of
from afterword.streams.summarizer.timers import made_by

REFUSED = snake_case(PromptRefused)


@dataclass
class RedoCounts:
    """Stored summaries that were made with another prompt or model than the current one."""

    summaries: int = 0
    waiting: int = 0
    """Those that are due to be replaced, now or after a delay."""
    message_tokens: int = 0
    by_maker: Counter[Maker] = field(default_factory=Counter)


def today_of(settings: Settings) -> Maker:
    """Return the current prompt and model. Raises: ConfigurationError if there is no LLM."""
    if settings.llm.provider == "extractive":
        raise ConfigurationError(setting=variable(("llm", "provider")), problem="extractive: there is no LLM to ask")
    return maker_of(settings)


async def mark_as_due(
    episodes: EpisodeStore,
    today: Maker,
    since: datetime | None,
    conversation_id: str | None,
    limit: int | None,
    *,
    refused: bool = False,
) -> RedoCounts:
    """Mark up to `limit` summaries that are not waiting, and count all that are still to be redone.

    `since` selects episodes that began at this time or later, `refused` those whose prompt the server refused. The
    first episodes of all conversations are due first, because later ones are written with them in view. A summary that
    changes meanwhile is not marked; another run marks it. Raises: StoreUnavailable.
    """
    found, marked, now = RedoCounts(), 0, datetime.now(UTC)
    async for stored in all_episodes(episodes, conversation_id):
        if isinstance(stored, DeletedEpisode) or made_by(stored.summary) == today:
            continue
        if since is not None and stored.summary.started_at < since:
            continue
        if refused and stored.summary.quality.reason != REFUSED:
            continue
        is_waiting = stored.due_at is not None
        if not is_waiting and (limit is None or marked < limit):
            due_at = utc_milliseconds(now + timedelta(milliseconds=stored.ordinal))
            is_waiting = await episodes.put(replace(stored, unusable=0, due_at=due_at), stored)
            marked += is_waiting
        found.summaries += 1
        found.waiting += is_waiting
        found.message_tokens += stored.summary.compression.tokens_before
        found.by_maker[made_by(stored.summary)] += 1
    return found


async def redo(
    settings: Settings, since: datetime | None, conversation_id: str | None, limit: int | None, *, refused: bool = False
) -> RedoCounts:
    """Have up to `limit` summaries redone; 0 only counts them. Those whose messages have expired are left out.

    Raises: ConfigurationError, StoreUnavailable.
    """
    today, archived_since = today_of(settings), settings.retention.messages_before(datetime.now(UTC))
    since = max(filter(None, (since, archived_since)), default=None)
    async with open_stores(settings) as stores:
        return await mark_as_due(stores.episodes, today, since, conversation_id, limit, refused=refused)
