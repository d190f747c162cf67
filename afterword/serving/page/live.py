"""The live screen: episodes as they close, summaries as they arrive, and the workers' lag for operators."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from aiokafka.errors import KafkaError
from fastapi import APIRouter, Request
from sse_starlette import ServerSentEvent
from starlette.responses import HTMLResponse

from afterword.operating.dlq import DeadLetterQueue, Filters
from afterword.schemas import SummaryCreated, Usage
from afterword.serving.events import ALL, TICK_SECONDS, EventStream, Feed, Published, StreamFilter
from afterword.serving.page.rendering import PageRoute, fragment, html_page
from afterword.serving.page.visitor import OperatingVisitor, ReadingVisitor
from afterword.serving.requests import in_time, services_of
from afterword.streams.errors import BrokerUnavailable, StoreUnavailable
from afterword.streams.kafka.log_reader import Log, open_log
from afterword.streams.settings import Settings
from afterword.streams.summarizer.summary import EXTRACTIVE

SHOWN_AT_ONCE = 40
"""Number of events shown per tick. All of them are counted."""
RECENT_RECORDS = 200
"""Number of past records per partition that are counted when a visitor arrives."""
COUNTED_HOURS = 24
RECENT_SECONDS = 8.0
LAG_SECONDS = 4.0
"""The lag is read again once it is this old."""
READ_SECONDS = 10.0
MOST_COUNTED = 5000
"""Dead letters are counted one by one up to this many records."""

router = APIRouter(route_class=PageRoute, include_in_schema=False)
log = structlog.get_logger(__name__)


@dataclass
class LiveTotals:
    """What a visitor's events add up to."""

    events: Counter[str] = field(default_factory=Counter)
    """Counts by kind. Summaries that no LLM wrote also count as `fallback` or `extractive`."""
    usage: Usage = field(default_factory=Usage)
    """Tokens and seconds that the LLM used for all summaries."""
    asked: int = 0
    """Number of summaries for which an LLM was called."""

    def count(self, events: Iterable[Published]) -> None:
        for published in events:
            self.events[published.kind] += 1
            if isinstance(event := published.event, SummaryCreated):
                is_fallback = event.quality.source == "fallback"
                self.events["extractive" if event.quality.reason == EXTRACTIVE else "fallback"] += is_fallback
                self.usage += event.usage
                self.asked += bool(event.usage.prompt_tokens)


@router.get("/")
async def show_live(request: Request, principal: ReadingVisitor) -> HTMLResponse:
    """Show the screen. Its events come from `/live/events`."""
    return html_page(request, "live.html", principal, counted=RECENT_RECORDS)


@router.get("/live/events")
async def stream_live(request: Request, principal: ReadingVisitor) -> EventStream:
    """Stream parts of the screen: the latest events, then those of each tick. Raises: BrokerUnavailable."""
    feed = services_of(request).feed
    wanted = StreamFilter(principal.owner, frozenset(ALL), key_id=principal.key_id)
    return EventStream(request, principal, live_parts(feed, wanted))


async def live_parts(feed: Feed, wanted: StreamFilter) -> AsyncGenerator[ServerSentEvent, None]:
    """Yield the latest events, then every second the totals and the events since. Totals begin 24 hours ago."""
    totals, here = LiveTotals(), feed.offsets
    past = await recent_events(feed, wanted)
    since = datetime.now(UTC) - timedelta(hours=COUNTED_HOURS)
    totals.count(published for published in past if published.at >= since)
    yield ServerSentEvent(_entries(past[-SHOWN_AT_ONCE:]), event="history")
    async with aclosing(feed.follow(wanted, here)) as batches:
        async for batch in batches:
            totals.count(batch.events)
            if batch.events:
                yield ServerSentEvent(_entries(batch.events[-SHOWN_AT_ONCE:]), event="entries")
            yield ServerSentEvent(fragment("live_tiles.html", totals=totals, away=not feed.running), event="tiles")
            if batch.events:  # a batch without events comes after TICK_SECONDS
                await asyncio.sleep(TICK_SECONDS)


async def recent_events(feed: Feed, wanted: StreamFilter) -> list[Published]:
    """List a visitor's latest events, oldest first. The list is empty if they cannot be read in time."""
    try:
        async with asyncio.timeout(RECENT_SECONDS):
            found = await feed.recent(wanted, RECENT_RECORDS)
    except (TimeoutError, KafkaError, BrokerUnavailable, StoreUnavailable) as error:
        log.warning("recent_events_not_read", stage="serve", error_type=type(error).__name__)
        return []
    return sorted(found, key=lambda published: published.at)


def _entries(events: Sequence[Published]) -> str:
    return fragment("live_entries.html", entries=events[::-1])


class LagReader:
    """Reads the lag at most once per LAG_SECONDS for all visitors together."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._kafka = settings.kafka
        self._clock = clock
        self._reading = asyncio.Lock()
        self._at = 0.0
        self._last: dict[str, Any] | None = None
        self._counted: tuple[dict[Any, int], int | None] = {}, 0

    async def read(self) -> dict[str, Any]:
        """Return how many records each worker has yet to read, how many messages there are, and how many dead letters.

        It may be LAG_SECONDS old. `dead_letters` is None if there are too many records to count. Raises:
        BrokerUnavailable, KafkaError, TopicMissing.
        """
        async with self._reading:
            if self._last is None or self._clock() - self._at >= LAG_SECONDS:
                self._last = await in_time(self._kafka, READ_SECONDS, self._read())
                self._at = self._clock()
            return self._last

    async def _read(self) -> dict[str, Any]:
        kafka = self._kafka
        async with open_log(kafka) as reading:
            messages, episodes = await reading.ends(kafka.messages_topic), await reading.ends(kafka.episodes_topic)
            return {
                "segmenter": await reading.left(kafka.segmenter_id, kafka.messages_topic, messages),
                "archiver": await reading.left(kafka.archiver_id, kafka.messages_topic, messages),
                "summarizer": await reading.left(kafka.summarizer_id, kafka.episodes_topic, episodes),
                "messages": sum(messages.values()),
                "dead_letters": await self._dead_letters(reading),
            }

    async def _dead_letters(self, reading: Log) -> int | None:
        queue = DeadLetterQueue(self._settings, reading)
        topics = await queue.topics()
        async with reading.reader(*topics) as consumer:
            assigned = list(consumer.assignment())
            first, ends = await consumer.beginning_offsets(assigned), await consumer.end_offsets(assigned)
        if ends != self._counted[0]:
            few = sum(ends.values()) - sum(first.values()) <= MOST_COUNTED
            found = [await queue.count(topic, Filters(), "discarded") for topic in topics] if few else []
            self._counted = ends, sum(counts.found for counts in found) if few else None
        return self._counted[1]


@router.get("/live/lag")
async def show_lag(request: Request, principal: OperatingVisitor) -> HTMLResponse:
    """Show how far behind the workers are."""
    reader: LagReader = request.app.state.lag_reader
    return html_page(request, "live_lag.html", principal, lags=await reader.read())
