"""Commits are spans only if their outputs carry a sampled trace, and are linked to it."""

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracer, StatusCode, Tracer

from faust_eos.batch import Output
from faust_eos.transaction import MAX_LINKS, commit_span

SECRET = "hunter2"


def output(trace: int, flags: int = 1) -> Output:
    return Output("out", b"key", b"", None, None, [("traceparent", f"00-{trace:032x}-{7:016x}-{flags:02x}".encode())])


PLAIN = Output("out", b"key", b"", None, None, [])


def test_a_commit_links_each_trace_of_its_outputs_once(spans: InMemorySpanExporter, tracer: Tracer) -> None:
    with commit_span(tracer, "group", [output(1), PLAIN, output(2), output(1)]):
        assert not spans.get_finished_spans()
    [span] = spans.get_finished_spans()
    assert span.name == "commit group"
    assert [(link.context.trace_id, link.context.span_id) for link in span.links] == [(1, 7), (2, 7)]
    assert span.parent is None


def test_it_has_a_bounded_number_of_links(spans: InMemorySpanExporter, tracer: Tracer) -> None:
    with commit_span(tracer, "group", [output(number) for number in range(1, 100)]):
        pass
    [span] = spans.get_finished_spans()
    assert [link.context.trace_id for link in span.links] == [*range(100 - MAX_LINKS, 100)]


@pytest.mark.parametrize("outputs", [[], [PLAIN], [output(1, flags=0)], [output(0)]])
def test_nothing_is_recorded_of_outputs_without_a_sampled_trace(
    outputs: list[Output], spans: InMemorySpanExporter, tracer: Tracer
) -> None:
    with commit_span(tracer, "group", outputs):
        pass
    assert not spans.get_finished_spans()


def test_a_commit_that_fails_is_an_error_of_its_span(spans: InMemorySpanExporter, tracer: Tracer) -> None:
    with pytest.raises(ValueError, match=SECRET), commit_span(tracer, "group", [output(1)]):
        raise ValueError(SECRET)
    [span] = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "ValueError"
    assert SECRET not in span.to_json()


def test_without_a_tracer_nothing_is_read() -> None:
    with commit_span(NoOpTracer(), "group", [Output("out", None, None, None, None, [("traceparent", b"\xff")])]):
        pass
