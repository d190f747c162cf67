"""Options of the engine."""

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
    max_batch_bytes: int = 1024 * 1024
    """Maximum number of bytes of records in one transaction, unless it has only one record."""
    max_written_bytes: int = 8 * 1024 * 1024
    """Once it has written this many bytes, an agent should take no more records into a transaction: see
    `Batch.most_bytes`."""
    linger_ms: int = 20
    """Wait between polls of a partition that lags a little; one that has caught up or is far behind does not wait."""
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
    commit_interval_seconds: float = 1.0
    """Interval between commits that have no outputs (at-least-once); outputs are committed at once."""
    offset_metadata_bytes: int = 4096
    """Longest metadata of a commit (at-least-once); at most the broker's `offset.metadata.max.bytes`. It limits how far
    beyond an unfinished record others are handled."""
    max_request_bytes: int = 2 * 1024 * 1024
    """Largest record; topics with records of that size need a `max.message.bytes` to match."""
    stale_seconds: float = 12 * 3600.0
    """Local state older than this is rebuilt. The default is half of Kafka's default `delete.retention.ms`."""
    source_look_seconds: float = 10.0
    """Interval at which the ids and partition counts of the source topics are compared with those of the state."""
    sources_may_grow: bool = False
    """True if the sources may get more partitions: without state, it does not matter which keys a partition has."""
    clock: Callable[[], int] = wall_clock_ms
