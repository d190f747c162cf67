"""Generate docs/reference/events.md from the contract."""

import json
from collections.abc import Iterator, Mapping

from afterword.operating.topics import wanted_topics
from afterword.streams.settings import Settings
from afterword.writing.contract import (
    CLOUD_EVENT,
    CURRENT,
    DEAD_LETTER,
    EVENTS,
    Channel,
    EventType,
    Schema,
    channels,
    event_schema,
    example,
)
from tools.reference.markdown import NOTHING, table

HEADING = """\
# Events

Made by `make docs` from `schemas` and `afterword/writing/contract.py`; do not edit it by hand. Programs can use
[JSON Schema](../../schemas/generated) of each event, and [AsyncAPI](../../schemas/generated/asyncapi.json) of topics.

On every topic the key is the `conversation_id` in UTF-8, and the value is JSON in UTF-8. Times are RFC 3339 with an
offset. Events that Afterword writes have every field. In events that you write, unknown fields are ignored. An invalid
record becomes a [dead letter](#dead-letters). An *id* is text of at most 256 characters; only users, agents and tenants
may be empty. [Segmentation](../segmentation.md) has the limits of
[sizes](../segmentation.md#sizes) and the form of [ids](../segmentation.md#ids).

## Topics
The names are the defaults. Changelogs are internal.

"""
HEADERS = """
## Headers
Afterword writes CloudEvents 1.0 headers in binary mode. Your messages need no headers: the type is that of
`ce_type`, else of the field `type`, else `message.created`. Structured mode
(`content-type: application/cloudevents+json`) is accepted too.

"""
PARTS = """
## Parts
Objects inside events.
"""
DEAD_LETTERS = """
## Dead letters
A dead letter has the key, value and headers of the original record, and these headers as UTF-8 text. To recover, see
[dead letters](../how-to/dead-letters.md).

"""
WRITERS = {"input": "You write it.", "output": "Afterword writes it."}
ID_CHARACTERS = 256
INTERNAL = ("episode.amended", "episode.redo")
"""Events between workers, whose fields are in JSON Schema only."""
NAMES = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "object": "object",
    "null": "null",
}
BOUNDS = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minimum": "≥ {}",
    "maximum": "≤ {}",
    "minItems": "at least {}",
}


def reference(settings: Settings) -> str:
    """Return topics, headers, and every field of every event, with examples, as Markdown."""
    parts: dict[str, Schema] = {}
    for event in EVENTS:
        parts |= event_schema(event).get("$defs", {})
    return "".join(
        [
            HEADING,
            _topics(settings),
            HEADERS,
            table(("header", "value", "meaning"), _header_rows(CLOUD_EVENT)),
            *map(_event, EVENTS),
            PARTS,
            *(f"\n### {name}\n{_described(parts[name])}{_fields(parts[name])}" for name in sorted(parts)),
            DEAD_LETTERS,
            table(("header", "value", "meaning"), _header_rows(DEAD_LETTER)),
        ]
    )


def _topics(settings: Settings) -> str:
    policies = {topic.name: topic.configs["cleanup.policy"] for topic in wanted_topics(settings)}
    rows = (
        (f"`{found.topic}`", _types(found), policies[found.topic], found.description)
        for found in channels(settings.kafka)
    )
    return table(("topic", "events", "cleanup policy", "purpose"), rows)


def _types(channel: Channel) -> str:
    names = [CURRENT[name][0] if name in CURRENT else name for name in channel.events]
    return ", ".join(f"[`{name}`](#{_anchor(name)})" for name in names) or "[dead letters](#dead-letters)"


def _anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return heading.lower().replace(".", "").replace(" ", "-")


def _event(event: EventType) -> str:
    schema = event_schema(event)
    heading = f"\n## {event.name}\n{WRITERS[event.direction]} {_described(schema)}"
    if event.name in INTERNAL:
        file = f"../../schemas/generated/{event.name}.schema.json"
        return f"{heading.rstrip()}\n\nIts fields are in [JSON Schema]({file}).\n"
    return f"{heading}{_fields(schema)}\n```json\n{_shown(example(event))}\n```\n"


def _shown(value: Mapping[str, object]) -> str:
    """Write JSON with one field per line and nested values on one line."""
    fields = (f"  {json.dumps(name)}: {json.dumps(field, ensure_ascii=False)}" for name, field in value.items())
    return "{\n" + ",\n".join(fields) + "\n}"


def _described(schema: Schema) -> str:
    text = schema.get("description", "")
    return f"{text}\n\n" if text else "\n"


def _fields(schema: Schema) -> str:
    """Return a table of fields, with a column for defaults if a field may be absent."""
    fields, required = schema["properties"], set(schema.get("required", ()))
    optional = bool(fields.keys() - required)
    rows = (
        (f"`{name}`", _type(found), *([_absent(name, found, required)] if optional else []), found["description"])
        for name, found in fields.items()
    )
    return table(("field", "type", *(("if absent",) if optional else ()), "meaning"), rows)


def _absent(name: str, schema: Schema, required: set[str]) -> str:
    if name in required:
        return "refused"
    return f"`{json.dumps(schema['default'])}`" if "default" in schema else NOTHING


def _type(schema: Schema) -> str:
    """Describe a type with its bounds in words: `text, at most 256 characters, or null`."""
    if "anyOf" in schema:
        return ", or ".join(_type(choice) for choice in schema["anyOf"])
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_anchor(name)})"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    if schema["type"] == "string" and schema.get("maxLength") == ID_CHARACTERS:
        return "id"
    return ", ".join([_name(schema), *_bounds(schema)])


def _name(schema: Schema) -> str:
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}"
    return "time" if schema.get("format") == "date-time" else NAMES[schema["type"]]


def _bounds(schema: Mapping[str, object]) -> Iterator[str]:
    return (text.format(schema[name]) for name, text in BOUNDS.items() if name in schema)


def _header_rows(headers: Schema) -> Iterator[tuple[str, ...]]:
    return ((f"`{name}`", _type(found), found["description"]) for name, found in headers["properties"].items())
