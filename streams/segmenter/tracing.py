"""A closed episode as a span: it continues the trace of its last message and links those of the others."""

from opentelemetry.trace import SpanKind, Tracer
from opentelemetry.util.types import AttributeValue

from afterword.schemas.headers import Headers
from afterword.streams.segmenter.episodes import Closed
from afterword.streams.telemetry.tracing import context_of, links, traceparent


class EpisodeTracing:
    """Nothing here changes what an event says: only headers, which may differ when it is written again."""

    def __init__(self, tracer: Tracer, topic: str) -> None:
        self._tracer = tracer
        self._attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
        }

    def headers(self, closed: Closed, event_id: str) -> Headers:
        """What the event's record carries."""
        traces = list(dict.fromkeys(body.trace for body in closed.core if body.trace))
        parent, others = (traces[-1], traces[:-1]) if traces else (b"", [])
        attributes: dict[str, AttributeValue] = {
            **self._attributes,
            "messaging.message.id": event_id,
            "afterword.close_reason": closed.reason,
            "afterword.message_count": len(closed.core),
        }
        span = self._tracer.start_span(
            f"send {self._attributes['messaging.destination.name']}",
            context=context_of(parent),
            kind=SpanKind.PRODUCER,
            attributes=attributes,
            links=links(others),
        )
        span.end()
        return traceparent(span)
