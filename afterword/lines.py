"""Lines of JSON that `afterword produce` takes, and the records that they become."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from afterword.dialogues import FIRST_SENT_AT, expand
from afterword.schemas import ConversationFlush, InvalidRecord, MessageCreated, decode_input
from afterword.schemas.base import Id, Model
from afterword.schemas.decoding import validate
from afterword.schemas.headers import Headers, cloud_event
from afterword.schemas.ids import escape, message_key
from afterword.schemas.messages import CONVERSATION_FLUSH, MESSAGE_CREATED

PRODUCER = "afterword/produce"


class Outgoing(NamedTuple):
    """One record for `messages`; its key is the conversation's id."""

    conversation_id: str
    value: bytes
    headers: Headers
    is_message: bool = True


@dataclass(frozen=True)
class InvalidLine:
    """`number` counts from 1; `problem` never repeats what was in the line."""

    number: int
    problem: str

    def __str__(self) -> str:
        return f"line {self.number}: {self.problem}"


class Dialogue(Model):
    """A line of a dialogue corpus; `dialogue` is described in `afterword.dialogues`."""

    id: Id
    dialogue: str


def parse_all(lines: Iterable[bytes], now: datetime) -> Iterator[Outgoing | InvalidLine]:
    """Blank lines are passed over, and counted in the numbers."""
    for number, line in enumerate(lines, start=1):
        parsed = parse_numbered(number, line, now)
        yield from [parsed] if isinstance(parsed, InvalidLine) else parsed


def parse_numbered(number: int, line: bytes, now: datetime) -> list[Outgoing] | InvalidLine:
    """The records of one line, none for a blank one, or what is wrong with it."""
    try:
        return parse(line, now) if line.strip() else []
    except InvalidRecord as error:
        return InvalidLine(number, str(error))


def parse(line: bytes, now: datetime) -> list[Outgoing]:
    """The records of one line: a message or a flush as the contract has it, or a whole dialogue.

    `now` stands for the time of a message without `sent_at`. A message travels as it was written, so that fields
    which only a newer consumer knows arrive there.

    Raises: InvalidRecord.
    """
    data = _json_object(line)
    if "dialogue" in data and "conversation_id" not in data:
        return _expanded(validate(Dialogue, line))
    conversation_id = data.get("conversation_id")
    key = conversation_id.encode(errors="replace") if isinstance(conversation_id, str) else None
    event = decode_input(key, line.strip(), (), _milliseconds(now))
    return [_outgoing(event, line.strip(), now)]


def flush(conversation_id: str, now: datetime) -> Outgoing:
    """The record that closes all that is pending of a conversation."""
    event = ConversationFlush(conversation_id=conversation_id, reason="produced with --flush")
    return _outgoing(event, event.to_json(), now)


def _outgoing(event: MessageCreated | ConversationFlush, value: bytes, now: datetime) -> Outgoing:
    if isinstance(event, MessageCreated):
        named = message_key(event.conversation_id, event.id)
        headers = cloud_event(MESSAGE_CREATED, named, PRODUCER, event.sent_at or now)
        return Outgoing(event.conversation_id, value, headers)
    named = f"{escape(event.conversation_id)}:flush:{_milliseconds(now)}"
    headers = cloud_event(CONVERSATION_FLUSH, named, PRODUCER, now)
    return Outgoing(event.conversation_id, value, headers, is_message=False)


def _expanded(line: Dialogue) -> list[Outgoing]:
    messages = expand(line.id, line.dialogue)
    return [_outgoing(m, m.model_dump_json(exclude_defaults=True).encode(), FIRST_SENT_AT) for m in messages]


def _json_object(line: bytes) -> dict[str, Any]:
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidRecord("invalid_json", f"not JSON at column {error.colno}") from None
    if not isinstance(data, dict):
        raise InvalidRecord("schema_violation", "not a JSON object")
    return data


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
