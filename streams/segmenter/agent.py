"""The segmenter as a Faust agent: exactly once, a batch at a time."""

from collections import Counter
from collections.abc import AsyncIterable, Iterable
from typing import Any

import structlog
from opentelemetry.trace import Tracer

from afterword.streams.runtime import App, Batches, Tick
from afterword.streams.segmenter.processor import STAGE, Outcome, Outgoing, Segmenter
from afterword.streams.segmenter.state import CONVERSATIONS, MESSAGES, deadline_of
from afterword.streams.settings import Settings
from afterword.streams.telemetry import Metrics
from afterword.streams.tokens import count_tokens

log = structlog.get_logger()

RAW = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}


def attach(app: App, settings: Settings, metrics: Metrics, tracer: Tracer) -> None:
    """Give the app its tables and its agent."""
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
        tracer=tracer,
    )
    totals: Counter[str] = Counter()

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
            totals.update(totals_of(outcome))
            count(outcome, metrics)

    @app.on_before_shutdown.connect  # type: ignore[untyped-decorator]
    async def log_totals(*_: Any, **__: Any) -> None:
        log.info("messages_segmented", **{name: number for name, number in totals.items() if number})


def totals_of(outcome: Outcome) -> dict[str, int]:
    """An outcome's numbers by name, for the log; a batch that had to be run again counts again."""
    return {
        **{name: getattr(outcome, name) for name in ("messages", "duplicates", "skipped", "flushes")},
        **{f"dead_letters_{error_type}": number for error_type, number in outcome.dead_letters.items()},
        **{f"episodes_{reason}": number for reason, number in outcome.episodes.items()},
    }


def count(outcome: Outcome, metrics: Metrics) -> None:
    """Add an outcome to the metrics: once for a batch, not for each message."""
    metrics.messages.labels("taken").inc(outcome.messages)
    metrics.messages.labels("duplicate").inc(outcome.duplicates)
    metrics.messages.labels("skipped").inc(outcome.skipped)
    metrics.messages.labels("dead_letter").inc(outcome.dead_letters.total())
    metrics.state_unreadable.inc(outcome.unreadable)
    for error_type, number in outcome.dead_letters.items():
        metrics.count_dead_letters(STAGE, error_type, number)
    for reason, number in outcome.episodes.items():
        metrics.episodes_closed.labels(reason).inc(number)
