"""With redaction everywhere, on the real processes, originals are only in `messages`."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from afterword import Memory, MessageCreated, Producer
from afterword.streams.kafka.clients import client_options, running_producer
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.segmenter.state import TABLES
from afterword.streams.settings import Settings
from tests.e2e.deployment import Deployment
from tests.stored import stored
from tests.waiting import until

pytestmark = pytest.mark.nightly

NEEDLE = "ann.needle@example.com"


@pytest.fixture
def settings(make_settings: Callable[..., Settings]) -> Settings:
    return make_settings(redaction={"where": "everywhere"}, kafka={"partitions": 2}, drain_seconds=10)


def message(number: int, content: str) -> MessageCreated:
    return MessageCreated(
        id=f"m{number}", conversation_id="c", user_id="ann", role="user", content=content, metadata={"from": NEEDLE}
    )


async def raw_records(settings: Settings, *topics: str) -> list[bytes]:
    """Return key, value and headers of every record, including those of aborted transactions."""
    found: list[bytes] = []
    async with AIOKafkaConsumer(**client_options(settings.kafka)) as consumer:
        known = await consumer.topics()
        sources = [
            TopicPartition(topic, number)
            for topic in topics
            if topic in known
            for number in range(settings.kafka.partitions)
        ]
        consumer.assign(sources)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(sources)
        while any([await consumer.position(source) < ends[source] for source in sources]):
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += [repr((record.key, record.value, record.headers)).encode() for record in records]
    return found


async def documents(settings: Settings) -> list[bytes]:
    return [repr(document).encode() for documents in (await stored(settings)).values() for document in documents]


def files(directory: Path) -> Iterator[bytes]:
    """Return the contents of the state, a local index, and the logs."""
    return (path.read_bytes() for path in directory.rglob("*") if path.is_file())


async def test_only_the_messages_topic_has_the_original_text(deployment: Deployment, tmp_path: Path) -> None:
    settings = deployment.settings
    kafka = settings.kafka
    for role in ALWAYS_RUN:
        deployment.start(role)
    async with Producer.from_settings(settings) as producer, running_producer(kafka) as raw:
        await producer.send(message(0, f"My address is {NEEDLE}, for the hotel in Rome."))
        await producer.send(message(1, "The hotel is booked for three nights."))
        await producer.edit("c", "m1", content=f"The hotel wrote to {NEEDLE} about three nights.")
        await producer.flush("c", reason=f"for {NEEDLE}")
        await producer.send(message(2, f"Pending: {NEEDLE}"))
        await raw.send_and_wait(kafka.messages_topic, NEEDLE.encode(), key=b"c")
        await raw.send_and_wait(kafka.messages_topic, b'{"id": "x", "content": "%s"}' % NEEDLE.encode(), key=b"c")
    report = await deployment.audit()
    assert report.clean, list(report.lines())
    await until(lambda: are_archived(settings, 3))

    topics = [kafka.episodes_topic, kafka.summaries_topic, kafka.conversations_topic, kafka.deletions_topic]
    topics += [kafka.dead_letters(kafka.messages_topic), kafka.dead_letters(kafka.episodes_topic)]
    topics += [kafka.changelog(table) for table in TABLES]
    sent, stored = await raw_records(settings, *topics), await documents(settings)
    async with Memory.from_settings(settings) as memory:
        context = await memory.context("c", keep_recent=10)
    for role in ALWAYS_RUN:
        await deployment.stop(role)

    needle = NEEDLE.encode()
    assert any(b"My address is [EMAIL]" in record for record in sent)
    assert sum(b"invalid_json" in record or b"schema_violation" in record for record in sent) == 2
    assert any(b"The hotel wrote to [EMAIL]" in document for document in stored)
    assert "[EMAIL]" in repr(context)
    assert needle not in repr(context).encode()
    assert not [record for record in sent if needle in record]
    assert not [document for document in stored if needle in document]
    assert not [content for content in files(tmp_path) if needle in content]
    assert [record for record in await raw_records(settings, kafka.messages_topic) if needle in record]


async def are_archived(settings: Settings, number: int) -> bool:
    return sum(b"'content'" in document for document in await documents(settings)) >= number
