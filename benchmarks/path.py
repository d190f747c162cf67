"""The path of one message through both workers: what each step takes, and the first episode after a start.

The workers run as users start them, with their traces exported to a collector in this process; the LLM takes 0 ms. A
step ends with an event that a span, the stand-in for the LLM, or this process' own producer and consumers have seen:
all of them on one machine, by one clock. Two processes that see one event see it in either order, so a step may take
less than nothing. The spans cost some milliseconds of CPU for each episode.
"""

import asyncio
import random
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web
from aiokafka import AIOKafkaProducer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from afterword.audit.waiting import is_consumed
from afterword.embedded import EmbeddedStack
from afterword.streams.log_reader import open_log
from afterword.streams.settings import Kafka, load_settings
from afterword.topics import ensure_topics
from benchmarks.latency import (
    BACKLOG_EPISODES,
    CONVERSATIONS,
    EPISODE_MESSAGES,
    PARTITIONS,
    POLL_SECONDS,
    WARMING_EPISODES,
    Talk,
    Trip,
    Trips,
    measured_capacity,
    rate_of_backlog,
    talking,
    trips_at,
    workers,
)
from benchmarks.llm import MODEL, Span, StandIn
from benchmarks.local_server import LocalServer
from benchmarks.quantiles import milliseconds, quantile
from benchmarks.suite import Finding, Form, Line

LEVELS = {0.1: 30.0, 0.5: 20.0}
"""Share of the capacity: seconds."""
ALONE, FIRST = "alone", "first"
STARTS = 3
EACH_START = 2 * CONVERSATIONS
LAST = 10
"""Episodes with which the first one is compared."""
SLOWEST = 0.05
EXPORT = {"OTEL_BSP_SCHEDULE_DELAY": "500", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "64"}
"""Little at a time, so that no export is an outlier of its own."""
SPANS_SECONDS = 20.0

STEPS = (
    "broker has acknowledged the message",
    "segmenter has fetched it",
    "segmenter has decided",
    "segmenter's transaction has begun",
    "segmenter's transaction is committed",
    "episode.closed can be read",
    "summarizer has fetched it",
    "summarizer has found what is stored",
    "LLM is asked",
    "LLM has answered",
    "summary is checked",
    "summary is stored in MongoDB",
    "all that follows from it is stored",
    "summarizer's transaction has begun",
    "summarizer's transaction is committed",
    "summary.created can be read",
)
"""Ends of the steps in order; the first step begins when the message is handed to the producer."""

Moments = tuple[float, ...]
"""When a message was handed to the producer, and the end of each step, in seconds since 1970."""


class Traced(NamedTuple):
    """A span of a worker; times in seconds since 1970."""

    name: str
    traces: frozenset[str]
    """Its own trace and those that it links, in hexadecimal."""
    began: float
    ended: float


class Collector(LocalServer):
    """Takes OTLP over HTTP; reads it when it is asked."""

    def __init__(self) -> None:
        super().__init__({"/v1/traces": self._take})
        self._bodies: list[bytes] = []
        self._spans: dict[str, dict[str, list[Traced]]] = defaultdict(lambda: defaultdict(list))

    async def _take(self, request: web.Request) -> web.Response:
        self._bodies.append(await request.read())
        return web.Response()

    def environment(self) -> dict[str, str]:
        """Variables that send a worker's spans here."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, **EXPORT}

    def of(self, trace: str) -> Mapping[str, Sequence[Traced]]:
        """Return the spans of a trace by name, those that link it included."""
        while self._bodies:
            for span in spans_in(self._bodies.pop(0)):
                for one in span.traces:
                    self._spans[one][span.name].append(span)
        return self._spans.get(trace, {})


def spans_in(body: bytes) -> Iterable[Traced]:
    """Decode an export request (OTLP, protobuf)."""
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                traces = frozenset({span.trace_id.hex(), *(link.trace_id.hex() for link in span.links)})
                yield Traced(span.name, traces, span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9)


def trace_of(message: str) -> str:
    """Trace id of a message: another one for each, in hexadecimal."""
    _, conversation, number = message.split("-")
    return f"{int(conversation) + 1:016x}{int(number) + 1:016x}"


class TracedTalk(Talk):
    """Sends the last message of each episode with a `traceparent`, and notes when it was acknowledged."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, sent: dict[str, float]) -> None:
        super().__init__(producer, topic, sent)
        self._client, self._to = producer, topic
        self.acknowledged: dict[str, float] = {}
        """Seconds of the monotonic clock, by message id."""

    async def send(self, message: str, value: bytes, key: bytes) -> None:
        if (int(message.rpartition("-")[2]) + 1) % EPISODE_MESSAGES:
            await super().send(message, value, key)
            return
        headers = [("traceparent", f"00-{trace_of(message)}-{1:016x}-01".encode())]
        delivery = await self._client.send(self._to, value, key=key, headers=headers)
        delivery.add_done_callback(lambda _: self.acknowledged.setdefault(message, time.monotonic()))


