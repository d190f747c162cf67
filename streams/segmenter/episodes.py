"""Turns records into rows, and rows into events.

A message becomes an `Arrival` and its row, an edit or a deletion changes the row, and the rows of a closed episode
become its `episode.closed` event and its span.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import orjson
from opentelemetry.trace import SpanKind, Tracer
from pydantic import ValidationError

from afterword.schemas import (
    CloseReason,
    ConversationAssigned,
    ConversationDeleted,
    EpisodeAmended,
    EpisodeClosed,
    EpisodeMessage,
    InvalidRecord,
    MessageCreated,
    MessageDeleted,
    MessageEdited,
    Source,
    fingerprint,
)
from afterword.schemas.base import episode_id, milliseconds, moment_at
from afterword.schemas.episodes import ASSIGNED, CARRIED, metrics, turns, user_of
from afterword.schemas.records import Headers, KafkaRecord, record_time
from afterword.streams.errors import RowUnreadable
from afterword.streams.segmenter.state import Body, Scope, State, Totals, event_time, id_digest
from afterword.streams.telemetry.tracing import context_of, links, traceparent

MAX_MESSAGE_BYTES = 800_000
"""Maximum number of bytes that one message may add to an episode; with overlap and envelope, the event stays below a
megabyte."""
MAX_EVENT_BYTES = 1_000_000
"""Maximum number of bytes of an `episode.closed` event's JSON."""
LAST_MS = 253_402_300_799_999
"""The last moment that Python's calendar has, in milliseconds since 1970."""
REVISION = 1
"""Revision of an episode that is closed for the first time."""


class Arrival(NamedTuple):
    """An accepted message: what the rules look at, and what its row will keep."""

    body: Body
    counted: Totals
    """The amounts that the message adds to an episode's counters."""
    agent_id: str | None
    tenant_id: str | None
    sent_ms: int
    """Event time in milliseconds since 1970."""
    record_ms: int
    """The record's timestamp in milliseconds since 1970."""
    event_ms: int
    """Event time as far as the record confirms it, in milliseconds since 1970.

    A message that waited in another scope has that scope's latest time here, so there is no gap between such messages.
    """


def from_record(message: MessageCreated, record: KafkaRecord, tokens: int, trace: bytes) -> Arrival:
    """Make an arrival from a record. `tokens` counts its content's tokens, and `trace` is stored as in `Body`.

    Raises: InvalidRecord if the message is too large.
    """
    assert message.sent_at is not None  # noqa: S101 – decoding fills it in
    json, sent_ms = message.to_json(include=CARRIED), milliseconds(message.sent_at)
    body = Body(id_digest(message.id), json, tokens, record.offset, message.is_continuation, trace=trace)
    counted = totals_of(message, body)
    if counted.episode_bytes > MAX_MESSAGE_BYTES:
        problem = f"takes {counted.episode_bytes} bytes of an episode, at most {MAX_MESSAGE_BYTES} fit"
        raise InvalidRecord("too_large", problem)
    return Arrival(
        body=body,
        counted=counted,
        agent_id=message.agent_id,
        tenant_id=message.tenant_id,
        sent_ms=sent_ms,
        record_ms=record.timestamp,
        event_ms=event_time(sent_ms, record.timestamp),
    )


def from_row(body: Body, state: State) -> Arrival:
    """Make an arrival from the row of a message that is pending in the scope of `state`. Raises: RowUnreadable."""
    message = message_in(body)
    return Arrival(
        body=body._replace(sealed_before=None, sealed_after=None),
        counted=totals_of(message, body),
        agent_id=message.agent_id,
        tenant_id=state.tenant_id,
        sent_ms=milliseconds(message.sent_at),
        record_ms=state.latest_record_ms,
        event_ms=state.latest_event_ms,
    )


def totals_of(message: MessageCreated | EpisodeMessage, body: Body) -> Totals:
    content = message.content
    repeated = orjson.dumps((message.user_id, message.flows, message.tools))  # the event's own fields may repeat these
    return Totals(
        tokens=body.tokens,
        episode_bytes=len(body.json) + len(repeated),
        turns=int(message.role == "user"),
        text_bytes=len(content.encode()),
        longest=len(content.strip()),
    )


