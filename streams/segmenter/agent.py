"""The segmenter as a Faust agent: exactly once, a batch at a time."""

from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any

import structlog
from opentelemetry.trace import Tracer

from afterword.streams.runtime import App, Batches, Tick
from afterword.streams.segmenter.outcome import Outcome, Outgoing, Totals
from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.segmenter.state import deadline_of
from afterword.streams.segmenter.tables import CONVERSATIONS, MESSAGES, TABLES
from afterword.streams.segmenter.tracing import EpisodeTracing
from afterword.streams.settings import Settings
from afterword.streams.tokens import count_tokens

__all__ = ["TABLES", "attach"]

log = structlog.get_logger()

RAW = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}


def attach(
    app: App, settings: Settings, count: Callable[[Outcome], None] = lambda _: None, tracer: Tracer | None = None
) -> None:
    """Gives the app its tables and its agent. `count` is told what each batch led to; `tracer`: None for no traces."""
    kafka = settings.kafka
    conversations = app.Table(CONVERSATIONS, key_type=bytes, value_type=bytes, deadline=deadline_of)
    messages = app.Table(MESSAGES, key_type=bytes, value_type=bytes)
    dead_letters = kafka.dead_letters(kafka.messages_topic)
    outputs = {name: app.topic(name, **RAW) for name in (kafka.episodes_topic, dead_letters)}
    segmenter = Segmenter(
        limits=settings.episodes,
        episodes_topic=kafka.episodes_topic,
        dead_letters_topic=dead_letters,
        conversations=conversations.data,
        messages=messages.data,
        count_tokens=count_tokens,
        tracing=EpisodeTracing(tracer, kafka.episodes_topic) if tracer else None,
    )

    totals = Totals()

    async def send(outgoing: Iterable[Outgoing]) -> None:
        for topic, key, value, headers in outgoing:
            await outputs[topic].send(key=key, value=value, headers=headers)

    @app.agent(app.topic(kafka.messages_topic, schema=Batches()), name="segmenter")  # type: ignore[untyped-decorator]
    async def segment(stream: AsyncIterable[Any]) -> None:
        async for work in stream:
            if isinstance(work, Tick):
                due = [key for _, key in work.due]
                outcome = segmenter.tick(due, work.now_ms, work.topic, work.partition)
            else:
                outcome = segmenter.process(work, app.engine.clock())
            await send(outcome.outgoing)
            totals.add(outcome)
            count(outcome)

    @app.on_before_shutdown.connect  # type: ignore[untyped-decorator]
    async def tell(*_: Any, **__: Any) -> None:
        log.info("handled", **{name: count for name, count in totals.counts.items() if count})
