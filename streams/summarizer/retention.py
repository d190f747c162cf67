"""Expiry: removes messages and episodes that exceed their retention time, and what was made of them.

It runs in every summarizer; several of them doing the same has no further effect. A tombstone remains of an episode, so
that neither a repeated record nor a late writer brings it back. It keeps its age until rows and counts have been
updated, so that a sweep that was interrupted finds it again.
"""

import asyncio
import random
import time
from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timedelta

import structlog
from aiokafka.errors import KafkaError

from afterword.schemas import EpisodeRedo, SummaryDeleted
from afterword.schemas.base import utc_milliseconds
from afterword.streams.errors import BrokerUnavailable, ConfigurationError, StoreUnavailable
from afterword.streams.settings import Retention
from afterword.streams.stores.episodes import DeletedEpisode, Episode, EpisodeStore, StoredEpisode
from afterword.streams.stores.index import EpisodeIndex
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.summarizer.conversations import Conversations, Scope
from afterword.streams.summarizer.fallbacks import Send
from afterword.streams.summarizer.reconciler import Clock, now, revision_after
from afterword.streams.summarizer.steps import error_type
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
        conversations: Conversations,
        metrics: Metrics,
        send: Send | None = None,
        clock: Clock = now,
    ) -> None:
        """`send` requests the tombstones on the compacted topics, if there are any."""
        self._retention = retention
        self._episodes = episodes
        self._messages = messages
        self._index = index
        self._conversations = conversations
        self._metrics = metrics
        self._send = send
        self._clock = clock

    async def run(self) -> None:
        """Sweep at intervals until cancelled; return at once if nothing expires."""
        while self._retention.expires:
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
                await asyncio.sleep(time.monotonic() - began)
        if before := self._retention.episodes_before(self._clock()):
            await self._sweep_episodes(before)

    async def _sweep_episodes(self, before: datetime) -> None:
        while page := await self._episodes.expired(before, PAGE_EPISODES):
            began = time.monotonic()
            gone = [one for episode in page if (one := await self._gone(episode)) is not None]
            scopes: dict[Scope, list[int]] = defaultdict(list)
            for one in gone:
                scopes[Scope.of(one.event)].append(one.ordinal)
            for scope, ordinals in scopes.items():
                await self._conversations.remake(scope, dict.fromkeys(ordinals), asks_llm=False)
                await self._conversations.recount(scope)
            for one in gone:
                if self._send is not None:  # a tombstone comes after everything that may still be written
                    deletion = one.deletion
                    request = EpisodeRedo(
                        conversation_id=deletion.conversation_id,
                        tenant_id=deletion.tenant_id,
                        episode_id=deletion.episode_id,
                        revision=deletion.revision,
                        model="",
                        prompt_version="",
                        requested_at=deletion.deleted_at,
                    )
                    await self._send(request)
                await self._episodes.put(replace(one, ended_at=None), one)
            await asyncio.sleep(time.monotonic() - began)

    async def _gone(self, episode: Episode) -> DeletedEpisode | None:
        """Replace an episode with its tombstone; return None if a new revision was just stored.

        The next page has the new revision.
        """
        if isinstance(episode, DeletedEpisode):
            return episode
        await self._index.remove(episode.summary.episode_id, episode.summary.revision + 1)
        gone = expired(episode, self._clock())
        if not await self._episodes.put(gone, episode):
            return None
        self._metrics.expired.labels("episode").inc()
        return gone


def interval_seconds(retention: Retention) -> float:
    """Return a tenth of the shortest retention time, within bounds."""
    seconds = timedelta(days=retention.shortest_days).total_seconds() / 10
    return min(LONGEST_INTERVAL_SECONDS, max(SHORTEST_INTERVAL_SECONDS, seconds))


def expired(episode: StoredEpisode, at: datetime) -> DeletedEpisode:
    """Return the tombstone of an expired episode."""
    summary = episode.summary
    deletion = SummaryDeleted(
        **revision_after(episode, summary.episode_id),
        reason="expired",
        **{name: getattr(summary, name) for name in ("conversation_id", "agent_id", "tenant_id", "ordinal")},
        deleted_at=utc_milliseconds(at),
    )
    kept = {name: getattr(episode, name) for name in ("core_ids", "overlap_ids", "last_offset", "cause")}
    return DeletedEpisode(deletion, **kept, ended_at=summary.ended_at)
