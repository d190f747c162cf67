"""Sources: topics of other applications, read from a TOML file, and how their records become messages.

A record becomes messages, edits or deletions by the expressions of its source. `map_items` is a pure function.
"""

import re
import tomllib
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jmespath
import orjson
from jmespath import functions
from jmespath.exceptions import JMESPathError, JMESPathTypeError
from jmespath.visitor import TreeInterpreter
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from afterword.schemas import InputEvent, InvalidRecord, MessageCreated, MessageDeleted, MessageEdited
from afterword.schemas.base import Model, rfc3339
from afterword.schemas.dead_letters import DeadLetter
from afterword.schemas.messages import EDITABLE, Role
from afterword.schemas.records import (
    MAX_INPUT_BYTES,
    UNENCODABLE,
    KafkaRecord,
    ProducerRecord,
    Unit,
    encoded,
    id_of,
    loads,
    moment_of,
    record_time,
    to_record,
    validate,
)
from afterword.streams.errors import ConfigurationError
from afterword.streams.settings import Section, Settings, variable
from afterword_text.content import ROLES, ContentUnreadable, Kind, Piece, flatten_message, said

UNMAPPED = "unmapped"
"""Error type of a record whose expression finds nothing, or something that does not fit the field."""
INCOMPLETE_DELETION = "incomplete_deletion"
"""Error type of a deletion that does not say which message it deletes."""
FILE = variable(("ingest", "file"))
SHAPES: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))
UNAVAILABLE = "__debezium_unavailable_value"
"""What Debezium sends in place of a long value that an update has not changed."""


class Functions(functions.Functions):  # type: ignore[misc]  # jmespath has no types
    """JMESPath's functions, and `from_json`."""

    @functions.signature({"types": ["string", "null"]})  # type: ignore[untyped-decorator]  # as above
    def _func_from_json(self, text: str | None) -> Any:
        """Parse JSON in a string; null if it is not JSON. What stands for an unavailable value stays."""
        try:
            return text if text in (None, UNAVAILABLE) else loads(text.encode())
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            return None


INTERPRETER = TreeInterpreter(jmespath.Options(custom_functions=Functions()))
"""Shared, because `search` makes a new one each time, which takes more than half of its time."""
TOPIC_NAME = re.compile(r"[\w.-]+", re.ASCII)
"""Any name that Kafka allows; everything else in `topics` is a pattern."""

DEAD_LETTERS = ".dlq"

Format = Literal["json", "avro", "json-schema", "protobuf"]
NEEDS_REGISTRY = ("avro", "protobuf")
"""Formats that cannot be read without the schema."""
KeyFormat = Literal["text", "json", "int32", "int64", "uuid", "bytes", "avro", "json-schema", "protobuf"]


def _integer(size: int, data: bytes) -> int:
    if len(data) != size:
        raise ValueError
    return int.from_bytes(data, signed=True)


def _printable(data: bytes) -> str:
    text = data.decode()
    if CONTROL.search(text):
        raise ValueError
    return text


CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Characters of binary data, such as the zeros of an integer, that are UTF-8 as well."""
KEYS: Mapping[KeyFormat, Callable[[bytes], Any]] = {
    "json": loads,
    "text": _printable,
    "int32": partial(_integer, 4),
    "int64": partial(_integer, 8),
    "uuid": lambda data: str(uuid.UUID(bytes=data)),
    "bytes": bytes.hex,
}
"""How keys are read without a registry, the most particular first. Each raises ValueError."""
EXPRESSION_ERRORS = (JMESPathError, RecursionError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError)
"""Errors that an expression raises for values that it was not written for."""


class Named(dict[str, Any]):
    """What expressions can name. A key or header that is no text fails once it is named, and is never guessed."""

    def get(self, name: str, default: Any = None) -> Any:
        """Raises: InvalidRecord."""
        value = super().get(name, default)
        if isinstance(value, InvalidRecord):
            raise value
        return value


class Expression:
    """A JMESPath expression, compiled once."""

    def __init__(self, text: object, field: str = "") -> None:
        """`field` is the expression's name in errors. Raises: ValueError."""
        if not isinstance(text, str):
            raise ValueError("must be a JMESPath expression in quotes")
        try:
            self._parsed = jmespath.compile(text).parsed
        except JMESPathError as error:
            raise ValueError(f"not JMESPath: {str(error).splitlines()[0]}") from None
        self.text = text
        self.field = field

    def __str__(self) -> str:
        return self.text

    def find(self, about: Mapping[str, Any]) -> Any:
        """Return what the expression finds in a record, or None. Raises: InvalidRecord."""
        try:
            return INTERPRETER.visit(self._parsed, about)
        except InvalidRecord:
            raise
        except EXPRESSION_ERRORS as error:  # the error's text quotes values of the record
            why = type(error).__name__
            if isinstance(error, JMESPathTypeError):
                needed = " or ".join(error.expected_types)
                why = f"{error.function_name}() cannot take {error.actual_type}, only {needed}"
            elif isinstance(error, JMESPathError):
                why = str(error)
            elif why == "TypeError":  # the only one that jmespath does not check itself
                why = "a text cannot be compared with a number (TypeError)"
            raise InvalidRecord(UNMAPPED, f"{self.field} = {self.text}: {why}") from None


