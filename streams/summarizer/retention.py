"""Expiry: messages and episodes are removed when they exceed their retention time.

It runs in every summarizer; several of them doing the same has no further effect. Messages are removed at once. For
episodes it only sends requests, because the reconciler handles everything in the order of the conversations.
"""

import asyncio
import random
import time
from datetime import datetime, timedelta

import structlog
from aiokafka.errors import KafkaError

from afterword.streams.errors import BrokerUnavailable, ConfigurationError, StoreUnavailable
from afterword.streams.settings import Retention
from afterword.streams.steps import error_type
from afterword.streams.stores.episodes import EpisodeStore, living
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.summarizer.fallbacks import Send, request_for
from afterword.streams.summarizer.providers import Maker
from afterword.streams.summarizer.reconciler import Clock, now
from afterword.streams.telemetry import Metrics

STAGE = "retention"
PAGE_EPISODES = 50
PAGE_MESSAGES = 1000
LONGEST_INTERVAL_SECONDS = 600.0
SHORTEST_INTERVAL_SECONDS = 0.5
POLL_SECONDS = 0.5
NOBODY = Maker("", None)
"""The maker of a request that removes an expired episode: no worker may write its texts again, even with a longer
retention."""

log = structlog.get_logger()


class RetentionSweep:
    """Removes what has expired, page by page."""

    def __init__(
        self,
        retention: Retention,
        *,
        episodes: EpisodeStore,
        messages: MessageArchive,
        metrics: Metrics,
        send: Send,
        clock: Clock = now,
    ) -> None:
        self._retention = retention
        self._episodes = episodes
        self._messages = messages
        self._metrics = metrics
        self._send = send
        self._clock = clock

    async def run(self) -> None:
        """Sweep at intervals until cancelled; return at once if nothing expires."""
        while self._retention.shortest_days:
            try:
                await self.sweep()
            except (StoreUnavailable, ConfigurationError, BrokerUnavailable, KafkaError) as error:
                log.warning("sweep_postponed", stage=STAGE, error_type=error_type(error), problem=str(error))
            await asyncio.sleep(interval_seconds(self._retention) * random.uniform(0.5, 1.5))  # noqa: S311 – spreads load

    async def sweep(self) -> None:
        """Remove everything that has expired by now. May be repeated.

        Raises: StoreUnavailable, ConfigurationError, BrokerUnavailable, KafkaError.
        """
        if before := self._retention.messages_before(self._clock()):
            removed = PAGE_MESSAGES
            while removed == PAGE_MESSAGES:
                began = time.monotonic()
                removed = await self._messages.expire(before, PAGE_MESSAGES)
                self._metrics.expired.labels("message").inc(removed)
                await asyncio.sleep(time.monotonic() - began)  # the pause leaves half of the store's time to others
        if before := self._retention.episodes_before(self._clock()):
            await self._request_episodes(before)

    async def _request_episodes(self, before: datetime) -> None:
        """Request the removal of expired episodes; the next sweep requests what is not removed in time."""
        while page := await self._episodes.expired(before, PAGE_EPISODES):
            for episode in page:
                await self._send(request_for(episode, NOBODY, self._clock()))
            names = [episode.summary.episode_id for episode in page]
            ends_at = time.monotonic() + LONGEST_INTERVAL_SECONDS
            while living((await self._episodes.lookup(names)).values()):
                if time.monotonic() > ends_at:
                    return
                await asyncio.sleep(POLL_SECONDS)


def interval_seconds(retention: Retention) -> float:
    """Return a tenth of the shortest retention time, within bounds."""
    seconds = timedelta(days=retention.shortest_days).total_seconds() / 10
    return min(LONGEST_INTERVAL_SECONDS, max(SHORTEST_INTERVAL_SECONDS, seconds))
