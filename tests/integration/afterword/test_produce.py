"""Messages to a real broker."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from aiokafka import ConsumerRecord
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from afterword import samples
from afterword.operating.topics import ensure_topics
from afterword.schemas import ConversationFlush, MessageCreated, decode_input
from afterword.schemas.records import CE_ID, CE_TYPE, header
from afterword.streams.errors import RequestRefused
from afterword.streams.kafka.clients import admin_client
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.settings import Settings
from afterword.writing.produce import InvalidLine, produce
from afterword.writing.producer import Producer
from tests.dialogues import interleaved
from tests.samples import a_message

PARTITIONS = 3


@pytest_asyncio.fixture
async def settings(make_settings: Callable[..., Settings]) -> Settings:
    made = make_settings(kafka={"partitions": PARTITIONS})
    await ensure_topics(made)
    return made


async def records(settings: Settings) -> list[ConsumerRecord]:
    async with open_log(settings.kafka) as log:
        return [record async for record in log.records(settings.kafka.messages_topic)]


async def test_every_line_becomes_a_valid_record(settings: Settings) -> None:
    produced = await produce(settings, samples.sample_lines())
    found = await records(settings)
    assert produced.messages == len(found) == len(samples.sample_lines())
    events = [decode_input(r.key, r.value, r.headers, r.timestamp) for r in found]
    assert {header(r.headers, CE_TYPE) for r in found} == {"message.created"}
    assert len({header(r.headers, CE_ID) for r in found}) == len(events)


async def test_conversation_stays_in_order_in_one_partition(settings: Settings) -> None:
    await produce(settings, interleaved(samples.sample_lines(), 4))
    partitions: dict[bytes, set[int]] = {}
    numbers: dict[bytes, list[int]] = {}
    for record in await records(settings):
        partitions.setdefault(record.key, set()).add(record.partition)
        event = decode_input(record.key, record.value, record.headers, record.timestamp)
        numbers.setdefault(record.key, []).append(int(event.id.rpartition("-")[2]))  # type: ignore[union-attr]
    assert all(len(found) == 1 for found in partitions.values())
    assert all(found == list(range(1, len(found) + 1)) for found in numbers.values())
    assert len({p for found in partitions.values() for p in found}) > 1


async def test_lines_before_an_invalid_one_are_sent(settings: Settings) -> None:
    lines = [*samples.sample_lines()[:3], b"not json", *samples.sample_lines()[3:]]
    with pytest.raises(InvalidLine, match=r"line 4: .*; 3 messages, edits, deletions and flushes before it were sent"):
        await produce(settings, lines)
    assert len(await records(settings)) == 3


async def test_rate_is_kept_and_final_flush_has_its_tenant(settings: Settings) -> None:
    lines = [a_message(str(n), conversation_id="c", tenant_id="acme").to_json() for n in range(20)]
    produced = await produce(settings, lines, rate=40, flush=True)
    assert produced.seconds >= 20 / 40
    last = max(await records(settings), key=lambda record: record.offset)
    flush = decode_input(last.key, last.value, last.headers, last.timestamp)
    assert isinstance(flush, ConversationFlush)
    assert (flush.conversation_id, flush.tenant_id, produced.flushes) == ("c", "acme", 1)


@pytest.mark.nightly
async def test_piped_lines_are_sent_as_they_arrive(settings: Settings) -> None:
    arrived = asyncio.Event()

    async def typed() -> AsyncIterator[bytes]:
        yield samples.sample_lines()[0]
        async with asyncio.timeout(120):
            while not await records(settings):
                pass
        arrived.set()

    await produce(settings, typed())
    assert arrived.is_set()


@pytest.mark.nightly
async def test_message_after_a_refused_one_is_delivered(settings: Settings) -> None:
    topic, large = settings.kafka.messages_topic, a_message("large", content="x" * 2000)
    async with Producer.from_settings(settings) as producer, admin_client(settings.kafka) as admin:
        await limit(admin, topic, "1000")
        async with asyncio.timeout(120):
            with pytest.raises(RequestRefused, match=r"refused a request: .*MessageSizeTooLarge"):
                await send_forever(producer, large)  # the broker does not know its new limit at once
        for number in range(3):
            await producer.send(a_message(f"small-{number}"))
            await producer.enqueue(large)
            with pytest.raises(RequestRefused):
                await producer.drain()
        await limit(admin, topic, "1000000")
        await producer.send(a_message("small-3"))
    found = [decode_input(r.key, r.value, r.headers, r.timestamp) for r in await records(settings)]
    assert [e.id for e in found if isinstance(e, MessageCreated) and e != large] == [f"small-{n}" for n in range(4)]


async def send_forever(producer: Producer, message: MessageCreated) -> None:
    while True:
        await producer.send(message)


async def limit(admin: AIOKafkaAdminClient, topic: str, size: str) -> None:
    """Set the largest size of the topic's records, in bytes."""
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": size})])
