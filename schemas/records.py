"""Kafka records: as we write them, with headers of CloudEvents 1.0 in binary mode, and decoded into models.

A record that cannot be decoded becomes an error that names the problem without repeating the content. Values of other
applications are read here too, for ingest and imports.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar, cast

import orjson
from pydantic import ValidationError

from afterword.schemas.base import Model, escape, mended, message_key, moment_at, rfc3339
from afterword.schemas.episodes import (
    EPISODE_AMENDED,
    EPISODE_CLOSED,
    EPISODE_REDO,
    EpisodeAmended,
    EpisodeClosed,
    EpisodeRedo,
)
from afterword.schemas.messages import (
    INPUT_TYPES,
    MESSAGE_CREATED,
    ConversationAssigned,
    ConversationDeleted,
    ConversationFlush,
    InputEvent,
    MessageCreated,
)

Headers = list[tuple[str, bytes]]

CONTENT_TYPE = "content-type"
JSON = "application/json"
STRUCTURED_JSON = "application/cloudevents+json"
CE_TYPE = "ce_type"
CE_ID = "ce_id"
RESERVED_PREFIX = "__afterword."
"""Prefix of headers that only Afterword writes. A producer's headers with this prefix are dropped when a record is
copied."""
FOR_ENDPOINT = "afterword_webhook"
"""Header that names the webhook endpoint an event is replayed for. Every other reader skips the event."""
OWNER = "afterword_owner"
"""Header of every event that we produce: a JSON array of its tenant and user. Readers can use it to skip other people's
events without decoding them."""
DELETION = "afterword_deletion"
"""Header of an episode's tombstone on the compacted topic, which holds the `summary.deleted` that ended the episode."""
REPLACED = RESERVED_PREFIX + "replaced"
"""Name of a `Replacement`."""


class KafkaRecord(Protocol):
    """The part of aiokafka's `ConsumerRecord` that pure code uses."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Replacement(tuple[str, bytes]):
    """Marks a placeholder for a record that the consumer could not deliver.

    Readers recognize it by its class, because a producer may send a header with the same name.
    """

    error_type: str
    detail: str
    """What was wrong with the original, without anything that it contains."""

    def __new__(cls, error_type: str, detail: str) -> Self:
        made = super().__new__(cls, (REPLACED, detail.encode()))
        made.error_type, made.detail = error_type, detail
        return made


def replacement_in(headers: Sequence[tuple[str, bytes | None]]) -> Replacement | None:
    """Return the header that says what a record stands in for; None for an ordinary record."""
    first = headers[0] if headers else None
    return first if isinstance(first, Replacement) else None


def cloud_event(event_type: str, event_id: str, source: str, time: datetime) -> Headers:
    """Build the binary-mode headers of a record that we produce."""
    return [
        ("ce_specversion", b"1.0"),
        (CE_ID, event_id.encode()),
        (CE_TYPE, event_type.encode()),
        ("ce_source", source.encode()),
        ("ce_time", rfc3339(time).encode()),
        (CONTENT_TYPE, JSON.encode()),
    ]


class EventOwner(NamedTuple):
    """The tenant and user an event belongs to."""

    tenant_id: str | None
    user_id: str | None
    """None if the event names no user."""


def owner_header(tenant_id: str | None, user_id: str | None) -> tuple[str, bytes]:
    return OWNER, orjson.dumps([tenant_id, user_id])


def owner_in(headers: Iterable[tuple[str, bytes | None]]) -> EventOwner | None:
    """Read an event's owner from its headers; None if they do not name one."""
    owner = header(headers, OWNER)
    try:
        tenant_id, user_id = orjson.loads(owner or "null")
    except (orjson.JSONDecodeError, TypeError, ValueError):
        return None
    return EventOwner(tenant_id, user_id)


def header(headers: Iterable[tuple[str, bytes | None]] | None, name: str) -> str | None:
    """Return the first header with that name as text, or None. Bytes that are not UTF-8 are replaced."""
    for key, value in headers or ():
        if key == name:
            return (value or b"").decode(errors="replace")
    return None


SOURCE = "afterword/producer"
"""The CloudEvents source of records whose producer names no other."""

TYPES = {model: name for name, model in INPUT_TYPES.items()}


class ProducerRecord(NamedTuple):
    """One record for `messages`. Its key is the conversation's id in UTF-8."""

    event_type: str
    conversation_id: str
    tenant_id: str | None
    value: bytes
    headers: Headers


