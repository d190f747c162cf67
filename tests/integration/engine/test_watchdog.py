"""A worker that makes no progress ends by itself and says what stalled; a busy or idle one does not end."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from afterword.embedded.java import JarCache
from afterword.embedded.stack import Broker
from faust_eos.health import stalls_before
from tests.integration.engine.lab import Lab, laboratory
from tests.integration.engine.test_faults import progress, start
from tests.stack import Stack, chosen_jars

LIMIT_SECONDS = 6.0
WATCHED = {"watchdog_seconds": LIMIT_SECONDS}
BOUND_SECONDS = 3 * LIMIT_SECONDS + 14
"""Longest time until the stall is noticed, twice the limit at most, and the worker has failed to stop by itself."""


@asynccontextmanager
async def own_broker(directory: Path) -> AsyncIterator[Broker]:
    kafka = Broker(JarCache(jars=chosen_jars()), directory)
    try:
        await start(kafka)
        yield kafka
    finally:
        await asyncio.to_thread(kafka.stop)


@pytest.mark.nightly
async def test_worker_whose_broker_is_suspended_ends_in_time(
    stack: Stack, unique: Callable[[str], str], tmp_path: Path
) -> None:
    del stack  # its jars are what this one starts from
    async with (
        own_broker(tmp_path / "kafka") as kafka,
        laboratory(kafka.bootstrap_servers, unique("hung"), tmp_path / "lab") as lab,
    ):
        worker = lab.worker(options=WATCHED)
        async with lab.loaded():
            await progress(lab)
        kafka.process.suspend()
        try:
            code = await lab.exit_code(worker, BOUND_SECONDS)
        finally:
            kafka.process.resume()
        assert code == 1, lab.logs()
        # the event, not the last line: where the stop takes too long as well, the process ends without one.
        # A commit that was under way has stalled for longer than the brokers, and is named then
        said = re.search("no progress for 6 seconds: (.*?)[.(]", worker.log.read_text())
        assert said is not None, lab.logs()
        assert said[1].startswith(("the brokers do not answer", "nothing is committed of")), said
        lab.worker()
        await lab.all_counted()


async def test_records_the_agent_never_finishes_stop_the_worker(lab: Lab) -> None:
    await lab.produce([(0, {}), (0, {"until": "never"})])
    worker = lab.worker(at_least_once=True, options=WATCHED)
    assert await lab.exit_code(worker) == 1
    assert f"records of {lab.source}-0 are not finished" in worker.tail()
    assert stalls_before(lab.state() / f"{lab.app_id}-stalls") == 1
