"""Several steps at the same time, of which none outlives the others' failure."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(*steps: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run all steps, each in a task, and return their results. The first error cancels the others, and is raised when
    they have ended.

    Not a task group, which counts a cancelled step as done.
    """
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