def to_record(event: InputEvent, now: datetime, source: str = SOURCE, value: bytes | None = None) -> ProducerRecord:
    """Build the record of an event. `value` is its JSON, if the caller has it already."""
    event_type, time = TYPES[type(event)], now
    event_id = escape(event.conversation_id)
    if not isinstance(event, ConversationFlush | ConversationDeleted | ConversationAssigned):
        event_id = message_key(event.conversation_id, event.id)
    if isinstance(event, MessageCreated):
        time = event.sent_at or now
    else:  # a message may be changed several times
        event_id = f"{event_id}:{event_type.rpartition('.')[2]}:{int(now.timestamp() * 1000)}"
    if value is None:  # an edit may set a field to its default; a message need not repeat it
        is_message = event_type == MESSAGE_CREATED
        value = event.to_json(exclude_defaults=is_message, exclude_unset=not is_message)
    headers = cloud_event(event_type, event_id, source, time)
    return ProducerRecord(event_type, event.conversation_id, event.tenant_id, value, headers)


RecordHeaders = Sequence[tuple[str, bytes | None]]
M = TypeVar("M", bound=Model)
CLOSED_TYPES: Mapping[str, type[EpisodeClosed | EpisodeAmended | EpisodeRedo]] = {
    EPISODE_CLOSED: EpisodeClosed,
    EPISODE_AMENDED: EpisodeAmended,
    EPISODE_REDO: EpisodeRedo,
}
"""Models of the events on `episode.closed` by `ce_type`; any other is an EpisodeClosed."""

MAX_INPUT_BYTES = 700_000
"""A longer record might not fit into an `episode.closed` of less than a megabyte."""
MAX_ERRORS_NAMED = 3


class InvalidRecord(ValueError):
    """Invalid record: {error_type}: {detail}."""

    def __init__(self, error_type: str, detail: str) -> None:
        super().__init__(f"{error_type}: {detail}")
        self.error_type = error_type
        self.detail = detail


def decode_input(key: bytes | None, value: bytes | None, headers: RecordHeaders, timestamp_ms: int) -> InputEvent:
    """Decode a record of `messages`.

    The event type is its `ce_type`, else its JSON field `type`, else `message.created`. A message without `sent_at`
    gets the record's timestamp (milliseconds since 1970).

    Raises: InvalidRecord.
    """
    check_original(headers)
    data, event_type = read_event(value, headers)
    model = INPUT_TYPES.get(event_type)
    if model is None:
        raise InvalidRecord("unknown_type", f"this topic accepts {', '.join(INPUT_TYPES)}")
    if len(data) > MAX_INPUT_BYTES:
        raise InvalidRecord("too_large", f"{len(data)} bytes; at most {MAX_INPUT_BYTES} are accepted")
    event = validate(model, data)
    check_key(key, event.conversation_id)
    if isinstance(event, MessageCreated) and event.sent_at is None:
        return event.model_copy(update={"sent_at": record_time(timestamp_ms)})
    return event


def check_original(headers: RecordHeaders) -> None:
    """Reject a record that stands in for another one, with the original's error. Raises: InvalidRecord."""
    if replaced := replacement_in(headers):
        raise InvalidRecord(replaced.error_type, replaced.detail)


def record_time(timestamp_ms: int) -> datetime:
    """Convert a record's timestamp to a datetime. Raises: InvalidRecord if it is out of range."""
    try:
        return moment_at(timestamp_ms)
    except OverflowError:
        raise InvalidRecord("schema_violation", "the record's timestamp is out of range") from None


def decode_closed(
    key: bytes | None, value: bytes | None, headers: RecordHeaders
) -> EpisodeClosed | EpisodeAmended | EpisodeRedo:
    """Decode a record of `episode.closed`: an episode, an amendment or a request to redo one. Raises: InvalidRecord."""
    check_original(headers)
    if value is None:
        raise InvalidRecord("empty_value", "the record has no value")
    event = validate(CLOSED_TYPES.get(header(headers, CE_TYPE) or "", EpisodeClosed), value)
    check_key(key, event.conversation_id)
    return event


