"""The OpenAPI document as Markdown, for the page `/docs` and for the documentation's site, which has no FastAPI."""

import json
from typing import Any

from jinja2 import Environment, PackageLoader

Node = dict[str, Any]


def http_api(document: Node, address: str) -> str:
    """Render routes and schemas as Markdown. `address` is that of the document."""
    made = Environment(  # noqa: S701 – it writes Markdown, of our own texts
        loader=PackageLoader("afterword.serving", "."), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    made.filters.update(type=type_of, meaning=_meaning, shown=_shown)
    return made.get_template("http_api.jinja").render(address=address, **document)


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


def _meaning(node: Node) -> str:
    """Return a description on one line, for a cell of a table."""
    return " ".join(str(node.get("description", "")).split()).replace("|", "\\|")


def _shown(example: Any) -> str:
    return (example if isinstance(example, str) else json.dumps(example, indent=1, ensure_ascii=False)).strip()
