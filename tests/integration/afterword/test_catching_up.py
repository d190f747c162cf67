"""Clients of the event stream that come back after a long time, on real topics that others have filled."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

import pytest
from aiokafka import TopicPartition

from afterword.operating.topics import ensure_topics
from afterword.schemas.base import Owner
from afterword.schemas.records import owner_header
from afterword.serving import feed as module
from afterword.serving.feed import RECORDS_PER_TURN, Feed, StreamFilter, offsets_of
from afterword.streams.kafka.clients import running_producer
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import Episode
from afterword.streams.telemetry.metrics import Metrics
from tests.samples import a_stored_episode, a_summary, a_tombstone

OURS = StreamFilter(Owner(tenant_id="t1"), frozenset({"summary.created"}))
FOREIGN = 2 * RECORDS_PER_TURN
LONGEST_BLOCK_SECONDS = 0.5
"""CPU time. The promise is 0.05 s; a slow machine needs more."""


async def lookup(episode_ids: Sequence[str]) -> Mapping[str, Episode]:
    return {name: a_tombstone() if name == "gone:1" else a_stored_episode() for name in episode_ids}


@asynccontextmanager
async def a_feed(settings: Settings) -> AsyncIterator[Feed]:
    feed = Feed(settings.kafka, Metrics("server", "any"), lookup)
    running = asyncio.create_task(feed.run())
    async with asyncio.timeout(120):
        while not feed.running:  # noqa: ASYNC110 – it tells nobody
            await asyncio.sleep(0.05)
    yield feed
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def fill(settings: Settings) -> None:
    """Write one event of ours, many of another tenant, and two of ours, the first of a deleted episode."""
    topic = settings.kafka.summaries_topic
    foreign = a_summary(1, "theirs", tenant_id="t2").to_json()
    async with running_producer(settings.kafka) as producer:
        for name in ("first", "gone", "last"):
            ours = a_summary(1, name, tenant_id="t1")
            headers = [owner_header("t1", "u1")]
            await producer.send_and_wait(topic, ours.to_json(), key=name.encode(), partition=0, headers=headers)
            if name == "first":
                headers = [owner_header("t2", "u1")]
                for _ in range(FOREIGN):
                    await producer.send(topic, foreign, key=b"theirs", partition=0, headers=headers)
                await producer.flush()


class Heartbeat:
    """Measures the longest CPU time for which the event loop was blocked.

    The garbage collector is off meanwhile, because its time depends on what other tests have left.
    """

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        gc.disable()
        try:
            while True:
                before = time.thread_time()
                await asyncio.sleep(0.005)
                self.longest = max(self.longest, time.thread_time() - before)
        finally:
            gc.enable()


async def test_late_stream_gets_no_deleted_or_foreign_events(
    make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(kafka={"partitions": 1})
    await ensure_topics(settings)
    await fill(settings)
    decoded = []
    decode = module.decode_revision
    monkeypatch.setattr(module, "decode_revision", lambda record: decoded.append(record.key) or decode(record))
    heartbeat = Heartbeat()
    async with a_feed(settings) as feed:
        beating = asyncio.create_task(heartbeat.run())
        found, places = [], []
        async with asyncio.timeout(240), aclosing(feed.follow(OURS, {})) as batches:
            async for batch in batches:
                found += [event.event.conversation_id for event in batch.events]
                if batch.position is None:  # it has caught up
                    break
                places.append(offsets_of(feed.topics, batch.position))
        beating.cancel()
        assert (found, decoded) == (["first", "last"], [b"first", b"gone", b"last"])
        assert len(places) >= FOREIGN // RECORDS_PER_TURN
        source = TopicPartition(settings.kafka.summaries_topic, 0)
        assert places[-1][source] == feed.offsets[source]
        assert heartbeat.longest < LONGEST_BLOCK_SECONDS
        async with aclosing(feed.follow(OURS, places[0])) as resumed:
            again = [event.event.conversation_id for event in (await anext(resumed)).events]
        assert again == ["last"]
