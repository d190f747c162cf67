"""What the archiver tells of its batches: spans that link the messages' own, and how long a write took."""

from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, Tracer

from afterword.consumers.archiver_observer import Rebalances, Telling
from afterword.streams.errors import StoreUnavailable
from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.spans import MAX_LINKS

SECRET = "hunter2"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("archiver", "1.2.3")


@pytest.fixture
def telling(tracer: Tracer, metrics: Metrics) -> Telling:
    return Telling(metrics, tracer, "messages", "archivers")


def record(span: int | None = None) -> Any:
    header = [("traceparent", f"00-{0xABC:032x}-{span:016x}-01".encode())] if span else []
    return SimpleNamespace(headers=header, value=SECRET.encode())


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def count(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"afterword_{name}_count", labels)


def test_a_batch_is_a_span_that_links_its_messages_and_its_write_is_one_in_it(
    telling: Telling, spans: InMemorySpanExporter
) -> None:
    with telling.batch([record(1), record(), record(2), record(1)]), telling.writing(3):
        pass
    process, archive = by_name(spans)["process messages"], by_name(spans)["archive"]
    assert [link.context.span_id for link in process.links] == [1, 2]
    assert process.parent is None
    assert process.attributes is not None
    assert process.attributes["messaging.batch.message_count"] == 4
    assert archive.parent is not None
    assert archive.parent.span_id == process.context.span_id
    assert SECRET not in process.to_json() + archive.to_json()


def test_a_batch_of_many_messages_has_a_bounded_number_of_links(telling: Telling, spans: InMemorySpanExporter) -> None:
    with telling.batch([record(number) for number in range(1, 2000)]):
        pass
    links = by_name(spans)["process messages"].links
    assert [link.context.span_id for link in links] == list(range(2000 - MAX_LINKS, 2000))


def test_what_goes_wrong_is_named_by_its_type(telling: Telling, spans: InMemorySpanExporter, metrics: Metrics) -> None:
    with pytest.raises(StoreUnavailable), telling.batch([record(1)]), telling.writing(1):
        raise StoreUnavailable(store="mongodb", problem=SECRET)
    for span in by_name(spans).values():
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes is not None
        assert span.attributes["error.type"] == "store_unavailable"
        assert SECRET not in span.to_json()
    assert not count(metrics, "step_duration_seconds", step="archive")


def test_writes_are_measured_without_a_collector_too(metrics: Metrics) -> None:
    telling = Telling(metrics, None, "messages", "archivers")
    with telling.batch([record(1)]), telling.writing(1):
        pass
    assert count(metrics, "step_duration_seconds", step="archive") == 1


def test_each_rebalance_is_measured_the_first_assignment_included(metrics: Metrics) -> None:
    rebalances = Rebalances(metrics.engine)
    rebalances.on_partitions_assigned([])
    rebalances.on_partitions_revoked([])
    rebalances.on_partitions_assigned([])
    assert count(metrics, "rebalance_duration_seconds", role="archiver") == 2
