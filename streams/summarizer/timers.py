"""Timers of the summarizer, which ask for episodes to be written again or removed by sending `episode.redo`.

`FallbackTimer` looks for summaries that the LLM should replace: fallbacks, and those that `afterword summaries redo`
has marked as due. `RetentionSweep` removes expired messages at once, and requests the removal of expired episodes,
because the reconciler handles everything in the order of the conversations. Every summarizer runs both timers.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import structlog
from aiokafka.errors import KafkaError

from afterword.schemas import EpisodeRedo, SummaryCreated
from afterword.schemas.base import utc_milliseconds
from afterword.streams.errors import (
    BrokerUnavailable,
    BudgetExhausted,
    ConfigurationError,
    PromptFailed,
    PromptRefused,
    ProviderError,
    ProviderUnavailable,
    StoreUnavailable,
    snake_case,
)
from afterword.streams.settings import Retention, Retry, Settings
from afterword.streams.steps import error_type
from afterword.streams.stores.bookkeeping import Records
from afterword.streams.stores.episodes import DeletedEpisode, EpisodeStore, StoredEpisode, all_episodes, living
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.summarizer.providers import Maker, maker_of
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import is_replaceable

CE_SOURCE = "afterword/summarizer"
TRANSIENT = (ProviderUnavailable, BudgetExhausted, PromptFailed)
"""Errors that say nothing about the episode: the LLM did not answer at all, or a gateway gave up on a long answer."""
UNUSABLE_ANSWERS = 3
"""An episode whose answers were unusable this often keeps its fallback: the LLM cannot summarize it."""
REFUSED = snake_case(PromptRefused)
ANSWER_SETTINGS = {"provider", "base_url", "model", "title_model", "temperature", "max_output_tokens", "context_tokens"}
"""Settings of the LLM that can change an answer. Summarizers that differ only in others count as having the same."""
MOST_DOUBLINGS = 30
MOST_REQUESTED = 8
"""Maximum number of unhandled requests of one worker, so that new episodes keep most of the LLM's capacity."""
POLL_SECONDS = 1.0
LONGEST_POLL_SECONDS = 10.0
"""Longest pause between two checks while nothing is due, or the LLM does not answer."""
PAGE_EPISODES = 50
PAGE_MESSAGES = 1000
LONGEST_INTERVAL_SECONDS = 600.0
SHORTEST_INTERVAL_SECONDS = 0.5
REMOVAL_POLL_SECONDS = 0.5

Send = Callable[[EpisodeRedo], Awaitable[None]]
"""Sends a request, and returns after the broker's acknowledgement. Raises: KafkaError."""
Clock = Callable[[], datetime]

log = structlog.get_logger()


def now() -> datetime:
    return datetime.now(UTC)


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


@dataclass
class RedoCounts:
    """Stored summaries that were made with another prompt or model than the current one."""

    summaries: int = 0
    waiting: int = 0
    """Those that are due to be replaced, now or after a delay."""
    message_tokens: int = 0
    by_maker: Counter[Maker] = field(default_factory=Counter)


async def mark_as_due(
    episodes: EpisodeStore,
    today: Maker,
    since: datetime | None = None,
    conversation_id: str | None = None,
    limit: int | None = None,
    is_wanted: Callable[[StoredEpisode], bool] | None = None,
) -> RedoCounts:
    """Mark up to `limit` summaries that are not waiting, and count all that are still to be redone.

    `since` selects episodes that began at this time or later. The first episodes of all conversations are due first,
    because later ones are written with them in view. A summary that changes meanwhile is not marked; another run marks
    it. Raises: StoreUnavailable.
    """
    found, marked, now = RedoCounts(), 0, datetime.now(UTC)
    async for stored in all_episodes(episodes, conversation_id):
        if isinstance(stored, DeletedEpisode) or made_by(stored.summary) == today:
            continue
        if since is not None and stored.summary.started_at < since:
            continue
        if is_wanted and not is_wanted(stored):
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


def was_refused(stored: StoredEpisode) -> bool:
    """Return whether an LLM should replace this fallback, but refused its prompt."""
    quality = stored.summary.quality
    return is_replaceable(quality) and REFUSED in {quality.reason, *(one.outcome for one in stored.calls)}


async def retry_refused(episodes: EpisodeStore, records: Records, settings: Settings) -> None:
    """Mark fallbacks whose prompt was refused as due if the prompt, or one of ANSWER_SETTINGS, has changed.

    Where summarizers have different settings, or return to earlier ones, each of them asks about those that were made
    since it last began. Raises: StoreUnavailable.
    """
    if settings.llm.provider == "extractive":
        return
    maker = maker_of(settings)
    chosen = f"{maker.prompt_version} {settings.llm.model_dump_json(include=ANSWER_SETTINGS)}"
    asked = sha256(chosen.encode()).hexdigest()  # the address may hold a password
    began = await records.read_all("llm_settings")
    before = began.get(asked)
    if before is None or before < max(began.values()):

        def is_wanted(stored: StoredEpisode) -> bool:
            return was_refused(stored) and stored.summary.created_at.isoformat() > (before or "")

        await mark_as_due(episodes, maker, is_wanted=is_wanted)
        await records.replace("llm_settings", asked, before, now().isoformat())


