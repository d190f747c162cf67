"""Measures latency through both workers, started as users start them, with an LLM that answers at once.

The clock starts when a message is passed to the producer, and stops when a consumer has the `summary.created` of the
episode that the message ended. Both are in this process, whose own time to send and receive is in the figures. Edits
are timed in the same way, until the next revision.
"""

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import orjson
from aiohttp import web
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from afterword.embedded import EmbeddedStack
from afterword.operating.topics import ensure_topics
from afterword.schemas.base import rfc3339
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.settings import Kafka, variable
from benchmarks.measuring import (
    Form,
    Running,
    cpu_seconds,
    create_topics,
    fill,
    megabytes,
    memory_bytes,
    milliseconds,
    percentiles,
    quantile,
    ratio,
    settings_of,
    show,
    until_consumed,
    worker,
)
from benchmarks.throughput import FLAT

CONVERSATIONS, EPISODE_MESSAGES = 50, 10
SLOTS = 8
WARMING_EPISODES, BACKLOG_EPISODES = 100, 300
CAPACITY_SECONDS = 15.0
LEVELS = {0.1: 25.0, 0.5: 20.0, 0.8: 15.0}
"""Fraction of the capacity, and seconds at that load."""
GIVEN_SECONDS = 30.0
EDITS_A_SECOND = 5.0
EDITED = "The order arrived on time after all, and the customer asks for no refund."
STEP_SECONDS = 0.001
LIVE_RATE, ALONE_SECONDS, LOOK_SECONDS = 50.0, 60.0, 2.0
BULK_MESSAGES, HISTORIES, HISTORY_MESSAGES = 200_000, 1_000, 60
HISTORY = "history"
SETTLING_SECONDS = 120.0
MODEL = "stand-in"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
OPENING = "the order arrived late and the customer asks for a refund of the delivery fee"
MORE = "because the driver called twice but nobody answered please check the tracking number again "
REPLY = {
    "title": "Refund of the delivery fee",
    "short_summary": "The order arrived late and the customer wants a refund of the delivery fee.",
    "long_summary": (
        "The order arrived late. The customer asks for a refund of the delivery fee. "
        "The driver called twice but nobody answered, so the tracking number is checked again."
    ),
    "rolling_summary": "The customer of a late order asks for a refund of the delivery fee.",
}
"""A summary that is true of every conversation here, so that it passes the quality gate."""


async def run(form: Form, directory: Path) -> None:
    chance = random.Random(1)
    async with EmbeddedStack(directory / "stack") as stack, llm() as provider, AsyncExitStack() as running:
        settings = settings_of(stack)
        environment = {**stack.environment(), **provider}
        await ensure_topics(settings)
        talk = await running.enter_async_context(talking(settings.kafka))
        async with workers(directory, environment) as (segmenter, summarizer):
            await warm(talk, chance)
            warmed, before = len(talk.done), {one.pid: cpu_seconds(one.pid) for one in (segmenter, summarizer)}
            if form.loads:
                show_loads([(load, await talk.trips_at(load, GIVEN_SECONDS, chance), "") for load in form.loads])
                show_workers(len(talk.done) - warmed, before, segmenter, summarizer)
                return
            capacity = await measured_capacity(talk, chance, form.short)
            seconds = {share: 5.0 if form.short else seconds for share, seconds in LEVELS.items()}
            found = [
                (share * capacity, await talk.trips_at(share * capacity, seconds[share], chance), f"{share:.0%} of it")
                for share in LEVELS
            ]
            show_loads(found, f"capacity: {capacity:,.0f} messages/s that arrive one by one")
            show_workers(len(talk.done) - warmed, before, segmenter, summarizer)
            await measure_edits(talk, settings.kafka, chance, environment, directory)


async def warm(talk: "Talk", chance: random.Random) -> None:
    await talk.rate_of_backlog(WARMING_EPISODES)
    for number in range(CONVERSATIONS):  # so that they do not all end an episode at the same time
        await talk.say(number, chance.randrange(EPISODE_MESSAGES))


