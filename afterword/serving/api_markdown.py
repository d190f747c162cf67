"""The OpenAPI document as Markdown, for the page `/docs` and for the documentation's site, which has no FastAPI."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

Node = dict[str, Any]


def http_api(document: Node, address: str) -> str:
    """Render routes and schemas as Markdown. `address` is that of the document."""
    problem = "Any route may answer with an error, which is a [ProblemDocument](#problemdocument)."
    parts = [f"# HTTP API\n\nMade of [openapi.json]({address}). {problem}"]
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
        rows = [
            (
                f"`{parameter['name']}`",
                parameter["in"],
                type_of(parameter["schema"]),
                "yes" if parameter["required"] else "",
                _text(parameter),
            )
            for parameter in parameters
        ]
        yield _table(("parameter", "in", "type", "required", "meaning"), rows)
    for content_type, content in operation.get("requestBody", {}).get("content", {}).items():
        yield from _content("Body", content_type, content)
    for status, answer in operation["responses"].items():
        for content_type, content in answer["content"].items() if status < "4" else ():
            yield from _content(f"Answer {status}", content_type, content)


def _content(what: str, content_type: str, content: Node) -> Iterator[str]:
    yield f"{what}, `{content_type}`: {type_of(content['schema'])}"
    example = content["example"]
    text = example if isinstance(example, str) else json.dumps(example, indent=1, ensure_ascii=False)
    yield f"```\n{text.strip()}\n```"


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
