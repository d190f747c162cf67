"""Latency from an episode's last message to its summary, and from an edit to the next revision; the LLM takes 0 ms.

The clock starts when the message is handed to the producer and stops when a consumer has the `summary.created`. Both
are in this process, so there is one clock; what this process itself takes to send and to receive is in the figures.
The workers run as users start them; the archiver, which a revision waits for, only while messages are edited.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from afterword.audit.waiting import is_consumed
from afterword.embedded import EmbeddedStack
from afterword.streams.log_reader import open_log
from afterword.streams.settings import Kafka, Settings, load_settings
from afterword.topics import ensure_topics
from benchmarks.llm import StandIn, chat, name_of
from benchmarks.processes import worker
from benchmarks.quantiles import milliseconds, quantile
from benchmarks.suite import Finding, Form, Line

PARTITIONS = 4
CONVERSATIONS = 50
EPISODE_MESSAGES = 10
"""The default trigger."""
WARMING_EPISODES = 100
BACKLOG_EPISODES = 300
CAPACITY_SECONDS = 15.0
GIVEN_SECONDS = 30.0
"""Time of each load that is given."""
EDITS_A_SECOND = 5.0
EDITED = "The order arrived on time after all, and the customer asks for no refund."
REVISED_P50_SECONDS = 0.100
STEP_SECONDS = 0.001
POLL_SECONDS = 0.1
SETTLING_SECONDS = 60.0
TITLE = "latency: last message of an episode → summary.created readable, both workers, LLM of 0 ms"


class Level(NamedTuple):
    """A share of the capacity, in seconds."""

    seconds: float
    """Duration of the load."""
    p50: float
    p99: float
    """The aims."""


LEVELS = {0.1: Level(30.0, 0.040, 0.150), 0.5: Level(20.0, 0.060, 0.200), 0.8: Level(15.0, 0.080, 0.250)}


@dataclass(frozen=True)
class Trip:
    """An episode from its last message on; in seconds of the monotonic clock."""

    message: str
    """Id of the last message."""
    sent: float
    closed_read: float
    summary_read: float

    @property
    def closed(self) -> float:
        """Seconds until its `episode.closed` can be read."""
        return self.closed_read - self.sent

    @property
    def summarised(self) -> float:
        """Seconds until its `summary.created` can be read."""
        return self.summary_read - self.sent


@dataclass
class Trips:
    """Trips of the episodes whose last message was sent from here."""

    sent: dict[str, float] = field(default_factory=dict)
    closed: dict[str, float] = field(default_factory=dict)
    """Seconds of the monotonic clock, by message id and by episode id."""
    done: list[Trip] = field(default_factory=list)
    edited: dict[str, float] = field(default_factory=dict)
    """Seconds of the monotonic clock, by message id."""
    revised: list[float] = field(default_factory=list)
    """Seconds from an edit until its revision can be read."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def see_closed(self, episodes: AIOKafkaConsumer) -> None:
        async for record in episodes:
            now = time.monotonic()
            self.closed[orjson.loads(record.value)["episode_id"]] = now

    async def see_summarised(self, summaries: AIOKafkaConsumer) -> None:
        async for record in summaries:
            now, event = time.monotonic(), orjson.loads(record.value)
            if event["revision"] > 1:
                self.revised += [now - self.edited.pop(m) for m in event["message_ids"] if m in self.edited]
                self.arrived.set()
                continue
            last = event["message_ids"][-1]
            closed = self.closed.get(event["episode_id"], now)  # its own consumer may be a moment behind
            self.done.append(Trip(last, self.sent[last], closed, now))
            self.arrived.set()

    async def until(self, count: int) -> None:
        while len(self.done) < count:
            self.arrived.clear()
            await self.arrived.wait()

    async def until_revised(self) -> None:
        while self.edited:
            self.arrived.clear()
            await self.arrived.wait()


T = TypeVar("T", bound="Talk")


