"""Less memory and CPU time for a worker: settings of Python's garbage collector and of glibc's allocator."""

import gc

COLLECTED_AT = (10_000, 10, 10)
"""The collector's thresholds: new objects before a collection of the youngest generation, then collections of one
generation before the next older one is collected. Python's defaults are 700, 10, 10."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Parameters of glibc's mallopt."""
LARGE_BYTES = 256 * 1024
"""An allocation of this size gets pages of its own, which go back to the system when it is freed."""


def spare_the_collector() -> None:
    """Exempt the 100,000 objects that are loaded by now from garbage collection: scanning them takes 50 ms and more.

    They are not collected first, because hardly any of them are garbage. Objects made later are collected in larger
    portions: most of them are gone by then, and a full collection, which scans all live ones, becomes rarer.
    """
    gc.freeze()
    gc.set_threshold(*COLLECTED_AT)


def allocate_sparingly() -> None:
    """Let all threads allocate from one arena, and keep little of what they free. Call this before starting threads.

    By default each thread has its own arena, which keeps whatever the thread once needed: 13 MB in a summarizer.
    Python's threads seldom wait for each other in the allocator, because only one of them runs at a time. A segmenter
    with a million open conversations takes 34 MB less, and recovers them a sixth more slowly. Without glibc this does
    nothing.
    """
    import ctypes  # imported here because every command imports this module for the collector's thresholds

    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        for parameter, value in ((M_ARENA_MAX, 1), (M_MMAP_THRESHOLD, LARGE_BYTES), (M_TRIM_THRESHOLD, LARGE_BYTES)):
            option(parameter, value)


def return_freed_memory() -> None:
    """Return the memory that loading has freed, some 10 MB, to the system; glibc's allocator would keep it."""
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
