"""Failing over to a cluster with a mirror that keeps offsets, as docs/how-to/your-kafka.md describes it."""

from collections import Counter
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer, ConsumerRecord
from aiokafka.admin import RecordsToDelete

from afterword.embedded import EmbeddedStack
from afterword.operating.rebuild import rebuild_state
from afterword.schemas import MessageDeleted, MessageEdited
from afterword.streams.kafka.clients import admin_client, client_options, running_producer, send_copy
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.settings import Settings
from afterword.streams.stores.messages import Selection
from afterword.streams.stores.opening import open_stores
from afterword.writing.producer import Producer
from tests.e2e.deployment import Deployment, deployed
from tests.e2e.test_state_made_anew import TALKS, check_ordinals, consumed, expire, say
from tests.stack import chosen_jars

pytestmark = pytest.mark.nightly


async def mirror(here: Settings, there: Settings, topic: str) -> None:
    """Copy what a topic still has: keys, values, headers, timestamps, partitions and offsets.

    Records with a gap after them are a transaction, whose marker fills it.
    """
    options = {**client_options(there.kafka), "transactional_id": f"mirror-{topic}"}
    async with open_log(here.kafka) as log, admin_client(there.kafka) as admin, AIOKafkaProducer(**options) as producer:
        extent = await log.extent([topic])
        async with running_producer(there.kafka) as filling:
            for where, first in extent.first.items():
                for _ in range(first):
                    await filling.send_and_wait(topic, b"-", partition=where.partition)
            await admin.delete_records({tp: RecordsToDelete(before_offset=first) for tp, first in extent.first.items()})
            for where, end in extent.ends.items():
                run: list[ConsumerRecord] = []
                async for record in log.records_of(where, end):
                    if run and record.offset > run[-1].offset + 1:
                        await send_together(producer, run)
                        run = []
                    run.append(record)
                if run and run[-1].offset + 1 < end:
                    await send_together(producer, run)
                else:
                    for record in run:
                        copied = record.topic, record, record.partition, record.timestamp
                        await (await send_copy(filling, *copied))
    async with open_log(there.kafka) as log:
        assert await log.extent([topic]) == extent


async def send_together(producer: AIOKafkaProducer, records: list[ConsumerRecord]) -> None:
    async with producer.transaction():
        for record in records:
            await send_copy(producer, record.topic, record, record.partition, record.timestamp)


async def test_failover_keeps_every_message_in_one_episode(deployment: Deployment, tmp_path: Path) -> None:
    here = deployment.settings
    for role in ALWAYS_RUN:
        deployment.start(role)
    await say(here, range(12), flush=True)
    first = await consumed(deployment)
    assert (await deployment.audit()).clean
    await deployment.stop("summarizer")
    await say(here, range(12, 31), flush=False)  # some are closed but not summarized, others are pending
    for role in ("segmenter", "archiver"):
        await consumed(deployment, role)
    await deployment.close()
    await expire(here, {source: end // 2 for source, end in first.items()})

    async with EmbeddedStack(tmp_path / "other", jars=chosen_jars()) as other:
        kafka = here.kafka.model_copy(update={"bootstrap_servers": other.bootstrap_servers})
        there = here.model_copy(update={"kafka": kafka})
        async with deployed(there, tmp_path / "there") as moved:
            for topic in (kafka.messages_topic, kafka.episodes_topic):
                await mirror(here, there, topic)
            await rebuild_state(there)
            for role in ALWAYS_RUN:
                moved.start(role)
            await say(there, range(31, 45), flush=True)
            await until_clean(moved)
            episodes = await moved.episodes()
            check_ordinals(episodes)
            found = Counter((one.conversation_id, message.id) for one in episodes for message in one.messages)
            assert found == Counter((talk, f"m{n}") for talk in TALKS for n in range(45))
            await until_changed(moved)


async def until_clean(deployment: Deployment) -> None:
    report = await deployment.audit()
    assert report.clean, report.findings
    assert report.summaries["stored"] == report.summaries["announced"]


async def until_changed(deployment: Deployment) -> None:
    """Edit and delete messages from before the failover, one of an episode that was summarized there."""
    async with Producer.from_settings(deployment.settings) as producer:
        await producer.send_all(
            [MessageEdited(id=name, conversation_id=TALKS[0], content="Mended") for name in ("m3", "m20")]
        )
        await producer.send_all([MessageDeleted(id=name, conversation_id=TALKS[0]) for name in ("m5", "m25")])
    await until_clean(deployment)
    async with open_stores(deployment.settings) as stores:
        archived = [one async for one in stores.messages.newest(Selection(TALKS[0], None))]
    names = [one.message.id for one in archived]
    assert names == [f"m{n}" for n in reversed(range(45)) if n not in (5, 25)]
    assert {one.message.id for one in archived if one.message.content == "Mended"} == {"m3", "m20"}
