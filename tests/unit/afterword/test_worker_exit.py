"""A worker ends with its process, and an error is one line."""

import re
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, MessageSizeTooLargeError

from afterword.commands.processes import to_its_end
from afterword.streams.errors import ConfigurationError
from faust_eos.errors import StoreFailed

SECONDS = 240.0
WITH_A_THREAD_AT_WORK = f"""
import asyncio, time
from afterword.commands.processes import to_its_end

async def role():
    asyncio.get_running_loop().run_in_executor(None, time.sleep, {2 * SECONDS})

asyncio.run(to_its_end(role(), ""))
"""
SLOW_TO_FINALIZE = f"""
import asyncio, gc, sys, time, weakref
from afterword.commands.processes import to_its_end

class Slow:
    def __del__(self):
        time.sleep({2 * SECONDS})

sys.kept = Slow()

async def role():
    {{problem}}

asyncio.run(to_its_end(role(), ""))
"""


def ended(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", program], timeout=SECONDS, check=False, capture_output=True, text=True)


def test_busy_thread_does_not_delay_the_exit() -> None:
    assert ended(WITH_A_THREAD_AT_WORK).returncode == 0


def test_interpreter_shutdown_does_not_delay_the_exit() -> None:
    stopped = ended(SLOW_TO_FINALIZE.format(problem="pass"))
    assert stopped.returncode == 0
    assert "worker_stopped" in stopped.stdout.splitlines()[-1]
    failed = ended(SLOW_TO_FINALIZE.format(problem="raise OSError('a port is in use')"))
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1].startswith("afterword: ")
    assert "a port is in use" in failed.stderr


async def end_of(role: Callable[[], Coroutine[Any, Any, None]], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code and standard error."""
    codes: list[int] = []
    await to_its_end(role(), "broker:9092", codes.append)
    [code] = codes
    return code, capsys.readouterr().err


async def test_engine_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    async def role() -> None:
        raise StoreFailed(path="state", cause="disk full")

    code, said = await end_of(role, capsys)
    assert code == 1
    assert re.fullmatch(r"afterword: .*local state in state cannot be used: disk full.*\n", said)


async def test_wrong_setting_has_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    async def role() -> None:
        raise ConfigurationError(setting="AFTERWORD_LLM__MODEL", problem="is empty")

    code, said = await end_of(role, capsys)
    assert code == 2
    assert "AFTERWORD_LLM__MODEL" in said


async def test_kafkas_refusal_is_not_reported_as_unreachable(capsys: pytest.CaptureFixture[str]) -> None:
    async def refused() -> None:
        error = MessageSizeTooLargeError()
        error.add_note("topic episode.closed")
        raise error

    async def away() -> None:
        raise KafkaConnectionError("no broker")

    code, said = await end_of(refused, capsys)
    assert code == 1
    assert re.search(r"refused a request: .*MessageSizeTooLargeError; topic episode.closed", said)
    code, said = await end_of(away, capsys)
    assert code == 1
    assert re.search(r"cannot be reached: .*no broker", said)
