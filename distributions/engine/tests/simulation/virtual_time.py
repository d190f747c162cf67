"""Virtual time: as soon as nothing else is ready, the loop's clock jumps to the next timer."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from distributions.engine.tests.simulation.loop import Loop

T = TypeVar("T")


def run_in_virtual_time(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. `asyncio.get_running_loop().time()` starts at 0 and returns virtual seconds."""
    loop = Loop()
    with loop.running():
        task = loop.create_task(coroutine)
    loop.run_ready()
    while not task.done():
        moment = loop.next_timer()
        assert moment is not None, "it waits for something that never comes"
        loop.pass_until(moment)
        loop.run_ready()
    result: T = task.result()
    return result
