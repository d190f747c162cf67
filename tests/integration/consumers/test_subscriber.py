"""Subscribers to `summary.created` on a real broker."""

import asyncio
import os
import re
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer, ConsumerRecord
from aiokafka.admin import NewTopic, RecordsToDelete
from structlog.testing import capture_logs

from afterword import RevisionSubscriber, SummarySubscriber
from afterword.embedded.process import Process
from afterword.schemas import ConversationFlush, InvalidRecord, MessageCreated, SummaryCreated, decode_input
from afterword.schemas.records import CE_ID, CE_TYPE
from afterword.schemas.summaries import SUMMARY_CREATED
from afterword.streams.kafka.clients import admin_client, running_consumer
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.settings import Settings
from afterword.streams.summarizer.agent import current_output
from afterword.streams.summarizer.reconciler import Event
from tests.e2e.deployment import environment_of
from tests.extras import BASE, run_with
from tests.offsets import commit_offsets
from tests.samples import a_summary, a_tombstone
from tests.waiting import until

CONVERSATION = "c1"


@pytest.fixture
def announce(settings: Settings, producer: AIOKafkaProducer):
    async def announce(*events: SummaryCreated) -> None:
        for e in events:
            headers = [(CE_ID, e.event_id.encode()), (CE_TYPE, SUMMARY_CREATED.encode())]
            await producer.send_and_wait(
                settings.kafka.summaries_topic, e.to_json(), key=e.conversation_id.encode(), headers=headers
            )

    return announce


@pytest.fixture
def subscriber(settings: Settings, unique: Callable[[str], str]):
    def subscriber(**options) -> SummarySubscriber:
        ours = {
            "bootstrap_servers": settings.kafka.bootstrap_servers,
            "group_id": unique("subscriber"),
            "topic": settings.kafka.summaries_topic,
            "session_timeout_ms": 6000,
        }
        return SummarySubscriber(**ours | options)

    return subscriber


async def take(events: SummarySubscriber, count: int) -> list[int]:
    """Return the ordinals of the next events."""
    async with asyncio.timeout(120):
        return [(await anext(events)).ordinal for _ in range(count)]


async def fail_after(subscriber: SummarySubscriber, count: int, error: BaseException) -> None:
    async with subscriber as events:
        await take(events, count)
        raise error


@pytest.fixture
def committed(settings: Settings, unique: Callable[[str], str]):
    async def committed() -> int:
        async with open_log(settings.kafka) as log:
            return sum((await log.committed(unique("subscriber"), settings.kafka.summaries_topic)).values())

    return committed


async def test_events_come_typed_and_in_order(announce, subscriber):
    await announce(a_summary(1), a_summary(2), a_summary(3))
    async with subscriber() as events:
        assert await take(events, 3) == [1, 2, 3]


async def test_event_is_committed_when_the_next_one_is_requested(announce, subscriber, committed):
    await announce(a_summary(1), a_summary(2))
    async with subscriber() as events:
        await take(events, 1)
        assert await committed() == 0
        await take(events, 1)
        assert await committed() == 1


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_event_whose_processing_failed_comes_again(announce, subscriber, error):
    await announce(a_summary(1), a_summary(2), a_summary(3))
    with pytest.raises(error):
        await fail_after(subscriber(), 2, error())
    async with subscriber() as events:
        assert await take(events, 2) == [2, 3]


async def test_member_that_dies_leaves_its_event_to_the_next(announce, subscriber):
    await announce(a_summary(1), a_summary(2))
    dead = await subscriber().__aenter__()
    await take(dead, 2)
    await dead._consumer.stop()  # as if killed: nothing is settled
    async with subscriber() as events:
        assert await take(events, 1) == [2]


async def test_repeats_are_dropped_and_their_offsets_committed(announce, subscriber, committed):
    await announce(a_summary(1), a_summary(1), a_summary(2), a_summary(1), a_summary(3))
    async with subscriber() as events:
        assert await take(events, 3) == [1, 2, 3]
    assert await committed() == 5


@pytest.mark.nightly
async def test_unprocessed_event_is_no_repeat(announce, subscriber):
    """The same subscriber object, used again after an error."""
    await announce(a_summary(1))
    again = subscriber()
    with pytest.raises(ValueError, match="failed"):
        await fail_after(again, 1, ValueError("failed"))
    async with again as events:
        assert await take(events, 1) == [1]


