"""Breaking changes between two versions of a JSON Schema; conservative where it cannot tell.

The rules are those of schema registries: old producers' records must stay valid (backward compatible), and new records
must be valid for old subscribers (forward compatible); a field that disappears breaks both.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from afterword.operating.contract import Schema

Direction = Literal["input", "output"]
"""Whether producers or subscribers have the old schema."""
LOWER = {"minimum": -math.inf, "exclusiveMinimum": -math.inf, "minLength": 0, "minItems": 0}
UPPER = {"maximum": math.inf, "exclusiveMaximum": math.inf, "maxLength": math.inf, "maxItems": math.inf}
EXACT = ("pattern", "format", "multipleOf", "uniqueItems")


def breaking_changes(old: Schema, new: Schema, direction: Direction) -> list[str]:
    """Return breaking changes as `path: problem`.

    With `input`, old producers write for the new schema; with `output`, old subscribers read what the new schema
    allows.
    """
    wide, narrow = (old, new) if direction == "input" else (new, old)
    removed = [f"{path}: removed" for path in _removed(_resolved(old), _resolved(new), "")]
    return [*removed, *_narrower(_resolved(wide), _resolved(narrow), "")]


def _resolved(schema: Schema) -> Schema:
    """Inline the definitions; our models are not recursive."""
    definitions = schema.get("$defs", {})

    def put(node: Any) -> Any:
        if isinstance(node, Mapping):
            if "$ref" in node:
                return put(definitions[node["$ref"].rsplit("/", 1)[-1]])
            return {key: put(value) for key, value in node.items() if key != "$defs"}
        return [put(child) for child in node] if isinstance(node, list) else node

    found: Schema = put(schema)
    return found


def _removed(old: Schema, new: Schema, path: str) -> Iterator[str]:
    before, after = _properties(old), _properties(new)
    for name in before:
        if name in after:
            yield from _removed(before[name], after[name], f"{path}.{name}")
        else:
            yield f"{path}.{name}"


def _properties(schema: Schema) -> dict[str, Schema]:
    found = dict(schema.get("properties", {}))
    for part in [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())]:
        found |= _properties(part)
    return found


def _narrower(wide: Schema, narrow: Schema, path: str) -> Iterator[str]:
    """Yield places where `narrow` refuses something that `wide` allows."""
    options = _options(narrow)
    for branch in _options(wide):
        findings = [list(_refused(branch, option, path)) for option in options]
        if all(findings):
            yield from min(findings, key=len)


def _options(schema: Schema) -> list[Schema]:
    return list(schema.get("anyOf", [schema]))


def _refused(wide: Schema, narrow: Schema, path: str) -> Iterator[str]:
    where = path or "."
    if not _types(wide) <= _types(narrow):
        yield f"{where}: type is not among {sorted(_types(narrow))}"
        return
    if not _holds(wide, narrow):
        yield f"{where}: values outside of {narrow.get('enum', narrow.get('const'))}"
    yield from (f"{where}: {name} is narrower" for name in _tighter(wide, narrow))
    for name in narrow.get("required", ()):
        if name not in wide.get("required", ()):
            yield f"{path}.{name}: required on one side only"
    shared = wide.get("properties", {}).keys() & narrow.get("properties", {}).keys()
    for name in sorted(shared):
        yield from _narrower(wide["properties"][name], narrow["properties"][name], f"{path}.{name}")
    if "items" in narrow:
        yield from _narrower(wide.get("items", {}), narrow["items"], f"{path}[]")


def _types(schema: Schema) -> set[str]:
    """Return the JSON types that a schema allows; every integer is a number."""
    named = schema.get("type", ["null", "boolean", "number", "string", "array", "object"])
    found = {named} if isinstance(named, str) else set(named)
    return found | {"integer"} if "number" in found else found


def _values(schema: Schema) -> set[str] | None:
    """Return the values that a schema lists, or None if it allows any."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return None if values is None else set(map(repr, values))


def _holds(wide: Schema, narrow: Schema) -> bool:
    """Return whether all values that `wide` lists are among those of `narrow`."""
    listed, allowed = _values(wide), _values(narrow)
    return allowed is None or (listed is not None and listed <= allowed)


def _tighter(wide: Schema, narrow: Schema) -> Iterator[str]:
    yield from (name for name, least in LOWER.items() if narrow.get(name, least) > wide.get(name, least))
    yield from (name for name, most in UPPER.items() if narrow.get(name, most) < wide.get(name, most))
    yield from (name for name in EXACT if name in narrow and narrow[name] != wide.get(name))
    if narrow.get("additionalProperties") is False and wide.get("additionalProperties") is not False:
        yield "additionalProperties"


# Whole HTTP interfaces


def breaking_operations(old: Schema, new: Schema) -> list[str]:
    """Return breaking changes between two OpenAPI documents: what old clients send and read must stay valid.

    They send parameters and bodies, and they read the bodies of answers with a status below 300.
    """
    found: list[str] = []
    for path, methods in old["paths"].items():
        for method, operation in methods.items():
            name = f"{method.upper()} {path}"
            later = new["paths"].get(path, {}).get(method)
            found += [f"{name}: removed"] if later is None else _broken(name, (old, operation), (new, later))
    return found


def _broken(name: str, old: tuple[Schema, Schema], new: tuple[Schema, Schema]) -> Iterator[str]:
    for place, before in _parameters(*old).items():
        after = _parameters(*new).get(place)
        problems = ["removed"] if after is None else breaking_changes(before, after, "input")
        yield from (f"{name}, {place}: {problem}" for problem in problems)
    yield from (f"{name}, {one}: required" for one in sorted(_required(new[1]) - _required(old[1])))
    for place, (before, after, direction) in _bodies(old, new).items():
        problems = ["removed"] if after is None else breaking_changes(before, after, direction)
        yield from (f"{name}, {place}: {problem}" for problem in problems)


def _required(operation: Schema) -> set[str]:
    return {one["name"] for one in operation.get("parameters", ()) if one["required"]}


def _parameters(document: Schema, operation: Schema) -> dict[str, Schema]:
    return {one["name"]: _whole(document, one["schema"]) for one in operation.get("parameters", ())}


def _bodies(
    old: tuple[Schema, Schema], new: tuple[Schema, Schema]
) -> dict[str, tuple[Schema, Schema | None, Direction]]:
    before, after = _content(*old), _content(*new)
    directions: dict[str, Direction] = {place: "input" if place == "body" else "output" for place in before}
    return {place: (before[place], after.get(place), directions[place]) for place in before}


def _content(document: Schema, operation: Schema) -> dict[str, Schema]:
    """Return the schemas of JSON bodies: of `body`, and of each successful status."""
    contents = {"body": operation.get("requestBody", {}).get("content", {})}
    contents |= {code: one.get("content", {}) for code, one in operation["responses"].items() if code < "3"}
    found = {place: content[JSON]["schema"] for place, content in contents.items() if JSON in content}
    return {place: _whole(document, schema) for place, schema in found.items()}


def _whole(document: Schema, schema: Schema) -> Schema:
    return {**schema, "$defs": document["components"]["schemas"]}


JSON = "application/json"
