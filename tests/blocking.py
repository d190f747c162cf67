"""Measures how long work blocks the event loop, however slow and busy the machine is."""

import asyncio
import gc
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

MOST_SHARE = 0.5
"""Work in the event loop without a break has a share of almost 1; in a thread or in turns, of less than 0.1."""

T = TypeVar("T")


async def blocking(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Return the work's result, and the longest time for which it blocked the event loop, as a share of its CPU time.

    The garbage collector is off meanwhile, because its time depends on what other tests have left.
    """
    task = asyncio.ensure_future(work)
    longest, last, began = 0.0, time.thread_time(), time.process_time()
    gc.disable()
    try:
        while not task.done():
            await asyncio.sleep(0)
            longest, last = max(longest, time.thread_time() - last), time.thread_time()
        return await task, longest / (time.process_time() - began)
    finally:
        gc.enable()
