"""Redoes summaries with the current prompt and model: marks them as due, and the summarizers replace them.

The stored summaries show what is already redone, so another run continues where this one was stopped. The summarizers'
timer, which also replaces fallbacks, requests what is due, a few at a time and within the budgets.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from afterword.schemas.base import utc_milliseconds
from afterword.schemas.ids import message_key
from afterword.streams.errors import AfterwordError, ConfigurationError
from afterword.streams.settings import Settings, variable
from afterword.streams.stores.episodes import (
    DeletedEpisode,
    EpisodeStore,
    StoredEpisode,
    all_episodes,
    find_episode,
    living,
    scope_of,
)
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.opening import open_stores
from afterword.streams.summarizer.current import Current, current
from afterword.streams.summarizer.providers import Maker, maker_of
from afterword.streams.summarizer.timers import made_by

MARKED_AT_ONCE = 100
"""A run that is stopped leaves at most this many summaries to be redone."""
POLL_SECONDS = 0.5
GIVE_UP_SECONDS = 7200.0


class RedoStalled(AfterwordError):
    """no summary was made for {minutes:g} minutes; {waiting} are waiting. Check that summarizers are running, that the
    LLM answers and that the budget is not used up; their log event redo_skipped says why. Run it again to continue"""


@dataclass
class RedoPlan:
    """The summaries to redo, as they are now."""

    episodes: int = 0
    tokens: int = 0
    """Number of tokens in their messages."""
    by_maker: Counter[Maker] = field(default_factory=Counter)


@dataclass
class RedoCounts:
    """The results so far."""

    redone: int = 0
    gone: int = 0
    """Episodes that were deleted meanwhile."""
    not_archived: int = 0
    """Summaries kept because their messages are no longer in the archive."""
    kept: int = 0
    """Summaries that stay because the LLM's answers were unusable, or that were made with another prompt or model."""


async def wanted_episodes(
    episodes: EpisodeStore, today: Maker, since: datetime | None = None, conversation_id: str | None = None
) -> AsyncIterator[StoredEpisode]:
    """Yield stored episodes that were made with another prompt or model than today's.

    `since` selects those that ended at this time or later. Raises: StoreUnavailable.
    """
    async for stored in all_episodes(episodes, conversation_id):
        if isinstance(stored, DeletedEpisode) or made_by(stored.summary) == today:
            continue
        if since is None or stored.summary.ended_at >= since:
            yield stored


async def as_archived(messages: MessageArchive, stored: StoredEpisode) -> Current | None:
    """Return the episode's messages as they are now, or None if they are no longer in the archive."""
    about = stored.summary
    ids = (*stored.core_ids, *stored.overlap_ids)
    keys = {message_key(about.conversation_id, i, about.tenant_id): i for i in ids}
    states = {keys[key]: state for key, state in (await messages.states(list(keys))).items()}
    read = current(stored.core_ids, stored.overlap_ids, {}, states)
    return read if read.core and not read.expired else None


@dataclass
class Redo:
    """Marks summaries as due, and watches the stored episodes until the summarizers have handled them."""

    episodes: EpisodeStore
    messages: MessageArchive
    today: Maker
    progress: Callable[[RedoCounts], None]
    counts: RedoCounts = field(default_factory=RedoCounts)

    async def run(self, episode_ids: Iterable[str]) -> RedoCounts:
        """Return once every episode is redone or cannot be. Raises: RedoStalled, StoreUnavailable."""
        queue, waiting, clock = deque(episode_ids), list[str](), asyncio.get_running_loop().time
        changed_at = clock()
        while queue or waiting:
            while queue and len(waiting) < MARKED_AT_ONCE:
                if await self._mark(episode_id := queue.popleft()):
                    waiting.append(episode_id)
            found = living((await self.episodes.lookup(waiting)).values())
            left = [episode_id for episode_id in waiting if not self._has_ended(found.get(episode_id))]
            if len(left) < len(waiting):
                changed_at = clock()
            elif clock() - changed_at > GIVE_UP_SECONDS:
                raise RedoStalled(waiting=len(left), minutes=GIVE_UP_SECONDS / 60)
            waiting = left
            self.progress(self.counts)
            await asyncio.sleep(POLL_SECONDS if waiting else 0)
        return self.counts

    async def _mark(self, episode_id: str) -> bool:
        """Mark an episode as due. Returns False if there is nothing to redo."""
        while True:
            stored = await find_episode(self.episodes, episode_id)
            if stored is None or made_by(stored.summary) == self.today:
                return not self._has_ended(stored)
            if await as_archived(self.messages, stored) is None:
                self.counts.not_archived += 1
                return False
            marked = replace(stored, unusable=0, due_at=utc_milliseconds(datetime.now(UTC)))
            if await self.episodes.put(marked, stored):
                return True
            # it was changed meanwhile

    def _has_ended(self, stored: StoredEpisode | None) -> bool:
        if stored is None:
            self.counts.gone += 1
        elif made_by(stored.summary) == self.today:
            self.counts.redone += 1
        elif stored.due_at is None:
            self.counts.kept += 1
        else:
            return False
        return True


def today_of(settings: Settings) -> Maker:
    """Return the current prompt and model. Raises: ConfigurationError if there is no LLM."""
    if settings.llm.provider == "extractive":
        raise ConfigurationError(setting=variable(("llm", "provider")), problem="extractive: there is no LLM to ask")
    return maker_of(settings)


async def plan(settings: Settings, since: datetime | None, conversation_id: str | None) -> RedoPlan:
    """Count the summaries to redo. Raises: ConfigurationError, StoreUnavailable."""
    found, today = RedoPlan(), today_of(settings)
    async with open_stores(settings) as stores:
        async for stored in wanted_episodes(stores.episodes, today, since, conversation_id):
            found.episodes += 1
            found.tokens += stored.summary.compression.tokens_before
            found.by_maker[made_by(stored.summary)] += 1
    return found


async def redo(
    settings: Settings, since: datetime | None, conversation_id: str | None, progress: Callable[[RedoCounts], None]
) -> RedoCounts:
    """Redo the wanted summaries, in order within each conversation.

    Raises: ConfigurationError, RedoStalled, StoreUnavailable.
    """
    today = today_of(settings)
    async with open_stores(settings) as stores:
        found = wanted_episodes(stores.episodes, today, since, conversation_id)
        places = sorted([(scope_of(one.summary), one.ordinal, one.summary.episode_id) async for one in found])
        work = Redo(stores.episodes, stores.messages, today, progress)
        return await work.run([episode_id for *_, episode_id in places])