def request_for(stored: StoredEpisode, now: datetime, *, expired: bool = False) -> EpisodeRedo:
    """Return the request to write an episode's texts again, or to remove an expired one."""
    summary = stored.summary
    return EpisodeRedo(
        conversation_id=summary.conversation_id,
        tenant_id=summary.tenant_id,
        episode_id=summary.episode_id,
        revision=summary.revision,
        attempt=stored.attempt,
        expired=expired,
        requested_at=utc_milliseconds(now),
    )


@dataclass
class FallbackTimer:
    """Asks for summaries to be replaced when they are due and the LLM answers.

    If several summarizers request the same attempt, only one request has an effect. A lost request is repeated.
    """

    episodes: EpisodeStore
    llm: Summarizer
    send: Send
    retry: Retry
    clock: Clock = now
    _requested: dict[str, StoredEpisode] = field(default_factory=dict, init=False)

    async def run(self) -> None:
        """Look for due summaries until cancelled."""
        pause = POLL_SECONDS
        while True:
            try:
                is_busy = await self.tick()
            except (StoreUnavailable, ProviderError, BrokerUnavailable, KafkaError) as error:
                log.info("fallbacks_wait", stage="fallbacks", error_type=error_type(error))
                is_busy = False
            pause = POLL_SECONDS if is_busy else min(pause * 2, LONGEST_POLL_SECONDS)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 – spreads load

    async def tick(self) -> bool:
        """Request due summaries, unless too many earlier requests are unhandled; return whether any are.

        Raises: StoreUnavailable, BrokerUnavailable, KafkaError; ProviderError while the LLM cannot be reached.
        """
        now = self.clock()
        stored = living((await self.episodes.lookup(list(self._requested))).values())
        self._requested = {
            name: asked
            for name, asked in self._requested.items()
            if name in stored and stored[name].version == asked.version and (asked.due_at or now) > now
        }
        room = MOST_REQUESTED - len(self._requested)
        due = await self.episodes.due(now, room) if room > 0 else []
        if due:
            await self.llm.check()
        again_at = utc_milliseconds(now + timedelta(seconds=self.retry.longest_delay_seconds))
        for episode in due:
            requested = replace(episode, due_at=again_at)
            if await self.episodes.put(requested, episode):
                self._requested[episode.summary.episode_id] = requested
                await self.send(request_for(episode, now))
        return bool(self._requested)


@dataclass
class RetentionSweep:
    """Removes expired data, page by page. All summarizers may do so at the same time."""

    retention: Retention
    _: KW_ONLY
    episodes: EpisodeStore
    messages: MessageArchive
    send: Send
    clock: Clock = now

    async def run(self) -> None:
        """Sweep at intervals until cancelled; return at once if nothing expires."""
        while self.retention.shortest_days:
            try:
                await self.sweep()
            except (StoreUnavailable, ConfigurationError, BrokerUnavailable, KafkaError) as error:
                log.warning("sweep_postponed", stage="retention", error_type=error_type(error), problem=str(error))
            await asyncio.sleep(interval_seconds(self.retention) * random.uniform(0.5, 1.5))  # noqa: S311 – spreads load

    async def sweep(self) -> None:
        """Remove everything that has expired by now. May be repeated.

        Raises: StoreUnavailable, ConfigurationError, BrokerUnavailable, KafkaError.
        """
        if before := self.retention.messages_before(self.clock()):
            removed = PAGE_MESSAGES
            while removed == PAGE_MESSAGES:
                began = time.monotonic()
                removed = await self.messages.expire(before, PAGE_MESSAGES)
                await asyncio.sleep(time.monotonic() - began)  # the pause leaves half of the store's time to others
        if before := self.retention.episodes_before(self.clock()):
            await self._request_episodes(before)

    async def _request_episodes(self, before: datetime) -> None:
        """Request the removal of expired episodes; the next sweep requests again any that are not removed in time."""
        while page := await self.episodes.expired(before, PAGE_EPISODES):
            for episode in page:
                await self.send(request_for(episode, self.clock(), expired=True))
            names = [episode.summary.episode_id for episode in page]
            ends_at = time.monotonic() + LONGEST_INTERVAL_SECONDS
            while living((await self.episodes.lookup(names)).values()):
                if time.monotonic() > ends_at:
                    return
                await asyncio.sleep(REMOVAL_POLL_SECONDS)


def interval_seconds(retention: Retention) -> float:
    """Return a tenth of the shortest retention time, within bounds."""
    seconds = timedelta(days=retention.shortest_days).total_seconds() / 10
    return min(LONGEST_INTERVAL_SECONDS, max(SHORTEST_INTERVAL_SECONDS, seconds))
