"""The OpenAPI document matches the routes, and each route documents its errors and parameters."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.compatibility import breaking_operations
from tools.reference.__main__ import pages

RELEASED = Path(__file__).parents[3] / "schemas" / "released"
NAME = "reference/openapi.json"
DOCUMENT: dict[str, Any] = orjson.loads(pages()[NAME])


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def references(node: Any) -> Iterator[str]:
    """Yield every `$ref` in a document."""
    if isinstance(node, Mapping):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from references(child)


@pytest.mark.parametrize("file", sorted(RELEASED.glob("*/openapi.json")), ids=lambda file: file.parent.name)
def test_clients_of_a_released_version_go_on(file: Path) -> None:
    assert breaking_operations(orjson.loads(file.read_bytes()), DOCUMENT) == []


def test_every_reference_leads_to_a_schema() -> None:
    missing = {ref for ref in references(DOCUMENT) if ref.split("/")[-1] not in DOCUMENT["components"]["schemas"]}
    assert missing == set()


@pytest.mark.parametrize(("name", "operation"), list(operations()))
def test_every_operation_is_described_with_its_problems(name: str, operation: dict[str, Any]) -> None:
    assert operation["description"]
    assert "application/problem+json" in operation["responses"]["422"]["content"]
    assert name.startswith("GET") or "security" in operation


def test_the_fields_of_bodies_are_described() -> None:
    for name in ("RecallBody", "MessagesBody", "ChangeBody", "FlushBody"):
        for field in DOCUMENT["components"]["schemas"][name]["properties"].values():
            assert field.get("description"), (name, field)
