"""Traces: off unless an OTLP endpoint is set. Nothing is global, and no content is ever recorded.

Names of attributes are those of the semantic conventions of version 1.37.0 (messaging, gen_ai, error).
"""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags, Tracer, set_span_in_context

from afterword.schemas.headers import Headers, header
from afterword.streams.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
TRACEPARENT = "traceparent"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
LAST_EXPORT_SECONDS = 2.0
"""Of a worker: its supervisor waits for it."""
COMMANDS_EXPORT_SECONDS = 10.0
"""Of a command: all that it has to tell may still be there at its end."""
TRACE_BYTES = 25
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


def tracing_from(environment: Mapping[str, str], role: str, version: str) -> "TracerProvider | None":
    """Exports to the endpoint that the standard variables name; None when none is, or when they turn tracing off.

    Raises: ConfigurationError for a protocol that is not spoken here.
    """
    if not any(environment.get(name) for name in ENDPOINTS) or is_off(environment):
        return None
    named = next((name for name in PROTOCOLS if environment.get(name)), None)
    if named and environment[named] != PROTOCOL:
        raise ConfigurationError(setting=named, problem=f"only {PROTOCOL} is spoken here")
    return exporting({"service.name": f"afterword-{role}", "service.version": version})


def exporting(resource: Mapping[str, str]) -> "TracerProvider":
    """To where the standard variables say; they may add to the resource."""
    # Imported here: a worker that traces nothing starts a tenth of a second sooner without
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    ours = Resource.create(resource)
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def is_off(environment: Mapping[str, str]) -> bool:
    """Whatever endpoint is set."""
    disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return disabled or environment.get("OTEL_TRACES_EXPORTER") == "none"


def tracer_of(provider: "TracerProvider") -> Tracer:
    return provider.get_tracer("afterword", schema_url=SCHEMA_URL)


@asynccontextmanager
async def tracer_from(environment: Mapping[str, str], role: str, version: str) -> AsyncIterator[Tracer | None]:
    """See `tracing_from`; sends what is left at the end."""
    provider = tracing_from(environment, role, version)
    try:
        yield tracer_of(provider) if provider else None
    finally:
        if provider:
            await close(provider, COMMANDS_EXPORT_SECONDS)


async def close(provider: "TracerProvider", seconds: float = LAST_EXPORT_SECONDS) -> None:
    """Sends what is left, if that is quickly done: a receiver that is away must not hold up the end."""
    sending = threading.Thread(target=provider.shutdown, daemon=True)  # of the loop's own threads each is waited for
    sending.start()
    await asyncio.to_thread(sending.join, seconds)


def trace_in(headers: Iterable[tuple[str, bytes | None]] | None) -> bytes:
    """Trace id, span id and flags of a record's `traceparent` in 25 bytes; empty without a valid one.

    The header is that of W3C Trace Context.
    """
    found = _TRACEPARENT.fullmatch(header(headers, TRACEPARENT) or "")
    trace = bytes.fromhex("".join(found.groups())) if found else b""
    return trace if trace and span_context(trace).is_valid else b""


def span_context(trace: bytes) -> SpanContext:
    """Of 25 bytes, as `trace_in` gives them."""
    ids = int.from_bytes(trace[:16]), int.from_bytes(trace[16:24])
    return SpanContext(*ids, is_remote=True, trace_flags=TraceFlags(trace[24]))


def context_of(trace: bytes) -> Context:
    """What a span that continues this trace is started in; a new trace where there is none."""
    return set_span_in_context(NonRecordingSpan(span_context(trace)), Context()) if trace else Context()


def traceparent(span: Span) -> Headers:
    """The header of a record that is sent in this span."""
    own = span.get_span_context()
    text = f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"
    return [(TRACEPARENT, text.encode())] if own.is_valid else []