@dataclass(frozen=True)
class Names:
    """Names of the spans, which depend on the settings."""

    process_messages: str
    commit_closed: str
    process_closed: str
    commit_created: str
    chat: str = f"chat {MODEL}"

    @classmethod
    def of(cls, kafka: Kafka) -> "Names":
        return cls(
            f"process {kafka.messages_topic}",
            f"commit {kafka.segmenter_id}",
            f"process {kafka.episodes_topic}",
            f"commit {kafka.summarizer_id}",
        )


def moments(
    trip: Trip,
    acknowledged: float,
    spans: Mapping[str, Sequence[Traced]],
    calls: Sequence[Span],
    names: Names,
    epoch: float,
) -> Moments | None:
    """Put the events of an episode in order; None where some have not been seen.

    `trip`, `acknowledged`, `calls`: in seconds of the monotonic clock, which is `epoch` seconds behind that of `spans`.
    `calls`: of the LLM about the episode's conversation.
    """
    wanted = (
        *(names.process_messages, names.commit_closed, names.process_closed, names.chat, "summarize", "store_episode"),
        *("publish", names.commit_created),
    )
    if not all(name in spans for name in wanted):
        return None
    first = {name: min(spans[name], key=lambda span: span.began) for name in wanted}
    chat = first[names.chat]
    call = next((one for one in calls if chat.began <= one.began + epoch <= one.ended + epoch <= chat.ended), None)
    if call is None:
        return None
    taken, closing, created = first[names.process_messages], first[names.commit_closed], first[names.commit_created]
    return (
        trip.sent + epoch,
        acknowledged + epoch,
        taken.began,
        taken.ended,
        closing.began,
        closing.ended,
        trip.closed_read + epoch,
        first[names.process_closed].began,
        first["summarize"].began,
        call.began + epoch,
        call.ended + epoch,
        first["summarize"].ended,
        first["store_episode"].ended,
        first["publish"].began,
        created.began,
        created.ended,
        trip.summary_read + epoch,
    )


@dataclass
class Watched:
    """Episodes whose path was followed, by what else there was to do."""

    paths: dict[str, list[Moments]] = field(default_factory=dict)
    lost: int = 0
    """Episodes of which some span did not come."""


def seconds_of(path: Moments) -> list[float]:
    """Duration of each step."""
    return [after - before for before, after in pairwise(path)]


def slowest(paths: Sequence[Moments], share: float = SLOWEST) -> list[Moments]:
    """Select so large a share of the paths, at least one: those that took longest as a whole."""
    ordered = sorted(paths, key=lambda path: path[-1] - path[0])
    return ordered[-max(1, round(share * len(ordered))) :]


def finding(watched: Watched) -> Finding:
    """Return the table: quantiles of each step, and the mean of each in the slowest episodes."""
    durations = {name: [seconds_of(path) for path in paths] for name, paths in watched.paths.items()}
    slow = {name: [seconds_of(path) for path in slowest(paths)] for name, paths in watched.paths.items()}
    lines = []
    for number, label in enumerate(STEPS):
        figures: dict[str, str] = {}
        for name, found in durations.items():
            figures |= shown(name, [one[number] for one in found], [one[number] for one in slow[name]])
        lines.append(Line(label, figures))
    total: dict[str, str] = {}
    for name, found in durations.items():
        total |= shown(name, [sum(one) for one in found], [sum(one) for one in slow[name]])
    counts = ", ".join(f"{len(paths)} {name}" for name, paths in watched.paths.items())
    notes = [f"episodes: {counts}; {watched.lost} more, of which some span did not come", SLOW_NOTE]
    return Finding(TITLE, [*lines, Line("all", total)], notes)


TITLE = "path: the last message of an episode until its summary.created can be read, step by step, LLM of 0 ms"
SLOW_NOTE = f"slow: mean of the step in the slowest {SLOWEST:.0%} of the episodes"


def shown(name: str, all_of_them: Sequence[float], slow: Sequence[float]) -> dict[str, str]:
    if len(all_of_them) <= STARTS:
        return {name: tenths(quantile(all_of_them, 0.5))}
    return {
        f"{name}, p50": tenths(quantile(all_of_them, 0.5)),
        f"{name}, p99": tenths(quantile(all_of_them, 0.99)),
        f"{name}, slow": tenths(statistics.mean(slow)),
    }


