"""A worker does not go on when something that watches it has failed, and returns what it has freed."""

import asyncio
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from afterword.streams.runtime.worker import crash_with, return_freed_memory


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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
@pytest.mark.parametrize(
    ("module", "role"),
    [("app", "run_segmenter"), ("summarizer_app", "run_summarizer")],
    ids=["segmenter", "summarizer"],
)
def test_threads_of_a_role_have_no_arenas_of_their_own(module: str, role: str) -> None:
    code = f"""
import asyncio, ctypes, threading
from afterword.streams.errors import BrokerUnavailable
from afterword.streams.{module} import {role}
from afterword.streams.settings import Settings
try:
    asyncio.run({role}(Settings(kafka=dict(bootstrap_servers="127.0.0.1:1"))))
except BrokerUnavailable:
    pass
allocate = ctypes.CDLL(None).malloc
allocate.restype = ctypes.c_void_p
places = [allocate(64)]
for _ in range(8):
    thread = threading.Thread(target=lambda: places.append(allocate(64)))
    thread.start()
    thread.join()
print(max(places) - min(places))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64_000_000  # bytes between two arenas


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
