"""What can be set about the engine."""

import time
from collections.abc import Callable
from dataclasses import dataclass


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Options:
    """Settings of the engine; the names carry the units."""

    max_batch: int = 2000
    """Records that one transaction takes at most."""
    linger_ms: int = 20
    """Wait between polls of a partition with a little lag; none when it is caught up or far behind."""
    transaction_timeout_seconds: float = 15.0
    commit_timeout_seconds: float = 20.0
    start_timeout_seconds: float = 60.0
    """Opening a partition's transactional producer, which waits for the end of its last owner's transaction."""
    drain_seconds: float = 30.0
    """What is in flight at a stop is finished within this, or dropped whole."""
    revoke_drain_seconds: float = 10.0
    """The same when partitions are revoked, where the whole group waits."""
    agent_retries: int = 3
    retry_wait_seconds: float = 0.5
    """Doubles with each retry of a batch."""
    tick_seconds: float = 0.5
    """How often the deadlines of a caught-up partition are looked at."""
    tick_keys: int = 1000
    """Due keys that one tick takes at most."""
    watchdog_seconds: float = 120.0
    """A worker that has something to do and gets nothing done for so long stops."""
    handling_seconds: float = 0.0
    """At-least-once: how much longer the agent may take with what it has in hand, until it is done with any of it."""
    max_in_flight: int = 64
    """At-least-once: records of one partition in the agent's hands."""
    commit_interval_seconds: float = 1.0
    """At-least-once: how often the lowest unfinished offset is committed."""
    max_produce_batch_bytes: int = 512 * 1024
    max_request_bytes: int = 2 * 1024 * 1024
    """The largest record; topics that take such records need `max.message.bytes` to match."""
    write_buffer_bytes: int = 4 * 1024 * 1024
    block_cache_bytes: int = 64 * 1024 * 1024
    """One cache for all partitions of the worker; RocksDB's own default is far more, for each of them."""
    stale_seconds: float = 12 * 3600.0
    """Local state older than this is made anew; half of Kafka's default `delete.retention.ms`."""
    clock: Callable[[], int] = wall_clock_ms
