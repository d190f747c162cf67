"""A worker stops if one of its watchers has failed, and returns the memory that it has freed."""

import asyncio
import resource
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from faust_eos.worker import crash_with, return_freed_memory


class Crashing:
    """An app that remembers what crashed it."""

    conf = SimpleNamespace(id="app")

    def __init__(self) -> None:
        self.reasons: list[BaseException] = []

    async def crash(self, reason: BaseException) -> None:
        self.reasons.append(reason)


async def fail() -> None:
    raise LookupError("unforeseen")


async def test_a_watcher_that_fails_crashes_its_app() -> None:
    app = Crashing()
    endless = asyncio.create_task(asyncio.Event().wait())
    await crash_with(app, (endless, asyncio.create_task(fail())))  # type: ignore[arg-type]  # a task of any result will do
    assert [type(reason) for reason in app.reasons] == [LookupError]
    endless.cancel()


async def test_a_watcher_that_is_cancelled_crashes_nothing() -> None:
    app = Crashing()
    endless = asyncio.create_task(asyncio.Event().wait())
    endless.cancel()
    await crash_with(app, (endless,))  # type: ignore[arg-type]  # a task of any result will do
    assert app.reasons == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_memory_is_returned_though_something_behind_it_is_still_in_use() -> None:
    blocks = [bytes(100_000) for _ in range(500)]
    last = blocks.pop()
    before = resident_bytes()
    del blocks
    return_freed_memory()
    assert before - resident_bytes() > 25_000_000
    assert len(last) == 100_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
