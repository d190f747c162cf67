"""Spans of commits. Attributes are named as in the semantic conventions 1.37.0 (messaging, error)."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.trace import Link, NoOpTracer, SpanContext, SpanKind, Status, StatusCode, Tracer, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from afterword.streams.runtime.batch import Headers, Output

TRACEPARENT = "traceparent"
MAX_LINKS = 32
"""Links of a span: collectors refuse spans that are too large."""
W3C = TraceContextTextMapPropagator()


@contextmanager
def commit_span(tracer: Tracer, group: str, outputs: Iterable[Output]) -> Iterator[None]:
    """Open a span around the transaction of these outputs, if some carry a sampled `traceparent`, which it links."""
    traces = [] if isinstance(tracer, NoOpTracer) else sampled_traces(outputs)
    if not traces:
        yield
        return
    attributes = {
        "messaging.system": "kafka",
        "messaging.operation.name": "commit",
        "messaging.operation.type": "settle",
        "messaging.consumer.group.name": group,
    }
    links = [Link(trace) for trace in traces[-MAX_LINKS:]]
    span = tracer.start_span(
        f"commit {group}", context=Context(), kind=SpanKind.CLIENT, attributes=attributes, links=links
    )
    try:
        yield
    except Exception as error:
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR))
        raise
    finally:
        span.end()


def sampled_traces(outputs: Iterable[Output]) -> list[SpanContext]:
    """Read each sampled trace of the outputs once."""
    found = {trace.trace_id: trace for output in outputs if (trace := _trace_of(output.headers)).trace_flags.sampled}
    return list(found.values())


def _trace_of(headers: Headers) -> SpanContext:
    text = next((value for name, value in headers if name == TRACEPARENT), b"")
    carrier = {TRACEPARENT: text.decode(errors="replace")}
    return get_current_span(W3C.extract(carrier, Context())).get_span_context()
