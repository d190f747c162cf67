"""Traces from a message's `traceparent` to its summary's: one trace, without contents, and none if tracing is off."""

import asyncio
import os
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracer, StatusCode, Tracer, get_current_span
from prometheus_client.parser import text_string_to_metric_families

from afterword.schemas import SummaryCreated
from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.telemetry.metrics import Metrics, oldest_pending_seconds
from afterword.streams.telemetry.tracing import LAST_EXPORT_SECONDS, MAX_LINKS, trace_in, traceparent, tracer_from
from faust_eos.metrics import PartitionStatus
from faust_eos.transaction import Output
from tests.rows import with_rows
from tests.summarizer_world import World, a_handler, a_step_runner
from tests.unit.segmenter.chat import DEAD_LETTERS, EPISODES, NOON, Sent, characters, flush, limits, say
from tests.unit.summarizer.test_amending import DELETE_ALL, a_world, amend, archive, edit

SECRET = "hunter2"


def header(number: int, trace: int = 0xABC) -> tuple[str, bytes]:
    return "traceparent", f"00-{trace:032x}-{number:016x}-01".encode()


def traced(message_id: str, number: int, trace: int = 0xABC) -> Sent:
    sent = say(message_id, SECRET)
    return Sent(sent.key, sent.value, headers=(header(number, trace),))


def closed(records: Iterable[Sent], tracer: Tracer | None) -> list[Output]:
    """Process each record in its own batch, so that pending messages are read from their rows."""
    segmenter = Segmenter(limits(), EPISODES, DEAD_LETTERS, {}, {}, characters, tracer or NoOpTracer())
    return [sent for record in records for sent in segmenter.process([record], NOON).outgoing]


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def ids(span: ReadableSpan) -> tuple[int, int]:
    found = span.get_span_context()
    assert found is not None
    return found.trace_id, found.span_id


@pytest.mark.parametrize(
    "text", ["", "00", f"00-{0:032x}-{1:016x}-01", f"00-{1:032x}-{0:016x}-01", f"ff-{1:032x}-{1:016x}-01", "é" * 55]
)
def test_invalid_traceparent_is_ignored(text: str) -> None:
    assert trace_in([("traceparent", text.encode())]) == b""


def test_later_traceparent_version_may_be_longer() -> None:
    assert trace_in([("traceparent", f"01-{5:032x}-{6:016x}-01-more".encode())]) == trace_in([header(6, 5)])


def test_episode_continues_its_last_messages_trace(spans: InMemorySpanExporter, tracer: Tracer) -> None:
    [event] = closed([traced("m1", 1), traced("m2", 2, trace=0xDEF), traced("m3", 3), say("m4"), flush()], tracer)
    span = by_name(spans)["send episode.closed"]
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == (0xABC, 3)
    assert [(link.context.trace_id, link.context.span_id) for link in span.links] == [(0xABC, 1), (0xDEF, 2)]
    sent = trace_in(event.headers)
    assert (int.from_bytes(sent[:16]), int.from_bytes(sent[16:24])) == ids(span)


def test_episode_of_many_messages_has_bounded_links(spans: InMemorySpanExporter, tracer: Tracer) -> None:
    closed([*(traced(f"m{number}", number) for number in range(1, 101)), flush()], tracer)
    assert len(by_name(spans)["send episode.closed"].links) == MAX_LINKS


def test_tracing_does_not_change_an_episode(tracer: Tracer) -> None:
    records, plain = [traced("m1", 1), traced("m2", 2), flush()], [say("m1", SECRET), say("m2", SECRET), flush()]
    variants = [closed(records, tracer), closed(records, None), closed(plain, tracer), closed(plain, None)]
    assert len({(event.key, event.value) for [event] in variants}) == 1
    assert [event.headers for [event] in variants[1::2]] == [variants[1][0].headers] * 2
    assert "traceparent" not in dict(variants[1][0].headers)


