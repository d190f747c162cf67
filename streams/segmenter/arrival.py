"""Messages as the rules see them, made from records or rows, and changes to pending messages."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import orjson
from pydantic import ValidationError

from afterword.schemas import EpisodeMessage, InvalidRecord, MessageCreated, MessageEdited
from afterword.schemas.base import EPOCH
from afterword.schemas.episodes import CARRIED
from afterword.schemas.headers import KafkaRecord
from afterword.streams.errors import RowUnreadable
from afterword.streams.segmenter.state import Body, State, Totals, event_time, id_digest

MAX_MESSAGE_BYTES = 800_000
"""Maximum number of bytes that one message may add to an episode; with overlap and envelope, the event stays below a
megabyte."""
MILLISECOND = timedelta(milliseconds=1)


class Arrival(NamedTuple):
    """An accepted message: what the rules look at, and what its row will keep."""

    body: Body
    counted: Totals
    """The amounts that the message adds to an episode's counters."""
    content: str
    is_user: bool
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

    @property
    def is_continuation(self) -> bool | None:
        return self.body.is_continuation

    def with_continuation(self, is_continuation: bool | None) -> "Arrival":
        return self._replace(body=self.body._replace(is_continuation=is_continuation))


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
        content=message.content,
        is_user=message.role == "user",
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
        content=message.content,
        is_user=message.role == "user",
        agent_id=message.agent_id,
        tenant_id=state.tenant_id,
        sent_ms=milliseconds(message.sent_at),
        record_ms=state.latest_record_ms,
        event_ms=state.latest_event_ms,
    )


def totals_of(message: MessageCreated | EpisodeMessage, body: Body) -> Totals:
    content = message.content
    repeated = orjson.dumps((message.user_id, message.flows, message.tools))  # the envelope may repeat these
    return Totals(
        tokens=body.tokens,
        episode_bytes=len(body.json) + len(repeated),
        turns=int(message.role == "user"),
        text_bytes=len(content.encode()),
        longest=len(content.strip()),
    )


def edited(body: Body, edit: MessageEdited, offset: int, count_tokens: Callable[[str], int]) -> Body:
    """Return a message's row after an edit, shortened if edits have made it larger than a changelog accepts.

    `offset` is that of the edit's record. Raises: RowUnreadable.
    """
    changes = shown_changes(edit)
    if changes.pop("skip_summarization", False):
        return deleted(body)
    if not changes:
        return body
    message = message_in(body).model_copy(update=changes | {"changed": offset})
    json, limit = message.to_json(), MAX_MESSAGE_BYTES // 2
    while len(json) > MAX_MESSAGE_BYTES and limit:
        message = shortened_message(message, limit)
        json, limit = message.to_json(), limit // 2
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


def milliseconds(moment: datetime) -> int:
    return (moment - EPOCH) // MILLISECOND
