"""The command line as processes on a real broker."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from afterword import samples
from afterword.consumers.subscriber import watching
from afterword.operating.topics import ensure_topics
from afterword.schemas import SummaryCreated, decode_input
from afterword.schemas.records import cloud_event
from afterword.schemas.summaries import SUMMARY_CREATED
from afterword.streams.kafka.clients import running_producer
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.settings import Settings
from tests.e2e.deployment import afterword, environment_of
from tests.samples import a_summary

SAMPLES = Path(samples.__file__).parent / "conversations.jsonl"
SECONDS = 120


@pytest.fixture
def bare(make_settings: Callable[..., Settings]) -> Settings:
    """Return settings whose topics do not exist."""
    return make_settings(kafka={"partitions": 2})


@pytest_asyncio.fixture
async def settings(bare: Settings) -> Settings:
    await ensure_topics(bare)
    return bare


def event(n: int) -> SummaryCreated:
    return a_summary(n, "c", short_summary="Short.")


async def announce(settings: Settings, *events: SummaryCreated) -> None:
    async with running_producer(settings.kafka) as producer:
        for e in events:
            headers = cloud_event(SUMMARY_CREATED, e.event_id, "test", e.created_at)
            await producer.send_and_wait(settings.kafka.summaries_topic, e.to_json(), key=b"c", headers=headers)


async def test_topics_are_created_and_then_verified(bare):
    code, out, _ = await afterword(bare, "topics", "create")
    assert code == 0
    assert all("  created" in line for line in out.splitlines())
    code, out, _ = await afterword(bare, "topics", "create")
    assert code == 0
    assert all("  ok" in line for line in out.splitlines())


async def test_check_passes_for_a_complete_deployment(settings):
    code, out, _ = await afterword(settings, "check")
    assert code == 0, out
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["OK", name]
        for name in ("kafka", "topics", "commits", "llm", "reranker", "webhooks", "sources", "keys", "sqlite")
    ]


async def test_produce_reads_standard_input(settings):
    code, out, _ = await afterword(settings, "produce", "-", given=SAMPLES.read_text())
    assert code == 0
    assert out.startswith(f"{len(samples.sample_lines())} messages of 12 conversations sent in ")


async def test_say_sends_one_message_and_names_its_conversation(settings):
    code, out, _ = await afterword(settings, "say", "I play the cello.", "--user", "ada", "--tenant", "t1")
    assert code == 0
    continued = re.fullmatch(r"message \S+ sent; go on with --conversation (\S+)\n", out)
    assert continued, out
    more = ("say", "Which?", "--user", "ada", "--tenant", "t1", "--role", "assistant", "--conversation", continued[1])
    code, *_ = await afterword(settings, *more)
    assert code == 0
    async with open_log(settings.kafka) as log:
        records = [record async for record in log.records(settings.kafka.messages_topic)]
    sent = [decode_input(record.key, record.value, record.headers, record.timestamp) for record in records]
    assert [(one.conversation_id, one.user_id, one.tenant_id, one.role, one.content) for one in sent] == [
        (continued[1], "ada", "t1", "user", "I play the cello."),
        (continued[1], "ada", "t1", "assistant", "Which?"),
    ]


async def test_say_refuses_invalid_messages(settings):
    for wrong in (("", "--user", "ada"), ("Hi.", "--user", ""), ("Hi.", "--user", "a" * 300)):
        code, out, err = await afterword(settings, "say", *wrong)
        assert (code, out, "Invalid value" in err) == (2, "", True), wrong


async def test_watch_prints_each_event_once(settings):
    await announce(settings, event(1), event(1), event(2))
    code, out, _ = await afterword(settings, "watch", "--from-beginning", "--limit", "2", "--json")
    assert code == 0
    assert [json.loads(line)["event_id"] for line in out.splitlines()] == ["c:1:1", "c:2:1"]
    _, out, _ = await afterword(settings, "watch", "--from-beginning", "--limit", "1")
    assert out == "c:1  Title 1: Short.\n"


async def test_watch_from_now_begins_with_new_events(settings):
    await announce(settings, *map(event, range(1, 20)))
    for n in range(20, 30):  # aiokafka's `seek_to_end` fails in every second
        async with watching(settings.kafka) as events, asyncio.timeout(SECONDS):
            await announce(settings, event(n))
            assert (await anext(events)).ordinal == n


@pytest.fixture
def obeyed_ctrl_c() -> Iterator[None]:
    """A shell's background processes ignore Ctrl-C, and their children would ignore it too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


async def test_watch_ends_cleanly_with_ctrl_c(settings, obeyed_ctrl_c):
    await announce(settings, event(1))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "afterword.cli", "watch", "--from-beginning"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | environment_of(settings),
    )
    assert process.stdout is not None
    async with asyncio.timeout(SECONDS):
        assert await process.stdout.readline() == b"c:1  Title 1: Short.\n"
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")


async def test_audit_exit_status_tells_what_it_found(settings):
    await afterword(settings, "produce", str(SAMPLES))
    code, out, _ = await afterword(settings, "audit", "--json")
    assert code == 0
    assert json.loads(out)["messages"]["not_consumed"] == len(samples.sample_lines())
    code, out, _ = await afterword(settings, "audit", "--wait", "1", "--json")
    assert code == 2
    assert json.loads(out)["missing"]["segmenter"] == len(samples.sample_lines())
    await announce(settings, event(1))
    code, out, _ = await afterword(settings, "audit", "--wait", "1")
    assert code == 1
    assert "announced_wrongly: 1" in out
    assert out.endswith("NOT CLEAN\n")
