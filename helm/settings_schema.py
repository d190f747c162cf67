"""What the chart takes as settings, secrets and files: made from streams/settings.py, so that it cannot fall behind."""

from collections.abc import Iterator
from typing import Any

from afterword.streams.settings import Settings

Schema = dict[str, Any]

OF_THE_CHART = {
    ("config",),  # the environment says all
    ("state_dir",),  # on the volume
    ("health", "host"),  # see health
    ("health", "port"),
    ("kafka", "group_instance_id"),  # the pod's name
    ("qdrant", "path"),  # one process only
}
NOISE = {"title", "default", "writeOnly", "format"}
REFERENCE = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"existingSecret": {"type": "string", "minLength": 1}, "key": {"type": "string", "minLength": 1}},
    "required": ["existingSecret"],
}
FILE_REFERENCE = {
    "type": "object",
    "additionalProperties": False,
    "properties": {**REFERENCE["properties"], "existingConfigMap": {"type": "string", "minLength": 1}},
    "oneOf": [{"required": ["existingSecret"]}, {"required": ["existingConfigMap"]}],
}


def settings_schema() -> Schema:
    """Every setting that is neither secret, nor a file, nor the chart's own affair."""
    plain = {place: field for place, field in _fields() if field.get("format") not in ("password", "path")}
    return _nested({place: _clean(field) for place, field in plain.items()})


def secrets_schema() -> Schema:
    """Any setting of a section may come from a Secret."""
    return _nested({place: REFERENCE for place, _ in _fields() if len(place) > 1})


def files_schema() -> Schema:
    paths = [place for place, field in _fields() if field.get("format") == "path" and len(place) > 1]
    return _nested(dict.fromkeys(paths, FILE_REFERENCE))


def _fields() -> Iterator[tuple[tuple[str, ...], Schema]]:
    schema = Settings.model_json_schema()
    for name, field in schema["properties"].items():
        section = _resolved(field, schema["$defs"])
        inner = {(name, key): value for key, value in section.get("properties", {}).items()} or {(name,): section}
        for place, value in inner.items():
            if place not in OF_THE_CHART:
                yield place, _resolved(value, schema["$defs"])


def _resolved(field: Any, definitions: Schema) -> Any:
    """Without references, and without the null that means "not set": a value that is not given is not set."""
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
    """An object that takes these and nothing else."""
    properties: Schema = {}
    for place, schema in fields.items():
        if len(place) == 1:
            properties[place[0]] = schema
        else:
            inside = {other[1:]: value for other, value in fields.items() if other[0] == place[0]}
            properties.setdefault(place[0], _nested(inside))
    return {"type": "object", "additionalProperties": False, "properties": properties}
