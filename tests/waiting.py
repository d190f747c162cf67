"""Waits for conditions about other processes."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

SECONDS = 180.0


async def until(
    condition: Callable[[], Any], otherwise: str = "it did not happen in time", seconds: float = SECONDS
) -> None:
    """Wait until the condition, which may be a coroutine function, is met; fail the test if it is not met in time."""
    deadline = time.monotonic() + seconds
    while not (await met if inspect.isawaitable(met := condition()) else met):
        assert time.monotonic() < deadline, otherwise
        await asyncio.sleep(0.05)
