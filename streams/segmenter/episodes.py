"""A closed episode: its rows, its `episode.closed` event, its span, and later changes."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from opentelemetry.trace import SpanKind, Tracer

from afterword.schemas import (
    CloseReason,
    ConversationDeleted,
    EpisodeAmended,
    EpisodeClosed,
    EpisodeMessage,
    MessageDeleted,
    MessageEdited,
    Source,
    fingerprint,
)
from afterword.schemas.base import EPOCH
from afterword.schemas.decoding import record_time
from afterword.schemas.episodes import metrics, turns, user_of
from afterword.schemas.headers import Headers, KafkaRecord
from afterword.schemas.ids import episode_id
from afterword.streams.segmenter.arrival import MILLISECOND, message_in, shortened_message, shown_changes
from afterword.streams.segmenter.state import Body, Scope
from afterword.streams.telemetry.tracing import context_of, links, traceparent

MAX_EVENT_BYTES = 1_000_000
"""Maximum number of bytes of an `episode.closed` event's JSON."""
LAST_MS = 253_402_300_799_999
"""The last moment that Python's calendar has, in milliseconds since 1970."""
REVISION = 1
"""Revision of an episode that is closed for the first time."""

Amendment = MessageEdited | MessageDeleted | ConversationDeleted


class ClosedEpisode(NamedTuple):
    """A closed episode, as rows of the state."""

    scope: Scope
    tenant_id: str | None
    ordinal: int
    reason: CloseReason
    core: Sequence[Body]
    overlap: Sequence[Body]

    @property
    def episode_id(self) -> str:
        return episode_id(self.scope.conversation_id, self.ordinal, self.scope.named_agent)

    @property
    def size_bytes(self) -> int:
        """Size of the messages' JSON, which is most of the event's."""
        return sum(len(body.json) for bodies in (self.core, self.overlap) for body in bodies)


def event_of(closed: ClosedEpisode, topic: str, partition: int, now_ms: int) -> EpisodeClosed:
    """Make the event. The core messages were read from `topic` and `partition`; `now_ms` is in milliseconds since 1970.

    Raises: RowUnreadable.
    """
    core = messages(closed.core)
    return EpisodeClosed(
        episode_id=closed.episode_id,
        revision=REVISION,
        conversation_id=closed.scope.conversation_id,
        user_id=user_of(core),
        agent_id=closed.scope.named_agent,
        tenant_id=closed.tenant_id,
        ordinal=closed.ordinal,
        close_reason=closed.reason,
        fingerprint=fingerprint(core),
        started_at=min(message.sent_at for message in core),  # they are in log order, and clocks differ
        ended_at=max(message.sent_at for message in core),
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


def fitting_json(event: EpisodeClosed) -> bytes:
    """Return an event's JSON, cut to MAX_EVENT_BYTES if edits, which alone can do so, have made it larger."""
    json, limit = event.to_json(), MAX_EVENT_BYTES // 2
    while len(json) > MAX_EVENT_BYTES and limit:
        event = shortened(event, limit)
        json, limit = event.to_json(), limit // 2
    return json


def shortened(event: EpisodeClosed, limit: int) -> EpisodeClosed:
    """Return the event with each message shortened to `limit` as `shortened_message` does."""
    core = tuple(shortened_message(message, limit) for message in event.messages)
    return event.model_copy(
        update={
            "messages": core,
            "overlap": tuple(shortened_message(message, limit) for message in event.overlap),
            "fingerprint": fingerprint(core),
            "metrics": metrics(core),
            "truncated": True,
        }
    )


def amended_event(event: Amendment, record: KafkaRecord, episode: tuple[Scope, int] | None) -> EpisodeAmended:
    """Make the event for a change. `episode` is the scope and ordinal of the message's episode, if they are known."""
    is_edit = isinstance(event, MessageEdited)
    known = None if episode is None else episode_id(episode[0].conversation_id, episode[1], episode[0].named_agent)
    return EpisodeAmended(
        conversation_id=event.conversation_id,
        tenant_id=event.tenant_id,
        message_id=None if isinstance(event, ConversationDeleted) else event.id,
        change="edited" if is_edit else "deleted",
        fields=shown_changes(event) if isinstance(event, MessageEdited) else {},
        episode_id=known,
        partition=record.partition,
        offset=record.offset,
        amended_at=record_time(min(max(record.timestamp, 0), LAST_MS)),  # the archiver accepts any timestamp
        reason=None if isinstance(event, MessageEdited) else event.reason,
    )


def messages(bodies: Iterable[Body]) -> tuple[EpisodeMessage, ...]:
    """Return the messages as the event carries them. Raises: RowUnreadable."""
    return tuple(message_in(body).model_copy(update={"offset": body.offset}) for body in bodies)


def span_headers(tracer: Tracer, closed: ClosedEpisode, topic: str, event_id: str) -> Headers:
    """Record the episode as a span, and return its `traceparent` for the event's record.

    The span continues the trace of the last message that has one, and links to those of the others.
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
