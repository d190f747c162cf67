"""The search for a needle: after an erasure, every byte of every file of brokers, stores and workers is looked at.

One needle is the content of messages, the other one the id of their user. Brokers remove records, and databases bytes,
in their own time: here that time is a second, and everything is compacted before the last look.
"""

import asyncio
import sqlite3
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from rocksdict import Options as RocksOptions
from rocksdict import Rdict

from afterword import Eraser, MessageCreated, Producer, SummarySubscriber
from afterword.dev import ROLES
from afterword.embedded import EmbeddedStack
from afterword.embedded.kafka import Access
from afterword.erasing.verifying import verify
from afterword.schemas import Usage
from afterword.streams.kafka import admin_client, running_producer
from afterword.streams.settings import Settings, load_settings
from afterword.streams.stores.opening import open_stores
from afterword.streams.stores.replies import KeptReply, ReplyOrigin
from afterword.topics import UNBOUNDED, wanted_topics
from tests.e2e.deployment import Deployment, deployed
from tests.stack import EMBEDDED, VARIABLE, chosen_jars

CONTENT, USER = "needle-7f3a9c51e2", "user-needle-b84d06"
NEEDLES = (CONTENT.encode(), USER.encode())
WAIT_SECONDS = 180.0
SOON = {
    "retention.ms": "1000",
    "segment.ms": "1000",
    "file.delete.delay.ms": "100",
    "max.compaction.lag.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
}
"""Configurations of topics whose time is over at once."""
QUICK = {
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "100",
    "log.cleaner.backoff.ms": "200",
}


@pytest_asyncio.fixture
async def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EmbeddedStack]:
    """Servers of this test's own: it reads their files, and stops one."""
    monkeypatch.delenv(VARIABLE, raising=False)
    async with EmbeddedStack(tmp_path / EMBEDDED, access=Access(properties=QUICK), jars=chosen_jars()) as started:
        yield started


@pytest.fixture
def crypto() -> dict[str, Any]:
    return {}


@pytest_asyncio.fixture
async def deployment(stack: EmbeddedStack, tmp_path: Path, crypto: dict[str, Any]) -> AsyncIterator[Deployment]:
    settings = load_settings(
        crypto=crypto,
        kafka={"bootstrap_servers": stack.bootstrap_servers, "partitions": 1},
        mongo={"uri": stack.mongo_uri, "database": "needle"},
        qdrant={"path": tmp_path / "qdrant"},
        retry={"first_delay_seconds": 0.5},
        drain_seconds=10,
    )
    async with deployed(settings, tmp_path / "workers") as ready:
        yield ready


def said(conversation: str, number: int, user: str, content: str) -> MessageCreated:
    return MessageCreated(
        id=f"m{number}", conversation_id=conversation, user_id=user, tenant_id="acme", role="user", content=content
    )


def files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file())


def found_in(directory: Path) -> list[Path]:
    """Files with a needle, but those of the topic of the messages."""
    found = []
    for path in files(directory):
        if path.parent.name == "messages-0":
            continue
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # removed meanwhile
            continue
        if any(needle in content for needle in NEEDLES):
            found.append(path.relative_to(directory))
    return found


async def expire(settings: Settings) -> None:
    """Let the time of every record of our topics be over."""
    resources = []
    for topic in wanted_topics(settings)[1:]:
        given = {**topic.created_with, **SOON}
        if given["cleanup.policy"] == "compact":
            given["retention.ms"] = str(UNBOUNDED[0])
        resources.append(ConfigResource(ConfigResourceType.TOPIC, topic.name, configs=given))
    async with admin_client(settings.kafka) as admin:
        await admin.alter_configs(resources)


async def until_brokers_have_forgotten(settings: Settings, directory: Path) -> None:
    """Write on, as others do: a changelog's segment ends only when something is written to it."""
    deadline, number = time.monotonic() + WAIT_SECONDS, 0
    async with Producer.from_settings(settings) as producer:
        while left := await asyncio.to_thread(found_in, directory):
            assert time.monotonic() < deadline, left
            number += 1
            await producer.send(said(f"others-{number}", 0, "bob", "The meeting is on Monday."))
            await producer.flush(f"others-{number}", tenant_id="acme")
            await asyncio.sleep(0.5)  # between two rounds of the broker


def compact(directory: Path) -> None:
    """Let databases that no process has open write their files anew."""
    for path in {file.parent for file in files(directory) if file.name == "CURRENT"}:
        database = Rdict(str(path), RocksOptions(raw_mode=True))
        database.flush()
        database.compact_range(None, None)
        database.close()
    vacuum(directory)


def vacuum(directory: Path) -> None:
    """Let the files of MongoDB's and Qdrant's stand-ins be written anew: what was deleted there stays in them."""
    for path in [file for file in files(directory) if file.suffix == ".sqlite"]:
        with sqlite3.connect(path) as connection:
            connection.execute("VACUUM")
        connection.close()


async def send_everything(settings: Settings) -> None:
    """Needles in messages, pending and closed, of somebody alone and among others, and in a rejected record."""
    async with Producer.from_settings(settings) as producer, running_producer(settings.kafka) as raw:
        for number in range(4):
            await producer.send(said("alone", number, USER, f"My secret is {CONTENT}, number {number}."))
        await producer.flush("alone", tenant_id="acme")
        talk = (("bob", "The meeting is on Monday."), (USER, f"I cannot come: {CONTENT}."), ("bob", "Get well soon."))
        for number, (user, content) in enumerate(talk):
            await producer.send(said("shared", number, user, content))
        await producer.flush("shared", tenant_id="acme")
        await producer.send(said("shared", 3, USER, f"Still pending: {CONTENT}."))
        await producer.send(said("alone", 4, USER, f"Pending too: {CONTENT}."))
        rejected = f'{{"user_id": "{USER}", "tenant_id": "acme", "content": "{CONTENT}"}}'
        await raw.send_and_wait(settings.kafka.messages_topic, rejected.encode(), key=b"odd")


