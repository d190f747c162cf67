"""Generate docs/reference/events.md from the contract."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping

from afterword.operating.contract import (
    CLOUD_EVENT,
    CURRENT,
    DEAD_LETTER,
    EVENTS,
    Channel,
    Schema,
    channels,
    event_schema,
    example,
)
from afterword.schemas.messages import INPUT_TYPES
from afterword.streams.settings import Settings
from tools.reference.markdown import table

HEADING = """\
# Events

Made by `make docs` from `schemas` and `afterword/operating/topics.toml`; do not edit it by hand. Programs can use
the [JSON Schema](../../schemas/generated) of each event, an [AsyncAPI](../../schemas/generated/asyncapi.json) document,
and [examples](../../afterword/operating/examples.json).

On every topic the key is the `conversation_id` in UTF-8, and the value is JSON in UTF-8. Times are RFC 3339 with an
offset. An *id* is text of at most 256 characters; only users, agents and tenants may be empty. Events that Afterword
writes have every field. In events that you write, a field that is neither required nor has another default is `null` if
absent, and unknown fields are ignored. An invalid record becomes a [dead letter](#dead-letters). See also the limits of
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
COMMON = """
## Common fields
These fields mean the same in every event that names them below its heading.

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
ID_CHARACTERS = 256
SHORT_LINE = 170
INTERNAL = ("episode.closed", "episode.amended", "episode.redo")
"""Events between workers, whose fields are in JSON Schema only."""
NOT_SHOWN = ("summary.deleted", "conversation.updated")
"""Events without an example on the page."""
FIELD = ("field", "type", "meaning")
Row = tuple[str, str, str]
"""Name, type and meaning of a field."""
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
    schemas = {name: event_schema(name) for name in EVENTS if name not in INTERNAL}
    parts: dict[str, Schema] = {}
    for schema in schemas.values():
        parts |= schema.get("$defs", {})
    counts = Counter(row for schema in schemas.values() for row in _rows(schema))
    common = {row for row, count in counts.items() if count > 1}
    headers = ((f"`{name}`", _type(found), found["description"]) for name, found in CLOUD_EVENT["properties"].items())
    errors = ((f"`{name}`", found["description"]) for name, found in DEAD_LETTER["properties"].items())
    return "".join(
        [
            HEADING,
            _topics(settings),
            HEADERS,
            table(("header", "value", "meaning"), headers),
            COMMON,
            table(FIELD, (row for row in counts if row in common)),
            *(_event(name, common) for name in EVENTS),
            PARTS,
            *(
                f"\n### {name}\n{parts[name].get('description', '')}\n\n{table(FIELD, _rows(parts[name]))}"
                for name in sorted(parts)
            ),
            DEAD_LETTERS,
            table(("header", "meaning"), errors),
        ]
    )


def _topics(settings: Settings) -> str:
    rows = ((f"`{found.topic}`", _types(found), found.description) for found in channels(settings.kafka))
    return table(("topic", "events", "purpose"), rows)


def _types(channel: Channel) -> str:
    names = [CURRENT[name]["event"] if name in CURRENT else name for name in channel.events]
    return ", ".join(f"`{name}`" for name in names) or "[dead letters](#dead-letters)"


def _anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return heading.lower().replace(".", "").replace(" ", "-")


def _event(event: str, common: set[Row]) -> str:
    schema = event_schema(event)
    writer = "You write it." if event in INPUT_TYPES else "Afterword writes it."
    heading = f"\n## {event}\n{writer} {schema['description']}\n\n"
    if event in INTERNAL:
        return f"{heading}Its fields are in [JSON Schema](../../schemas/generated/{event}.schema.json).\n"
    properties, required = schema["properties"], set(schema["required"])
    optional = properties.keys() - required
    own, shared = [], []
    for row, (name, found) in zip(_rows(schema), properties.items(), strict=True):
        cell, kind, meaning = row
        presence = ""
        if optional and name in required:
            presence = "required"
        elif found.get("default") is not None:
            presence = f"default `{json.dumps(found['default'])}`"
        if row in common:
            shared.append(f"{cell} ({presence})" if presence else cell)
        else:
            own.append((cell, f"{kind}, {presence}" if presence else kind, meaning))
    fields = f"{table(FIELD, own)}\n" if own else ""
    return f"{heading}{fields}[Common fields](#common-fields): {', '.join(shared)}.\n{_example(event)}"


def _example(event: str) -> str:
    """Show an event on one line if it fits, else with one field per line."""
    if event in NOT_SHOWN:
        return ""
    value = example(event)
    line = json.dumps(value, ensure_ascii=False)
    if len(line) > SHORT_LINE:
        fields = (f"  {json.dumps(name)}: {json.dumps(field, ensure_ascii=False)}" for name, field in value.items())
        line = "{\n" + ",\n".join(fields) + "\n}"
    return f"\n```json\n{line}\n```\n"


def _rows(schema: Schema) -> list[Row]:
    return [(f"`{name}`", _type(found), found["description"]) for name, found in schema["properties"].items()]


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
