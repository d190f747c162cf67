import gc
import resource
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from faust_eos.memory import loading, return_freed_memory


class Kept:
    """Refers to itself, so only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def thawed() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    gc.collect()


@pytest.mark.usefixtures("thawed")
def test_what_is_loaded_is_not_looked_at_then_or_later() -> None:
    gc.set_threshold(1, 1, 1)
    with loading():
        loaded = Kept()
        seen = weakref.ref(loaded)
        del loaded
        made = [Kept() for _ in range(100)]
        assert seen() is not None
    del made
    gc.collect()
    assert seen() is not None
    assert gc.isenabled()


@pytest.mark.usefixtures("thawed")
def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with loading():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


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
