"""Render the page of the HTTP API from its OpenAPI document."""

from collections.abc import Iterator, Sequence
from typing import Any

Node = dict[str, Any]

INTRODUCTION = """\
# HTTP API

Routes of `afterword serve`: see [how to serve it](../how-to/serve.md). Made of [openapi.json](openapi.json)."""


def http_api(document: Node) -> str:
    """Render routes and schemas as Markdown."""
    parts = [INTRODUCTION]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts += _operation(f"{method.upper()} {path}", operation)
    parts.append("## Schemas")
    for name, schema in document["components"]["schemas"].items():
        parts += _schema(name, schema)
    return "\n\n".join(parts) + "\n"


def _operation(title: str, operation: Node) -> Iterator[str]:
    yield f"## `{title}`"
    if text := operation.get("description") or operation.get("summary"):
        yield text
    if parameters := operation.get("parameters"):
        rows = [(f"`{p['name']}`", p["in"], type_of(p["schema"]), _text(p)) for p in parameters]
        yield _table(("parameter", "in", "type", "meaning"), rows)
    for content_type, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"Body, `{content_type}`: {type_of(content.get('schema', {}))}"
    answers = [(status, _answer(answer), _text(answer)) for status, answer in operation["responses"].items()]
    yield _table(("status", "body", "meaning"), answers)


def _answer(answer: Node) -> str:
    return (
        ", ".join(
            f"`{kind}`: {type_of(content.get('schema', {}))}" for kind, content in answer.get("content", {}).items()
        )
        or "–"
    )


def _schema(name: str, schema: Node) -> Iterator[str]:
    yield f"### {name}"
    if text := _text(schema):
        yield text
    required = schema.get("required", ())
    rows = [
        (f"`{field}`", type_of(of), "yes" if field in required else "", _text(of))
        for field, of in schema.get("properties", {}).items()
    ]
    yield _table(("field", "type", "required", "meaning"), rows) if rows else type_of(schema)


def type_of(schema: Node) -> str:
    """Name a type, with a link if it is a schema of its own."""
    if name := schema.get("$ref", "").rpartition("/")[2]:
        return f"[{name}](#{name.lower()})"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(type_of(choice) for choice in choices)
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type") or "anything")


def _text(node: Node) -> str:
    return " ".join(str(node.get("description", "")).split()).replace("|", "\\|")


def _table(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [names, ("---",) * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
