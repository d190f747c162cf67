"""Pending conversations, computed from the status of the engine's partitions when the metrics are read."""

import pytest

from afterword.streams.telemetry import Metrics, oldest_pending_seconds
from faust_eos.metrics import PartitionStatus

NOW_MS = 1_000_000
IDLE_SECONDS = 300.0


def standing(partition: int, next_deadline_ms: int | None = None) -> PartitionStatus:
    return PartitionStatus("messages", partition, True, 7, 1.5, 4096, 3, next_deadline_ms)


def test_pending_conversations_cover_all_partitions() -> None:
    metrics = Metrics("segmenter", "1.2.3")
    metrics.watch_pending(IDLE_SECONDS, lambda: NOW_MS)
    metrics.engine.show([standing(0), standing(1, NOW_MS)])
    metrics.text()  # as Prometheus reads it
    assert metrics.registry.get_sample_value("afterword_oldest_pending_seconds") == IDLE_SECONDS
    assert metrics.registry.get_sample_value("afterword_pending_conversations") == 6


@pytest.mark.parametrize(
    ("deadlines", "seconds"),
    [
        ([], 0.0),
        ([NOW_MS + 300_000], 0.0),
        ([NOW_MS + 100_000, NOW_MS + 200_000], 200.0),
        ([NOW_MS - 60_000], 360.0),
        ([NOW_MS + 400_000], 0.0),
    ],
)
def test_overdue_conversation_is_older_than_idle_seconds(deadlines: list[int], seconds: float) -> None:
    found = [standing(number, deadline) for number, deadline in enumerate(deadlines)]
    assert oldest_pending_seconds(found, NOW_MS, IDLE_SECONDS) == seconds
