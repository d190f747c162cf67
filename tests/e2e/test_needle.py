"""After an erasure, no byte of any file of brokers, stores and workers holds the person's data.

One needle is the content of messages, the other one the id of their user, who sent some as a guest before they were
assigned. The stand-in LLM repeats what it is shown. It fails at first, so there are fallbacks and retries, and its last
answer about the person comes after the erasure.

Brokers remove records in their own time: here that time is a second, and the state is compacted before the last look.
The SQLite file is looked at right after the erasure.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from rocksdict import Options as RocksOptions
from rocksdict import Rdict

from afterword import Eraser, MessageCreated, Producer
from afterword.embedded import EmbeddedStack
from afterword.operating.person import verify
from afterword.operating.topics import UNBOUNDED, wanted_topics
from afterword.streams.kafka.clients import admin_client, running_producer
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.settings import Settings, load_settings
from afterword_text.texts import FIELDS
from tests.e2e.deployment import WAIT_SECONDS, Deployment, deployed
from tests.e2e.faults.changes import fenced, until_summarizer_is_done
from tests.openai_server import MODEL, LlmServer, Outcome, fails, success
from tests.stack import EMBEDDED, VARIABLE, chosen_jars
from tests.stored import stored
from tests.waiting import until

pytestmark = pytest.mark.nightly

CONTENT, USER, GUEST = "needle-7f3a9c51e2", "user-needle-b84d06", "guest-11"
NEEDLES = (CONTENT.encode(), USER.encode())
SOON = {
    "retention.ms": "1000",
    "segment.ms": "1000",
    "file.delete.delay.ms": "100",
    "max.compaction.lag.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
}
"""Configurations with which topics lose records at once."""
QUICK = {"log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "100", "log.cleaner.backoff.ms": "200"}


@pytest_asyncio.fixture
async def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EmbeddedStack]:
    """Start separate servers, because this test reads their files and stops one."""
    monkeypatch.delenv(VARIABLE, raising=False)
    async with EmbeddedStack(tmp_path / EMBEDDED, properties=QUICK, jars=chosen_jars()) as started:
        yield started


@pytest_asyncio.fixture
async def deployment(stack: EmbeddedStack, tmp_path: Path, llm_server: LlmServer) -> AsyncIterator[Deployment]:
    llm_server.usual = repeats
    settings = load_settings(
        kafka={"bootstrap_servers": stack.bootstrap_servers, "partitions": 1},
        sqlite={"path": tmp_path / "afterword.sqlite"},
        llm={
            "provider": "openai",
            "model": MODEL,
            "base_url": f"{llm_server.url}/v1",
            "attempts": 1,
            "timeout_seconds": WAIT_SECONDS,
        },
        quality={"enabled": False},  # the LLM adds no text of its own
        retry={"first_delay_seconds": 0.5},
        drain_seconds=10,
    )
    async with deployed(settings, tmp_path / "workers") as ready:
        yield ready


def said(conversation: str, number: int, user: str, content: str) -> MessageCreated:
    return MessageCreated(
        id=f"m{number}", conversation_id=conversation, user_id=user, tenant_id="acme", role="user", content=content
    )


async def repeats(request: web.Request) -> web.StreamResponse:
    """Repeat everything that is shown of the conversation in every text of the summary."""
    prompt = "\n".join(message["content"] for message in (await request.json())["messages"])
    before, said = fenced(prompt, "PREVIOUS"), fenced(prompt, "TRANSCRIPT")
    return await success({**dict.fromkeys(FIELDS, said), "rolling_summary": f"{before}\n{said}"})(request)


class HeldBack:
    """An answer that is held back until it is released."""

    def __init__(self) -> None:
        self.asked, self.let_go = asyncio.Event(), asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.set()
        await self.let_go.wait()
        return await repeats(request)


def about_the_needle(server: LlmServer, *outcomes: Outcome) -> None:
    """Answer the next requests that show the needle like this, and later ones normally."""
    server.scripts[CONTENT] = deque(outcomes)


def has_needle(thing: object) -> bool:
    return any(needle.decode() in repr(thing) for needle in NEEDLES)


def files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file())


def found_in(directory: Path) -> list[Path]:
    """Return the files with a needle, except those of the messages topic."""
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
    """Make every record of our topics expire."""
    resources = []
    for topic in wanted_topics(settings)[1:]:
        given = {**topic.created_with, **SOON}
        if given["cleanup.policy"] == "compact":
            given["retention.ms"] = str(UNBOUNDED[0])
        resources.append(ConfigResource(ConfigResourceType.TOPIC, topic.name, configs=given))
    async with admin_client(settings.kafka) as admin:
        await admin.alter_configs(resources)


async def until_brokers_have_forgotten(settings: Settings, directory: Path) -> None:
    """Keep writing, because a changelog's segment ends only when something is written to it."""
    deadline, number = time.monotonic() + WAIT_SECONDS, 0
    async with Producer.from_settings(settings) as producer:
        while left := await asyncio.to_thread(found_in, directory):
            assert time.monotonic() < deadline, left
            number += 1
            await producer.send(said(f"others-{number}", 0, "bob", "The meeting is on Monday."))
            await producer.flush(f"others-{number}", tenant_id="acme")
            await asyncio.sleep(0.5)  # between two rounds of the broker


