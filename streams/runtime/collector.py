"""Python's collector of garbage: kept from looking, again and again, at what has been loaded and stays."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

COLLECTED_AT = (10_000, 10, 10)
"""New objects, and collections of each generation, after which the next one is collected. Python's: 700, 10, 10."""


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep Python from looking for cycles, where many objects are made and hardly any is in one."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def loading() -> Iterator[None]:
    """Keep the collector from what is imported, then and later: a tenth of the CPU time of a start."""
    with without_collector():
        yield
        gc.freeze()


def spare_the_collector() -> None:
    """Exempt what is loaded by now from garbage collection, 100,000 objects: to look through them takes 50 ms and more.

    They are not collected before, as hardly any of them are garbage. What comes later is looked at in larger portions:
    most of it is gone by then, and a full collection, of all that is under way, comes less often.
    """
    gc.freeze()
    gc.set_threshold(*COLLECTED_AT)
