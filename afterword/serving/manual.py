"""The API manual at `/docs`: the OpenAPI document as one HTML page without scripts.

The framework's own pages load a renderer from other sites. A template needs none, and no exception in the CSP.
"""

from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, NamedTuple

import orjson
from fastapi import APIRouter, Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

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


class TypePart(NamedTuple):
    """A word in the description of a type, with the model it names, if any."""

    text: str
    model: str | None = None


class FieldRow(NamedTuple):
    """A field of a model, or a parameter. `place` is path, query or header, and empty for a field."""

    name: str
    place: str
    required: bool
    type: tuple[TypePart, ...]
    description: str


class ResponseRow(NamedTuple):
    """A response. `type` describes its body, and is empty if it has none."""

    status: str
    description: str
    type: tuple[TypePart, ...]


class OperationEntry(NamedTuple):
    """A route as shown on the page."""

    name: str
    method: str
    path: str
    description: str
    needs_key: bool
    parameters: tuple[FieldRow, ...]
    body: tuple[TypePart, ...]
    responses: tuple[ResponseRow, ...]
    curl: str


class ModelEntry(NamedTuple):
    """The model of a request or response body."""

    name: str
    description: str
    fields: tuple[FieldRow, ...]


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
    sections: dict[str, list[OperationEntry]] = {}
    for tag, operation in operations(document):
        sections.setdefault(tag, []).append(operation)
    models = [model_of(name, schema) for name, schema in sorted(document["components"]["schemas"].items())]
    return templates.get_template("manual.html").render(info=document["info"], sections=sections, models=models)


def operations(document: JsonSchema) -> Iterator[tuple[str, OperationEntry]]:
    """List the routes, each with its section."""
    for path, methods in document["paths"].items():
        for method, found in methods.items():
            body = found.get("requestBody", {}).get("content", {}).get(JSON, {}).get("schema")
            responses = tuple(_response(status, answer) for status, answer in found["responses"].items())
            yield (
                found["tags"][0],
                OperationEntry(
                    found["operationId"],
                    method.upper(),
                    path,
                    found.get("description", ""),
                    bool(found.get("security")),
                    tuple(_parameter(one) for one in found.get("parameters", ())),
                    type_of(body) if body else (),
                    responses,
                    curl_of(method.upper(), path, found, document),
                ),
            )


def model_of(name: str, schema: JsonSchema) -> ModelEntry:
    required = schema.get("required", ())
    fields = tuple(
        FieldRow(field, "", field in required, type_of(one), one.get("description", ""))
        for field, one in schema.get("properties", {}).items()
    )
    return ModelEntry(name, schema.get("description", ""), fields)


def type_of(schema: JsonSchema) -> tuple[TypePart, ...]:
    """Describe a JSON schema in words."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(REFERENCE)
        return (TypePart(name, name),)
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return (TypePart(" or ".join(orjson.dumps(value).decode() for value in values)),)
    if "anyOf" in schema:
        return _joined(schema["anyOf"])
    if schema.get("type") == "array" and "items" in schema:
        return (TypePart("list of "), *type_of(schema["items"]), *_bounds(schema))
    return (TypePart(schema.get("format") or schema.get("type", "anything")), *_bounds(schema))


def _joined(schemas: list[JsonSchema]) -> tuple[TypePart, ...]:
    parts = list(type_of(schemas[0]))
    for schema in schemas[1:]:
        parts += [TypePart(" or "), *type_of(schema)]
    return tuple(parts)


def _bounds(schema: JsonSchema) -> tuple[TypePart, ...]:
    return tuple(TypePart(f", {words} {schema[name]:,}") for name, words in BOUNDS.items() if name in schema)


def _parameter(given: JsonSchema) -> FieldRow:
    schema, is_required = given["schema"], given.get("required", False)
    return FieldRow(given["name"], given["in"], is_required, type_of(schema), given.get("description", ""))


def _response(status: str, answer: JsonSchema) -> ResponseRow:
    bodies = answer.get("content", {})
    schema = next((one["schema"] for one in bodies.values() if one.get("schema")), None)
    return ResponseRow(status, answer["description"], type_of(schema) if schema else ())


def curl_of(method: str, path: str, operation: JsonSchema, document: JsonSchema) -> str:
    """Write a curl command that calls the route with its required parameters."""
    required = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query" and one.get("required")]
    query = "?" + "&".join(f"{name}={name.upper()}" for name in required) if required else ""
    lines = [f"curl -X {method} '{SERVER}{path.replace('{', '').replace('}', '')}{query}'"]
    if operation.get("security"):
        lines.append("-H 'Authorization: Bearer KEY'")
    body = operation.get("requestBody", {}).get("content", {}).get(JSON, {}).get("schema")
    if body:
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