def compact(directory: Path) -> None:
    """Compact the databases that no process has open."""
    for path in {file.parent for file in files(directory) if file.name == "CURRENT"}:
        database = Rdict(str(path), RocksOptions(raw_mode=True))
        database.flush()
        database.compact_range(None, None)
        database.close()


async def send_everything(settings: Settings, llm: LlmServer) -> HeldBack:
    """Needles in messages, pending and closed, of somebody alone and among others, and in a rejected record.

    The LLM fails once for each conversation: one fallback is replaced, and the answer that would replace the other one
    is on its way. Returns that answer.
    """
    held_back = HeldBack()
    async with Producer.from_settings(settings) as producer, running_producer(settings.kafka) as raw:
        about_the_needle(llm, fails(503))
        for number in range(4):
            user = GUEST if number < 2 else USER
            await producer.send(said("alone", number, user, f"My secret is {CONTENT}, number {number}."))
        await producer.flush("alone", tenant_id="acme")
        await until(lambda: is_summarized(settings))
        about_the_needle(llm, fails(503), held_back.answer)
        talk = (("bob", "The meeting is on Monday."), (GUEST, f"I cannot come: {CONTENT}."), ("bob", "Get well soon."))
        for number, (user, content) in enumerate(talk):
            await producer.send(said("shared", number, user, content))
        await producer.flush("shared", tenant_id="acme")
        for conversation in ("alone", "shared"):
            await producer.assign(conversation, GUEST, USER, tenant_id="acme")
        await producer.send(said("shared", 3, GUEST, f"Still pending: {CONTENT}."))
        await producer.send(said("alone", 4, USER, f"Pending too: {CONTENT}."))
        rejected = f'{{"user_id": "{USER}", "tenant_id": "acme", "content": "{CONTENT}"}}'
        await raw.send_and_wait(settings.kafka.messages_topic, rejected.encode(), key=b"odd")
    async with asyncio.timeout(WAIT_SECONDS):
        await held_back.asked.wait()
    return held_back


async def is_summarized(settings: Settings) -> bool:
    """Tell whether the summary of an episode is an answer of the LLM that has the needle."""
    made = [
        one
        for one in (await stored(settings)).get("episodes", ())
        if "quality" in one and one["quality"]["source"] == "llm"
    ]
    return has_needle(made)


async def let_go(settings: Settings, llm: LlmServer, held_back: HeldBack) -> None:
    """Release the answer about the person after the erasure; then nothing is left of it, and nothing is asked again."""
    asked = len(llm.requests)
    held_back.let_go.set()
    await until_summarizer_is_done(settings.kafka)
    assert [name for name, documents in (await stored(settings)).items() if has_needle(documents)] == []
    assert not has_needle(llm.requests[asked:])


async def test_erased_persons_bytes_remain_only_where_the_receipt_says(
    stack: EmbeddedStack, deployment: Deployment, tmp_path: Path, llm_server: LlmServer
) -> None:
    settings = deployment.settings
    for role in ALWAYS_RUN:
        deployment.start(role)
    held_back = await send_everything(settings, llm_server)
    report = await deployment.audit(wait_seconds=20)  # the summarizer does not finish while the answer is held back
    assert not report.findings, list(report.lines())
    assert report.missing.keys() == {"summarizer"}
    there = {path.parent.name.rpartition("-")[0] for path in found_in(tmp_path)}
    kafka = settings.kafka
    ours = {
        kafka.episodes_topic,
        kafka.conversations_topic,
        kafka.summaries_topic,
        kafka.changelog("messages"),
        *kafka.current_topics,
        "messages.dlq",
    }
    assert ours <= there

    async with Eraser.from_settings(settings) as eraser:
        receipt = await eraser.erase(USER, "acme", timeout_seconds=WAIT_SECONDS)
    assert receipt.counts == {"messages": 7, "conversations": 2, "episodes": 2, "dead_letters": 1}
    before = await verify(settings, receipt, USER, "acme")
    assert {found.place for found in before} <= {topic.topic for topic in receipt.topics}
    assert before
    assert not [found for found in before if found.late]
    await let_go(settings, llm_server, held_back)
    assert [path for path in found_in(tmp_path) if path.name.startswith("afterword.sqlite")] == []

    await expire(settings)
    await until_brokers_have_forgotten(settings, stack.directory / "kafka")
    afterwards = await verify(settings, receipt, USER, "acme", receipt.finished_at + timedelta(days=1000))
    assert afterwards == []
    report = await deployment.audit()
    assert not report.as_dict().get("resurrected"), list(report.lines())

    for role in ALWAYS_RUN:
        await deployment.stop(role)
    await asyncio.to_thread(compact, tmp_path)
    await stack.stop()
    assert found_in(tmp_path) == []
    assert any(CONTENT.encode() in path.read_bytes() for path in files(tmp_path) if path.parent.name == "messages-0")
