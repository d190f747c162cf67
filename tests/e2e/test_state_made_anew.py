"""The runbook's recovery of a conversation in quarantine leaves no conflict and no duplicate."""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import orjson
import pytest
from aiokafka import AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import RecordsToDelete

from afterword.embedded import EmbeddedStack
from afterword.operating.dlq import Filters, open_queue
from afterword.operating.rebuild import rebuild_state
from afterword.operating.topics import ensure_topics
from afterword.schemas import EpisodeClosed, MessageDeleted, MessageEdited
from afterword.streams.kafka.clients import admin_client, client_options, running_producer, send_copy
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.segmenter.state import CONVERSATIONS, TABLES
from afterword.streams.settings import Settings
from afterword.streams.stores.messages import Selection
from afterword.streams.stores.opening import open_stores
from afterword.writing.produce import produce
from afterword.writing.producer import Producer
from tests.e2e.deployment import Deployment, deployed
from tests.stack import chosen_jars
from tests.waiting import until

pytestmark = pytest.mark.nightly

UNREADABLE = "state_unreadable"
TALKS = [f"talk-{n}" for n in range(6)]
DAMAGED = TALKS[0]


def said(numbers: range) -> Iterator[bytes]:
    for n in numbers:
        for talk in TALKS:
            role = "assistant" if n % 2 else "user"
            text = f"This was said as number {n} in {talk}, about the trip to Rome and the hotel there."
            yield orjson.dumps({"id": f"m{n}", "conversation_id": talk, "user_id": "u", "role": role, "content": text})


async def each(lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    for line in lines:
        yield line


async def say(settings: Settings, numbers: range, *, flush: bool) -> None:
    await produce(settings, each(said(numbers)), flush=flush)


async def consumed(deployment: Deployment, role: str = "segmenter") -> dict[TopicPartition, int]:
    """Wait until the role has consumed all of `messages`, and return the end of each partition."""
    kafka = deployment.settings.kafka
    group = {"segmenter": kafka.group_of("segmenter"), "archiver": kafka.group_of("archiver")}[role]
    async with open_log(kafka) as log:
        ends = await log.ends(kafka.messages_topic)

        async def nothing_is_left() -> bool:
            return await log.left(group, kafka.messages_topic, ends) == 0

        await until(nothing_is_left)
        return ends


async def delete_changelogs(settings: Settings) -> None:
    changelogs = [settings.kafka.changelog(table) for table in TABLES]
    async with admin_client(settings.kafka) as admin:
        await admin.delete_topics(changelogs)

        async def are_gone() -> bool:
            return not set(changelogs) & set(await admin.list_topics())

        await until(are_gone)
    await ensure_topics(settings)


async def expire(settings: Settings, before: dict[TopicPartition, int]) -> None:
    async with admin_client(settings.kafka) as admin:
        await admin.delete_records({where: RecordsToDelete(before_offset=offset) for where, offset in before.items()})


def check_ordinals(episodes: list[EpisodeClosed]) -> None:
    found, ids = defaultdict(list), [(e.conversation_id, m.id) for e in episodes for m in e.messages]
    for episode in episodes:
        found[episode.conversation_id].append(episode.ordinal)
    assert all(sorted(numbers) == list(range(1, len(numbers) + 1)) for numbers in found.values())
    assert len(ids) == len(set(ids)), "a message is in two episodes"


async def letters(settings: Settings, error_type: str | None = None) -> int:
    async with open_queue(settings) as queue:
        topics = [
            settings.kafka.dead_letters(t) for t in (settings.kafka.messages_topic, settings.kafka.episodes_topic)
        ]
        return sum(
            [(await queue.count(topic, Filters(error_type=error_type), "replayed")).by_type.total() for topic in topics]
        )


async def test_quarantined_conversation_continues_after_the_state_is_rebuilt(deployment: Deployment) -> None:
    settings = deployment.settings
    for role in ALWAYS_RUN:
        deployment.start(role)
    await say(settings, range(13), flush=False)
    await consumed(deployment)
    await deployment.stop("segmenter")
    partition = await damage(settings)
    deployment.start("segmenter")
    await say(settings, range(13, 16), flush=False)
    await consumed(deployment)

    report = await deployment.audit()
    assert set(report.findings) == {"state_unreadable"}, list(report.lines())
    assert report.findings["state_unreadable"].examples[0].startswith(f"{DAMAGED}, partition {partition}: ")
    assert await letters(settings, UNREADABLE) == 3

    await deployment.stop("segmenter")
    await delete_changelogs(settings)
    deployment.lose_state("segmenter")
    await rebuild_state(settings)
    deployment.start("segmenter")
    async with open_queue(settings) as queue:
        topic = settings.kafka.dead_letters(settings.kafka.messages_topic)
        await queue.resolve(topic, Filters(error_type=UNREADABLE, conversation_id=DAMAGED), "replayed")
    await say(settings, range(16, 20), flush=True)
    report = await deployment.audit()
    assert report.clean, list(report.lines())
    assert report.messages["pending"] == 0
    episodes = await deployment.episodes()
    check_ordinals(episodes)
    told = [m.id for e in episodes if e.conversation_id == DAMAGED for m in e.messages]
    assert told == [f"m{n}" for n in range(20)]


async def damage(settings: Settings) -> int:
    """Overwrite the row of a conversation with nonsense, and return its partition."""
    changelog, key = settings.kafka.changelog(CONVERSATIONS), DAMAGED.encode()
    rows: dict[bytes, int] = {}
    async with open_log(settings.kafka) as log:
        await log.read(changelog, lambda record: rows.update({record.key: record.partition}))
    async with running_producer(settings.kafka) as producer:
        await producer.send_and_wait(changelog, b"\0" * 8 + b"\1\0no JSON", key=key, partition=rows[key])
    return rows[key]


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
