"""Maps a record to messages, edits and deletions, with the expressions of its source. Pure functions."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from afterword.schemas import InputEvent, InvalidRecord, MessageCreated, MessageDeleted, MessageEdited
from afterword.schemas.base import Model, rfc3339
from afterword.schemas.decoding import MAX_INPUT_BYTES, record_time, validate
from afterword.schemas.headers import KafkaRecord
from afterword.schemas.messages import EDITABLE
from afterword.schemas.records import ProducerRecord, to_record
from afterword.streams.ingest.sources import UNMAPPED, Expression, RoleOf, Source, TimeOf, Unit
from afterword.streams.text.content import ROLES, ContentUnreadable, Kind, Piece, flatten_message, said

SOURCE = "afterword/ingest"
"""The CloudEvents source of the records that are written."""
TRACE = ("traceparent", "tracestate")
"""Headers that are passed on, so that a trace continues through the segmenter."""
MOST_MESSAGES = 100
"""Maximum number of messages that one record may become; a tool's answers are messages of their own."""
SECONDS: Mapping[Unit, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
YEARS = range(1990, 2100)
"""A time outside these years must be in a different unit."""
AS_THEY_ARE = ("is_continuation", "sentiment", "flows", "metadata")
"""Fields whose values only the schema checks."""
UNENCODABLE = "a field is bytes, is nested too deeply, or has an integer of more than 64 bits"
"""Why fields cannot be encoded."""


def map_record(source: Source, record: KafkaRecord, value: Any) -> list[ProducerRecord]:
    """Return what a record becomes, given its value: nothing if it is skipped. Raises: InvalidRecord."""
    about = context(record, value)
    if source.skip is not None and source.skip.find(about):
        return []
    fields: dict[str, Any] = {
        "id": _id(source.map.id, about, "id"),
        "conversation_id": _id(source.map.conversation_id, about, "conversation_id"),
    }
    if source.map.tenant_id is not None and source.map.tenant_id.find(about) is not None:
        fields["tenant_id"] = _id(source.map.tenant_id, about, "tenant_id")
    if source.deletions is not None and source.deletions.when.find(about):
        return [_record(record, MessageDeleted, fields)]
    is_edit = source.edits is not None and bool(source.edits.when.find(about))
    messages = _messages(source, about, fields)
    if not is_edit:
        return [_record(record, MessageCreated, one) for one in messages]
    return [_record(record, MessageEdited, _edit(one)) for one in messages]


def _edit(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that an edit replaces; fields that the record does not mention stay as they are."""
    kept = {"id", "conversation_id", "tenant_id", *EDITABLE}
    given = {name: value for name, value in message.items() if name in kept and value not in ((), False)}
    return given | {"edited_at": message["sent_at"]}


def context(record: KafkaRecord, value: Any) -> dict[str, Any]:
    """Return what expressions see of a record. If several headers have the same name, they see only the first."""
    return {
        "key": None if record.key is None else record.key.decode(errors="replace"),
        "value": value,
        "headers": {name: (said or b"").decode(errors="replace") for name, said in reversed(record.headers)},
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }


def _messages(source: Source, about: Mapping[str, Any], ids: Mapping[str, Any]) -> list[dict[str, Any]]:
    fields = source.map
    shared = {**ids, "user_id": _id(fields.user_id, about, "user_id"), "sent_at": _time(fields.sent_at, about)}
    if fields.agent_id is not None and fields.agent_id.find(about) is not None:
        shared["agent_id"] = _id(fields.agent_id, about, "agent_id")
    for name in AS_THEY_ARE:
        expression: Expression | None = getattr(fields, name)
        if expression is not None and (found := expression.find(about)) is not None:
            shared[name] = found
    role = _role(fields.role, about)
    messages = said(role, _pieces(fields.content, about, role), ids["id"])
    tools = fields.tools.find(about) if fields.tools is not None else None
    is_skipped = fields.skip_summarization is not None and bool(fields.skip_summarization.find(about))
    for one in messages:
        one["tools"] = one["tools"] if tools is None else tools
        one["skip_summarization"] = one["skip_summarization"] or is_skipped
    return [{**shared, **one} for one in messages]


def _record(record: KafkaRecord, model: type[Model], fields: Mapping[str, Any]) -> ProducerRecord:
    try:
        data = encoded(fields)
    except orjson.JSONEncodeError:
        raise InvalidRecord(UNMAPPED, UNENCODABLE) from None
    event: InputEvent = validate(model, data)  # type: ignore[assignment]  # one of the three models above
    made = to_record(event, record_time(record.timestamp), SOURCE, data)
    return made._replace(headers=[*made.headers, *(one for one in record.headers if one[0] in TRACE)])


def encoded(fields: Mapping[str, Any]) -> bytes:
    """Encode the fields of a message. Raises: orjson.JSONEncodeError, InvalidRecord if they are too large."""
    data = orjson.dumps(fields)
    if len(data) > MAX_INPUT_BYTES:
        raise InvalidRecord("too_large", f"{len(data)} bytes; at most {MAX_INPUT_BYTES} are accepted")
    return data


def id_of(found: object) -> str | None:
    """Return a string, or an integer as a string; None for any other value."""
    if isinstance(found, str):
        return found
    return str(found) if isinstance(found, int) and not isinstance(found, bool) else None


def _id(expression: Expression, about: Mapping[str, Any], field: str) -> str:
    """Return an id. Raises: InvalidRecord."""
    found = expression.find(about)
    if (name := id_of(found)) is not None:
        return name
    raise _unmapped(field, expression, "neither a text nor a whole number" if found is not None else "finds nothing")


def _role(wanted: RoleOf, about: Mapping[str, Any]) -> str:
    found = wanted.path.find(about)
    if found is None:
        raise _unmapped("role", wanted.path, "finds nothing")
    name = role_name(found)
    role = wanted.values.get(name) or ROLES.get(name.lower())
    if role is None:
        raise _unmapped("role", wanted.path, "a value that role.values does not have")
    return role


def role_name(found: object) -> str:
    """Return the name that `role.values` has for a value."""
    return str(found).lower() if isinstance(found, bool) else str(found)


def _time(wanted: TimeOf | None, about: Mapping[str, Any]) -> str:
    if wanted is None:
        return rfc3339(record_time(about["timestamp"]))
    found = wanted.path.find(about)
    if found is None:
        raise _unmapped("sent_at", wanted.path, "finds nothing")
    moment = moment_of(found, wanted.unit)
    if moment is None:
        raise _unmapped("sent_at", wanted.path, f"no time between 1990 and 2099 with unit = {wanted.unit!r}")
    return rfc3339(moment)


def moment_of(found: object, unit: Unit) -> datetime | None:
    """Read a time in this unit, in UTC unless it has an offset; None if it is not within `YEARS`."""
    try:
        if unit != "iso":
            if not isinstance(found, int | float | str) or isinstance(found, bool):
                return None
            moment = datetime.fromtimestamp(float(found) * SECONDS[unit], UTC)
        elif isinstance(found, str):
            parsed = datetime.fromisoformat(found.strip())
            moment = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).astimezone(UTC)
        else:
            return None
    except (ValueError, OverflowError, OSError):
        return None
    return moment if moment.year in YEARS else None


def _pieces(content: Expression, about: Mapping[str, Any], role: str) -> list[Piece]:
    found = content.find(about)
    if isinstance(found, str):
        return [Piece(Kind.SAID, found)]
    if not isinstance(found, dict | list):
        raise _unmapped("content", content, "finds nothing" if found is None else "neither text, parts nor a message")
    try:
        message = found if isinstance(found, dict) else {"content": found}
        pieces = flatten_message(message, is_answer=role == "tool")
    except ContentUnreadable as error:
        raise _unmapped("content", content, str(error)) from None
    if len(pieces) > MOST_MESSAGES:
        raise _unmapped("content", content, f"more than {MOST_MESSAGES} messages")
    return pieces or [Piece(Kind.SAID, "")]


def _unmapped(field: str, expression: Expression, problem: str) -> InvalidRecord:
    return InvalidRecord(UNMAPPED, f"map.{field} = {expression}: {problem}")
