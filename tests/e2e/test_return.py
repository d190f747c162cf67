"""`messages` gets more partitions under running workers: the page on it brings everything back, word by word."""

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from aiokafka.admin import NewPartitions

from afterword.audit.log import open_log
from afterword.dev import ROLES
from afterword.producer import Producer
from afterword.streams.kafka import admin_client
from afterword.streams.segmenter.partitions import standard_partition
from afterword.streams.segmenter.state import TABLES
from afterword.streams.settings import Settings
from tests.e2e.deployment import Deployment, deployed
from tests.e2e.test_redo import cli
from tests.e2e.test_state_made_anew import TALKS, WAIT_SECONDS, check_ordinals, consumed, letters, say

pytestmark = pytest.mark.nightly

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "grow-partitions.md"
BEFORE, AFTER = 2, 4
MOVED = [talk for talk in TALKS if standard_partition(talk.encode(), AFTER) >= BEFORE]
LAST = 30


@pytest_asyncio.fixture
async def deployment(make_settings: Callable[..., Settings], tmp_path: Path) -> AsyncIterator[Deployment]:
    settings = make_settings(
        kafka={"partitions": BEFORE, "session_timeout_seconds": 6, "rebalance_timeout_seconds": 15},
        engine={"tick_seconds": 0.2},
        drain_seconds=10,
    )
    async with deployed(settings, tmp_path) as ready:
        yield ready


async def grow(deployment: Deployment) -> None:
    """Enlarge as an operator of Kafka does, under the workers, and wait until they refuse."""
    kafka = deployment.settings.kafka
    async with admin_client(kafka) as admin:
        topics = kafka.messages_topic, *map(kafka.changelog, TABLES)
        await admin.create_partitions(dict.fromkeys(topics, NewPartitions(AFTER)))
    async with asyncio.timeout(WAIT_SECONDS):
        while not all("source_grown" in deployment.logs(role) for role in ("segmenter", "archiver")):  # noqa: ASYNC110 – they are processes
            await asyncio.sleep(0.1)


def commands() -> list[list[str]]:
    """Commands of the page, in their order."""
    lines = [
        line.strip() for block in re.findall(r"```\n(.*?)```", PAGE.read_text(), re.S) for line in block.splitlines()
    ]
    return [shlex.split(line)[1:] for line in lines if line.startswith("afterword ")]


async def run(settings: Settings, arguments: list[str]) -> tuple[int | None, str]:
    process = await cli(settings, *arguments)
    out, _ = await asyncio.wait_for(process.communicate(), WAIT_SECONDS * 2)
    return process.returncode, out.decode()


async def waiting(settings: Settings) -> int:
    """Number of records in the new partitions."""
    async with open_log(settings.kafka) as log:
        found = [record async for record in log.records(settings.kafka.messages_topic)]
    return sum(record.partition >= BEFORE for record in found)


async def test_what_has_gone_to_new_partitions_is_brought_back_and_nothing_is_lost_or_twice(
    deployment: Deployment,
) -> None:
    settings = deployment.settings
    check, follow, once, audit = commands()
    for role in ROLES:
        deployment.start(role)
    await say(settings, range(10), flush=False)
    for role in ("segmenter", "archiver"):  # one that has committed nothing yet takes the new number for granted
        await consumed(deployment, role)
    await grow(deployment)
    await say(settings, range(8, 20), flush=False)
    assert MOVED
    assert await waiting(settings) > 0

    code, said = await run(settings, check)
    assert code == 1
    assert "docs/how-to/grow-partitions.md" in said
    following = await cli(settings, *follow)
    try:
        await say(settings, range(20, LAST), flush=True)
        async with Producer.from_settings(settings) as producer:
            for talk in MOVED:
                await producer.delete(talk, "m3")
        async with asyncio.timeout(WAIT_SECONDS):
            while await waiting(settings) and following.returncode is None:  # noqa: ASYNC110 – it is another process that moves them
                await asyncio.sleep(0.5)
    finally:
        following.terminate()
        await following.wait()
    assert await run(settings, once) == (0, "0 records in all\n")
    code, said = await run(settings, audit)
    assert code == 0, said

    report = await deployment.audit(0)
    assert report.messages["pending"] == 0
    assert await letters(settings) == 0
    episodes = await deployment.episodes()
    check_ordinals(episodes)
    for talk in TALKS:
        told = [
            m.id for e in sorted(episodes, key=lambda e: e.ordinal) if e.conversation_id == talk for m in e.messages
        ]
        assert told == [f"m{n}" for n in range(LAST)], talk
