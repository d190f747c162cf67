"""Schemas of the chart's settings, secrets and files, from streams/settings.py."""

from collections.abc import Iterator
from typing import Any

from afterword.streams.settings import Settings
from afterword.streams.triggers import CONDITIONS, NESTED, TRIGGER_PRESETS
from afterword_text.redaction import ENTITIES

Schema = dict[str, Any]

OF_THE_CHART = {
    ("config",),  # the chart sets everything through the environment
    ("state_dir",),  # on the volume
    ("health", "host"),  # values.health
    ("health", "port"),
    ("serve", "host"),
    ("serve", "port"),
    ("kafka", "group_instance_id"),  # the pod's name
    ("qdrant", "path"),  # one process only
}
TRIGGER = ("episodes", "trigger")
ENTITY = "|".join(ENTITIES)
PATTERNS: dict[tuple[str, ...], Schema] = {
    ("redaction", "entities"): {"pattern": rf"^(\s*all\s*|(\s*({ENTITY})?\s*(,|$))*)$"},
    ("redaction", "phone_regions"): {"pattern": r"^(\s*[A-Z]{2}\s*(,|$))*$"},
}
"""Patterns that allow the same values as the validators of these settings."""
NOISE = {"title", "default", "writeOnly", "format"}
SECRET: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"existingSecret": {"type": "string", "minLength": 1}, "key": {"type": "string", "minLength": 1}},
    "required": ["existingSecret"],
}
FILE: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {**SECRET["properties"], "existingConfigMap": {"type": "string", "minLength": 1}},
    "oneOf": [{"required": ["existingSecret"]}, {"required": ["existingConfigMap"]}],
}


def definitions() -> dict[str, Schema]:
    """Return schemas that are used more than once, by name; `reference` points to one."""
    return {"settings": _settings(), "condition": _condition(), "secret": SECRET, "file": FILE}


def reference(name: str) -> Schema:
    return {"$ref": f"#/definitions/{name}"}


def _settings() -> Schema:
    """Return a schema of every setting except secrets, files, and those that the chart sets itself."""
    plain = {
        place: field for place, field in _fields() if field.get("format") != "password" and not _is_file(place, field)
    }
    added = {**PATTERNS, TRIGGER: _trigger()}
    return _nested({place: _clean(field) | added.get(place, {}) for place, field in plain.items()})


def _trigger() -> Schema:
    """Return the schema of a trigger as a YAML value. A schema could not check JSON in a string."""
    kinds = {"type": "integer", "minimum": CONDITIONS["messages"].least}, {"enum": list(TRIGGER_PRESETS)}
    return {"anyOf": [*kinds, reference("condition"), _conditions()]}


def _condition() -> Schema:
    least = {name: condition.least for name, condition in CONDITIONS.items()}
    counted = {name: {"type": "integer", "minimum": number} for name, number in least.items() if number is not None}
    measured = {name: {"type": "number", "exclusiveMinimum": 0} for name, number in least.items() if number is None}
    properties = counted | measured | dict.fromkeys(NESTED, _conditions())
    bounds = {"minProperties": 1, "maxProperties": 1, "additionalProperties": False}
    return {"type": "object", **bounds, "properties": properties}


def _conditions() -> Schema:
    return {"type": "array", "minItems": 1, "items": reference("condition")}


def secrets_schema() -> Schema:
    """Return a schema that lets any setting of a section come from a Secret."""
    return _nested({place: reference("secret") for place, _ in _fields() if len(place) > 1})


def files_schema() -> Schema:
    files = [place for place, field in _fields() if _is_file(place, field) and len(place) > 1]
    return _nested(dict.fromkeys(files, reference("file")))


def _is_file(place: tuple[str, ...], field: Schema) -> bool:
    """Return whether a ConfigMap or Secret can hold it; a folder is on one of the `extraVolumes`."""
    return field.get("format") == "path" and place[-1].endswith("file")


def _fields() -> Iterator[tuple[tuple[str, ...], Schema]]:
    schema = Settings.model_json_schema()
    for name, field in schema["properties"].items():
        section = _resolved(field, schema["$defs"])
        inner = {(name, key): value for key, value in section.get("properties", {}).items()} or {(name,): section}
        for place, value in inner.items():
            if place not in OF_THE_CHART:
                yield place, _resolved(value, schema["$defs"])


def _resolved(field: Any, definitions: Schema) -> Any:
    """Resolve pydantic's references, and drop null: a value that is not given is not set."""
    if isinstance(field, list):
        return [_resolved(part, definitions) for part in field]
    if not isinstance(field, dict):
        return field
    if "$ref" in field:
        rest = {key: value for key, value in field.items() if key != "$ref"}
        return _resolved({**definitions[field["$ref"].rpartition("/")[2]], **rest}, definitions)
    choices = [choice for choice in field.get("anyOf", []) if choice != {"type": "null"}]
    if len(choices) == 1:
        rest = {key: value for key, value in field.items() if key != "anyOf"}
        return _resolved({**choices[0], **rest}, definitions)
    return {key: _resolved(value, definitions) for key, value in field.items()}


def _clean(field: Any) -> Any:
    if isinstance(field, list):
        return [_clean(part) for part in field]
    return (
        {key: _clean(value) for key, value in field.items() if key not in NOISE} if isinstance(field, dict) else field
    )


def _nested(fields: dict[tuple[str, ...], Schema]) -> Schema:
    """Build an object with exactly these fields."""
    properties: Schema = {}
    for place, schema in fields.items():
        if len(place) == 1:
            properties[place[0]] = schema
        else:
            inside = {other[1:]: value for other, value in fields.items() if other[0] == place[0]}
            properties.setdefault(place[0], _nested(inside))
    return {"type": "object", "additionalProperties": False, "properties": properties}
