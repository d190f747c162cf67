"""A message on its way to a decision, from its record or from the row where it waited, and changes of one in a row."""

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
from afterword.streams.segmenter.state import Body, State, event_time, id_digest

MAX_MESSAGE_BYTES = 800_000
"""The most that one message may add to an episode; with overlap and envelope that stays below a megabyte."""
MILLISECOND = timedelta(milliseconds=1)


class Arrival(NamedTuple):
    """A message that is taken: what the rules look at, and what its row will keep."""

    message: EpisodeMessage
    body: Body
    tenant_id: str | None
    record_ms: int
    """The record's timestamp, milliseconds since 1970."""
    waited_to_ms: int | None = None
    """The latest event time of all that it was pending with in another scope, where it was: they have no gap."""

    @property
    def sent_ms(self) -> int:
        """Event time, milliseconds since 1970."""
        return milliseconds(self.message.sent_at)

    @property
    def event_ms(self) -> int:
        """Event time as far as the record confirms it, milliseconds since 1970."""
        return event_time(self.sent_ms, self.record_ms) if self.waited_to_ms is None else self.waited_to_ms

    @property
    def is_continuation(self) -> bool | None:
        return self.body.is_continuation

    @property
    def is_user(self) -> bool:
        """True: a turn begins with it."""
        return self.message.role == "user"

    @property
    def content(self) -> str:
        return self.message.content

    @property
    def tokens(self) -> int:
        return self.body.tokens

    @property
    def episode_bytes(self) -> int:
        """Bytes that it adds to the JSON of its episode, whose envelope may repeat its user, flows and tools."""
        message = self.message
        return len(self.body.json) + len(orjson.dumps((message.user_id, message.flows, message.tools)))

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of its content."""
        return len(self.message.content.encode())

    @property
    def length(self) -> int:
        """Characters of its content, stripped of white space."""
        return len(self.message.content.strip())

    def with_continuation(self, is_continuation: bool | None, topic_model: int) -> "Arrival":
        return self._replace(body=self.body._replace(is_continuation=is_continuation, topic_model=topic_model))


def from_record(message: MessageCreated, record: KafkaRecord, tokens: int, trace: bytes) -> Arrival:
    """`tokens`: of its content; `trace`: as in `Body`.

    Raises: InvalidRecord for a message that is too large.
    """
    carried = EpisodeMessage(**{name: getattr(message, name) for name in CARRIED})
    body = Body(
        digest=id_digest(message.id),
        json=carried.to_json(exclude_unset=True),  # `changed` is in the rows of edited messages only
        tokens=tokens,
        offset=record.offset,
        is_continuation=message.is_continuation,
        trace=trace,
    )
    arrival = Arrival(carried, body, message.tenant_id, record.timestamp)
    if (size := arrival.episode_bytes) > MAX_MESSAGE_BYTES:
        raise InvalidRecord("too_large", f"takes {size} bytes of an episode, at most {MAX_MESSAGE_BYTES} fit")
    return arrival


def from_row(body: Body, state: State) -> Arrival:
    """A message that is pending in a scope. `state`: of that scope. Raises: RowUnreadable."""
    unsealed = body._replace(sealed_before=None, sealed_after=None)
    return Arrival(message_in(body), unsealed, state.tenant_id, state.latest_record_ms, state.latest_event_ms)


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


def milliseconds(moment: datetime) -> int:
    """Milliseconds since 1970."""
    return (moment - EPOCH) // MILLISECOND
