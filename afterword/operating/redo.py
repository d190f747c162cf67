"""Redoes summaries with the current prompt and model: sends requests on `episode.closed`, a few at a time.

A run keeps no state. The stored summaries show what is already redone, so another run continues where this one was
stopped. The summarizer handles each request in its conversation's order and within its budgets. A request that leads to
nothing is repeated.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from afterword.schemas import EpisodeRedo, SummaryCreated
from afterword.schemas.ids import message_key
from afterword.streams.errors import AfterwordError, ConfigurationError
from afterword.streams.kafka.clients import IdempotentProducer, broker_errors, require_topics, running_producer
from afterword.streams.kafka.log_reader import Log, Position, open_log
from afterword.streams.settings import Kafka, Retry, Settings, variable
from afterword.streams.stores.episodes import EpisodeStore, StoredEpisode, all_episodes, find_episode, scope_of
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.opening import Stores, open_stores
from afterword.streams.summarizer.current import Current, current
from afterword.streams.summarizer.fallbacks import UNUSABLE_ANSWERS, delay_seconds, redo_headers, request_for
from afterword.streams.summarizer.providers import Maker, maker_of

CE_SOURCE = "afterword/redo"
POLL_SECONDS = 0.25


class RedoStalled(AfterwordError):
    """no summary was made for {minutes:g} minutes; {waiting} requests are waiting. Check that summarizers are running
    with this prompt and model, that the LLM answers and that the budget is not used up; their log event redo_skipped
    says why. Run it again to continue"""


@dataclass(frozen=True)
class Wanted:
    """Filters that must all match."""

    since: datetime | None = None
    """Only episodes that ended at this time or later."""
    conversation_id: str | None = None

    def matches(self, summary: SummaryCreated, today: Maker) -> bool:
        """Return whether the summary is wanted and was made with another prompt or model than the current one."""
        return made_by(summary) != today and (self.since is None or summary.ended_at >= self.since)


def made_by(summary: SummaryCreated) -> Maker:
    return Maker(summary.model, summary.prompt_version)


@dataclass
class RedoPlan:
    """The summaries to redo, as they are now."""

    episodes: int = 0
    tokens: int = 0
    """Number of tokens in their messages."""
    by_maker: dict[Maker, int] = field(default_factory=dict)


@dataclass
class RedoCounts:
    """The results so far."""

    redone: int = 0
    gone: int = 0
    """Episodes that were deleted meanwhile."""
    not_archived: int = 0
    """Summaries kept because their messages are no longer in the archive."""
    kept: int = 0
    """Summaries kept because the LLM's answers were unusable."""
    waiting: int = 0
    """Requests that are not handled yet."""
    pause_seconds: float = 0.0
    """Time until the next request, if none of the last ones led to a summary."""

    def as_dict(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if name not in ("waiting", "pause_seconds")}


async def _matching(episodes: EpisodeStore, wanted: Wanted, today: Maker) -> AsyncIterator[StoredEpisode]:
    async for stored in all_episodes(episodes, wanted.conversation_id):
        if isinstance(stored, StoredEpisode) and wanted.matches(stored.summary, today):
            yield stored


async def episodes_to_redo(episodes: EpisodeStore, wanted: Wanted, today: Maker) -> list[str]:
    """Return the ids of the wanted episodes, in the order of each conversation. Raises: StoreUnavailable."""
    found = _matching(episodes, wanted, today)
    return [name for *_, name in sorted([(scope_of(s.summary), s.ordinal, s.summary.episode_id) async for s in found])]


async def planned(episodes: EpisodeStore, wanted: Wanted, today: Maker) -> RedoPlan:
    """Count the summaries to redo. Raises: StoreUnavailable."""
    plan = RedoPlan()
    async for stored in _matching(episodes, wanted, today):
        summary = stored.summary
        plan.episodes += 1
        plan.tokens += summary.compression.tokens_before
        plan.by_maker[made_by(summary)] = plan.by_maker.get(made_by(summary), 0) + 1
    return plan


