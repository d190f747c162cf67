"""State that is rebuilt, on a real broker: where conversations go, and who may write."""

from collections.abc import Callable

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewPartitions

from afterword.operating.rebuild import MessagesGrown, SegmenterCameBack, owned, rebuild_state, resume_points
from afterword.operating.topics import ensure_topics
from afterword.schemas.base import episode_id
from afterword.streams.kafka.clients import admin_client, client_options
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.segmenter.state import CONVERSATIONS, MESSAGES, TABLES, Scope
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.stores.opening import open_stores
from faust_eos.changelog import Bookmark
from faust_eos.transaction import transactional_id
from tests.samples import a_message, a_stored_episode

PARTITIONS = 4


@pytest_asyncio.fixture
async def settings(make_settings: Callable[..., Settings]) -> Settings:
    made = make_settings(kafka={"partitions": PARTITIONS})
    await ensure_topics(made)
    return made


async def store(settings: Settings, conversation: str, ordinal: int, partition: int | None) -> None:
    """Store an episode that Kafka no longer has; its last message is archived from that partition."""
    ids = {"conversation_id": conversation, "episode_id": episode_id(conversation, ordinal), "message_ids": ("m9",)}
    async with open_stores(settings) as stores:
        await stores.episodes.put(a_stored_episode(ordinal, **ids), None)
        if partition is not None:
            message = a_message("m9", conversation, tenant_id="t1")
            await stores.messages.put_many([ArchivedMessage(message, partition, 77)])


async def test_conversation_without_records_in_kafka_continues_where_it_was(settings: Settings) -> None:
    for partition in range(PARTITIONS):
        await store(settings, "talk", 4, partition=2)
        await store(settings, f"talk-{partition}", 7, partition=partition)
    await store(settings, "not archived", 2, partition=None)
    async with open_log(settings.kafka) as log:
        resume_states = (await resume_points(log, settings)).resume_states()
    found = {
        scope.conversation_id: (partition, state.last_ordinal)
        for partition, states in resume_states.items()
        for scope, state in states.items()
    }
    [placed] = [partition for partition, states in resume_states.items() if Scope("not archived") in states]
    archived = {f"talk-{partition}": (partition, 7) for partition in range(PARTITIONS)}
    assert found == archived | {"talk": (2, 4), "not archived": (placed, 2)}
    done = await rebuild_state(settings)
    assert [one.conversations for one in done] == [len(resume_states[one.partition]) for one in done]


async def left_by_a_rebuild_that_was_killed(kafka: Kafka, partition: int) -> AIOKafkaProducer:
    """Leave a transaction open that has rows in the changelogs."""
    name = transactional_id(kafka.group_of("segmenter"), TopicPartition(kafka.messages_topic, partition))
    producer = AIOKafkaProducer(**client_options(kafka), transactional_id=name)
    await producer.start()
    await producer.begin_transaction()
    for table in (CONVERSATIONS, MESSAGES):
        await producer.send_and_wait(kafka.changelog(table), b"row", key=b"c", partition=partition)
    return producer


async def test_rebuild_ignores_uncommitted_rows_of_a_killed_one(settings: Settings) -> None:
    killed = await left_by_a_rebuild_that_was_killed(settings.kafka, 0)
    try:
        done = await rebuild_state(settings)
    finally:
        await killed.stop()
    assert [one.left for one in done] == [False] * PARTITIONS
    assert [one.left for one in await rebuild_state(settings)] == [True] * PARTITIONS


@pytest.mark.nightly
async def test_partition_of_an_aborted_rebuild_is_rebuilt(settings: Settings) -> None:
    aborted = await left_by_a_rebuild_that_was_killed(settings.kafka, 1)
    await aborted.abort_transaction()
    await aborted.stop()
    assert [one.left for one in await rebuild_state(settings)] == [False] * PARTITIONS


async def write_after_another(kafka: Kafka, changelogs: list[TopicPartition]) -> None:
    async with owned(kafka, 0) as ours:
        async with owned(kafka, 0):
            pass
        rows = {changelog: [(b"c", b"row")] for changelog in changelogs}
        source = TopicPartition(kafka.messages_topic, 0)
        await ours.commit(
            [], rows, Bookmark(0, "lineage", [CONVERSATIONS, MESSAGES]), source, kafka.group_of("segmenter")
        )


@pytest.mark.nightly
async def test_rebuild_fenced_by_a_segmenter_changes_nothing(settings: Settings) -> None:
    kafka = settings.kafka
    changelogs = [TopicPartition(kafka.changelog(table), 0) for table in (CONVERSATIONS, MESSAGES)]
    with pytest.raises(SegmenterCameBack, match="a segmenter took over partition 0"):
        await write_after_another(kafka, changelogs)
    records: list[object] = []
    async with open_log(kafka) as log:
        for changelog in changelogs:
            await log.read(changelog.topic, records.append)
    assert records == []


@pytest.mark.nightly
async def test_rebuild_refuses_messages_that_got_more_partitions(
    make_settings: Callable[..., Settings],
) -> None:
    settings = make_settings(kafka={"partitions": 1})
    await ensure_topics(settings)
    kafka = settings.kafka
    source = TopicPartition(kafka.messages_topic, 0)
    rows = {TopicPartition(kafka.changelog(table), 0): [] for table in TABLES}
    async with owned(kafka, 0) as producer:
        bookmark = Bookmark(0, "lineage", sorted(TABLES))
        await producer.commit([], rows, bookmark, source, kafka.group_of("segmenter"), partitions=1)
    async with admin_client(kafka) as admin:
        await admin.create_partitions({kafka.messages_topic: NewPartitions(2)})
    with pytest.raises(MessagesGrown, match="has 2 partitions, but the segmenter has read it with 1"):
        await rebuild_state(settings)
