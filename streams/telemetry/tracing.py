"""Traces, which are off unless an OTLP endpoint is set. No tracer is global, and no span has contents.

Attributes are named as in OpenTelemetry's semantic conventions 1.45.0 (messaging, error) and those of `GenAI`.
"""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Literal

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    NoOpTracer,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from afterword.schemas.records import Headers, KafkaRecord, header
from afterword.streams.errors import ConfigurationError

MemoryChange = Literal["create_memory", "update_memory", "delete_memory"]


class GenAI:
    """Names of OpenTelemetry's GenAI semantic conventions 0.1.0, which are otherwise only in `telemetry/metrics.toml`.

    They moved to a repository of their own, open-telemetry/semantic-conventions-genai, which depends on the general
    conventions 1.45.0.
    """

    SCHEMA_URL = "https://opentelemetry.io/schemas/gen-ai/0.1.0"
    OPERATION = "gen_ai.operation.name"
    PROVIDER = "gen_ai.provider.name"
    REQUEST_MODEL = "gen_ai.request.model"
    INPUT_TOKENS = "gen_ai.usage.input_tokens"
    CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
    OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
    RECORD_ID = "gen_ai.memory.record.id"
    RECORD_COUNT = "gen_ai.memory.record.count"
    CHAT = "chat"
    SEARCH_MEMORY = "search_memory"


TRACEPARENT = "traceparent"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
LAST_EXPORT_SECONDS = 2.0
"""Limit for a worker, whose supervisor waits for its end."""
COMMANDS_EXPORT_SECONDS = 10.0
"""Limit for a command, which may export all its spans at its end."""
MAX_LINKS = 32
"""Maximum number of links of a span: a batch has thousands of messages, and collectors refuse spans that are too
large."""
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


@asynccontextmanager
async def tracer_from(
    environment: Mapping[str, str], role: str, version: str, export_seconds: float = COMMANDS_EXPORT_SECONDS
) -> AsyncIterator[Tracer]:
    """Make a process's tracer, and export its last spans within `export_seconds` at the end.

    It exports to the endpoint in the standard variables, and does nothing if there is none or if they turn tracing off.
    Raises: ConfigurationError for any protocol but HTTP.
    """
    is_off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    is_off |= environment.get("OTEL_TRACES_EXPORTER") == "none"
    if is_off or not any(environment.get(name) for name in ENDPOINTS):
        yield NoOpTracer()
        return
    named = next((name for name in PROTOCOLS if environment.get(name)), None)
    if named and environment[named] != PROTOCOL:
        raise ConfigurationError(setting=named, problem=f"only {PROTOCOL} is supported")
    # imported here, because a worker without traces starts 0.1 s sooner without them
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    ours = Resource.create({"service.name": f"afterword-{role}", "service.version": version})
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield provider.get_tracer("afterword", schema_url=GenAI.SCHEMA_URL)
    finally:
        # An unavailable collector must not delay the end of the process. A daemon thread, because the event loop waits
        # for its own threads
        sending = threading.Thread(target=provider.shutdown, daemon=True)
        sending.start()
        await asyncio.to_thread(sending.join, export_seconds)


def trace_in(headers: Iterable[tuple[str, bytes | None]] | None) -> bytes:
    """Read a record's `traceparent` (W3C Trace Context).

    Returns 25 bytes of trace id, span id and flags; empty if it is invalid.
    """
    match = _TRACEPARENT.fullmatch(header(headers, TRACEPARENT) or "")
    trace = bytes.fromhex("".join(match.groups())) if match else b""
    return trace if trace and span_context(trace).is_valid else b""


def span_context(trace: bytes) -> SpanContext:
    """Decode 25 bytes as `trace_in` returns them."""
    ids = int.from_bytes(trace[:16]), int.from_bytes(trace[16:24])
    return SpanContext(*ids, is_remote=True, trace_flags=TraceFlags(trace[24]))


def context_of(trace: bytes) -> Context:
    """Make the context of a span that continues this trace, or begins a new one if `trace` is empty."""
    return set_span_in_context(NonRecordingSpan(span_context(trace)), Context()) if trace else Context()


def traceparent(span: Span) -> Headers:
    """Make the header of a record that is sent in this span."""
    own = span.get_span_context()
    text = f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"
    return [(TRACEPARENT, text.encode())] if own.is_valid else []


@contextmanager
def open_span(tracer: Tracer, name: str, kind: SpanKind, attributes: Any, **options: Any) -> Iterator[Span]:
    """Open a span around the block; an error that leaves the block is recorded by its type."""
    if isinstance(tracer, NoOpTracer):  # the no-op tracer would make the remote parent the current span
        yield INVALID_SPAN
        return
    # messages and stack traces of exceptions may quote contents
    options |= {"record_exception": False, "set_status_on_exception": False}
    with tracer.start_as_current_span(name, kind=kind, attributes=attributes, **options) as span:
        try:
            yield span
        except Exception as error:
            # errors of Afterword and of the engine have an `error_type`
            mark_failed(span, str(getattr(error, "error_type", type(error).__name__)))
            raise


def process_span(
    tracer: Tracer, record: KafkaRecord, group: str, further: Mapping[str, Any], **options: Any
) -> AbstractContextManager[Span]:
    """Open a span around the handling of a record, or of a batch that begins with it, by a consumer group."""
    attributes = {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": record.topic,
        "messaging.destination.partition.id": str(record.partition),
        "messaging.consumer.group.name": group,
        **further,
    }
    return open_span(tracer, f"process {record.topic}", SpanKind.CONSUMER, attributes, **options)


def mark_failed(span: Span, error_type: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))


def links(traces: Iterable[bytes]) -> list[Link]:
    """Link each of these traces once, at most the last MAX_LINKS; empty ones are left out."""
    return [Link(span_context(trace)) for trace in list(dict.fromkeys(filter(None, traces)))[-MAX_LINKS:]]
