"""The engine's metrics, in a separate registry."""

import pytest
from prometheus_client import CollectorRegistry

from faust_eos.metrics import EngineMetrics, PartitionStatus

ROLE = {"role": "counter"}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> EngineMetrics:
    return EngineMetrics(registry, "counter")


def standing(partition: int) -> PartitionStatus:
    return PartitionStatus("orders", partition, True, 7, 1.5, state_bytes=4096)


def lag(registry: CollectorRegistry, partition: int, unit: str = "records") -> float | None:
    labels = {**ROLE, "topic": "orders", "partition": str(partition)}
    return registry.get_sample_value(f"engine_consumer_lag_{unit}", labels)


def test_each_partition_has_its_lag_and_its_state(metrics: EngineMetrics, registry: CollectorRegistry) -> None:
    metrics.show([standing(0), standing(1)])
    assert (lag(registry, 1), lag(registry, 1, "seconds")) == (7, 1.5)
    assert registry.get_sample_value("engine_state_bytes", {"partition": "1"}) == 4096


def test_partition_that_moved_away_has_no_series(metrics: EngineMetrics, registry: CollectorRegistry) -> None:
    metrics.show([standing(0), standing(1)])
    metrics.show([standing(1)])
    assert lag(registry, 0) is None
    assert lag(registry, 1) == 7


def test_groups_of_one_process_have_separate_series(metrics: EngineMetrics, registry: CollectorRegistry) -> None:
    other = metrics.of_group("other")
    metrics.show([standing(0)])
    other.show([standing(0), standing(1)])
    other.show([standing(1)])
    labels = {"role": "other", "topic": "orders"}
    names = [registry.get_sample_value("engine_consumer_lag_records", labels | {"partition": n}) for n in "01"]
    assert (lag(registry, 0), names) == (7, [None, 7])
    assert (metrics.partition_statuses, other.partition_statuses) == ([standing(0)], [standing(1)])
    assert metrics.groups == [metrics, other]
    assert registry.get_sample_value("engine_records_expired_total", {"role": "other"}) == 0
    other.expired(3)
    assert registry.get_sample_value("engine_records_expired_total", {"role": "other"}) == 3


def test_recoveries_rebalances_stalls_and_losses_are_counted_and_timed(
    metrics: EngineMetrics, registry: CollectorRegistry
) -> None:
    assert registry.get_sample_value("engine_watchdog_stalls_total", ROLE) == 0
    metrics.recovered(records=12, seconds=0.3)
    metrics.rebalanced(seconds=2.0)
    assert registry.get_sample_value("engine_records_expired_total", ROLE) == 0
    metrics.stalled()
    metrics.expired(12)
    assert registry.get_sample_value("engine_recovered_records_total") == 12
    assert registry.get_sample_value("engine_recovery_duration_seconds_sum", ROLE) == 0.3
    assert registry.get_sample_value("engine_rebalance_duration_seconds_sum", ROLE) == 2.0
    assert registry.get_sample_value("engine_watchdog_stalls_total", ROLE) == 1
    assert registry.get_sample_value("engine_records_expired_total", ROLE) == 12


def test_described_metrics_keep_their_full_names(metrics: EngineMetrics) -> None:
    assert {family.name for family in metrics.described} >= {"engine_state_bytes", "engine_recovered_records_total"}
