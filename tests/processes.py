"""Looking at other processes, and waiting for what they do."""

import subprocess
import time
from collections.abc import Callable

SECONDS = 20.0


def alive(pid: int) -> bool:
    """A zombie is dead: it only waits to be buried."""
    return state(pid) not in ("", "Z")


def state(pid: int) -> str:
    """The first letter of what ps says, such as T for suspended; empty when there is no such process."""
    done = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip()[:1]


def until(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Waits for the condition; fails the test when it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
