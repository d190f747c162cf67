"""Errors of a worker that cannot start."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from afterword.local.dev import start_worker
from afterword.streams.roles import ALL, ALWAYS_RUN
from afterword.streams.settings import Settings
from tests.e2e.deployment import deployed, environment_of

pytestmark = pytest.mark.nightly

SECONDS = 60.0


@pytest.mark.parametrize("role", [*ALWAYS_RUN, ALL])
async def test_worker_without_its_topics_ends_with_one_line(
    role: str, make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    settings = make_settings()
    worker = start_worker(role, tmp_path, environment_of(settings))
    try:
        assert await asyncio.to_thread(worker.wait, SECONDS) == 2
    finally:
        worker.kill()
    topic = settings.kafka.episodes_topic if role == "summarizer" else settings.kafka.messages_topic
    last = f"afterword: topic {topic} does not exist; create it with: afterword topics create"
    assert [line for line in worker.tail().splitlines() if not line.startswith("{")] == [last]


async def test_server_that_cannot_start_ends_its_workers(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with deployed(make_settings(serve={"port": port}), tmp_path) as deployment:
            deployment.start(ALL)
            worker = deployment.workers[ALL]
            assert await asyncio.to_thread(worker.wait, SECONDS) == 1
            log = deployment.logs(ALL)
    assert log.count("app_stopped") == 0
    assert f"afterword: the worker cannot continue: 127.0.0.1:{port}: Address already in use; choose another" in log
