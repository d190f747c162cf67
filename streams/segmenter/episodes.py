"""An episode that is over, as rows, as an `episode.closed` event and as a span."""

from collections.abc import Iterable, Sequence
from itertools import chain
from math import fsum
from typing import NamedTuple

from opentelemetry.trace import SpanKind, Tracer

from afterword.schemas import CloseReason, EpisodeClosed, EpisodeMessage, EpisodeMetrics, Source, fingerprint
from afterword.schemas.headers import Headers
from afterword.schemas.ids import episode_id
from afterword.streams.segmenter.arrival import EPOCH, MILLISECOND, message_in
from afterword.streams.segmenter.state import Body, Scope
from afterword.streams.telemetry.tracing import context_of, links, traceparent


class ClosedEpisode(NamedTuple):
    """An episode that is over, as rows."""

    scope: Scope
    tenant_id: str | None
    ordinal: int
    reason: CloseReason
    core: Sequence[Body]
    overlap: Sequence[Body]


def event_of(closed: ClosedEpisode, topic: str, partition: int, now_ms: int) -> EpisodeClosed:
    """`topic` and `partition`: where the core messages were read; `now_ms`: milliseconds since 1970."""
    core = messages(closed.core)
    return EpisodeClosed(
        episode_id=episode_id(closed.scope.conversation_id, closed.ordinal, closed.scope.named_agent),
        revision=1,
        conversation_id=closed.scope.conversation_id,
        user_id=user_of(core),
        agent_id=closed.scope.named_agent,
        tenant_id=closed.tenant_id,
        ordinal=closed.ordinal,
        close_reason=closed.reason,
        fingerprint=fingerprint(core),
        started_at=core[0].sent_at,
        ended_at=core[-1].sent_at,
        closed_at=EPOCH + now_ms * MILLISECOND,
        messages=core,
        overlap=messages(closed.overlap),
        message_count=len(core),
        turn_count=turns(core),
        token_count=sum(body.tokens for body in closed.core),
        metrics=metrics(core),
        source=Source(
            topic=topic,
            partition=partition,
            first_offset=closed.core[0].offset,
            last_offset=closed.core[-1].offset,
        ),
    )


def messages(bodies: Iterable[Body]) -> tuple[EpisodeMessage, ...]:
    """Raises: RowUnreadable."""
    return tuple(message_in(body) for body in bodies)


def user_of(core: Sequence[EpisodeMessage]) -> str:
    """User of the first `user` message, or of the first message when no user speaks."""
    return next((m.user_id for m in core if m.role == "user"), core[0].user_id)


def turns(core: Sequence[EpisodeMessage]) -> int:
    """Number of turns: a user message and all up to the next; what comes before the first user message is one too."""
    return sum(1 for m in core if m.role == "user") + (core[0].role != "user")


def metrics(core: Sequence[EpisodeMessage]) -> EpisodeMetrics:
    sentiments = [m.sentiment for m in core if m.sentiment is not None]
    mean = fsum(sentiments) / len(sentiments) if sentiments else None
    return EpisodeMetrics(
        flows_activated=unique(m.flows for m in core),
        tools_invoked=unique(m.tools for m in core),
        average_sentiment=mean,
        sentiment_variance=None if mean is None else variance(sentiments, mean),
    )


def unique(lists: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Each once, in order of first use."""
    return tuple(dict.fromkeys(chain.from_iterable(lists)))


def variance(numbers: Sequence[float], mean: float) -> float:
    """Variance of the population."""
    return fsum((n - mean) ** 2 for n in numbers) / len(numbers)


def span_headers(tracer: Tracer, closed: ClosedEpisode, topic: str, event_id: str) -> Headers:
    """Record the episode as a span, and return its `traceparent` for the event's record.

    The span continues the trace of the last message that has one, and links those of the others.
    """
    traces = list(dict.fromkeys(body.trace for body in closed.core if body.trace))
    span = tracer.start_span(
        f"send {topic}",
        context=context_of(traces[-1] if traces else b""),
        kind=SpanKind.PRODUCER,
        attributes={
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
            "messaging.message.id": event_id,
            "afterword.close_reason": closed.reason,
            "afterword.message_count": len(closed.core),
        },
        links=links(traces[:-1]),
    )
    span.end()
    return traceparent(span)
