"""The spans of one record's way through the summarizer, beside the metrics."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from opentelemetry.trace import Span, SpanKind, Tracer, get_current_span
from opentelemetry.util.types import AttributeValue

from afterword.schemas.headers import Headers
from afterword.streams.summarizer.counting import Counting, outcome_of
from afterword.streams.summarizer.observer import Answered
from afterword.streams.summarizer.providers.endpoint import Reply
from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.tracing import STEP, context_of, current, failed, trace_in, traceparent

PUBLISH = "publish"
"""The step in which the summary is sent."""


class Tracing(Counting):
    """Continues the trace that a record names, and hands it on with the summary."""

    def __init__(self, metrics: Metrics, tracer: Tracer, group: str) -> None:
        super().__init__(metrics)
        self._tracer = tracer
        self._group = group

    @contextmanager
    def record(self, record: Any) -> Iterator[None]:
        attributes: dict[str, AttributeValue] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": record.topic,
            "messaging.destination.partition.id": str(record.partition),
            "messaging.kafka.offset": record.offset,
            "messaging.consumer.group.name": self._group,
        }
        trace = trace_in(record.headers)
        with self._span(f"process {record.topic}", SpanKind.CONSUMER, attributes, context=context_of(trace)):
            yield

    @contextmanager
    def step(self, stage: str) -> Iterator[None]:
        kind = SpanKind.PRODUCER if stage == PUBLISH else SpanKind.INTERNAL
        with self._span(stage, kind, {STEP: stage}), super().step(stage):
            yield

    @contextmanager
    def question(self, endpoint: str, model: str | None) -> Iterator[Answered]:
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": endpoint}
        if model:
            attributes["gen_ai.request.model"] = model
        name = f"chat {model}" if model else "chat"
        with self._span(name, SpanKind.CLIENT, attributes) as span, super().question(endpoint, model) as answered:

            def told(reply: Reply) -> None:
                answered(reply)
                span.set_attributes(
                    {
                        "gen_ai.usage.input_tokens": reply.usage.prompt_tokens,
                        "gen_ai.usage.output_tokens": reply.usage.completion_tokens,
                        "afterword.outcome": outcome_of(reply),
                    }
                )

            yield told

    def headers(self) -> Headers:
        return traceparent(get_current_span())

    def buried(self, stage: str, error_type: str) -> None:
        super().buried(stage, error_type)
        failed(get_current_span(), error_type)

    def _span(self, name: str, kind: SpanKind, attributes: Any, **options: Any) -> AbstractContextManager[Span]:
        return current(self._tracer, name, kind, attributes, **options)
