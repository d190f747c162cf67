import gc
import weakref
from collections.abc import Iterator

import pytest

from faust_eos.collector import loading, spare_the_collector, without_collector


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
def test_the_collector_passes_over_what_is_loaded_and_still_frees_what_comes_later() -> None:
    loaded = Kept()
    seen = weakref.ref(loaded)
    spare_the_collector()
    later = weakref.ref(Kept())
    del loaded
    gc.collect()
    assert seen() is not None
    assert later() is None


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
        with without_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