async def summarized(record: Any, tracer: Tracer, world: World) -> list[bytes]:
    """Return the traces that summaries were sent with."""
    headers: list[bytes] = []

    async def publish(event: Any) -> None:
        if isinstance(event, SummaryCreated):
            headers.append(trace_in(traceparent(get_current_span())))

    steps = a_step_runner(tracer=tracer)
    reconciler = world.reconciler(steps=steps, publish=publish)
    event: Any = SimpleNamespace(value=record, ack=lambda: None)
    await a_handler(reconciler, no_dead_letter, tracer=tracer).handle(event)
    return headers


def no_dead_letter(_: Output) -> None: ...


def read(event: Output) -> Any:
    fields = {"topic": event.topic, "key": event.key, "value": event.value, "headers": event.headers}
    return SimpleNamespace(**fields, partition=2, offset=7, timestamp=NOON)


async def test_one_trace_leads_from_message_to_summary(spans: InMemorySpanExporter, tracer: Tracer) -> None:
    [event] = closed([traced("m1", 1), flush()], tracer)
    [sent] = await summarized(read(event), tracer, World())
    found = by_name(spans)
    assert {ids(span)[0] for span in found.values()} == {0xABC}
    process = found["process episode.closed"]
    published = {ids(span)[1] for span in spans.get_finished_spans() if span.name == "publish"}
    assert process.parent is not None
    assert process.parent.span_id == ids(found["send episode.closed"])[1]
    steps = {"find", "summarize", "create_memory", "store_rolling", "store_messages", "index", "publish"}
    assert steps <= found.keys()
    assert {span.parent.span_id for name, span in found.items() if name in steps and span.parent} == {ids(process)[1]}
    assert int.from_bytes(sent[16:24]) in published
    assert SECRET not in "".join(span.to_json() for span in spans.get_finished_spans())


async def test_episode_work_is_a_memory_operation(spans: InMemorySpanExporter, tracer: Tracer) -> None:
    world = await a_world()
    for offset, event in enumerate((edit("m4"), DELETE_ALL), 100):
        await archive(world, event, offset)
        await amend(world, event, offset, steps=a_step_runner(tracer=tracer))
    attributes = [dict(span.attributes or {}) for span in spans.get_finished_spans()]
    operations = [(one["gen_ai.operation.name"], one["gen_ai.memory.record.id"]) for one in attributes if len(one) == 3]
    assert operations[0] == ("update_memory", "c1:2")
    assert operations[-3:] == [("delete_memory", f"c1:{ordinal}") for ordinal in (1, 2, 3)]


async def test_refused_record_is_an_error_of_its_span(spans: InMemorySpanExporter, tracer: Tracer) -> None:
    record = read(Output("episode.closed", b"c1", SECRET.encode(), headers=[header(1)]))
    await summarized(record, tracer, World())
    span = by_name(spans)["process episode.closed"]
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "invalid_json"
    assert SECRET not in span.to_json()


@with_rows
async def test_tracing_is_off_unless_an_endpoint_is_set(environment: dict[str, str]) -> None:
    async with tracer_from(environment, "segmenter", "1.2.3") as tracer:
        assert isinstance(tracer, NoOpTracer)


async def test_absent_collector_does_not_delay_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    async with (
        asyncio.timeout(2 * LAST_EXPORT_SECONDS + 5),
        tracer_from(os.environ, "segmenter", "1.2.3", LAST_EXPORT_SECONDS) as tracer,
    ):
        assert not isinstance(tracer, NoOpTracer)
        tracer.start_span("one").end()


async def test_no_trace_continues_without_a_tracer() -> None:
    [event] = closed([traced("m1", 1), flush()], None)
    incoming = replace(event, headers=[*event.headers, header(9)])
    assert await summarized(read(incoming), NoOpTracer(), World()) == [b""]


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


def test_no_metric_label_is_an_id(metrics: Metrics) -> None:
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


def test_two_workers_of_one_process_have_separate_metrics(metrics: Metrics) -> None:
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