async def bulk(form: Form, directory: Path) -> None:
    """Measure live messages without and beside a backfill, whose source is `bulk`."""
    chance = random.Random(1)
    count = 2_000 if form.short else (form.messages or (BULK_MESSAGES,))[0]
    seconds = 5.0 if form.short else ALONE_SECONDS
    file = directory / "afterword.toml"
    file.write_text(f'[[sources]]\ntopics = ["{HISTORY}"]\nbulk = true\n[sources.map]\n{FLAT}')
    async with EmbeddedStack(directory / "stack") as stack, llm() as provider, AsyncExitStack() as running:
        settings = settings_of(stack, ingest={"file": file})
        environment = {**stack.environment(), **provider, variable(("ingest", "file")): str(file)}
        await create_topics(stack.bootstrap_servers, [HISTORY])
        await fill(stack.bootstrap_servers, HISTORY, history(count))
        await ensure_topics(settings)
        talk = await running.enter_async_context(talking(settings.kafka))
        await running.enter_async_context(workers(directory, environment))
        await warm(talk, chance)
        alone = await talk.trips_at(LIVE_RATE, seconds, chance)
        before = len(talk.done)
        async with worker("ingest", directory, environment), open_log(settings.kafka) as log:
            began, saying = time.monotonic(), asyncio.create_task(talk.arrivals(LIVE_RATE, math.inf, chance))
            while await log.left(settings.kafka.group_of("ingest"), HISTORY, await log.ends(HISTORY)):  # noqa: ASYNC110 – commits set no event here
                await asyncio.sleep(LOOK_SECONDS)
            rate = count / (time.monotonic() - began)
            saying.cancel()
        await talk.until_summarized()
        beside = talk.done[before:]
        alone += await talk.trips_at(LIVE_RATE, seconds, chance)  # before and after, in case the machine has drifted
    show_beside(alone, beside, f"{count:,} messages of the backfill, {rate:,.0f}/s")


