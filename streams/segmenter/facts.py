"""What the rules look at in a message, from the message itself and from its row."""

import orjson

from afterword.schemas import EpisodeMessage, MessageCreated
from afterword.streams.segmenter.bodies import Body
from afterword.streams.segmenter.episodes import milliseconds
from afterword.streams.segmenter.rules import Incoming


def added_bytes(message: MessageCreated | EpisodeMessage, json: bytes) -> int:
    """What a message adds to the JSON of its episode, whose envelope may repeat its user, flows and tools."""
    return len(json) + len(orjson.dumps((message.user_id, message.flows, message.tools)))


def facts(message: MessageCreated, size: int, tokens: int, record_ms: int) -> Incoming:
    """`size`: what it adds to its episode, bytes; `record_ms`: the record's timestamp, milliseconds since 1970."""
    return _facts(message, size, tokens, record_ms, message.is_continuation)


def facts_of_row(body: Body, record_ms: int) -> Incoming:
    """Of a message that was pending elsewhere."""
    message = EpisodeMessage.model_validate_json(body.json)
    is_continuation = False if body.shifts else None
    return _facts(message, added_bytes(message, body.json), body.tokens, record_ms, is_continuation)


def _facts(
    message: MessageCreated | EpisodeMessage, size: int, tokens: int, record_ms: int, is_continuation: bool | None
) -> Incoming:
    assert message.sent_at is not None  # noqa: S101 – decoding fills it in
    content = message.content
    return Incoming(
        sent_ms=milliseconds(message.sent_at),
        record_ms=record_ms,
        tokens=tokens,
        bytes=size,
        is_continuation=is_continuation,
        is_user=message.role == "user",
        text_bytes=len(content) if content.isascii() else len(content.encode()),
        length=len(content.strip()),
    )
