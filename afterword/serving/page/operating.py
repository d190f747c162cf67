"""Screens that show how everything is running: Live, health, and dead letters to inspect, replay or discard."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any

from aiokafka import TopicPartition
from fastapi import APIRouter, Query
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import HTMLResponse, RedirectResponse

from afterword.operating.dlq import Action, DeadLetterQueue, Filters, NoSuchDeadLetter, open_queue
from afterword.schemas import SummaryCreated, Usage
from afterword.schemas.dead_letters import DeadLetter
from afterword.serving.events import event_stream
from afterword.serving.feed import ALL, TICK_SECONDS, Feed, Published, StreamFilter
from afterword.serving.outbox import in_time
from afterword.serving.page.rendering import PageRoute, fragment, html_page, see_other
from afterword.serving.page.visitor import OperatingVisitor, ReadingVisitor, Submitted, only_value
from afterword.serving.problems import NotFound, RequestInvalid
from afterword.serving.requests import SharedRead
from afterword.streams.installed import running_version
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.roles import inputs_of
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import UsageBy
from afterword.streams.summarizer.summary import is_replaceable

SHOWN_AT_ONCE = 40
"""Number of events shown per tick. All of them are counted."""
RECENT_RECORDS = 200
"""Number of past records per partition that are counted when a visitor arrives."""
COUNTED_HOURS = 24
LAG_SECONDS = 4.0
"""The lag is read again once it is this old."""
MOST_COUNTED = 5000
"""Dead letters are counted one by one up to this many records."""
LISTED = 200
SHOWN_BYTES = 64 * 2**10
"""How much of a value is shown. The command line shows all of it."""
MOST_ROWS = 1000
"""Rows of the table of usage, which may have one for each user."""
WORK_SECONDS = 25.0
ACTIONS: dict[str, Action] = {"replay": "replayed", "discard": "discarded"}
Counted = dict[tuple[frozenset[tuple[TopicPartition, int]], ...], int | None]
"""Numbers of dead letters by the beginnings and ends of their topics."""

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass
class LiveTotals:
    events: Counter[str] = field(default_factory=Counter)
    """Counts by kind. Summaries that an LLM should have written also count as `fallback`, and those for which one was
    called as `asked`."""
    usage: Usage = field(default_factory=Usage)
    """Tokens and seconds that the LLM used for all summaries."""

    def count(self, events: Iterable[Published]) -> None:
        for published in events:
            self.events[published.kind] += 1
            if isinstance(event := published.event, SummaryCreated):
                self.events["fallback"] += is_replaceable(event.quality)
                self.usage += event.usage
                self.events["asked"] += bool(event.usage.prompt_tokens)


@router.get("/")
async def show_live(caller: ReadingVisitor) -> HTMLResponse:
    """Show the screen. Its events come from `/live/events`."""
    return html_page(caller.request, "live.html", counted=RECENT_RECORDS)


@router.get("/live/events")
async def stream_live(caller: ReadingVisitor) -> EventSourceResponse:
    """Stream parts of the screen: the latest events, then those of each tick. Raises: BrokerUnavailable."""
    feed = caller.services.feed
    wanted = StreamFilter(caller.owner, frozenset(ALL), key_id=caller.key_id)
    has_llm = caller.services.settings.llm.provider != "extractive"
    return event_stream(caller, live_parts(feed, wanted, has_llm))


async def live_parts(feed: Feed, wanted: StreamFilter, has_llm: bool) -> AsyncGenerator[ServerSentEvent, None]:
    """Yield the latest events, then every second the totals and the events since. Totals begin 24 hours ago."""
    tiles = partial(fragment, "live_tiles.html", has_llm=has_llm)
    totals, events, part = LiveTotals(), list[Published](), "history"
    counted_from = datetime.now(UTC) - timedelta(hours=COUNTED_HOURS)
    since = {where: max(0, offset - RECENT_RECORDS) for where, offset in feed.offsets.items()}
    if not feed.running:  # reading earlier events may then fail
        yield ServerSentEvent(tiles(totals=totals, away=True), event="tiles")
    async with aclosing(feed.follow(wanted, since)) as batches:
        async for batch in batches:
            totals.count(event for event in batch.events if event.at >= counted_from)
            events = sorted([*events, *batch.events], key=lambda event: event.at)[-SHOWN_AT_ONCE:]
            if batch.position:  # earlier events may follow
                continue
            events = await feed.still_there(events)  # some may have been deleted since they were read
            if events or part == "history":
                yield ServerSentEvent(fragment("live_entries.html", entries=events[::-1]), event=part)
            yield ServerSentEvent(tiles(totals=totals, away=not feed.running), event="tiles")
            if batch.events:  # a batch without events comes after TICK_SECONDS
                await asyncio.sleep(TICK_SECONDS)
            events, part = [], "entries"


async def read_lag(settings: Settings, counted: Counted) -> dict[str, int | None]:
    """Return the number of records that each worker has yet to read, and the number of dead letters.

    `dead_letters` is None if there are too many records to count. `counted` keeps their last count, because counting
    reads all of them. Raises: BrokerUnavailable, KafkaError, TopicMissing, TopicStalled.
    """
    kafka = settings.kafka
    async with open_log(kafka) as reading:
        inputs = inputs_of(kafka)
        last = {topic: await reading.ends(topic) for _, topic in inputs.values()}
        queue = DeadLetterQueue(settings, reading)
        topics = await queue.topics()
        extent = await reading.extent(topics)
        now = frozenset(extent.first.items()), frozenset(extent.ends.items())
        if now not in counted:
            few = extent.size <= MOST_COUNTED
            all_counts = [await queue.count(topic, Filters(), "discarded") for topic in topics] if few else []
            counted.clear()
            counted[now] = sum(counts.resolved for counts in all_counts) if few else None
        return {
            **{role: await reading.left(group, topic, last[topic]) for role, (group, topic) in inputs.items()},
            "dead_letters": counted[now],
        }


@router.get("/live/lag")
async def show_lag(caller: OperatingVisitor) -> HTMLResponse:
    """Show how many messages are archived, and how far behind the workers are."""
    lag: SharedRead[None, dict[str, int | None]] = caller.request.app.state.lag
    archived = await caller.services.count_messages()
    return html_page(caller.request, "live_lag.html", lags=await lag.get(None), archived=archived)


@router.get("/health")
async def show_health(caller: ReadingVisitor) -> HTMLResponse:
    """Show the screen. Its state refreshes itself."""
    return html_page(caller.request, "health.html", version=running_version())


@router.get("/health/state")
async def show_state(caller: ReadingVisitor) -> HTMLResponse:
    services = caller.services
    database = await services.database_answers()
    return html_page(caller.request, "health_state.html", database=database, kafka=services.feed.running)


@router.get("/health/usage")
async def show_usage(caller: OperatingVisitor, by: UsageBy = "day") -> HTMLResponse:
    services = caller.services
    totals = await services.usage(by)
    rows = [(group, services.settings.llm.cost(*group[2:5])) for group in totals[:MOST_ROWS]]
    given: dict[str, Any] = {"by": by, "rows": rows, "left_out": len(totals) - len(rows)}
    return html_page(caller.request, "health_usage.html", cost_shown=services.settings.llm.cost_shown, **given)


@router.post("/health/checks")
async def run_checks(caller: OperatingVisitor, _: Submitted) -> HTMLResponse:
    """Run the checks, which contact every server and the LLM."""
    from afterword.operating.checks import check_all  # imports the engine, which nothing else here needs

    return html_page(caller.request, "health_checks.html", results=await check_all(caller.services.settings))


@router.get("/dead-letters")
async def show_dead_letters(
    caller: OperatingVisitor, done: Action | None = None, count: Annotated[int, Query(ge=0)] = 0
) -> HTMLResponse:
    """List the first dead letters that were neither replayed nor discarded.

    `done` and `count` are the outcome of the form that was just sent.
    """
    settings = caller.services.settings
    letters: list[DeadLetter] = []
    async with in_time(settings.kafka, WORK_SECONDS), open_queue(settings) as queue:
        for topic in await queue.topics():
            async with aclosing(queue.unresolved(topic, Filters())) as unresolved:
                async for letter in unresolved:
                    letters.append(letter)
                    if len(letters) > LISTED:
                        break
            if len(letters) > LISTED:  # the list is full, so no further topic is read
                break
    given: dict[str, Any] = {"letters": letters[:LISTED], "more": len(letters) > LISTED, "done": done}
    return html_page(caller.request, "dead_letters.html", listed=LISTED, count=count, **given)


@router.get("/dead-letter")
async def show_dead_letter(caller: OperatingVisitor, address: Annotated[str, Query(max_length=400)]) -> HTMLResponse:
    """Show a dead letter: why it was rejected, its headers, and the beginning of its value."""
    settings = caller.services.settings
    try:
        async with in_time(settings.kafka, WORK_SECONDS), open_queue(settings) as queue:
            letter = await queue.find(address)
    except NoSuchDeadLetter:
        raise NotFound(what="dead letter") from None
    value = letter.value or b""
    given: dict[str, Any] = {
        "letter": letter,
        "value": value[:SHOWN_BYTES].decode(errors="replace"),
        "size": len(value),
        "headers": [(name, (said or b"").decode(errors="replace")) for name, said in letter.headers],
    }
    return html_page(caller.request, "dead_letter.html", **given)


@router.post("/dead-letters")
async def resolve_dead_letters(caller: OperatingVisitor, fields: Submitted) -> RedirectResponse:
    """Replay or discard the selected dead letters, each once."""
    action = ACTIONS.get(only_value(fields, "action"))
    addresses = frozenset(fields.get("address", ()))
    if action is None:
        raise RequestInvalid(problems=[("action", "must be replay or discard")])
    settings = caller.services.settings
    topics = {address.rsplit("/", 2)[0] for address in addresses}
    async with in_time(settings.kafka, WORK_SECONDS), open_queue(settings) as queue:
        done = [
            await queue.resolve(topic, lambda letter: letter.address in addresses, action)
            for topic in await queue.topics()
            if topic in topics
        ]
    return see_other("/dead-letters", done=action, count=sum(counts.resolved for counts in done))