async def test_no_byte_of_an_erased_person_is_left_but_where_the_receipt_says(
    stack: EmbeddedStack, deployment: Deployment, tmp_path: Path
) -> None:
    settings = deployment.settings
    for role in ROLES:
        deployment.start(role)
    await send_everything(settings)
    report = await deployment.audit(WAIT_SECONDS)
    assert report.clean, list(report.lines())
    async with open_stores(settings) as stores:
        answer = KeptReply(f"{CONTENT} of {USER}", Usage(), origin=ReplyOrigin("alone", 1))
        await stores.replies.put("key", answer, datetime.now(UTC) + timedelta(days=1))

    there = {path.parent.name.rpartition("-")[0] for path in found_in(tmp_path)}
    kafka = settings.kafka
    assert {kafka.episodes_topic, kafka.summaries_topic, kafka.changelog("messages"), "messages.dlq"} <= there

    async with Eraser.from_settings(settings) as eraser:
        receipt = await eraser.erase(USER, "acme", timeout_seconds=WAIT_SECONDS)
    assert receipt.counts == {"messages": 7, "conversations": 2, "episodes": 2, "dead_letters": 1}
    before = await verify(settings, receipt, USER, "acme")
    assert {found.place for found in before.findings} <= {topic.topic for topic in receipt.topics}
    assert before.findings
    assert not before.late

    await expire(settings)
    await until_brokers_have_forgotten(settings, stack.directory / "kafka")
    afterwards = await verify(settings, receipt, USER, "acme", receipt.finished_at + timedelta(days=1000))
    assert afterwards.findings == ()
    report = await deployment.audit(WAIT_SECONDS)
    assert not report.as_dict().get("resurrected"), list(report.lines())

    for role in ROLES:
        await deployment.stop(role)
    await asyncio.to_thread(compact, tmp_path)
    await stack.stop()
    assert found_in(tmp_path) == []
    assert any(CONTENT.encode() in path.read_bytes() for path in files(tmp_path) if path.parent.name == "messages-0")


@pytest.mark.parametrize("crypto", [{"seal": "on", "key": b64encode(b"k" * 32).decode(), "cache_seconds": 2}])
async def test_sealed_no_byte_is_readable_anywhere_and_the_date_is_now(
    stack: EmbeddedStack, deployment: Deployment, tmp_path: Path
) -> None:
    """No topic expires here, and no changelog is compacted: only databases write their files anew."""
    settings, kafka = deployment.settings, deployment.settings.kafka
    for role in ROLES:
        deployment.start(role)
    await send_everything(settings)
    report = await deployment.audit(WAIT_SECONDS)
    assert report.clean, list(report.lines())
    brokers = stack.directory / "kafka"
    assert found_in(brokers) == []
    assert found_in(tmp_path / "workers") == []

    # a worker that lost its disk reads its state back from the changelog, sealed as it is there
    deployment.kill("segmenter")
    deployment.lose_state("segmenter")
    deployment.start("segmenter")
    async with Producer.from_settings(settings) as producer:
        await producer.flush("alone", tenant_id="acme")
        await producer.send(said("alone", 5, USER, f"Pending again: {CONTENT}."))
    report = await deployment.audit(WAIT_SECONDS)
    assert report.clean, list(report.lines())
    group = {"group_id": "readers", "start_from": "earliest"}
    async with SummarySubscriber.from_settings(settings, **group) as events, asyncio.timeout(WAIT_SECONDS):
        summaries = [await anext(events) for _ in range(3)]
    assert sum(CONTENT in summary.long_summary for summary in summaries) == 3
    assert {summary.user_id for summary in summaries} == {USER, "bob"}

    async with Eraser.from_settings(settings) as eraser:
        receipt = await eraser.erase(USER, "acme", timeout_seconds=WAIT_SECONDS)
    assert receipt.counts == {"messages": 8, "conversations": 2, "episodes": 3, "dead_letters": 1}
    assert (receipt.keys_destroyed, len(receipt.keys)) == (True, 1)
    later = [topic.topic for topic in receipt.topics if topic.ours and topic.gone_by != receipt.finished_at]
    assert later == [kafka.summaries_topic]  # somebody else has written in one of the conversations
    verified = await verify(settings, receipt, USER, "acme")
    assert {found.place for found in verified.findings} <= {kafka.summaries_topic}
    assert not verified.late
    report = await deployment.audit(WAIT_SECONDS)
    assert report.clean, list(report.lines())

    for role in ROLES:
        await deployment.stop(role)
    async with SummarySubscriber.from_settings(settings, group_id="later") as events, asyncio.timeout(WAIT_SECONDS):
        left = await anext(events)
    assert (left.user_id, left.revision, CONTENT in repr(left)) == ("bob", 2, False)
    await asyncio.to_thread(vacuum, tmp_path)
    await stack.stop()
    assert found_in(tmp_path) == []
    assert any(CONTENT.encode() in path.read_bytes() for path in files(tmp_path) if path.parent.name == "messages-0")
