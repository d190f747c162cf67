"""Looks at other processes, and waits for conditions."""

import time
from collections.abc import Callable
from pathlib import Path

SECONDS = 120.0


def alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    return state(pid) not in ("", "Z")


def state(pid: int) -> str:
    """Return the letter of the process's state, such as T for suspended; empty if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return stat.rpartition(")")[2].split()[0]  # the name before it, in brackets, may contain anything


def until(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Wait for the condition; fail the test if it is not met in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