async def test_invalid_records_are_skipped_and_handed_over(announce, subscriber, producer, settings, committed):
    topic, key = settings.kafka.summaries_topic, CONVERSATION.encode()
    for value in (b"not json", b"{}", None):
        await producer.send_and_wait(topic, value, key=key)
    await producer.send_and_wait(topic, a_summary(9).to_json(), key=b"another key", partition=0)
    await announce(a_summary(1))
    refused: list[str] = []

    def on_invalid(_: ConsumerRecord, error: InvalidRecord) -> None:
        refused.append(error.error_type)

    async with subscriber(on_invalid=on_invalid) as events:
        assert await take(events, 1) == [1]
        await until_seen(events, refused, 4)
    assert sorted(refused) == ["empty_value", "invalid_json", "key_mismatch", "schema_violation"]
    assert await committed() >= 4


async def until_seen(events: SummarySubscriber, refused: list[str], count: int) -> None:
    """Read until this many records were refused; no event is left by then."""
    reading = asyncio.ensure_future(anext(events))
    async with asyncio.timeout(120):
        while len(refused) < count:  # noqa: ASYNC110 – the broker decides when the other partition is read
            await asyncio.sleep(0.02)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.nightly
async def test_raising_callback_stops_and_leaves_the_record(subscriber, producer, settings, committed):
    await producer.send_and_wait(settings.kafka.summaries_topic, b"not json", key=CONVERSATION.encode())

    def on_invalid(_: ConsumerRecord, error: InvalidRecord) -> None:
        raise error

    with pytest.raises(InvalidRecord):
        async with subscriber(on_invalid=on_invalid) as events:
            await take(events, 1)
    assert await committed() == 0


@pytest.mark.nightly
async def test_members_that_come_and_go_lose_nothing(announce, subscriber):
    """Each conversation in one partition; two members share them, then one leaves."""
    conversations = [f"c{n}" for n in range(8)]
    seen: set[str] = set()

    async def listen(stop: asyncio.Event) -> None:
        async with subscriber() as events:
            ending = asyncio.create_task(stop.wait())
            while not stop.is_set():
                reading = asyncio.ensure_future(anext(events))
                await asyncio.wait((reading, ending), return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    seen.add(reading.result().event_id)
                else:
                    reading.cancel()
                    await asyncio.gather(reading, return_exceptions=True)

    async def until(count: int) -> None:
        async with asyncio.timeout(60):
            while len(seen) < count:  # noqa: ASYNC110 – both members add to it
                await asyncio.sleep(0.02)

    first, second = asyncio.Event(), asyncio.Event()
    running = [asyncio.create_task(listen(first))]
    await announce(*[a_summary(1, c) for c in conversations])
    await until(8)
    running.append(asyncio.create_task(listen(second)))
    await announce(*[a_summary(2, c) for c in conversations])
    await until(16)
    first.set()
    await announce(*[a_summary(3, c) for c in conversations])
    await until(24)
    second.set()
    await asyncio.gather(*running)


@pytest.mark.nightly
async def test_events_that_expired_unread_are_logged_as_an_error(announce, subscriber, settings, committed):
    await announce(*map(a_summary, range(1, 13)))
    async with subscriber() as events:
        assert await take(events, 3) == [1, 2, 3]
    await expire(settings, before=8)
    with capture_logs() as logs:
        async with subscriber(
            auto_offset_reset="latest"
        ) as events:  # this has no effect, because it is for groups without offsets
            assert await take(events, 4) == [9, 10, 11, 12]
    [error] = [line for line in logs if line["event"] == "records_expired"]
    assert error.items() >= {"position": 3, "next_offset": 8, "log_level": "error"}.items()
    assert await committed() == 12


@pytest.mark.nightly
async def test_group_without_offsets_starts_at_the_oldest_event(announce, subscriber, settings):
    await announce(*map(a_summary, range(1, 6)))
    await expire(settings, before=2)
    async with subscriber() as events:
        assert await take(events, 3) == [3, 4, 5]


@pytest.mark.nightly
async def test_topic_shorter_than_the_read_offset_is_read_anew(announce, subscriber, settings, unique):
    await announce(*map(a_summary, range(1, 6)))
    async with open_log(settings.kafka) as log:
        [where] = [source for source, end in (await log.ends(settings.kafka.summaries_topic)).items() if end]
    await commit_offsets(settings.kafka, unique("subscriber"), {where: 99})
    async with subscriber() as events:
        assert await take(events, 5) == [1, 2, 3, 4, 5]


@pytest.mark.nightly
async def test_recreated_topic_is_read_within_a_minute(announce, subscriber, settings):
    topic = settings.kafka.summaries_topic
    await announce(a_summary(1))
    async with subscriber() as events, admin_client(settings.kafka) as admin:
        assert await take(events, 1) == [1]
        following = asyncio.create_task(take(events, 1))
        [described] = await admin.describe_topics([topic])
        await admin.delete_topics([topic])
        while topic in await admin.list_topics():  # noqa: ASYNC110 – nobody sets an event for it
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)  # the subscriber learns that it is gone
        await admin.create_topics([NewTopic(topic, len(described["partitions"]), 1)])
        await announce(a_summary(2))
        async with asyncio.timeout(75):
            assert await following == [2]