Found = Annotated[Expression, BeforeValidator(lambda text, info: Expression(text, info.field_name or ""))]


class Table(Section):
    model_config = ConfigDict(arbitrary_types_allowed=True)


class Located(Table):
    """An expression, or a table with one and with how to read what it finds."""

    path: Found

    @model_validator(mode="before")
    @classmethod
    def _with_path(cls, given: object) -> object:
        return {"path": given} if isinstance(given, str) else given


class RoleOf(Located):
    values: Mapping[str, Role] = {}


class TimeOf(Located):
    unit: Unit = "iso"


class Fields(Table):
    """The fields of a message in `[sources.map]`, each with the expression that finds it."""

    id: Found
    conversation_id: Found
    user_id: Found
    role: RoleOf
    content: Found
    sent_at: TimeOf | None = None
    tenant_id: Found | None = None
    agent_id: Found | None = None
    author: Found | None = None
    reply_to: Found | None = None
    is_continuation: Found | None = None
    sentiment: Found | None = None
    flows: Found | None = None
    tools: Found | None = None
    skip_summarization: Found | None = None
    metadata: Found | None = None


class Changes(Table):
    """The table `[sources.edits]` or `[sources.deletions]`: which records edit or delete the message with their id."""

    when: Found


class Edits(Changes):
    creates: bool = False
    """Whether an edit of a message that is not known creates it."""


class Source(Table):
    """One of the `[[sources]]`."""

    topics: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)
    format: Format = "json"
    key_format: KeyFormat = "text"
    bulk: bool = False
    foreach: Found | None = None
    """Finds the list whose items are mapped, each as `item` with its place as `index`."""
    skip: Found | None = None
    unavailable: str = UNAVAILABLE
    """Text that stands for a value that an update has not changed."""
    map: Fields
    edits: Edits | None = None
    deletions: Changes | None = None

    def takes(self, topic: str) -> bool:
        """Return whether the topic is named or matches a pattern."""
        return any(
            topic == pattern if TOPIC_NAME.fullmatch(pattern) else re.fullmatch(pattern, topic)
            for pattern in self.topics
        )

    @property
    def named(self) -> Sequence[str]:
        """The topics given by name, without the patterns."""
        return [topic for topic in self.topics if TOPIC_NAME.fullmatch(topic)]


def load_sources(settings: Settings) -> tuple[Source, ...]:
    """Read the sources; there are none if the file does not exist. Raises: ConfigurationError."""
    file = settings.ingest.file
    try:
        return parse_sources(file.read_text(encoding="utf-8"), str(file))
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigurationError(setting=FILE, problem=f"{file}: {problem}") from None


def parse_sources(text: str, file: str) -> tuple[Source, ...]:
    """Parse the tables `[[sources]]` of TOML; all others belong to the settings. Raises: ConfigurationError."""
    try:
        given = tomllib.loads(text).get("sources", [])
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(setting=file, problem=str(error)) from None
    if not isinstance(given, list):
        raise ConfigurationError(setting=file, problem="sources: must be written [[sources]]")
    return tuple(_source(table, f"{file}, source {number}") for number, table in enumerate(given, start=1))


def _source(table: object, where: str) -> Source:
    try:
        source = Source.model_validate(table)
        for topic in source.topics:
            re.compile(topic)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field, problem = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise ConfigurationError(setting=where, problem=f"{field}: {problem}") from None
    except re.error as error:
        raise ConfigurationError(setting=where, problem=f"topics: {error}") from None
    return source


def require_sources(settings: Settings) -> tuple[Source, ...]:
    """Read the sources. Raises: ConfigurationError if they are invalid or there are none."""
    sources = load_sources(settings)
    if not sources:
        problem = f"{settings.ingest.file} has no [[sources]]; make one with: afterword init"
        raise ConfigurationError(setting=FILE, problem=problem)
    return sources


