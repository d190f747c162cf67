"""From what the engine tells to gauges."""

import pytest
from prometheus_client import CollectorRegistry

from afterword.streams.runtime import EngineMetrics
from afterword.streams.runtime.lag import Standing
from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.metrics import oldest_pending_seconds

NOW_MS = 1_000_000
IDLE_SECONDS = 300.0


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("segmenter", "1.2.3")


@pytest.fixture
def engine(metrics: Metrics) -> EngineMetrics:
    metrics.watch_pending(IDLE_SECONDS, lambda: NOW_MS)
    return metrics.engine


def standing(partition: int, next_deadline_ms: int | None = None) -> Standing:
    return Standing("messages", partition, True, 7, 1.5, 4096, 3, next_deadline_ms)


def lag(registry: CollectorRegistry, partition: int, what: str = "records") -> float | None:
    labels = {"role": "segmenter", "topic": "messages", "partition": str(partition)}
    return registry.get_sample_value(f"afterword_consumer_lag_{what}", labels)


def test_each_partition_has_its_lag_and_its_state(engine: EngineMetrics, metrics: Metrics) -> None:
    engine.show([standing(0), standing(1)])
    assert (lag(metrics.registry, 1), lag(metrics.registry, 1, "seconds")) == (7, 1.5)
    assert metrics.registry.get_sample_value("afterword_state_bytes", {"partition": "1"}) == 4096


def test_pending_conversations_are_those_of_all_partitions(engine: EngineMetrics, metrics: Metrics) -> None:
    engine.show([standing(0), standing(1, NOW_MS)])
    metrics.text()  # as Prometheus reads it
    assert metrics.registry.get_sample_value("afterword_oldest_pending_seconds") == IDLE_SECONDS
    assert metrics.registry.get_sample_value("afterword_pending_conversations") == 6


def test_a_partition_that_has_moved_has_no_series_here_any_more(engine: EngineMetrics, metrics: Metrics) -> None:
    engine.show([standing(0), standing(1)])
    engine.show([standing(1)])
    assert lag(metrics.registry, 0) is None
    assert lag(metrics.registry, 1) == 7


def test_records_that_wait_on_purpose_have_no_lag_in_seconds(engine: EngineMetrics, metrics: Metrics) -> None:
    engine.show([Standing("episode.retry", 0, True, 7, None)])
    labels = {"role": "segmenter", "topic": "episode.retry", "partition": "0"}
    assert metrics.registry.get_sample_value("afterword_consumer_lag_records", labels) == 7
    assert metrics.registry.get_sample_value("afterword_consumer_lag_seconds", labels) is None


def test_recoveries_and_rebalances_are_counted_and_timed(engine: EngineMetrics, metrics: Metrics) -> None:
    engine.recovered(records=12, seconds=0.3)
    engine.rebalanced(seconds=2.0)
    engine.stalled()
    of_role = {"role": "segmenter"}
    assert metrics.registry.get_sample_value("afterword_recovered_records_total") == 12
    assert metrics.registry.get_sample_value("afterword_recovery_duration_seconds_sum", of_role) == 0.3
    assert metrics.registry.get_sample_value("afterword_rebalance_duration_seconds_sum", of_role) == 2.0
    assert metrics.registry.get_sample_value("afterword_watchdog_stalls_total", of_role) == 1


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
def test_what_is_overdue_is_older_than_idle_seconds(deadlines: list[int], seconds: float) -> None:
    found = [standing(number, deadline) for number, deadline in enumerate(deadlines)]
    assert oldest_pending_seconds(found, NOW_MS, IDLE_SECONDS) == seconds