def tenths(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


def finding_of_starts(starts: Sequence[Sequence[Trip]]) -> Finding:
    """Return the table of the first episodes after `/readyz`, beside the last ones. `starts`: their trips, in order."""
    rows = {
        "first": [trips[0].summarised for trips in starts],
        "second": [trips[1].summarised for trips in starts],
        f"last {LAST} of {EACH_START}": [trip.summarised for trips in starts for trip in trips[-LAST:]],
    }
    lines = [
        Line(name, {"median": milliseconds(statistics.median(found)), "most": milliseconds(max(found))})
        for name, found in rows.items()
    ]
    title = f"path: the first episode after both workers are ready, one at a time, {len(starts)} starts"
    return Finding(title, lines)


async def one_by_one(talk: Talk, trips: Trips, count: int, kafka: Kafka) -> list[Trip]:
    """End so many episodes, one at a time; the messages before their last ones have been read."""
    first = len(trips.done)
    for number in range(count):
        if number % CONVERSATIONS == 0:
            for one in range(CONVERSATIONS):
                await talk.say(one, EPISODE_MESSAGES - 1)
            await until_consumed(kafka)
        await talk.say(number % CONVERSATIONS)
        await trips.until(first + number + 1)
    return trips.done[first:]


async def until_consumed(kafka: Kafka) -> None:
    async with open_log(kafka) as log:
        while not await is_consumed(log, kafka.segmenter_id, kafka.messages_topic):  # noqa: ASYNC110 – offsets set no event
            await asyncio.sleep(POLL_SECONDS)


async def followed(
    trips: Sequence[Trip], talk: TracedTalk, collector: Collector, llm: StandIn, names: Names
) -> list[Moments]:
    """Find the moments of these episodes; waits for spans that are late, and leaves out those that do not come."""
    epoch, calls = time.time() - time.monotonic(), defaultdict[str, list[Span]](list)
    for call in llm.spans:
        calls[call.conversation].append(call)
    end = time.monotonic() + SPANS_SECONDS
    while True:
        found = [
            moments(
                trip,
                talk.acknowledged[trip.message],
                collector.of(trace_of(trip.message)),
                calls[trip.message.rpartition("-")[0]],
                names,
                epoch,
            )
            for trip in trips
        ]
        if all(found) or time.monotonic() > end:
            return [one for one in found if one is not None]
        await asyncio.sleep(POLL_SECONDS)


@asynccontextmanager
async def stack_of(directory: Path) -> AsyncIterator[Any]:
    async with EmbeddedStack(directory / "stack") as stack, StandIn() as llm, Collector() as collector:
        yield stack, llm, collector


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    """Measure in the long form only: a path has no rival in the same run."""
    if form.short:
        return []
    chance, watched, starts = random.Random(1), Watched(), list[list[Trip]]()
    async with stack_of(directory) as (stack, llm, collector), AsyncExitStack() as running:
        settings = load_settings(kafka={"bootstrap_servers": stack.bootstrap_servers, "partitions": PARTITIONS})
        kafka, names = settings.kafka, Names.of(settings.kafka)
        environment = {**stack.environment(), **llm.environment(slots=8), **collector.environment()}
        await ensure_topics(settings)
        talk, trips = await running.enter_async_context(talking(kafka, TracedTalk))

        async def follow(name: str, some: Sequence[Trip]) -> None:
            watched.paths[name] = await followed(some, talk, collector, llm, names)
            watched.lost += len(some) - len(watched.paths[name])

        for _ in range(STARTS - 1):
            async with workers(settings, environment, directory):
                starts.append(await one_by_one(talk, trips, EACH_START, kafka))
        await running.enter_async_context(workers(settings, environment, directory))
        starts.append(await one_by_one(talk, trips, EACH_START, kafka))
        await follow(FIRST, [trips[0] for trips in starts])
        await follow(ALONE, starts[-1][CONVERSATIONS:])
        await rate_of_backlog(talk, trips, WARMING_EPISODES)
        backlog = await rate_of_backlog(talk, trips, BACKLOG_EPISODES)
        for number in range(CONVERSATIONS):  # from here on they do not all end at the same time
            await talk.say(number, chance.randrange(EPISODE_MESSAGES))
        capacity = await measured_capacity(backlog, talk, trips, chance)
        for share, seconds in LEVELS.items():
            await follow(f"{share:.0%}", await trips_at(share * capacity, seconds, talk, trips, chance))
    return [finding(watched), finding_of_starts(starts)]
