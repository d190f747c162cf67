"""How every role makes its spans: what an error says is never in them, and links are bounded."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from afterword.streams.telemetry.tracing import span_context

STEP = "afterword.step"
MAX_LINKS = 32
"""The last ones: there may be thousands of messages, and collectors refuse spans that are too large."""


@contextmanager
def current(tracer: Tracer, name: str, kind: SpanKind, attributes: Any, **options: Any) -> Iterator[Span]:
    """A span around the block; an error that leaves it is one of the span, by its type."""
    # what an exception says, and where it was raised, may hold what nobody should read in a trace
    options |= {"record_exception": False, "set_status_on_exception": False}
    with tracer.start_as_current_span(name, kind=kind, attributes=attributes, **options) as span:
        try:
            yield span
        except Exception as error:
            failed(span, type_of(error))
            raise


def failed(span: Span, error_type: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))


def type_of(error: BaseException) -> str:
    """Return the stable name of an error of ours or of the engine, else its class."""
    return str(getattr(error, "error_type", type(error).__name__))


def links(traces: Iterable[bytes]) -> list[Link]:
    """To the last of these, each once; 25 bytes each, as `trace_in` gives them, and none where there is no trace."""
    return [Link(span_context(trace)) for trace in list(dict.fromkeys(filter(None, traces)))[-MAX_LINKS:]]