def require_registry(settings: Settings, sources: Sequence[Source]) -> None:
    """Require a registry if a source needs one. Raises: ConfigurationError."""
    for source in sources:
        needed = [form for form in (source.format, source.key_format) if form in NEEDS_REGISTRY]
        if settings.registry.url is None and needed:
            problem = f"a source with the format {needed[0]} needs it"
            raise ConfigurationError(setting=variable(("registry", "url")), problem=problem)


def source_topics(sources: Sequence[Source], existing: Collection[str], ours: Collection[str]) -> list[str]:
    """Return the topics that are named, existing or not, and those that match a pattern.

    `ours` are topics that Afterword writes. Patterns match neither these nor dead-letter queues.
    """
    named = {topic for source in sources for topic in source.named}
    foreign = {topic for topic in existing if topic not in ours and not topic.endswith(DEAD_LETTERS)}
    return sorted(named | {topic for topic in foreign if any(source.takes(topic) for source in sources)})


def match_topics(sources: Sequence[Source], existing: Collection[str], ours: Collection[str]) -> dict[str, int]:
    """Return the topics that are read, each with the index of its source. `ours` is as in `source_topics`.

    Raises: ConfigurationError for a topic of two sources, one of our own, or a named one that does not exist.
    """
    matched: dict[str, int] = {}
    for topic in source_topics(sources, existing, ours):
        first, *others = [index for index, source in enumerate(sources) if source.takes(topic)]
        where = f"source {first + 1}"
        if others:
            problem = f"topic {topic} is one of source {others[0] + 1}, too"
            raise ConfigurationError(setting=where, problem=problem)
        if topic in ours:
            raise ConfigurationError(setting=where, problem=f"topic {topic} is one that Afterword writes")
        if topic not in existing:
            raise ConfigurationError(setting=where, problem=f"topic {topic} does not exist")
        matched[topic] = first
    return matched


SOURCE = "afterword/ingest"
"""The CloudEvents source of the records that are written."""
TRACE = ("traceparent", "tracestate")
"""Headers that are passed on, so that a trace continues through the segmenter."""
MOST_MESSAGES = 100
"""Maximum number of messages that one record may become; a tool's answers are messages of their own."""
MOST_ITEMS = 1000
"""Maximum number of items of `foreach` in one record."""
MOST_BYTES = 4 * MAX_INPUT_BYTES
"""Upper limit for all of them together, because each may have a copy of the record's metadata."""
NAMES = ("agent_id", "author", "reply_to")
"""Fields for which a whole number is taken as its text."""
EDIT_FIELDS = {"id", "conversation_id", "tenant_id", *EDITABLE}
_READ_OTHERWISE = {"id", "conversation_id", "tenant_id", "user_id", "role", "content", "sent_at", "tools"}
AS_THEY_ARE = [name for name in Fields.model_fields if name not in {*NAMES, *_READ_OTHERWISE, "skip_summarization"}]
"""Fields whose values only the schema checks, which a new one is by default."""


class Mapped(NamedTuple):
    """What a record becomes."""

    records: list[ProducerRecord]
    invalid: InvalidRecord | None = None
    """The error of the first of its items that cannot be mapped; the others are in `records`."""


def map_items(source: Source, record: KafkaRecord, value: Any, key: Any = None) -> Mapped:
    """Map a record, or each of its items. `key` is the one that a registry decoded. Raises: InvalidRecord."""
    made: list[ProducerRecord] = []
    invalid = None
    for index, item in enumerate(items_of(source, context(record, value, source.key_format, key))):
        try:
            made += _mapped(source, record, item)
        except InvalidRecord as error:
            if source.foreach is None:
                raise
            invalid = invalid or InvalidRecord(error.error_type, f"item {index}: {error.detail}")
        _check_size(made)
    return Mapped(made, invalid)


def items_of(source: Source, about: Named) -> list[Named]:
    """Return what is mapped on its own: a record, or each of its items. Raises: InvalidRecord."""
    if source.foreach is None:
        return [about]
    items = source.foreach.find(about)
    if not isinstance(items, list | None):
        raise InvalidRecord(UNMAPPED, f"foreach = {source.foreach}: no list")
    if len(items or ()) > MOST_ITEMS:
        raise InvalidRecord("too_large", f"foreach = {source.foreach}: more than {MOST_ITEMS} items")
    return [Named(about, item=item, index=index) for index, item in enumerate(items or ())]


