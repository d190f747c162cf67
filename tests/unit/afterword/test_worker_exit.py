"""A worker's end: the process is gone, and an error is one line."""

import subprocess
import sys
import time

import pytest
from aiokafka.errors import KafkaConnectionError, MessageSizeTooLargeError

from afterword.commands import worker
from afterword.streams.errors import BrokerUnavailable, RequestRefused, WorkerFailed
from afterword.streams.runtime.errors import StoreFailed
from afterword.streams.settings import Settings, load_settings

SECONDS = 60.0
WITH_A_THREAD_AT_WORK = f"""
import asyncio, time
from afterword.commands.worker import to_its_end

async def role():
    asyncio.get_running_loop().run_in_executor(None, time.sleep, {2 * SECONDS})

asyncio.run(to_its_end(role()))
"""


def test_a_thread_that_is_still_at_work_does_not_hold_up_the_exit() -> None:
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", WITH_A_THREAD_AT_WORK], timeout=SECONDS, check=False)
    assert ended.returncode == 0
    assert time.monotonic() - began < SECONDS


def test_an_error_of_the_engine_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "start", load_settings)  # without logs

    async def role(_: Settings) -> None:
        raise StoreFailed(path="state", cause="disk full")

    with pytest.raises(WorkerFailed, match="local state in state cannot be used: disk full"):
        worker._run(role)


def test_an_answer_of_kafka_is_not_said_to_be_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "start", load_settings)

    async def refused(_: Settings) -> None:
        error = MessageSizeTooLargeError()
        error.add_note("topic episode.closed")
        raise error

    async def away(_: Settings) -> None:
        raise KafkaConnectionError("no broker")

    with pytest.raises(RequestRefused, match=r"refused a request: .*MessageSizeTooLargeError; topic episode.closed"):
        worker._run(refused)
    with pytest.raises(BrokerUnavailable, match=r"cannot be reached: .*no broker"):
        worker._run(away)
