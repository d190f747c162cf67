"""A worker that has come to its end is gone."""

import subprocess
import sys
import time

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
