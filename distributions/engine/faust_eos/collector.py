"""Python's garbage collector: how to keep it from scanning, again and again, objects that stay loaded."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

COLLECTED_AT = (10_000, 10, 10)
"""The collector's thresholds: new objects before a collection of the youngest generation, then collections of one
generation before the next older one is collected. Python's defaults are 700, 10, 10."""


@contextmanager
def without_collector() -> Iterator[None]:
    """Turn the collector off in a block that makes many objects, hardly any of which is in a cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def loading() -> Iterator[None]:
    """Import modules in this block to exempt them from collection, now and later, which saves a tenth of start-up CPU
    time.
    """
    with without_collector():
        yield
        gc.freeze()


def spare_the_collector() -> None:
    """Exempt the 100,000 objects that are loaded by now from garbage collection: scanning them takes 50 ms and more.

    They are not collected first, because hardly any of them are garbage. Objects made later are collected in larger
    portions: most of them are gone by then, and a full collection, which scans all live ones, becomes rarer.
    """
    gc.freeze()
    gc.set_threshold(*COLLECTED_AT)
