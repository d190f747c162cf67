"""The API manual at `/docs`: the OpenAPI document as one HTML page without scripts.

The framework's own pages load a renderer from other sites. A template needs none, and no exception in the CSP.
"""

from collections.abc import Mapping
from importlib import resources
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

REFERENCE = "#/components/schemas/"
BOUNDS = {
    "minimum": "at least",
    "maximum": "at most",
    "minLength": "characters, at least",
    "maxLength": "characters, at most",
    "minItems": "items, at least",
    "maxItems": "items, at most",
}
MOMENT = "2026-01-05T12:00:00Z"
JSON = "application/json"
SERVER = "http://localhost:8080"

JsonSchema = Mapping[str, Any]

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def show_manual(request: Request) -> Response:
    state = request.app.state
    if not hasattr(state, "manual"):
        state.manual = rendered(request.app.openapi())
    return Response(state.manual, media_type="text/html")


@router.get("/docs/manual.css")
async def show_manual_style() -> Response:
    return Response(resources.files(__package__).joinpath("manual.css").read_bytes(), media_type="text/css")


def rendered(document: JsonSchema) -> str:
    """Render an OpenAPI document as HTML."""
    loader = PackageLoader("afterword.serving", ".")
    templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    templates.filters.update(type=type_of, body=body_of)
    sections: dict[str, list[dict[str, Any]]] = {}
    for path, methods in document["paths"].items():
        for method, found in methods.items():
            curl = curl_of(method.upper(), path, found, document)
            route = {"description": "", "parameters": (), "security": (), **found}
            sections.setdefault(found["tags"][0], []).append(
                {**route, "method": method.upper(), "path": path, "curl": curl}
            )
    models = sorted(document["components"]["schemas"].items())
    return templates.get_template("manual.html").render(info=document["info"], sections=sections, models=models)


def body_of(message: JsonSchema) -> Markup:
    """Describe the body of a request or a response; empty if it has none."""
    schema = _schema_of(message)
    return type_of(schema) if schema else Markup()


def _schema_of(message: JsonSchema) -> JsonSchema | None:
    return next((one["schema"] for one in message.get("content", {}).values() if one.get("schema")), None)


def type_of(schema: JsonSchema) -> Markup:
    """Describe a JSON schema in words, with links to models."""
    if "$ref" in schema:
        return Markup('<a href="#model-{0}">{0}</a>').format(schema["$ref"].removeprefix(REFERENCE))
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return Markup(" or ").join(orjson.dumps(value).decode() for value in values)
    if "anyOf" in schema:
        return Markup(" or ").join(map(type_of, schema["anyOf"]))
    bounds = "".join(f", {words} {schema[name]:,}" for name, words in BOUNDS.items() if name in schema)
    if schema.get("type") == "array" and "items" in schema:
        return Markup("list of {}{}").format(type_of(schema["items"]), bounds)
    return Markup.escape(schema.get("format") or schema.get("type", "anything")) + bounds


def curl_of(method: str, path: str, operation: JsonSchema, document: JsonSchema) -> str:
    """Write a curl command that calls the route with its required parameters."""
    required = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query" and one.get("required")]
    query = "?" + "&".join(f"{name}={name.upper()}" for name in required) if required else ""
    lines = [f"curl -X {method} '{SERVER}{path.replace('{', '').replace('}', '')}{query}'"]
    if operation.get("security"):
        lines.append("-H 'Authorization: Bearer KEY'")
    if body := _schema_of(operation.get("requestBody", {})):
        example = orjson.dumps(example_of(body, document)).decode()
        lines += [f"-H 'Content-Type: {JSON}'", f"-d '{example}'"]
    return " \\\n  ".join(lines)


def example_of(schema: JsonSchema, document: JsonSchema, name: str = "text") -> Any:
    """Build an example value of a schema. An object gets its required fields, or all of them if none is required."""
    if "$ref" in schema:
        return example_of(document["components"]["schemas"][schema["$ref"].removeprefix(REFERENCE)], document)
    if "anyOf" in schema:
        return example_of(schema["anyOf"][0], document, name)
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    match schema.get("type"):
        case "object":
            fields = schema.get("properties", {})
            return {one: example_of(fields[one], document, one) for one in schema.get("required", fields)}
        case "array":
            return [example_of(schema["items"], document, name)]
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case _:
            return MOMENT if schema.get("format") == "date-time" else name