def _mapped(source: Source, record: KafkaRecord, about: Named) -> list[ProducerRecord]:
    if source.skip is not None and source.skip.find(about):
        return []
    is_deletion = source.deletions is not None and bool(source.deletions.when.find(about))
    row = record_row(about["value"])
    if not is_deletion and row is None:
        if record.value is None:  # a tombstone: its deletion has a record of its own, or the key was compacted away
            return []
        raise InvalidRecord(INCOMPLETE_DELETION, SHAPES["null_row"])
    advice = _advice(source.map.content, about) if is_deletion else ""
    ids = _ids(source.map, about, ("conversation_id", "tenant_id", "id"), advice)
    if is_deletion:
        return [_record(record, MessageDeleted, ids)]
    made: list[ProducerRecord] = []
    for message in _messages(source, about, ids):
        made += _said(source, record, about, message)
        _check_size(made)
    return made


def _said(source: Source, record: KafkaRecord, about: Named, message: Mapping[str, Any]) -> list[ProducerRecord]:
    """Return a message, or the edit of one; both if the edit creates what is not known."""
    has_text, edits = "content" in message, source.edits
    if edits is None or not edits.when.find(about):
        if not has_text:
            raise _unmapped("content", source.map.content, "the text is not in the record, and it is no edit")
        return [_record(record, MessageCreated, message)]
    # a known id makes the first one a duplicate, and the second one edits that message
    made = [_record(record, MessageCreated, message)] if edits.creates and has_text else []
    # fields that the record does not mention stay as they are
    named = {name: value for name, value in message.items() if name in EDIT_FIELDS and value not in ((), False)}
    changes = named | {"edited_at": message["sent_at"]}
    return [*made, _record(record, MessageEdited, changes)] if changes.keys() & {*EDITABLE} else made


def record_row(value: Any) -> Any:
    """Return what a record says; without the schema beside it, if Connect's converter wrote one."""
    return value["payload"] if isinstance(value, dict) and value.keys() == {"schema", "payload"} else value


def _check_size(made: Sequence[ProducerRecord]) -> None:
    if sum(len(record.value or b"") for record in made) > MOST_BYTES:
        raise InvalidRecord("too_large", f"its messages have more than {MOST_BYTES} bytes")


def tells_deleted_row(content: Expression, about: Named) -> bool:
    """Return whether a deletion has its row's text, and so the other columns, too.

    Of a row that was made up, the expression may still find its own words or a column's default. So no text may be
    missing: one in place of each empty column must change nothing.
    """
    row = record_row(about["value"])
    columns = filled = row.get("before", row)
    if isinstance(columns, dict):
        filled = {name: "?" if value in (None, "") else value for name, value in columns.items()}
    versions = ({**row, "before": one, "after": one} if "before" in row else one for one in (columns, filled))
    with suppress(InvalidRecord):
        found, with_filled = (content.find(Named(about, value={"payload": one, **one})) for one in versions)
        return bool(found) and found == with_filled
    return False


def _advice(content: Expression, about: Named) -> str:
    """Return how Debezium could tell all of a deleted row; "" if it does, or is not Debezium."""
    row = record_row(about["value"])
    is_of_debezium = isinstance(row, dict) and ({"op", "before"} <= row.keys() or "__deleted" in row)
    if not is_of_debezium or tells_deleted_row(content, about):
        return ""
    whole: Mapping[str, str] = SHAPES["whole_rows"]
    return whole.get(str(Expression("source.connector").find(row)), whole["postgresql"])


def _ids(fields: Fields, about: Named, names: Sequence[str], advice: str = "") -> dict[str, str]:
    """Return ids, without those of optional fields that are not there. With an advice, they may be made up.

    Raises: InvalidRecord.
    """
    found = {}
    for name in names:
        expression: Expression | None = getattr(fields, name)
        value = None if expression is None else expression.find(about)
        is_there = value is not None and not (name == "reply_to" and id_of(value) in ("", "0"))  # Protobuf's defaults
        if expression is None or not (is_there or Fields.model_fields[name].is_required()):
            continue
        text = id_of(value)
        if advice and name != "id" and text in (None, *SHAPES["made_up"]):
            raise InvalidRecord(INCOMPLETE_DELETION, f"the deleted row's {name} is not in the record; {advice}")
        if text is None:
            problem = "finds nothing" if value is None else "neither a text nor a whole number"
            raise _unmapped(name, expression, problem)
        found[name] = text
    return found