def validate(model: type[M], data: bytes) -> M:
    """Parse and validate JSON. Raises: InvalidRecord, which names the invalid fields but never their content."""
    try:
        return cast("M", model.__pydantic_validator__.validate_json(data))
    except ValidationError as error:
        if (whole := mended(data)) != data:
            return validate(model, whole)
        faults = error.errors(include_input=False, include_context=False, include_url=False)
        kind = "invalid_json" if faults[0]["type"] == "json_invalid" else "schema_violation"
        # only the top-level field is named, because deeper keys may have been chosen by the producer
        named = "; ".join(f"{next(iter(e['loc']), 'record')}: {e['msg']}" for e in faults[:MAX_ERRORS_NAMED])
        raise InvalidRecord(kind, named) from None


def check_key(key: bytes | None, conversation_id: str) -> None:
    """Check that the key is the conversation's id: the key determines the partition and therefore the order."""
    if key is None:
        raise InvalidRecord("missing_key", "the record has no key")
    if key != conversation_id.encode():
        raise InvalidRecord("key_mismatch", "the record's key is not its conversation_id")


def read_event(value: bytes | None, headers: RecordHeaders) -> tuple[bytes, str]:
    """Return the event of a record of `messages` as unvalidated JSON, and its type. Raises: InvalidRecord."""
    if value is None:
        raise InvalidRecord("empty_value", "the record has no value")
    if headers:
        if (header(headers, CONTENT_TYPE) or "").startswith(STRUCTURED_JSON):
            return _structured(value)
        if declared := header(headers, CE_TYPE):
            return value, declared
    if b'"type"' not in value:  # most records need no second parse
        return value, MESSAGE_CREATED
    return value, _text(json_object(value).get("type", MESSAGE_CREATED))


def _text(value: object) -> str:
    """Return a string unchanged and anything else as "": `str()` fails on nesting as deep as orjson can read."""
    return value if isinstance(value, str) else ""


def _structured(value: bytes) -> tuple[bytes, str]:
    event = json_object(value)
    if not isinstance(event.get("data"), dict):
        raise InvalidRecord("schema_violation", "data: a structured CloudEvent must carry its event in this field")
    try:
        return orjson.dumps(event["data"]), _text(event.get("type") or MESSAGE_CREATED)
    except orjson.JSONEncodeError:  # orjson can read deeper nesting than it can write
        raise InvalidRecord("schema_violation", "nested too deeply") from None


def json_object(value: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises: InvalidRecord."""
    try:
        event = loads(value)
    except orjson.JSONDecodeError as error:
        raise InvalidRecord("invalid_json", _unreadable(value, error.colno)) from None
    if not isinstance(event, dict):
        raise InvalidRecord("schema_violation", "not a JSON object")
    return event


def _unreadable(value: bytes, column: int) -> str:
    try:
        value.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start + 1}"
    return f"not JSON at column {column}"


def loads(value: bytes) -> Any:
    """Parse JSON, after repairing its Unicode if it is otherwise unreadable. Raises: JSONDecodeError."""
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return orjson.loads(mended(value))


Unit = Literal["iso", "s", "ms", "us", "ns"]
SECONDS: Mapping[Unit, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
YEARS = range(1990, 2100)
"""A time outside these years must be in a different unit."""
UNENCODABLE = "a field is bytes, is nested too deeply, or has an integer of more than 64 bits"
"""Why fields cannot be encoded."""


def encoded(fields: Mapping[str, Any]) -> bytes:
    """Encode the fields of a message. Raises: orjson.JSONEncodeError, InvalidRecord if they are too large."""
    data = orjson.dumps(fields)
    if len(data) > MAX_INPUT_BYTES:
        raise InvalidRecord("too_large", f"{len(data)} bytes; at most {MAX_INPUT_BYTES} are accepted")
    return data


def id_of(value: object) -> str | None:
    """Return a string, or an integer as a string; None for any other value."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def moment_of(value: object, unit: Unit) -> datetime | None:
    """Read a time in this unit, in UTC unless it has an offset; None if it is not within `YEARS`."""
    try:
        if unit == "iso" and isinstance(value, str):
            parsed = datetime.fromisoformat(value.strip())
            moment = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).astimezone(UTC)
        elif unit != "iso" and isinstance(value, int | float | str) and not isinstance(value, bool):
            moment = datetime.fromtimestamp(float(value) * SECONDS[unit], UTC)
        else:
            return None
    except (ValueError, OverflowError, OSError):
        return None
    return moment if moment.year in YEARS else None
