"""Expiry on the real processes: expired data is nowhere, and nothing late brings it back."""

from collections.abc import Callable

import pytest

from afterword import Memory, Producer, SummaryDeleted
from afterword.streams.kafka.clients import running_consumer, running_producer
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import StoredEpisode, all_episodes
from afterword.streams.stores.opening import open_stores
from tests.e2e.deployment import Deployment
from tests.e2e.test_amendments import FACTS, TENANT, Events, dead_letters, events, has, latest, message
from tests.waiting import until

pytestmark = pytest.mark.nightly

__all__ = ["events"]

KEPT_SECONDS = 60
"""Long enough for workers to start and summarize on a busy machine."""


@pytest.fixture
def settings(make_settings: Callable[..., Settings]) -> Settings:
    days = KEPT_SECONDS / 86_400
    return make_settings(
        kafka={"partitions": 2},
        retry={"first_delay_seconds": 0.5},
        retention={"messages_days": days, "episodes_days": days},
        drain_seconds=10,
    )


async def stored(settings: Settings) -> list[str]:
    """Return the ids of the stored messages, episodes and rolling rows."""
    async with open_stores(settings) as stores:
        ids = [ref.key async for ref in stores.messages.all_messages()]
        ids += [one.summary.episode_id async for one in all_episodes(stores.episodes) if isinstance(one, StoredEpisode)]
        return ids + [row.content for row in await stores.episodes.rows("c") if row.content]


async def only_tombstones_are_current(settings: Settings) -> bool:
    last: dict[tuple[str, bytes | None], bytes | None] = {}
    async with open_log(settings.kafka) as log:
        for topic in settings.kafka.current_topics:
            async for record in log.records(topic):
                last[record.topic, record.key] = record.value
    assert len(last) == 2
    return not any(last.values())


async def replay(settings: Settings) -> None:
    """Write every record of `episode.closed` once more."""
    kafka = settings.kafka
    async with (
        running_consumer(kafka, kafka.episodes_topic, auto_offset_reset="earliest") as consumer,
        running_producer(kafka) as producer,
    ):
        record = await consumer.getone()
        await producer.send_and_wait(record.topic, record.value, key=record.key, headers=list(record.headers))


async def test_expired_data_is_gone_and_late_records_restore_nothing(deployment: Deployment, events: Events) -> None:
    settings = deployment.settings
    async with Producer.from_settings(settings) as producer, Memory.from_settings(settings) as memory:
        for number, fact in enumerate(FACTS):
            await producer.send(message("c", number, fact))
        await producer.flush("c", tenant_id=TENANT)
        await until(lambda: has(events, "c", {1: 1}))

        async def is_gone() -> bool:
            return not await stored(settings)

        await until(is_gone)
        await until(lambda: only_tombstones_are_current(settings))
        assert await memory.context("c") is None
        assert (await memory.episodes("c")).episodes == ()
        assert await memory.recall("Rome flight", user_id="ann", tenant_id=TENANT) == []

        await producer.delete("c", "m0", tenant_id=TENANT)
        await producer.edit("c", "m1", tenant_id=TENANT, content="The hotel is booked for a week.")
        report = await deployment.audit()
        assert report.clean, list(report.lines())
        assert await dead_letters(deployment, 0) == set()
        assert (report.messages["expired"], report.summaries["deleted"]) == (3, 1)

        await replay(settings)
        await until(lambda: has(events, "c", {1: 3}))
        ended = latest(events, "c")[1]
        assert isinstance(ended, SummaryDeleted)
        assert ended.reason == "expired"
        assert await stored(settings) == []
