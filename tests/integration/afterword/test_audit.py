"""The audit on real topics and stores that were written by hand: clean ones, and ones with a single fault."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field

import apsw
import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from afterword import samples
from afterword.operating import audit
from afterword.operating.topics import ensure_topics
from afterword.schemas import EpisodeClosed, MessageCreated, SummaryCreated, decode_input
from afterword.schemas.records import cloud_event
from afterword.schemas.summaries import SUMMARY_CREATED
from afterword.streams.kafka.clients import Position, running_producer
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import StoredEpisode, find_episode
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.stores.opening import open_stores
from afterword.streams.summarizer.agent import current_output
from afterword.streams.summarizer.reconciler import archived
from afterword.writing.produce import produce
from faust_eos.transaction import Output
from faust_eos.window import Progress
from tests.indexing import put
from tests.offsets import commit_offsets
from tests.samples import a_cause, a_summary, a_tombstone

MESSAGES = len(samples.sample_lines())


@dataclass
class Deployment:
    """Does the workers' steps by hand; a test leaves out a step, or repeats one."""

    settings: Settings
    producer: AIOKafkaProducer
    outgoing: list[Output] = field(default_factory=list)
    rows: dict[str, dict[int, dict[bytes, bytes]]] = field(default_factory=dict)

    async def produce(self, *more: bytes, flush: bool = True) -> None:
        await produce(self.settings, [*samples.sample_lines(), *more], flush=flush)

    async def segment(self) -> None:
        """Run the segmenter's code on the topic, and keep the result for `publish`."""
        kafka = self.settings.kafka
        records = await self.read(kafka.messages_topic)
        self.rows = {"messages": {}, "conversations": {}}
        for partition in sorted({record.partition for record in records}):
            tables = {name: rows.setdefault(partition, {}) for name, rows in self.rows.items()}
            segmenter = Segmenter(
                limits=self.settings.episodes,
                episodes_topic=kafka.episodes_topic,
                dead_letters_topic=kafka.dead_letters(kafka.messages_topic),
                conversations=tables["conversations"],
                messages=tables["messages"],
                count_tokens=len,
            )
            mine = [record for record in records if record.partition == partition]
            self.outgoing += segmenter.process(mine, time.time_ns() // 1_000_000).outgoing

    async def publish(self) -> None:
        """Write episodes, dead letters, state and offsets in one transaction, as the engine does."""
        kafka = self.settings.kafka
        offsets = await self.ends(kafka.messages_topic)
        async with self.producer.transaction():
            for output in self.outgoing:
                await self.producer.send(output.topic, output.value, key=output.key, headers=output.headers)
            for table, partitions in self.rows.items():
                for partition, rows in partitions.items():
                    for key, value in rows.items():
                        await self.producer.send(kafka.changelog(table), value, key=key, partition=partition)
            await self.producer.send_offsets_to_transaction(offsets, kafka.group_of("segmenter"))

    async def abort(self) -> None:
        """Write records and abort, like a worker that died. Nobody may count them."""
        await self.producer.begin_transaction()
        for output in self.outgoing:
            await self.producer.send(output.topic, output.value, key=output.key, headers=output.headers)
        await self.producer.flush()
        await self.producer.abort_transaction()

    def episodes(self) -> list[EpisodeClosed]:
        topic = self.settings.kafka.episodes_topic
        return [EpisodeClosed.model_validate_json(o.value) for o in self.outgoing if o.topic == topic]

    async def archive(self) -> None:
        kafka = self.settings.kafka
        found = []
        for record in await self.read(kafka.messages_topic):
            if record.value != b"not json":
                event = decode_input(record.key, record.value, record.headers, record.timestamp)
                if isinstance(event, MessageCreated):
                    found.append(ArchivedMessage(event, record.partition, record.offset))
        async with open_stores(self.settings) as stores:
            await stores.messages.put_many(found)
        await self.commit(kafka.group_of("archiver"), kafka.messages_topic)

    async def store(self) -> None:
        async with open_stores(self.settings) as stores:
            for episode in self.episodes():
                summary = summary_of(episode)
                await stores.episodes.put(stored_as(episode, summary), None)
                await stores.messages.assign(episode.episode_id, [archived(m, episode) for m in episode.messages])
                await put(stores.index, summary, "text")

    async def announce(self, short_summary: str = "short", count: int | None = None) -> None:
        async with self.producer.transaction():
            for episode in self.episodes()[:count]:
                summary = summary_of(episode).model_copy(update={"short_summary": short_summary})
                headers = cloud_event(SUMMARY_CREATED, summary.event_id, "test", summary.created_at)
                topic, key = self.settings.kafka.summaries_topic, episode.conversation_id.encode()
                await self.producer.send(topic, summary.to_json(), key=key, headers=headers)
                kept = current_output(self.settings.kafka, summary)
                await self.producer.send(kept.topic, kept.value, key=kept.key, headers=kept.headers, partition=0)

    async def summarise(self) -> None:
        await self.store()
        await self.announce()
        await self.commit(self.settings.kafka.group_of("summarizer"), self.settings.kafka.episodes_topic)

    async def everything(self) -> None:
        await self.produce()
        await self.segment()
        await self.publish()
        await self.archive()
        await self.summarise()

    def damage(self, statement: str) -> None:
        """Change one row of the stores' file in a way that no store does."""
        with closing(apsw.Connection(str(self.settings.sqlite.path))) as connection:
            connection.set_busy_timeout(10_000)
            connection.execute(statement)
            assert connection.changes() == 1

    async def read(self, topic: str) -> list[ConsumerRecord]:
        found: list[ConsumerRecord] = []
        async with open_log(self.settings.kafka) as log:
            await log.read(topic, found.append)
        return sorted(found, key=lambda r: (r.partition, r.offset))

    async def ends(self, topic: str) -> dict[TopicPartition, int]:
        async with open_log(self.settings.kafka) as log:
            return await log.ends(topic)

    async def commit(self, group: str, topic: str) -> None:
        await commit_offsets(self.settings.kafka, group, await self.ends(topic))


def stored_as(episode: EpisodeClosed, summary: SummaryCreated) -> StoredEpisode:
    """Return the stored episode for this summary, made from the messages as they were sent."""
    return StoredEpisode(
        summary,
        core_ids=tuple(m.id for m in episode.messages),
        overlap_ids=tuple(m.id for m in episode.overlap),
        fingerprint=episode.fingerprint,
        close_reason=episode.close_reason,
        first_offset=episode.source.first_offset,
        last_offset=episode.source.last_offset,
        cause=a_cause(),
        inputs=tuple((m.id, -1 if m.changed is None else m.changed) for m in (*episode.messages, *episode.overlap)),
    )


def summary_of(episode: EpisodeClosed) -> SummaryCreated:
    same = ("episode_id", "user_id", "tenant_id", "message_count", "started_at", "ended_at", "closed_at", "metrics")
    fields = {name: getattr(episode, name) for name in same} | {"message_ids": tuple(m.id for m in episode.messages)}
    return a_summary(episode.ordinal, episode.conversation_id, episode.revision, **fields)


@pytest_asyncio.fixture
async def deployment(make_settings: Callable[..., Settings], unique: Callable[[str], str]) -> AsyncIterator[Deployment]:
    settings = make_settings(kafka={"partitions": 2})
    await ensure_topics(settings)
    async with transactional(settings, unique("transaction")) as producer:
        yield Deployment(settings, producer)


@asynccontextmanager
async def transactional(settings: Settings, name: str) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka.bootstrap_servers, transactional_id=name)
    await producer.start()
    yield producer
    await producer.stop()


