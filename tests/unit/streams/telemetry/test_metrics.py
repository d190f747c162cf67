"""Metrics of a worker: documented, bounded, and in Prometheus' own format."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from afterword.streams.telemetry.metrics import Metrics, oldest_pending_seconds
from faust_eos.metrics import PartitionStatus
from tests.rows import with_rows


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("segmenter", "1.2.3")


def values(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Return the samples by name and label values."""
    families = text_string_to_metric_families(metrics.text().decode())
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def test_every_metric_is_described_correctly(metrics: Metrics) -> None:
    families = {
        (family.name + ("_total" if family.type == "counter" else "")): family
        for family in text_string_to_metric_families(metrics.text().decode())
    }
    described = {name: (kind, meaning) for name, kind, _, meaning in metrics.described}
    assert {name: (family.type, family.documentation) for name, family in families.items()} == described
    assert all(name.startswith(("afterword_", "gen_ai_")) for name in families)


def test_no_label_is_an_id(metrics: Metrics) -> None:
    labels = {label for described in metrics.described for label in described.labels}
    small = {"budget", "close_reason", "error_type", "outcome", "reason", "result", "source", "stage"}
    small |= {"step", "type", "what"}
    small |= {"endpoint", "kind"}  # an endpoint of webhooks is one of the settings, by its name there
    small |= {"route", "status"}  # a route as it is written in the code, not the path of a request
    small |= {f"gen_ai_{name}" for name in ("operation_name", "provider_name", "request_model")}  # of the settings
    assert labels - small == {"partition", "role", "topic", "version"}


def test_a_process_of_several_roles_has_series_of_each() -> None:
    metrics = Metrics("segmenter", "1.2.3", "archiver")
    metrics.watch_readiness(list, "partitions")
    found = values(metrics)
    for role in ("segmenter", "archiver"):
        assert found["afterword_build_info", role, "1.2.3"] == found["afterword_ready", role] == 1
    metrics.engine_of("archiver").stalled()
    assert values(metrics)["afterword_watchdog_stalls_total", "archiver"] == 1
    assert metrics.engine_of("segmenter") is metrics.engine


def test_pending_conversations_are_counted_whichever_role_has_them() -> None:
    metrics = Metrics("archiver", "1.2.3", "segmenter")
    metrics.watch_pending(60, lambda: 0)
    metrics.engine_of("segmenter").show([PartitionStatus("messages", 0, True, 0, 0.0, scheduled=3)])
    metrics.engine.show([PartitionStatus("messages", 0, True, 0, 0.0)])
    assert values(metrics)["afterword_pending_conversations",] == 3


def test_two_workers_of_one_process_count_separately(metrics: Metrics) -> None:
    metrics.messages.labels("taken").inc()
    assert ("afterword_messages_total", "taken") in values(metrics)
    assert ("afterword_messages_total", "taken") not in values(Metrics("segmenter", "1.2.3"))


def test_no_series_tells_a_counters_creation_time(metrics: Metrics) -> None:
    metrics.messages.labels("taken").inc()
    assert b"_created" not in metrics.text()


def test_stalls_start_at_zero(metrics: Metrics) -> None:
    assert values(metrics)["afterword_watchdog_stalls_total", "segmenter"] == 0


def test_readiness_metrics_show_the_current_waiting_reasons(metrics: Metrics) -> None:
    reasons = ["partitions", "mongodb"]
    metrics.watch_readiness(lambda: reasons, assignment="partitions")
    before = values(metrics)
    assert before["afterword_ready", "segmenter"] == 0
    assert before["afterword_waiting", "mongodb"] == 1
    assert ("afterword_waiting", "partitions") not in before
    reasons.clear()
    after = values(metrics)
    assert after["afterword_ready", "segmenter"] == 1
    assert ("afterword_waiting", "mongodb") not in after


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


@with_rows
def test_overdue_conversation_is_older_than_idle_seconds(deadlines: list[int], seconds: float) -> None:
    found = [standing(number, deadline) for number, deadline in enumerate(deadlines)]
    assert oldest_pending_seconds(found, NOW_MS, IDLE_SECONDS) == seconds