class Requests:
    """The topic `episode.closed`, as requests use it."""

    def __init__(self, kafka: Kafka, producer: IdempotentProducer, log: Log) -> None:
        self._kafka = kafka
        self._producer = producer
        self._log = log

    async def send(self, redo: EpisodeRedo) -> Position:
        """Send a request, and return its position once the broker has acknowledged it."""
        headers = redo_headers(redo, CE_SOURCE)
        key = redo.conversation_id.encode()
        sent = await self._producer.send_and_wait(self._kafka.episodes_topic, redo.to_json(), key=key, headers=headers)
        return Position(sent.partition, sent.offset)

    async def handled_to(self) -> Mapping[int, int]:
        """Return the offset in each partition before which the summarizers have handled everything."""
        return await self._log.committed(self._kafka.summarizer_id, self._kafka.episodes_topic)


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
    """Sends at most `in_flight` requests at a time, and watches the stored summaries until all are made."""

    episodes: EpisodeStore
    messages: MessageArchive
    requests: Requests
    today: Maker
    retry: Retry
    """Sets the delays while no summaries are made."""
    in_flight: int
    give_up_seconds: float
    progress: Callable[[RedoCounts], None]
    counts: RedoCounts = field(default_factory=RedoCounts)
    _queue: deque[str] = field(default_factory=deque)
    _waiting: dict[str, Position] = field(default_factory=dict)
    """Episodes whose requests are not handled yet, with the positions of the requests."""
    _failures: Counter[str] = field(default_factory=Counter)
    """Number of requests of an episode that led to no summary while others did."""
    _pauses: int = 0
    _not_before: float = 0.0
    _last_success: float = 0.0
    _others_succeed: bool = False

    async def run(self, episode_ids: Iterable[str]) -> RedoCounts:
        """Return once every episode is redone or cannot be.

        Raises: RedoStalled, StoreUnavailable, BrokerUnavailable.
        """
        self._queue.extend(episode_ids)
        self._last_success = self._now()
        while True:
            while self._queue and len(self._waiting) < self.in_flight and self._now() >= self._not_before:
                await self._send(self._queue.popleft())
            if not (self._queue or self._waiting):
                return self.counts
            await self._check_finished()
            self.counts.waiting = len(self._waiting)
            self.counts.pause_seconds = max(0.0, self._not_before - self._now())
            self.progress(self.counts)
            if self._now() - self._last_success > self.give_up_seconds:
                raise RedoStalled(waiting=len(self._waiting), minutes=self.give_up_seconds / 60)
            await asyncio.sleep(POLL_SECONDS)

    async def _send(self, episode_id: str) -> None:
        """Request the episode as it is stored now, unless there is nothing left to do."""
        stored = await find_episode(self.episodes, episode_id)
        if stored is None:
            self.counts.gone += 1
        elif made_by(stored.summary) == self.today:
            self._succeeded()
        elif await as_archived(self.messages, stored) is None:
            self.counts.not_archived += 1
        else:
            request = request_for(stored, self.today, datetime.now(UTC))
            self._waiting[episode_id] = await self.requests.send(request)

    async def _check_finished(self) -> None:
        handled = (
            await self.requests.handled_to()
        )  # read before the stores, so that everything handled by now is in them
        for episode_id, sent in reversed(list(self._waiting.items())):  # so that those that go back stay in order
            stored = await find_episode(self.episodes, episode_id)
            if stored is None:
                self.counts.gone += 1
            elif made_by(stored.summary) == self.today:
                self._succeeded()
            elif sent.offset < handled.get(sent.partition, 0):
                self._failed(episode_id)
            else:
                continue
            del self._waiting[episode_id]

    def _succeeded(self) -> None:
        self.counts.redone += 1
        self._pauses, self._not_before = 0, 0.0
        self._last_success, self._others_succeed = self._now(), True

    def _failed(self, episode_id: str) -> None:
        if not (self._others_succeed or self._failures[episode_id]):
            self._queue.appendleft(episode_id)  # the cause is the LLM, the budget or the summarizers
            if self._now() >= self._not_before:
                self._pauses += 1
                self._not_before = self._now() + delay_seconds(self._pauses, self.retry)
            return
        self._others_succeed = False
        self._failures[episode_id] += 1
        if self._failures[episode_id] < UNUSABLE_ANSWERS:
            self._queue.append(episode_id)
        else:
            self.counts.kept += 1

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def today_of(settings: Settings) -> Maker:
    """Return the current prompt and model. Raises: ConfigurationError if there is no LLM."""
    if settings.llm.provider == "extractive":
        raise ConfigurationError(setting=variable(("llm", "provider")), problem="extractive: there is no LLM to ask")
    return maker_of(settings)


async def plan(settings: Settings, wanted: Wanted) -> RedoPlan:
    """Count the summaries to redo in the stores of these settings. Raises: ConfigurationError, StoreUnavailable."""
    async with open_stores(settings) as stores:
        return await planned(stores.episodes, wanted, today_of(settings))


async def redo(
    settings: Settings, wanted: Wanted, in_flight: int, give_up_seconds: float, progress: Callable[[RedoCounts], None]
) -> RedoCounts:
    """Redo the wanted summaries.

    Raises: ConfigurationError, RedoStalled, StoreUnavailable, BrokerUnavailable, TopicMissing.
    """
    kafka, today = settings.kafka, today_of(settings)
    await require_topics(kafka, kafka.episodes_topic)
    async with AsyncExitStack() as closing:
        stores: Stores = await closing.enter_async_context(open_stores(settings))
        closing.enter_context(broker_errors(kafka.bootstrap_servers))
        producer = await closing.enter_async_context(running_producer(kafka))
        log = await closing.enter_async_context(open_log(kafka))
        asks = Requests(kafka, producer, log)
        work = Redo(stores.episodes, stores.messages, asks, today, settings.retry, in_flight, give_up_seconds, progress)
        return await work.run(await episodes_to_redo(stores.episodes, wanted, today))
