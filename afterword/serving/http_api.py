"""The description of the HTTP API: its OpenAPI document, and the page `/docs`."""

import json
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from markdown_it import MarkdownIt
from pydantic.json_schema import models_json_schema
from starlette.responses import HTMLResponse

from afterword.serving.api_markdown import Node, http_api
from afterword.serving.problems import ProblemDocument
from afterword.serving.requests import BODIES, JSON

PAGE = """\
<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>HTTP API · Afterword</title><link rel="stylesheet" href="/static/page.css"></head>
<body><main class="docs">%s</main></body>
</html>
"""
router = APIRouter()


def describe_bodies(routes: Iterable[Any]) -> None:
    """Describe the bodies that routes read themselves. `openapi` adds their models."""
    for route in routes:
        for model in (BODIES[each.call] for each in route.dependant.dependencies if each.call in BODIES):
            schema = {"$ref": f"#/components/schemas/{model.__name__}"}
            route.openapi_extra = {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}


def openapi(app: FastAPI) -> Node:
    """Build the OpenAPI document, including the models of bodies and problems, and an example of each route."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    models = [*((model, "validation") for model in BODIES.values()), (ProblemDocument, "serialization")]
    _, made = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]  # a list is invariant
    schemas = document["components"]["schemas"] = made["$defs"] | document["components"]["schemas"]
    for name, schema in schemas.items():
        for field in schema.get("properties", {}).values():
            # generators take a field with a default for one that is always there
            if (default := field.pop("default", None)) not in (None, "", []) and name in made["$defs"]:
                field["description"] += f" Default: {json.dumps(default)}."
    # only a key that is bound to a user may leave out the user
    for body in (schemas[name] for name in made["$defs"] if "user_id" in schemas[name]["properties"]):
        body["required"] = [*body.get("required", ()), "user_id"]
    for parameter in document["paths"]["/v1/conversations"]["get"]["parameters"]:
        parameter["required"] |= parameter["name"] == "user_id"
    examples = json.loads((files(__package__) / "examples.json").read_text(encoding="utf-8"))
    for operation in (each for methods in document["paths"].values() for each in methods.values()):
        _add_example(operation, examples[operation["operationId"]])
    app.openapi_schema = document
    return document


def _add_example(operation: Node, example: Node) -> None:
    """Add an example: its `parameters`, `body` and `answer`."""
    for parameter in operation.get("parameters", ()):
        if (value := example.get("parameters", {}).get(parameter["name"])) is not None:
            parameter["example"] = value
    if "requestBody" in operation:
        operation["requestBody"]["content"][JSON]["example"] = example["body"]
    [answer] = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
    for content in answer["content"].values():
        content["example"] = example["answer"]


@router.get("/docs", include_in_schema=False)
async def show_docs(request: Request) -> HTMLResponse:
    """Show the routes and schemas to people. Nothing is loaded from another site."""
    return HTMLResponse(_page(http_api(request.app.openapi(), "/openapi.json")))


@cache
def _page(text: str) -> str:
    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    return PAGE % re.sub(r"<h3>(\w+)</h3>", lambda name: f'<h3 id="{name[1].lower()}">{name[1]}</h3>', html)
