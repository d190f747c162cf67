"""The spans of one record's way through the summarizer, beside the metrics."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from opentelemetry.trace import Span, SpanKind, Tracer

from afterword.streams.summarizer.counting import Counting, outcome_of
from afterword.streams.summarizer.observer import Answered
from afterword.streams.summarizer.providers.endpoint import Reply
from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.tracing import open_span


class Tracing(Counting):
    """Continues the trace that a record names, and hands it on with the summary."""

    def __init__(self, metrics: Metrics, tracer: Tracer) -> None:
        super().__init__(metrics)
        self._tracer = tracer

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

    def _span(self, name: str, kind: SpanKind, attributes: Any, **options: Any) -> AbstractContextManager[Span]:
        return open_span(self._tracer, name, kind, attributes, **options)