async def expire(settings: Settings, before: int) -> None:
    """Delete the records of the conversation's partition before that offset, as their retention does."""
    async with open_log(settings.kafka) as log:
        [where] = [source for source, end in (await log.ends(settings.kafka.summaries_topic)).items() if end]
    async with admin_client(settings.kafka) as admin:
        await admin.delete_records({where: RecordsToDelete(before_offset=before)})


@pytest.mark.nightly
async def test_group_may_begin_with_new_events(announce, subscriber):
    await announce(a_summary(1))
    async with subscriber(auto_offset_reset="latest") as events:
        reading = asyncio.ensure_future(take(events, 1))
        n = 1
        async with asyncio.timeout(120):
            while not reading.done():
                n += 1
                await announce(a_summary(n))
        assert (await reading)[0] > 1


SERVICE = """
import asyncio, sys
from afterword import MessageCreated, Producer, SummarySubscriber

async def main():
    async with Producer.from_settings() as producer:
        message = MessageCreated(id="1", conversation_id="c", user_id="u", role="user", content="Hello")
        await producer.send(message)
        await producer.flush("c")
    async with SummarySubscriber.from_settings(group_id=sys.argv[1]) as events:
        print((await anext(events)).title)

asyncio.run(main())
"""


@pytest.mark.nightly
async def test_base_install_produces_and_subscribes(settings: Settings, announce, unique) -> None:
    """The process cannot import what only an extra installs."""
    await announce(a_summary(1))
    environment = os.environ | environment_of(settings)
    done = await asyncio.to_thread(run_with, BASE, SERVICE, unique("group"), env=environment, timeout=120)
    assert (done.returncode, done.stdout) == (0, "Title 1\n"), done.stderr
    async with running_consumer(
        settings.kafka, settings.kafka.messages_topic, auto_offset_reset="earliest"
    ) as consumer:
        sent = [await anext(consumer) for _ in range(2)]
    decoded = [decode_input(record.key, record.value, record.headers, record.timestamp) for record in sent]
    assert isinstance(decoded[0], MessageCreated)
    assert decoded[0].content == "Hello"
    assert isinstance(decoded[1], ConversationFlush)
    assert sent[0].partition == sent[1].partition


ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "current-state.md"
WAIT_SECONDS = 180


async def keep(producer: AIOKafkaProducer, settings: Settings, *events: Event) -> None:
    for event in events:
        made = current_output(settings.kafka, event)
        await producer.send_and_wait(made.topic, made.value, key=made.key, headers=made.headers, partition=0)


def titles(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as database:
        try:
            return dict(database.execute("SELECT id, title FROM episode"))
        except sqlite3.OperationalError:  # not created yet
            return {}


async def test_documented_loader_copies_the_table_and_follows_it(
    settings: Settings, producer: AIOKafkaProducer, tmp_path: Path
) -> None:
    script = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert script is not None
    (tmp_path / "load.py").write_text(script[1])
    await keep(producer, settings, a_summary(1), a_summary(2))
    environment = {**environment_of(settings), "PYTHONPATH": str(ROOT)}
    copy = tmp_path / "copy.sqlite"
    loader = Process(
        "loader",
        [sys.executable, "load.py", str(copy)],
        tmp_path / "loader.log",
        environment=environment,
        directory=tmp_path,
    )
    try:
        await until(lambda: titles(copy) == {"c1:1": "Title 1", "c1:2": "Title 2"})
        await keep(producer, settings, a_summary(1, revision=2, title="Changed"), a_tombstone(2).deletion)
        await until(lambda: titles(copy) == {"c1:1": "Changed"})
    finally:
        await asyncio.to_thread(loader.stop)


async def test_subscribers_read_the_table_from_the_settings(settings: Settings, producer: AIOKafkaProducer) -> None:
    deleted = a_tombstone(1).deletion
    await keep(producer, settings, a_summary(1), deleted, a_summary(2))
    async with asyncio.timeout(WAIT_SECONDS):
        async with SummarySubscriber.from_settings(settings, group_id="kept", from_state=True) as events:
            assert [(await anext(events)).ordinal for _ in range(2)] == [1, 2]
        async with RevisionSubscriber.from_settings(settings, group_id="current", from_state=True) as revisions:
            assert [await anext(revisions) for _ in range(3)] == [a_summary(1), deleted, a_summary(2)]
