"""Options of the engine, and of the process under it: Python's garbage collector and glibc's allocator."""

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

LIFE_CYCLE = logging.getLogger("faust.engine")
"""Logger of our Faust classes; it is below `faust`, so that their starts and stops can be silenced together."""


def wall_clock_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Options:
    """Settings of the engine; the names carry the units."""

    max_batch: int = 2000
    """Maximum number of records in one transaction."""
    max_written_bytes: int = 8 * 1024 * 1024
    """Once it has written this many bytes, an agent should take no more records into a transaction: see
    `Batch.most_bytes`."""
    transaction_timeout_seconds: float = 15.0
    commit_timeout_seconds: float = 20.0
    """A commit that takes longer is aborted and retried."""
    drain_seconds: float = 30.0
    """Time to finish work in flight when the worker stops; whatever is unfinished then is dropped whole."""
    revoke_drain_seconds: float = 10.0
    """Time to finish work in flight when partitions are revoked; the whole group waits for it."""
    agent_retries: int = 3
    """Retries of a record on which the agent fails when the record is alone in its transaction."""
    retry_wait_seconds: float = 0.5
    """Wait before the first retry; it doubles with each one."""
    tick_seconds: float = 0.5
    """Interval at which the deadlines of a caught-up partition are checked."""
    tick_keys: int = 1000
    """Maximum number of due keys in one tick."""
    tidy_after_ms: int = 0
    """A row whose deadline is an `IdleSince` is due this long after it; 0 means never."""
    watchdog_seconds: float = 120.0
    """A worker that has work and makes no progress for this long is stopped."""
    handling_seconds: float = 0.0
    """Time that the agent may take beyond `watchdog_seconds` before it finishes any record (at-least-once)."""
    max_in_flight: int = 64
    """Maximum number of records of one partition that the agent may have in hand (at-least-once)."""
    max_in_flight_bytes: int = 4 * 1024 * 1024
    """Size of these records at which no further ones are handed over until some are finished, and of finished ones,
    with what they send, at which none are until those are committed (at-least-once)."""
    commit_interval_seconds: float = 1.0
    """Interval between commits that have no outputs (at-least-once); outputs are committed at once, or in a backlog up
    to a second later."""
    offset_metadata_bytes: int = 4096
    """Longest metadata of a commit (at-least-once); at most the broker's `offset.metadata.max.bytes`. It limits how far
    beyond an unfinished record others are handled."""
    stale_seconds: float = 12 * 3600.0
    """Local state older than this is rebuilt. The default is half of Kafka's default `delete.retention.ms`."""
    source_look_seconds: float = 10.0
    """Interval at which the ids and partition counts of the source topics are compared with those of the state."""
    sources_may_grow: bool = False
    """True if the sources may get more partitions: without state, it does not matter which keys a partition has."""
    clock: Callable[[], int] = wall_clock_ms


COLLECTED_AT = (10_000, 10, 10)
"""The collector's thresholds: new objects before a collection of the youngest generation, then collections of one
generation before the next older one is collected. Python's defaults are 700, 10, 10."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Parameters of glibc's mallopt."""
LARGE_BYTES = 256 * 1024
"""An allocation of this size gets pages of its own, which go back to the system when it is freed."""


def spare_the_collector(collected_at: tuple[int, int, int] = COLLECTED_AT) -> None:
    """Exempt the 100,000 objects that are loaded by now from garbage collection: scanning them takes 50 ms and more.

    They are not collected first, because hardly any of them are garbage. Objects made later are collected in larger
    portions: most of them are gone by then, and a full collection, which scans all live ones, becomes rarer.
    """
    gc.freeze()
    gc.set_threshold(*collected_at)


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
