"""Summaries that the LLM should replace: when this is due, and the timer that asks for it.

These are fallbacks, and summaries that `afterword summaries redo` has marked as due.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta

import structlog
from aiokafka.errors import KafkaError

from afterword.schemas import EpisodeRedo, SummaryCreated
from afterword.schemas.base import utc_milliseconds
from afterword.schemas.episodes import EPISODE_REDO
from afterword.schemas.headers import Headers, cloud_event
from afterword.schemas.ids import event_id
from afterword.streams.errors import (
    BrokerUnavailable,
    BudgetExhausted,
    ProviderError,
    ProviderUnavailable,
    StoreUnavailable,
)
from afterword.streams.settings import Retry
from afterword.streams.steps import error_type
from afterword.streams.stores.episodes import EpisodeStore, StoredEpisode, living
from afterword.streams.summarizer.providers import Maker
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import is_replaceable

STAGE = "fallbacks"
CE_SOURCE = "afterword/summarizer"
TRANSIENT = (ProviderUnavailable, BudgetExhausted)
"""Errors that say nothing about the episode: the LLM did not answer at all."""
UNUSABLE_ANSWERS = 3
"""An episode whose answers were unusable this often keeps its fallback: the LLM cannot summarize it."""
MOST_DOUBLINGS = 30
MOST_REQUESTED = 8
"""Maximum number of unhandled requests of one worker, so that new episodes keep most of the LLM's capacity."""
POLL_SECONDS = 1.0
LONGEST_POLL_SECONDS = 10.0
"""Longest pause between two checks while nothing is due, or the LLM does not answer."""

Send = Callable[[EpisodeRedo], Awaitable[None]]
"""Sends a request, and returns after the broker's acknowledgement. Raises: KafkaError."""

log = structlog.get_logger()


def next_attempt(retry: Retry, attempt: int, unusable: int, now: datetime) -> datetime | None:
    """Return the time of the next attempt, whose delay doubles up to a limit; None if there is none.

    So far, `attempt` attempts were made, and `unusable` of them got an unusable answer.
    """
    if attempt >= retry.attempts or unusable >= UNUSABLE_ANSWERS:
        return None
    delay = retry.first_delay_seconds * 2.0 ** min(attempt, MOST_DOUBLINGS)
    return utc_milliseconds(now + timedelta(seconds=min(delay, retry.longest_delay_seconds)))


def made_by(summary: SummaryCreated) -> Maker:
    return Maker(summary.model, summary.prompt_version)


def request_for(stored: StoredEpisode, maker: Maker, now: datetime) -> EpisodeRedo:
    """Return the request to write an episode's texts again."""
    summary = stored.summary
    return EpisodeRedo(
        conversation_id=summary.conversation_id,
        tenant_id=summary.tenant_id,
        episode_id=summary.episode_id,
        revision=summary.revision,
        attempt=stored.attempt,
        model=maker.model,
        prompt_version=maker.prompt_version or "",
        requested_at=utc_milliseconds(now),
    )


def redo_headers(redo: EpisodeRedo, source: str) -> Headers:
    ce_id = f"{event_id(redo.episode_id, redo.revision)}:redo:{redo.attempt}"
    return cloud_event(EPISODE_REDO, ce_id, source, redo.requested_at)


class FallbackTimer:
    """Asks for summaries to be replaced when they are due and the LLM answers.

    Every summarizer has one. If several summarizers request the same attempt, only one request has an effect. A lost
    request is repeated.
    """

    def __init__(
        self,
        episodes: EpisodeStore,
        llm: Summarizer,
        send: Send,
        maker: Maker,
        retry: Retry,
        clock: Callable[[], datetime],
    ) -> None:
        self._episodes = episodes
        self._llm = llm
        self._send = send
        self._maker = maker
        self._retry = retry
        self._clock = clock
        self._requested: dict[str, StoredEpisode] = {}

    async def run(self) -> None:
        """Look for what is due until cancelled."""
        pause = POLL_SECONDS
        while True:
            try:
                is_busy = await self.tick()
            except (StoreUnavailable, ProviderError, BrokerUnavailable, KafkaError) as error:
                log.info("fallbacks_wait", stage=STAGE, error_type=error_type(error))
                is_busy = False
            pause = POLL_SECONDS if is_busy else min(pause * 2, LONGEST_POLL_SECONDS)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 – spreads load

    async def tick(self) -> bool:
        """Request what is due, unless too many earlier requests are unhandled; return whether any are.

        Raises: StoreUnavailable, BrokerUnavailable, KafkaError; ProviderError while the LLM cannot be reached.
        """
        now = self._clock()
        stored = living((await self._episodes.lookup(list(self._requested))).values())
        self._requested = {
            name: asked
            for name, asked in self._requested.items()
            if name in stored and stored[name].version == asked.version and (asked.due_at or now) > now
        }
        room = MOST_REQUESTED - len(self._requested)
        due = await self._episodes.due(now, room) if room > 0 else []
        if due:
            await self._llm.check()
        again_at = utc_milliseconds(now + timedelta(seconds=self._retry.longest_delay_seconds))
        for episode in due:
            made, is_fallback = made_by(episode.summary), is_replaceable(episode.summary.quality)
            if made == self._maker and not is_fallback:  # somebody marked it who has another prompt or model
                problem = f"{self._maker.model} with {self._maker.prompt_version} has written it already"
                log.warning("redo_skipped", stage=STAGE, error_type="not_redone", problem=problem)
                await self._episodes.put(replace(episode, due_at=None), episode)
                continue
            requested = replace(episode, due_at=again_at)
            if await self._episodes.put(requested, episode):
                self._requested[episode.summary.episode_id] = requested
                await self._send(request_for(episode, self._maker, now))
        return bool(self._requested)