async def test_finished_deployment_has_every_message_in_an_episode(deployment):
    await deployment.everything()
    report = await audit.run(deployment.settings)
    assert report.clean, report.findings
    assert report.messages["in_an_episode"] == report.messages["total"] == report.messages["archived"] == MESSAGES
    assert report.messages["flushes"] == 12
    episodes = len(deployment.episodes())
    assert report.episodes["total"] == report.summaries["announced"] == report.summaries["stored"] == episodes
    assert report.summaries["indexed"] == episodes
    assert report.notes == []


@pytest.mark.nightly
async def test_episode_deleted_before_the_index_is_read_is_fine(deployment):
    await deployment.everything()
    first = deployment.episodes()[0]

    async def delete() -> None:
        async with open_stores(deployment.settings) as stores:
            stored = await find_episode(stores.episodes, first.episode_id)
            assert stored
            fields = {name: getattr(stored, name) for name in ("core_ids", "overlap_ids", "last_offset", "cause")}
            fields |= {"tenant_id": first.tenant_id, "reason": "expired"}
            gone = a_tombstone(first.ordinal, 2, first.conversation_id, **fields)
            assert await stores.episodes.put(gone, stored)
            await stores.index.remove(first.episode_id, 2)

    def deletes_meanwhile(what: str, *_: object) -> None:
        if what == "reading the index":
            with ThreadPoolExecutor(1) as elsewhere:
                elsewhere.submit(asyncio.run, delete()).result()

    report = await audit.run(deployment.settings, progress=deletes_meanwhile)
    assert report.clean, report.findings
    assert report.summaries["indexed"] == len(deployment.episodes()) - 1