def edited(body: Body, edit: MessageEdited, offset: int, count_tokens: Callable[[str], int]) -> Body:
    """Return a message's row after an edit, shortened if edits have made it larger than a changelog accepts.

    An edit that replaces nothing with something else leaves the row as it is. `offset` is that of the edit's record.
    Raises: RowUnreadable.
    """
    changes = shown_changes(edit)
    if changes.pop("skip_summarization", False):
        return deleted(body)
    if not changes:
        return body
    before = message_in(body)
    message = before.model_copy(update=changes | {"changed": offset})
    json, limit = message.to_json(), MAX_MESSAGE_BYTES // 2
    while len(json) > MAX_MESSAGE_BYTES and limit:
        message = shortened_message(message, limit)
        json, limit = message.to_json(), limit // 2
    if message == before.model_copy(update={"changed": offset}):
        return body
    return body._replace(json=json, tokens=count_tokens(message.content))


def shown_changes(edit: MessageEdited) -> dict[str, Any]:
    """Return the fields that an edit replaces, except the metadata, which only the archive has."""
    return {name: value for name, value in edit.changes.items() if name != "metadata"}


def shortened_message(message: EpisodeMessage, limit: int) -> EpisodeMessage:
    """Return the message with at most `limit` characters of content, dropping flows and tools whose JSON is longer."""
    content, half = message.content, limit // 2
    kept = content if len(content) <= limit else f"{content[:half]} … {content[len(content) - half :]}"
    lists = {name: getattr(message, name) for name in ("flows", "tools")}
    short = {name: names if len(orjson.dumps(names)) <= limit else () for name, names in lists.items()}
    return message.model_copy(update={"content": kept, **short})


def deleted(body: Body) -> Body:
    """Return the row of a deleted message; the boundaries around it stay."""
    return body._replace(json=b"", tokens=0, trace=b"")


def message_in(body: Body) -> EpisodeMessage:
    """Return the message in a row. Raises: RowUnreadable, without any content."""
    try:
        return EpisodeMessage.model_validate_json(body.json)
    except ValidationError:
        raise RowUnreadable(problem="a message's row has no message in it") from None


Amendment = MessageEdited | MessageDeleted | ConversationDeleted | ConversationAssigned


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
        closed_at=moment_at(now_ms),
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
        core = tuple(shortened_message(message, limit) for message in event.messages)
        overlap = tuple(shortened_message(message, limit) for message in event.overlap)
        changed = {"messages": core, "overlap": overlap, "fingerprint": fingerprint(core), "metrics": metrics(core)}
        event = event.model_copy(update={**changed, "truncated": True})
        json, limit = event.to_json(), limit // 2
    return json


def amended_event(event: Amendment, record: KafkaRecord, episode: tuple[Scope, int] | None) -> EpisodeAmended:
    """Make the event for a change. `episode` is the scope and ordinal of the message's episode, if they are known."""
    change: Literal["edited", "deleted", "assigned"] = "deleted"
    fields: dict[str, Any] = {}
    if isinstance(event, MessageEdited):
        change, fields = "edited", shown_changes(event)
    elif isinstance(event, ConversationAssigned):
        change, fields = ASSIGNED, event.model_dump(include={"from_user_id", "user_id"})
    known = None if episode is None else episode_id(episode[0].conversation_id, episode[1], episode[0].named_agent)
    return EpisodeAmended(
        conversation_id=event.conversation_id,
        tenant_id=event.tenant_id,
        message_id=None if isinstance(event, ConversationDeleted | ConversationAssigned) else event.id,
        change=change,
        fields=fields,
        episode_id=known,
        partition=record.partition,
        offset=record.offset,
        amended_at=record_time(min(max(record.timestamp, 0), LAST_MS)),  # the archiver accepts any timestamp
        reason=event.reason,
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
