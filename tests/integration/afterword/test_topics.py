"""Topics on a real broker."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.structs import OffsetAndMetadata

from afterword.operating.checks import CheckFailed, check_wanted_topics
from afterword.operating.topics import TopicReport, await_topics, check_topics, ensure_topics
from afterword.streams.errors import BrokerUnavailable
from afterword.streams.kafka.clients import client_options
from afterword.streams.settings import Settings
from faust_eos.kafka import Clients, encode_partitions
from faust_eos.options import Options
from faust_eos.transaction import TransactionalProducer
from tests.stack import Stack

MakeSettings = Callable[..., Settings]


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    return make_settings(kafka={"partitions": 3})


@pytest_asyncio.fixture
async def admin(stack: Stack) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=stack.bootstrap_servers)
    await admin.start()
    yield admin
    await admin.close()


async def test_topics_check_creates_nothing(settings: Settings, admin: AIOKafkaAdminClient) -> None:
    reports = await check_topics(settings)
    assert {report.status for report in reports} == {"missing"}
    assert not {report.name for report in reports} & set(await admin.list_topics())


@pytest.mark.nightly
async def test_wait_for_topics_ends_once_all_exist(settings: Settings) -> None:
    told: list[str] = []
    waiting = asyncio.create_task(await_topics(settings, 60, told.append))
    while not told:
        await asyncio.sleep(0.01)
        assert not waiting.done()
    created = await ensure_topics(settings)
    assert await waiting == len(created)
    [reason] = told
    assert f"topic {settings.kafka.messages_topic} does not exist" in reason


async def test_wrong_partition_count_is_reported_and_left(make_settings: MakeSettings, settings: Settings) -> None:
    await ensure_topics(settings)
    more = make_settings(kafka={"partitions": 4})
    reports = by_name(await ensure_topics(more))
    messages = reports[settings.kafka.messages_topic]
    assert (messages.status, messages.detail) == ("different", "partitions is 3, should be 4")
    assert reports[settings.kafka.changelog("messages")].status == "ok"  # as many as the messages have


@pytest.mark.parametrize("reader", ["segmenter", "archiver"])
async def test_grown_messages_topic_fails_creation_and_check(
    make_settings: MakeSettings, settings: Settings, admin: AIOKafkaAdminClient, reader: str
) -> None:
    await ensure_topics(settings)
    kafka, group = settings.kafka, settings.kafka.group_of(reader)
    producer = TransactionalProducer(f"{group}-test", Clients(client_options(kafka)), Options())
    await producer.open(20)
    first = TopicPartition(kafka.messages_topic, 0)
    await producer.commit_outputs([], {first: OffsetAndMetadata(0, encode_partitions(3))}, group)
    await producer.close()
    assert by_name(await check_topics(settings))[kafka.messages_topic].status == "ok"
    for topic in (kafka.messages_topic, kafka.changelog("messages"), kafka.changelog("conversations")):
        await admin.create_partitions({topic: NewPartitions(6)})
        while len((await admin.describe_topics([topic]))[0]["partitions"]) < 6:  # noqa: ASYNC110 – nobody sets an event
            await asyncio.sleep(0.05)
    more = make_settings(kafka={"partitions": 6})
    problem = f"it has 6 partitions, but {group} has read it with 3"
    for reports in (await ensure_topics(more), await check_topics(more)):
        found = by_name(reports)[kafka.messages_topic]
        assert found.status == "different"
        assert problem in found.detail
        assert all(report.fine for report in reports if report is not found)
    with pytest.raises(CheckFailed, match=problem):
        await check_wanted_topics(more)


async def test_missing_broker_is_one_clear_error(make_settings: MakeSettings) -> None:
    with pytest.raises(BrokerUnavailable, match="cannot be reached"):
        await check_topics(make_settings(kafka={"bootstrap_servers": "127.0.0.1:1"}))


def by_name(reports: list[TopicReport]) -> dict[str, TopicReport]:
    return {report.name: report for report in reports}
