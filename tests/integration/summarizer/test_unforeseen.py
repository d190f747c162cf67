"""An episode on which the summarizer fails unexpectedly, with a real broker."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import TopicPartition

from afterword.embedded import Process
from afterword.schemas.dead_letters import read_dead_letter
from afterword.streams.kafka.clients import admin_client
from afterword.streams.settings import Settings
from faust_eos.options import Options
from tests.e2e.deployment import deployed, environment_of
from tests.integration.summarizer.failing import FAILS
from tests.integration.summarizer.test_worker import SECRET, announced_of_each, dead_letters, episode, send

ROOT = Path(__file__).parents[3]
SECONDS, POLL_SECONDS = 180, 0.1
RETRIES = Options.agent_retries


async def until_committed(settings: Settings, offset: int) -> None:
    """Wait until the group has finished every record before the offset."""
    source = TopicPartition(settings.kafka.episodes_topic, 0)
    async with asyncio.timeout(SECONDS), admin_client(settings.kafka) as admin:
        while True:
            found = (await admin.list_consumer_group_offsets(settings.kafka.group_of("summarizer"))).get(source)
            if found is not None and found.offset >= offset:
                assert (found.offset, found.metadata) == (offset, "")
                return
            await asyncio.sleep(POLL_SECONDS)


@pytest.mark.nightly  # the unit tests show the same without servers
async def test_failing_episode_is_dead_lettered_and_its_neighbours_summarized(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    settings = make_settings(kafka={"partitions": 1}, drain_seconds=5)
    names = ["a", FAILS, "b", "c"]
    async with deployed(settings, tmp_path) as deployment:
        deployment.workers["summarizer"] = Process(
            "summarizer",
            [sys.executable, "-m", "tests.integration.summarizer.failing"],
            tmp_path / "logs" / "summarizer.log",
            environment=environment_of(settings),
            directory=ROOT,
        )
        await send(settings, *map(episode, names), episode(FAILS, ordinal=2))
        events = await announced_of_each(settings, 3)
        letters = [read_dead_letter(record) for record in await dead_letters(settings, 2)]
        await until_committed(settings, 5)
        log = deployment.logs("summarizer")
        assert await deployment.stop("summarizer") == 0
    assert sorted(events) == ["a", "b", "c"]
    topic = settings.kafka.episodes_topic
    assert [letter.origin for letter in letters] == [(topic, 0, 1), (topic, 0, 4)]
    assert {(letter.stage, letter.error_type) for letter in letters} == {("summarizer", "unforeseen")}
    assert all(letter.problem.startswith("KeyError at ") for letter in letters)
    assert log.count("record_failed") == 2 * RETRIES
    assert SECRET not in log
    assert all(SECRET not in letter.problem for letter in letters)
