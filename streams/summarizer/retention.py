"""Expiry: messages and episodes that are older than `retention` keeps them are removed, and what was made of them.

In every summarizer, because only a summarizer may write an index in a directory; several do the same twice, to no
effect. An episode's point goes first, its document last: whoever is stopped between two steps finds it again. What
stays of an episode is its tombstone, so that neither a repeated record nor a late writer brings it back.
"""

import asyncio
import random
import time
from collections.abc import Iterable
from datetime import datetime, timedelta

import structlog

from afterword.schemas import SummaryDeleted
from afterword.streams.errors import ConfigurationError, StoreUnavailable
from afterword.streams.settings import Retention
from afterword.streams.stores.episodes import DeletedEpisode, EpisodeStore, StoredEpisode, scope_of
from afterword.streams.stores.index import EpisodeIndex
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.replies import ReplyCache
from afterword.streams.summarizer.revisions import Clock, now, summary_deleted
from afterword.streams.telemetry import Metrics

STAGE = "retention"
PAGE_EPISODES = 50
PAGE_MESSAGES = 1000
LONGEST_INTERVAL_SECONDS = 600.0
SHORTEST_INTERVAL_SECONDS = 0.5

log = structlog.get_logger()


class RetentionSweep:
    """Removes what has expired, page by page, and rests after each page for as long as it took."""

    def __init__(
        self,
        retention: Retention,
        *,
        episodes: EpisodeStore,
        messages: MessageArchive,
        index: EpisodeIndex,
        replies: ReplyCache,
        metrics: Metrics,
        clock: Clock = now,
    ) -> None:
        self._retention = retention
        self._episodes = episodes
        self._messages = messages
        self._index = index
        self._replies = replies
        self._metrics = metrics
        self._clock = clock

    async def run(self) -> None:
        """Sweep at intervals until cancelled; return at once if nothing expires."""
        while self._retention.expires:
            try:
                await self.sweep()
            except (StoreUnavailable, ConfigurationError) as error:
                log.warning("sweep_postponed", stage=STAGE, error_type=error.error_type, problem=str(error))
            await asyncio.sleep(interval_seconds(self._retention) * random.uniform(0.5, 1.5))  # noqa: S311 – spreads load

    async def sweep(self) -> None:
        """Remove everything that has expired by now. May be repeated. Raises: StoreUnavailable, ConfigurationError."""
        if before := self._retention.messages_before(self._clock()):
            await self._sweep_messages(before)
        if before := self._retention.episodes_before(self._clock()):
            await self._sweep_episodes(before)

    async def _sweep_messages(self, before: datetime) -> None:
        while True:
            began = time.monotonic()
            removed = await self._messages.expire(before, PAGE_MESSAGES)
            self._metrics.expired.labels("message").inc(removed)
            if removed < PAGE_MESSAGES:
                return
            await asyncio.sleep(time.monotonic() - began)

    async def _sweep_episodes(self, before: datetime) -> None:
        while page := await self._episodes.expired(before, PAGE_EPISODES):
            began = time.monotonic()
            living = [episode for episode in page if not await self._ended(episode)]
            for episode in last_of_each_scope(living):
                await self._episodes.recount(episode.event)
            await asyncio.sleep(time.monotonic() - began)

    async def _ended(self, episode: StoredEpisode) -> bool:
        """Remove an episode; return whether its conversation had no other, and is gone as well."""
        gone = DeletedEpisode(expired(episode, self._clock()), last_offset=episode.last_offset)
        await self._index.remove(gone.deletion.episode_id, gone.deletion.revision)
        is_last = await self._episodes.end_conversation(episode)
        if is_last:
            await self._replies.forget(scope_of(episode.event), 0)
        if await self._episodes.remove(gone) == gone:  # else a higher revision was stored: the next page has it
            self._metrics.expired.labels("episode").inc()
        # who stores it just now may have let the conversation follow it; from here on they see that it is gone
        return is_last and await self._episodes.end_conversation(episode)


def interval_seconds(retention: Retention) -> float:
    """Return a tenth of the shortest time that something is kept, within bounds."""
    seconds = timedelta(days=retention.shortest_days).total_seconds() / 10
    return min(LONGEST_INTERVAL_SECONDS, max(SHORTEST_INTERVAL_SECONDS, seconds))


def last_of_each_scope(episodes: Iterable[StoredEpisode]) -> list[StoredEpisode]:
    return list({scope_of(episode.event): episode for episode in episodes}.values())


def expired(episode: StoredEpisode, at: datetime) -> SummaryDeleted:
    """Build the end of an episode that has expired."""
    summary = episode.summary
    return summary_deleted(summary, summary.revision + 1, summary.event_id, "expired", at)
