"""The OpenAPI document is that of the routes, and each of them says how it fails and what it takes."""

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.compatibility import breaking_operations
from tools.reference.__main__ import DOCS, pages

RELEASED = Path(__file__).parents[3] / "schemas" / "released"
NAME = "reference/openapi.json"
DOCUMENT: dict[str, Any] = orjson.loads(pages()[NAME])


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def references(node: Any) -> Iterator[str]:
    """Every `$ref` in a document."""
    if isinstance(node, Mapping):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from references(child)


def test_the_committed_document_is_the_routes_own() -> None:
    assert (DOCS / NAME).read_text() == pages()[NAME], "make docs"


@pytest.mark.parametrize("file", sorted(RELEASED.glob("*/openapi.json")), ids=lambda file: file.parent.name)
def test_clients_of_a_released_version_go_on(file: Path) -> None:
    assert breaking_operations(orjson.loads(file.read_bytes()), DOCUMENT) == []


def changed(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    document = copy.deepcopy(DOCUMENT)
    change(document)
    return document


BREAKING: dict[str, Callable[[dict[str, Any]], None]] = {
    "GET /v1/events: removed": lambda d: d["paths"].pop("/v1/events"),
    "GET /v1/conversations, after: removed": lambda d: d["paths"]["/v1/conversations"]["get"]["parameters"].pop(),
    "GET /v1/conversations, user_id: required": lambda d: [
        one.update(required=True)
        for one in d["paths"]["/v1/conversations"]["get"]["parameters"]
        if one["name"] == "user_id"
    ],
    "POST /v1/recall, body: .k: maximum is narrower": lambda d: d["components"]["schemas"]["RecallBody"]["properties"][
        "k"
    ].update(maximum=50),
    "POST /v1/recall, 200: .hits.score: removed": lambda d: d["components"]["schemas"]["Recalled"]["properties"].pop(
        "score"
    ),
}


@pytest.mark.parametrize(("finding", "change"), BREAKING.items(), ids=BREAKING.keys())
def test_a_change_that_breaks_clients_is_found(finding: str, change: Callable[[dict[str, Any]], None]) -> None:
    assert finding in breaking_operations(DOCUMENT, changed(change))


def test_an_operation_and_a_parameter_more_break_nothing() -> None:
    def more(document: dict[str, Any]) -> None:
        operation = document["paths"]["/v1/conversations"]["get"]
        document["paths"]["/v1/new"] = {"get": operation}
        operation["parameters"].append({"name": "new", "required": False, "schema": {"type": "string"}})

    assert breaking_operations(DOCUMENT, changed(more)) == []
    assert breaking_operations(DOCUMENT, DOCUMENT) == []


def test_every_reference_leads_to_a_schema() -> None:
    missing = {ref for ref in references(DOCUMENT) if ref.split("/")[-1] not in DOCUMENT["components"]["schemas"]}
    assert missing == set()


@pytest.mark.parametrize(("name", "operation"), list(operations()))
def test_every_operation_is_described_with_its_problems(name: str, operation: dict[str, Any]) -> None:
    assert operation["description"]
    assert "application/problem+json" in operation["responses"]["422"]["content"]
    assert name.startswith("GET") or "security" in operation


def test_everything_of_the_memory_needs_a_bearer_token() -> None:
    open_to_all = {name for name, operation in operations() if "security" not in operation}
    assert open_to_all == {"GET /livez", "GET /readyz", "GET /metrics"}


def test_the_fields_of_bodies_are_described() -> None:
    for name in ("RecallBody", "MessagesBody", "ChangeBody", "FlushBody"):
        for field in DOCUMENT["components"]["schemas"][name]["properties"].values():
            assert field.get("description"), (name, field)