def history(count: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and messages of conversations that take turns at random, as in a real topic."""
    chance, turns = random.Random(2), [0] * HISTORIES
    for _ in range(count):
        slot = chance.randrange(HISTORIES)
        conversation, turn = divmod(turns[slot], HISTORY_MESSAGES)
        turns[slot] += 1
        name = f"history-{slot}-{conversation}"
        yield name.encode(), message(name, turn)


def show_beside(alone: Sequence["Trip"], beside: Sequence["Trip"], note: str) -> None:
    rows, slow = [], []
    for name, trips in (("alone", alone), ("beside the backfill", beside)):
        closed = [trip.closed_read - trip.sent for trip in trips]
        summarized = [trip.summary_read - trip.sent for trip in trips]
        slow.append((quantile(closed, 0.99), quantile(summarized, 0.99)))
        rows.append(
            {
                "": name,
                "episodes": str(len(trips)),
                **{f"closed, {label}": shown for label, shown in percentiles(closed).items()},
                **{f"summarized, {label}": shown for label, shown in percentiles(summarized).items()},
            }
        )
    (closed_alone, alone_99), (closed_beside, beside_99) = slow
    last = {"closed, p99": ratio(closed_beside / closed_alone), "summarized, p99": ratio(beside_99 / alone_99)}
    show(
        f"bulk: {LIVE_RATE:.0f} live messages/s until episode.closed and summary.created",
        [*rows, {"": "÷", **last}],
        note,
    )


def show_loads(found: Sequence[tuple[float, Sequence["Trip"], str]], *notes: str) -> None:
    rows = [
        {
            "": f"{rate:,.0f} messages/s {what}".strip(),
            "episodes": str(len(trips)),
            **percentiles([trip.summary_read - trip.sent for trip in trips]),
            "until episode.closed, p50": milliseconds(quantile([trip.closed_read - trip.sent for trip in trips], 0.5)),
        }
        for rate, trips, what in found
    ]
    show("latency: last message of an episode until its summary.created can be read, LLM of 0 ms", rows, *notes)


async def measure_edits(
    talk: "Talk", kafka: Kafka, chance: random.Random, environment: Mapping[str, str], directory: Path
) -> None:
    async with worker("archiver", directory, environment):  # a revision waits for the archiver
        await until_consumed(kafka, kafka.group_of("archiver"), kafka.messages_topic)
        for number in range(CONVERSATIONS):
            await talk.edit(number)
            await asyncio.sleep(chance.expovariate(EDITS_A_SECOND))
        await talk.until(lambda: not talk.edited)
    row = {"": f"{EDITS_A_SECOND:.0f} edits/s", "edits": str(len(talk.revised)), **percentiles(talk.revised)}
    show("latency: message.edited until the next revision can be read, with the archiver", [row])


def show_workers(episodes: int, before: Mapping[int, float], *running: Running) -> None:
    """Show what the workers have used for these episodes. `before` has their earlier CPU seconds, by process."""
    rows = [
        {
            "": one.process.name,
            "CPU of an episode": milliseconds((cpu_seconds(one.pid) - before[one.pid]) / episodes),
            "RSS": megabytes(memory_bytes(one.pid)),
            "without mapped files": megabytes(memory_bytes(one.pid, "RssAnon")),
        }
        for one in running
    ]
    show(f"the workers after {episodes:,} episodes of {EPISODE_MESSAGES} messages", rows)


async def measured_capacity(talk: "Talk", chance: random.Random, short: bool) -> float:
    """Return the throughput of both workers, in messages/s, when more messages arrive one by one than they can process.

    A backlog would be faster, because its transactions have thousands of messages instead of a few.
    """
    backlog = await talk.rate_of_backlog(BACKLOG_EPISODES)
    seconds = 6.0 if short else CAPACITY_SECONDS
    saying = asyncio.create_task(talk.arrivals(backlog, seconds, chance))
    await asyncio.sleep(seconds / 3)
    began, before = time.monotonic(), len(talk.done)
    await saying
    found = (len(talk.done) - before) / (time.monotonic() - began) * EPISODE_MESSAGES
    await talk.until_summarized()
    return found


@asynccontextmanager
async def workers(directory: Path, environment: Mapping[str, str]) -> AsyncIterator[tuple[Running, Running]]:
    async with (
        worker("segmenter", directory, environment) as segmenter,
        worker("summarizer", directory, environment) as summarizer,
    ):
        yield segmenter, summarizer


# Conversations and their episodes


class Trip(NamedTuple):
    """An episode from its last message on. Times are seconds of the monotonic clock."""

    message: str
    """Id of the last message."""
    sent: float
    closed_read: float
    summary_read: float


@dataclass
class Talk:
    """Conversations that continue, and the episodes that they have ended."""

    producer: AIOKafkaProducer
    topic: str
    said: list[int] = field(default_factory=lambda: [0] * CONVERSATIONS)
    """The number of messages in each conversation."""
    sent: dict[str, float] = field(default_factory=dict)
    edited: dict[str, float] = field(default_factory=dict)
    """Times on the monotonic clock, by message id."""
    closed: dict[str, float] = field(default_factory=dict)
    """Times on the monotonic clock, by episode id."""
    done: list[Trip] = field(default_factory=list)
    revised: list[float] = field(default_factory=list)
    """Seconds from an edit until its revision could be read."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def say(self, number: int, count: int = 1) -> None:
        name = f"account-{number}"
        for at in range(self.said[number], self.said[number] + count):
            message_id = f"{name}-{at}"
            self.sent[message_id] = time.monotonic()
            await self.producer.send(self.topic, message(name, at), key=name.encode())
        self.said[number] += count

    async def edit(self, number: int) -> None:
        """Edit a message in the middle of the conversation's last episode, where it is in no overlap."""
        name, last = f"account-{number}", self.said[number] // EPISODE_MESSAGES - 1
        message_id = f"{name}-{last * EPISODE_MESSAGES + EPISODE_MESSAGES // 2}"
        event = {"type": "message.edited", "id": message_id, "conversation_id": name, "content": EDITED}
        self.edited[message_id] = time.monotonic()
        await self.producer.send(self.topic, orjson.dumps(event), key=name.encode())

    async def see_closed(self, episodes: AIOKafkaConsumer) -> None:
        async for record in episodes:
            now = time.monotonic()
            self.closed[orjson.loads(record.value)["episode_id"]] = now

    async def see_summarized(self, summaries: AIOKafkaConsumer) -> None:
        async for record in summaries:
            now, event = time.monotonic(), orjson.loads(record.value)
            if event["revision"] > 1:
                self.revised += [now - self.edited.pop(m) for m in event["message_ids"] if m in self.edited]
            else:
                last = event["message_ids"][-1]
                closed = self.closed.get(event["episode_id"], now)  # that topic's consumer may be a moment behind
                if last in self.sent:
                    self.done.append(Trip(last, self.sent[last], closed, now))
            self.arrived.set()

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Wait until the condition holds. Raises: TimeoutError."""
        async with asyncio.timeout(SETTLING_SECONDS):
            while not is_reached():
                self.arrived.clear()
                await self.arrived.wait()

    async def until_summarized(self) -> None:
        await self.until(lambda: len(self.done) >= sum(said // EPISODE_MESSAGES for said in self.said))

    async def rate_of_backlog(self, episodes: int) -> float:
        """Return the messages/s from the first summary to the last, when all messages are available beforehand."""
        before = len(self.done)
        for number in range(CONVERSATIONS):
            await self.say(number, episodes // CONVERSATIONS * EPISODE_MESSAGES)
        await self.until(lambda: len(self.done) > before)
        began, seen = time.monotonic(), len(self.done)
        await self.until_summarized()
        return (len(self.done) - seen) / (time.monotonic() - began) * EPISODE_MESSAGES

    async def trips_at(self, rate: float, seconds: float, chance: random.Random) -> list[Trip]:
        """Send messages at this rate for this time, and return the episodes that they end."""
        first = len(self.done)
        await self.arrivals(rate, seconds, chance)
        await self.until_summarized()
        return self.done[first:]

    async def arrivals(self, rate: float, seconds: float, chance: random.Random) -> None:
        """Send messages as a Poisson process, whether or not earlier ones are acknowledged."""
        began, due = time.monotonic(), 0.0
        while due < seconds:
            while due < min(seconds, time.monotonic() - began):
                await self.say(chance.randrange(CONVERSATIONS))
                due += chance.expovariate(rate)
            await asyncio.sleep(STEP_SECONDS)


@asynccontextmanager
async def talking(kafka: Kafka) -> AsyncIterator[Talk]:
    servers = kafka.bootstrap_servers
    options = {"bootstrap_servers": servers, "isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    async with (
        AIOKafkaProducer(bootstrap_servers=servers, acks="all") as producer,
        AIOKafkaConsumer(kafka.episodes_topic, **options) as episodes,
        AIOKafkaConsumer(kafka.summaries_topic, **options) as summaries,
    ):
        talk = Talk(producer, kafka.messages_topic)
        tasks = [asyncio.create_task(one) for one in (talk.see_closed(episodes), talk.see_summarized(summaries))]
        try:
            yield talk
        finally:
            for task in tasks:
                task.cancel()


def message(conversation: str, at: int) -> bytes:
    first = at * 7 % len(MORE)  # so that each message is different
    return orjson.dumps(
        {
            "id": f"{conversation}-{at}",
            "conversation_id": conversation,
            "user_id": f"user-of-{conversation}",
            "role": "assistant" if at % 2 else "user",
            "content": f"{conversation}: {OPENING}, {MORE[first:]}{MORE[:first]}",
            "sent_at": rfc3339(BEGIN + timedelta(seconds=at)),
        }
    )


@asynccontextmanager
async def llm() -> AsyncIterator[Mapping[str, str]]:
    """Serve an LLM that answers at once; yield the variables that point a summarizer to it."""
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": orjson.dumps(REPLY).decode()},
    }
    usage = {"prompt_tokens": 400, "completion_tokens": 100}
    reply = orjson.dumps({"model": MODEL, "choices": [choice], "usage": usage})

    async def chat(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=reply, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield {
            "AFTERWORD_LLM__PROVIDER": "openai",
            "AFTERWORD_LLM__BASE_URL": f"http://127.0.0.1:{runner.addresses[0][1]}/v1",
            "AFTERWORD_LLM__MODEL": MODEL,
            "AFTERWORD_LLM__MAX_CONCURRENCY": str(SLOTS),
        }
    finally:
        await runner.cleanup()
