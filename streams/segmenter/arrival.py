"""An arriving message: one shape from its record, or from the row where it waited, to the decision."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

import orjson
from pydantic import ValidationError

from afterword.schemas import EpisodeMessage, InvalidRecord, MessageCreated, MessageEdited
from afterword.schemas.base import EPOCH
from afterword.schemas.episodes import CARRIED
from afterword.schemas.headers import KafkaRecord
from afterword.streams.errors import RowUnreadable
from afterword.streams.segmenter.state import Body, State, digest_of, event_time

MAX_MESSAGE_BYTES = 800_000
"""The most that one message may add to an episode; with overlap and envelope that stays below a megabyte."""
MILLISECOND = timedelta(milliseconds=1)


class Arrival(NamedTuple):
    """A message that is taken: whose it is, what the rules look at, and what its row keeps."""

    tenant_id: str | None
    agent_id: str | None
    sent_ms: int
    """Event time, milliseconds since 1970."""
    record_ms: int
    """The record's timestamp, milliseconds since 1970."""
    tokens: int
    episode_bytes: int
    """Bytes that it adds to the JSON of its episode."""
    is_continuation: bool | None
    is_user: bool
    """True: a turn begins with it."""
    text_bytes: int
    """UTF-8 bytes of its content."""
    length: int
    """Characters of its content, stripped of white space."""
    json: bytes
    """An `EpisodeMessage` as its episode will carry it."""
    digest: bytes
    """Digest of its id."""
    offset: int
    """Offset of its record."""
    trace: bytes
    """Trace id, span id and flags, as in `Body`."""
    content: str
    """The text, readable."""
    topic_model: int = 0
    """Version of the model that found that it shifts; 0: none did."""
    waited_to_ms: int | None = None
    """The latest event time of all that it was pending with in another scope, where it was: they have no gap."""

    @property
    def event_ms(self) -> int:
        """Event time as far as the record confirms it, milliseconds since 1970."""
        return event_time(self.sent_ms, self.record_ms) if self.waited_to_ms is None else self.waited_to_ms


class Weight(NamedTuple):
    """A message's part of the counters, as in `Arrival`."""

    tokens: int
    episode_bytes: int
    is_user: bool
    text_bytes: int
    length: int


def weight_of(body: Body, message: EpisodeMessage) -> Weight:
    """`message`: that in the body."""
    content = message.content
    size = added_bytes(message, body.json)
    return Weight(body.tokens, size, message.role == "user", utf8_bytes(content), len(content.strip()))


def from_record(message: MessageCreated, record: KafkaRecord, digest: bytes, trace: bytes, tokens: int) -> Arrival:
    """`digest`: of the message's id; `tokens`: of its content.

    Raises: InvalidRecord for a message that is too large.
    """
    assert message.sent_at is not None  # noqa: S101 – decoding fills it in
    sent_ms = milliseconds(message.sent_at)
    json = carried(message)
    size = added_bytes(message, json)
    if size > MAX_MESSAGE_BYTES:
        raise InvalidRecord("too_large", f"takes {size} bytes of an episode, at most {MAX_MESSAGE_BYTES} fit")
    content = message.content
    return Arrival(  # without names, which take as long again: this is done for each message
        message.tenant_id,
        message.agent_id,
        sent_ms,
        record.timestamp,
        tokens,
        size,
        message.is_continuation,
        message.role == "user",
        utf8_bytes(content),
        len(content.strip()),
        json,
        digest,
        record.offset,
        trace,
        content,
    )


def from_row(row: bytes, body: Body, state: State, message: EpisodeMessage) -> Arrival:
    """A message that was pending in another scope.

    `body`: the decoded row; `state`: of that scope; `message`: what is in the body.
    """
    return Arrival(
        tenant_id=state.tenant_id,
        agent_id=message.agent_id,
        sent_ms=milliseconds(message.sent_at),
        record_ms=state.latest_record_ms,
        tokens=body.tokens,
        episode_bytes=added_bytes(message, body.json),
        is_continuation=body.is_continuation,
        is_user=message.role == "user",
        text_bytes=utf8_bytes(message.content),
        length=len(message.content.strip()),
        json=body.json,
        digest=digest_of(row),
        offset=body.offset,
        trace=body.trace,
        content=message.content,
        topic_model=body.topic_model,
        waited_to_ms=state.latest_event_ms,
    )


def edited(body: Body, edit: MessageEdited, offset: int, count_tokens: Callable[[str], int]) -> Body:
    """The row of a message after an edit: shortened where edits have made it larger than a changelog takes.

    `offset`: of the edit's record. Raises: RowUnreadable.
    """
    changes = edit.changes
    if changes.get("skip_summarization"):
        return deleted(body)
    before = message_in(body)
    message = before.model_copy(update={name: changes[name] for name in changes.keys() & CARRIED} | {"changed": offset})
    json, limit = message.to_json(), MAX_MESSAGE_BYTES // 2
    while len(json) > MAX_MESSAGE_BYTES and limit:
        message = shortened_message(message, limit)
        json, limit = message.to_json(), limit // 2
    return body._replace(json=json, tokens=count_tokens(message.content))


def shortened_message(message: EpisodeMessage, limit: int) -> EpisodeMessage:
    """The message with at most `limit` characters of its content, and flows and tools whose JSON is not longer."""
    content, half = message.content, limit // 2
    kept = content if len(content) <= limit else f"{content[:half]} … {content[len(content) - half :]}"
    lists = {name: getattr(message, name) for name in ("flows", "tools")}
    short = {name: names if len(orjson.dumps(names)) <= limit else () for name, names in lists.items()}
    return message.model_copy(update={"content": kept, **short})


def deleted(body: Body) -> Body:
    """The row of a message that is gone: boundaries around it stay."""
    return body._replace(json=b"", tokens=0, trace=b"")


def message_in(body: Body) -> EpisodeMessage:
    """The message of a row. Raises: RowUnreadable, without any content."""
    try:
        return EpisodeMessage.model_validate_json(body.json)
    except ValidationError:
        raise RowUnreadable(problem="a message's row has no message in it") from None


def carried(message: MessageCreated) -> bytes:
    """JSON of a message as its episode carries it, without `changed`."""
    return EpisodeMessage(**{name: getattr(message, name) for name in CARRIED}).to_json(exclude_unset=True)


def added_bytes(message: MessageCreated | EpisodeMessage, json: bytes) -> int:
    """Count a message's bytes in the JSON of its episode, whose envelope may repeat its user, flows and tools."""
    return len(json) + len(orjson.dumps((message.user_id, message.flows, message.tools)))


def utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def milliseconds(moment: datetime) -> int:
    """Milliseconds since 1970."""
    return (moment - EPOCH) // MILLISECOND