def context(record: KafkaRecord | DeadLetter, value: Any, key_format: KeyFormat = "text", key: Any = None) -> Named:
    """Return the parts of a record that expressions can name; of headers with the same name, only the first.

    `key` is the key if its format needs a registry.
    """
    headers = {name: _text(f"headers.{name}", "text", said or b"") for name, said in reversed(record.headers)}
    return Named(
        key=_text("key", key_format, record.key) if key_format in KEYS else key,
        value=value,
        headers=Named(headers),
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
    )


def _text(name: str, form: KeyFormat, data: bytes | None) -> Any:
    """Read a key or a header; if it cannot be read, return the error that an expression which names it raises."""
    try:
        return None if data is None else KEYS[form](data)
    except ValueError:
        hint = ": say how it is written with key_format" if name == "key" else ""
        return InvalidRecord(UNMAPPED, f"{name}: {len(data or b'')} bytes that are not {form}{hint}")


def _messages(source: Source, about: Named, ids: Mapping[str, Any]) -> list[dict[str, Any]]:
    fields = source.map
    shared: dict[str, Any] = {**ids, **_ids(fields, about, ("user_id", *NAMES))}
    shared["sent_at"] = _time(fields.sent_at, about)
    for name in AS_THEY_ARE:
        expression: Expression | None = getattr(fields, name)
        if expression is not None and (value := expression.find(about)) not in (None, source.unavailable):
            shared[name] = value
    role = _role(fields.role, about)
    if fields.content.find(about) == source.unavailable:
        return [shared]
    messages = said(role, _pieces(fields.content, about, role), ids["id"])
    tools = fields.tools.find(about) if fields.tools is not None else None
    is_skipped = fields.skip_summarization is not None and bool(fields.skip_summarization.find(about))
    answered = shared.pop("reply_to", None)
    for message in messages:
        message["tools"] = message["tools"] if tools is None else tools
        message["skip_summarization"] = message["skip_summarization"] or is_skipped
        if answered and not message["skip_summarization"]:  # the parts of one answer do not replace each other
            message["reply_to"], answered = answered, message["id"]
    return [{**shared, **message} for message in messages]


def _record(record: KafkaRecord, model: type[Model], fields: Mapping[str, Any]) -> ProducerRecord:
    try:
        data = encoded(fields)
    except orjson.JSONEncodeError:
        raise InvalidRecord(UNMAPPED, UNENCODABLE) from None
    event: InputEvent = validate(model, data)  # type: ignore[assignment]  # one of the three models above
    made = to_record(event, record_time(record.timestamp), SOURCE, data)
    return made._replace(headers=[*made.headers, *(header for header in record.headers if header[0] in TRACE)])


def _role(wanted: RoleOf, about: Mapping[str, Any]) -> str:
    name = role_name(_wanted("role", wanted.path, about))
    role = wanted.values.get(name) or ROLES.get(name.lower())
    if role is None:
        raise _unmapped("role", wanted.path, "a value that role.values does not have")
    return role


def role_name(value: object) -> str:
    """Return the name that `role.values` has for a value."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _time(wanted: TimeOf | None, about: Mapping[str, Any]) -> str:
    if wanted is None:
        return rfc3339(record_time(about["timestamp"]))
    moment = moment_of(_wanted("sent_at", wanted.path, about), wanted.unit)
    if moment is None:
        raise _unmapped("sent_at", wanted.path, f"no time between 1990 and 2099 with unit = {wanted.unit!r}")
    return rfc3339(moment)


def _pieces(content: Expression, about: Mapping[str, Any], role: str) -> list[Piece]:
    value = _wanted("content", content, about)
    if isinstance(value, str):
        return [Piece(Kind.SAID, value)]
    if not isinstance(value, dict | list):
        raise _unmapped("content", content, "neither text, parts nor a message")
    try:
        message = value if isinstance(value, dict) else {"content": value}
        pieces = flatten_message(message, is_answer=role == "tool")
    except ContentUnreadable as error:
        raise _unmapped("content", content, str(error)) from None
    if len(pieces) > MOST_MESSAGES:
        raise _unmapped("content", content, f"more than {MOST_MESSAGES} messages")
    return pieces or [Piece(Kind.SAID, "")]


def _wanted(field: str, expression: Expression, about: Mapping[str, Any]) -> Any:
    """Return what the expression of a field finds. Raises: InvalidRecord if that is nothing."""
    if (value := expression.find(about)) is None:
        raise _unmapped(field, expression, "finds nothing")
    return value


def _unmapped(field: str, expression: Expression, problem: str) -> InvalidRecord:
    return InvalidRecord(UNMAPPED, f"map.{field} = {expression}: {problem}")
