"""The engine's observer: from what it tells to metrics, and to the status."""

from collections.abc import Callable, Sequence

from afterword.streams.runtime.observer import Observer, Standing
from afterword.streams.telemetry.metrics import Metrics


class EngineMetrics(Observer):
    """`idle_seconds`: after how much silence a deadline is, for the age of what is pending; None where nothing is."""

    def __init__(self, metrics: Metrics, clock: Callable[[], int], idle_seconds: float | None = None) -> None:
        self.standings: Sequence[Standing] = ()
        """As last told."""
        self._metrics = metrics
        self._clock = clock
        self._idle_seconds = idle_seconds

    def recovered(self, records: int, seconds: float) -> None:
        self._metrics.recovery_seconds.labels(self._metrics.role).observe(seconds)
        self._metrics.recovered_records.inc(records)

    def rebalanced(self, seconds: float) -> None:
        self._metrics.rebalance_seconds.labels(self._metrics.role).observe(seconds)

    def stalled(self) -> None:
        self._metrics.stalls.labels(self._metrics.role).inc()

    def stands(self, partitions: Sequence[Standing]) -> None:
        self.standings = partitions
        metrics = self._metrics
        for gauge in (metrics.lag_records, metrics.lag_seconds, metrics.state_bytes):
            gauge.clear()  # of a partition that has moved somebody else tells now
        for found in partitions:
            labels = metrics.role, found.topic, str(found.partition)
            metrics.lag_records.labels(*labels).set(found.lag_records)
            if found.lag_seconds is not None:
                metrics.lag_seconds.labels(*labels).set(found.lag_seconds)
            if found.state_bytes is not None:
                metrics.state_bytes.labels(str(found.partition)).set(found.state_bytes)
        if self._idle_seconds is not None:
            metrics.pending_conversations.set(sum(found.scheduled or 0 for found in partitions))
            metrics.oldest_pending.set(oldest_pending_seconds(partitions, self._clock(), self._idle_seconds))


def oldest_pending_seconds(partitions: Sequence[Standing], now_ms: int, idle_seconds: float) -> float:
    deadlines = [found.next_deadline_ms for found in partitions if found.next_deadline_ms is not None]
    if not deadlines:
        return 0.0
    return max(0.0, (now_ms - min(deadlines)) / 1000 + idle_seconds)
