"""Messages in, summaries out: the real processes, from `messages` to `summary.created`."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from afterword.operating.checks import NoSummary, smoke
from afterword.streams.roles import ALL, ALWAYS_RUN
from afterword.streams.settings import Mongo, Settings
from tests.e2e.deployment import WAIT_SECONDS, Deployment, deployed, expected_fingerprints, fingerprints
from tests.qdrant_server import QdrantServer


async def test_every_message_ends_in_one_stored_and_announced_episode(
    deployment: Deployment, dialogues: list[bytes]
) -> None:
    await run(deployment, dialogues)


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect:UserWarning")
async def test_whole_path_works_on_mongodb_and_qdrant(
    make_settings: Callable[..., Settings], mongo_settings: Mongo, dialogues: list[bytes], tmp_path: Path
) -> None:
    async with QdrantServer() as qdrant:
        settings = make_settings(
            sqlite={"path": None}, mongo=mongo_settings, qdrant={"url": qdrant.url}, kafka={"partitions": 2}
        )
        async with deployed(settings, tmp_path) as deployment:
            await run(deployment, dialogues)


async def test_whole_path_works_in_one_process(
    make_settings: Callable[..., Settings], dialogues: list[bytes], tmp_path: Path
) -> None:
    async with deployed(make_settings(serve={"port": 0}), tmp_path) as deployment:
        await run(deployment, dialogues, (ALL,))
        started = re.search(r'"address": "(\S+)"', deployment.logs(ALL))
    assert started
    assert "worker_stopped" in (tmp_path / "logs" / f"{ALL}.log").read_text()


async def run(deployment: Deployment, dialogues: list[bytes], roles: Sequence[str] = ALWAYS_RUN) -> None:
    for role in roles:
        deployment.start(role)
    produced = await deployment.produce(dialogues)
    report = await deployment.audit()
    assert report.clean, report.lines()
    assert report.messages["in_an_episode"] == report.messages["archived"] == produced.messages
    assert report.messages["pending"] == report.messages["lost"] == 0
    assert report.episodes["total"] == report.summaries["stored"] == report.summaries["indexed"]
    assert report.summaries["announced"] == report.episodes["total"]
    closed = await deployment.episodes()
    assert fingerprints(closed) == expected_fingerprints(dialogues, deployment.settings)
    assert {name: await deployment.stop(name) for name in roles} == dict.fromkeys(roles, 0)


async def test_smoke_test_needs_all_workers(deployment: Deployment) -> None:
    for role in ("segmenter", "summarizer"):
        deployment.start(role)
    event = await smoke(deployment.settings, WAIT_SECONDS)
    assert event.message_count == 3
    assert await deployment.stop("summarizer") == 0
    with pytest.raises(NoSummary, match=r"afterword-smoke-\S+ has no summary"):
        await smoke(deployment.settings, 2)