class Talk:
    """Conversations that go on, each from where it was."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, sent: dict[str, float]) -> None:
        self._producer = producer
        self._topic = topic
        self._sent = sent
        self._said = [0] * CONVERSATIONS

    @property
    def episodes(self) -> int:
        """Number of episodes that have ended."""
        return sum(said // EPISODE_MESSAGES for said in self._said)

    async def say(self, number: int, count: int = 1) -> None:
        name = name_of(number)
        for message, value in chat(name, self._said[number], count):
            self._sent[message] = time.monotonic()
            await self.send(message, value, key=name.encode())
        self._said[number] += count

    async def send(self, message: str, value: bytes, key: bytes) -> None:  # noqa: ARG002 – subclasses need the id
        """Hand a message to the producer. `message`: its id."""
        await self._producer.send(self._topic, value, key=key)

    async def edit(self, number: int, message: str) -> None:
        name = name_of(number)
        event = {"type": "message.edited", "id": message, "conversation_id": name, "content": EDITED}
        await self._producer.send(self._topic, orjson.dumps(event), key=name.encode())

    def in_last_episode(self, number: int) -> str:
        """Return the id of a message in the middle of the conversation's last episode: no overlap holds it."""
        first = (self._said[number] // EPISODE_MESSAGES - 1) * EPISODE_MESSAGES
        [(message, _)] = chat(name_of(number), first + EPISODE_MESSAGES // 2, 1)
        return message


async def edits(talk: Talk, trips: Trips, chance: random.Random) -> list[float]:
    """Edit a message of each conversation's last episode; return the seconds until each revision."""
    for number in range(CONVERSATIONS):
        message = talk.in_last_episode(number)
        trips.edited[message] = time.monotonic()
        await talk.edit(number, message)
        await asyncio.sleep(chance.expovariate(EDITS_A_SECOND))
    async with asyncio.timeout(SETTLING_SECONDS):
        await trips.until_revised()
    return trips.revised


async def rate_of_backlog(talk: Talk, trips: Trips, episodes: int) -> float:
    """Messages a second that both workers together can do when they have them all: first summary to last."""
    before, each = len(trips.done), episodes // CONVERSATIONS * EPISODE_MESSAGES
    for number in range(CONVERSATIONS):
        await talk.say(number, each)
    await trips.until(before + 1)
    began, seen = time.monotonic(), len(trips.done)
    await trips.until(talk.episodes)
    return (len(trips.done) - seen) / (time.monotonic() - began) * EPISODE_MESSAGES


async def measured_capacity(offered: float, talk: Talk, trips: Trips, chance: random.Random) -> float:
    """Messages a second that both can do when they come one by one, more of them than can be done.

    That is less than of a backlog: a transaction of the segmenter has a few of them, not thousands.
    """
    saying = asyncio.create_task(arrivals(offered, CAPACITY_SECONDS, talk, chance))
    await asyncio.sleep(CAPACITY_SECONDS / 3)
    began, before = time.monotonic(), len(trips.done)
    await saying
    found = (len(trips.done) - before) / (time.monotonic() - began) * EPISODE_MESSAGES
    await settled(talk, trips)
    return found


async def trips_at(rate: float, seconds: float, talk: Talk, trips: Trips, chance: random.Random) -> list[Trip]:
    """Trips of the episodes that end in so many seconds, at `rate` messages a second."""
    first = len(trips.done)
    await arrivals(rate, seconds, talk, chance)
    await settled(talk, trips)
    return trips.done[first:]


async def arrivals(rate: float, seconds: float, talk: Talk, chance: random.Random) -> None:
    """Poisson, never held back."""
    began, due = time.monotonic(), 0.0
    while due < seconds:
        while due < min(seconds, time.monotonic() - began):
            await talk.say(chance.randrange(CONVERSATIONS))
            due += chance.expovariate(rate)
        await asyncio.sleep(STEP_SECONDS)


async def settled(talk: Talk, trips: Trips) -> None:
    """Every episode has its summary. Raises: TimeoutError."""
    async with asyncio.timeout(SETTLING_SECONDS):
        await trips.until(talk.episodes)


@asynccontextmanager
async def workers(settings: Settings, environment: Mapping[str, str], directory: Path) -> AsyncIterator[None]:
    await ensure_topics(settings)
    async with (
        worker("segmenter", directory, environment) as segmenter,
        worker("summarizer", directory, environment) as summarizer,
    ):
        await segmenter.until_ready()
        await summarizer.until_ready()
        yield


@asynccontextmanager
async def archiving(kafka: Kafka, environment: Mapping[str, str], directory: Path) -> AsyncIterator[None]:
    """Run the archiver; it has consumed everything when the block begins."""
    async with worker("archiver", directory, environment) as archiver, open_log(kafka) as log:
        await archiver.until_ready()
        while not await is_consumed(log, kafka.archiver_id, kafka.messages_topic):  # noqa: ASYNC110 – offsets set no event
            await asyncio.sleep(POLL_SECONDS)
        yield


@asynccontextmanager
async def talking(kafka: Kafka, make: Callable[..., T]) -> AsyncIterator[tuple[T, Trips]]:
    trips, servers = Trips(), kafka.bootstrap_servers
    options = {"bootstrap_servers": servers, "isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    async with (
        AIOKafkaProducer(bootstrap_servers=servers, acks="all") as producer,
        AIOKafkaConsumer(kafka.episodes_topic, **options) as episodes,
        AIOKafkaConsumer(kafka.summaries_topic, **options) as summaries,
        AsyncExitStack() as ending,
    ):
        for task in (trips.see_closed(episodes), trips.see_summarised(summaries)):
            ending.callback(asyncio.create_task(task).cancel)
        yield make(producer, kafka.messages_topic, trips.sent), trips


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    """Measure in the long form only: a latency has no rival in the same run."""
    if form.short:
        return []
    chance, found = random.Random(1), {}
    async with EmbeddedStack(directory / "stack") as stack, StandIn() as llm, AsyncExitStack() as running:
        settings = load_settings(kafka={"bootstrap_servers": stack.bootstrap_servers, "partitions": PARTITIONS})
        environment = {**stack.environment(), **llm.environment(slots=8)}
        await running.enter_async_context(workers(settings, environment, directory))
        talk, trips = await running.enter_async_context(talking(settings.kafka, Talk))
        await rate_of_backlog(talk, trips, WARMING_EPISODES)
        if not form.loads:
            backlog = await rate_of_backlog(talk, trips, BACKLOG_EPISODES)
        for number in range(CONVERSATIONS):  # from here on they do not all end at the same time
            await talk.say(number, chance.randrange(EPISODE_MESSAGES))
        for rate in form.loads:
            found[rate] = await trips_at(rate, GIVEN_SECONDS, talk, trips, chance)
        if form.loads:
            return [finding_of_loads(found)]
        capacity = await measured_capacity(backlog, talk, trips, chance)
        for share, level in LEVELS.items():
            found[share] = await trips_at(share * capacity, level.seconds, talk, trips, chance)
        await running.enter_async_context(archiving(settings.kafka, environment, directory))
        revised = await edits(talk, trips, chance)
    return [finding(backlog, capacity, found), finding_of_edits(revised)]


def finding_of_edits(revised: Sequence[float]) -> Finding:
    p50 = quantile(revised, 0.5)
    figures = {"edits": str(len(revised)), "p50": milliseconds(p50), "p99": milliseconds(quantile(revised, 0.99))}
    aim = f"p50 ≤ {milliseconds(REVISED_P50_SECONDS)}"
    title = "latency: message.edited → revision 2 readable, all three workers, LLM of 0 ms"
    line = Line(
        f"{EDITS_A_SECOND:.0f} edits/s, each in a stored episode", figures, None, aim, p50 <= REVISED_P50_SECONDS
    )
    return Finding(title, [line], [])


def finding(backlog: float, capacity: float, found: Mapping[float, Sequence[Trip]]) -> Finding:
    told = f"{capacity:,.0f} messages/s, {capacity / EPISODE_MESSAGES:.0f} episodes/s"
    notes = [f"capacity in this run, messages coming one by one: {told}; of a backlog: {backlog:,.0f} messages/s"]
    lines = [
        line(f"at {share:.0%} of capacity", share * capacity, trips, LEVELS[share]) for share, trips in found.items()
    ]
    return Finding(TITLE, lines, notes)


def finding_of_loads(found: Mapping[float, Sequence[Trip]]) -> Finding:
    """Return a table of loads that were given, each of which is one line."""
    return Finding(TITLE, [line("at a given load", rate, trips) for rate, trips in found.items()])


def line(name: str, rate: float, trips: Sequence[Trip], level: Level | None = None) -> Line:
    summarised = [trip.summarised for trip in trips]
    p50, p99 = quantile(summarised, 0.5), quantile(summarised, 0.99)
    figures = {
        "messages/s": f"{rate:,.0f}",
        "episodes": str(len(trips)),
        "p50": milliseconds(p50),
        "p99": milliseconds(p99),
        "until episode.closed, p50": milliseconds(quantile([trip.closed for trip in trips], 0.5)),
    }
    if level is None:
        return Line(name, figures, None)
    aim = f"p50 ≤ {milliseconds(level.p50)}, p99 ≤ {milliseconds(level.p99)}"
    return Line(name, figures, None, aim, p50 <= level.p50 and p99 <= level.p99)