async def test_lost_message_is_found(deployment):
    await deployment.produce()
    await deployment.segment()
    lost = deployment.episodes()[-1]
    deployment.outgoing.pop()
    await deployment.publish()
    report = await audit.run(deployment.settings)
    assert report.messages["lost"] == lost.message_count
    assert lost.conversation_id in report.findings["lost"].examples[0]


@pytest.mark.nightly
async def test_aborted_transaction_does_not_count(deployment):
    await deployment.produce()
    await deployment.segment()
    await deployment.abort()
    await deployment.publish()
    report = await audit.run(deployment.settings)
    assert report.clean, report.findings


async def test_audit_waits_until_everything_is_summarized(deployment):
    await deployment.produce()
    await deployment.segment()
    await deployment.publish()
    await deployment.archive()
    await deployment.store()
    waiting = asyncio.create_task(audit.run(deployment.settings, wait_seconds=60))
    await deployment.announce(count=3)
    await deployment.announce()
    await deployment.commit(deployment.settings.kafka.group_of("summarizer"), deployment.settings.kafka.episodes_topic)
    report = await waiting
    assert report.clean, report.findings
    assert report.summaries["not_yet_summarized"] == 0
    assert report.notes == []


async def test_audit_that_waits_in_vain_says_what_is_missing(deployment):
    await deployment.produce()
    await deployment.segment()
    await deployment.publish()
    report = await audit.run(deployment.settings, wait_seconds=1)
    assert not report.findings
    assert not report.clean
    messages = len(await deployment.read(deployment.settings.kafka.messages_topic))
    assert report.missing == {"archiver": messages, "summarizer": len(deployment.episodes())}


@pytest.mark.nightly
async def test_records_finished_beyond_the_group_offset_are_not_left(deployment):
    settings = deployment.settings
    source = TopicPartition(settings.kafka.dead_letters(settings.kafka.episodes_topic), 0)
    async with running_producer(settings.kafka) as producer:
        for number in range(4):
            await producer.send_and_wait(source.topic, b"%d" % number, partition=0)
    finished = Progress(0, frozenset({1, 3}))
    done = OffsetAndMetadata(finished.offset, finished.metadata())
    await commit_offsets(settings.kafka, "workers", {source: done})
    async with open_log(settings.kafka) as log:
        ends = await log.ends(source.topic)
        assert [record.value async for record in log.unread("workers", source.topic, ends)] == [b"0", b"2"]
        assert await log.left("workers", source.topic, ends) == 2
        records = {Position(0, offset) for offset in range(4)}
        assert await log.unfinished("workers", source.topic, records) == {Position(0, 0), Position(0, 2)}
