"""The OpenAPI document matches the routes, and each route documents its errors and parameters."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator

from tests.compatibility import breaking_operations
from tests.unit.afterword.serving.served import serving
from tools.reference.__main__ import DOCS, pages

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


def test_clients_of_a_released_version_continue_to_work() -> None:
    for file in RELEASED.glob("*/openapi.json"):
        assert breaking_operations(orjson.loads(file.read_bytes()), DOCUMENT) == [], file


def test_every_reference_leads_to_a_schema() -> None:
    missing = {ref for ref in references(DOCUMENT) if ref.split("/")[-1] not in DOCUMENT["components"]["schemas"]}
    assert missing == set()


@pytest.mark.parametrize(("name", "operation"), list(operations()))
def test_every_operation_is_described_with_its_problems(name: str, operation: dict[str, Any]) -> None:
    assert operation["description"]
    assert "application/problem+json" in operation["responses"]["422"]["content"]
    assert name.startswith("GET") or "security" in operation


@pytest.mark.parametrize(("name", "operation"), list(operations()))
def test_every_operation_has_an_example_of_its_schema(name: str, operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["required"]:
            assert parameter["example"], (name, parameter["name"])
    answers = [answer for status, answer in operation["responses"].items() if status < "3"]
    for described in [operation.get("requestBody", {}), *answers]:
        for content in described.get("content", {}).values():
            schema = {**content["schema"], "components": DOCUMENT["components"]}
            wrong = [error.message for error in Draft202012Validator(schema).iter_errors(content["example"])]
            assert wrong == [], "afterword/serving/examples.json"


def test_operations_use_the_products_words() -> None:
    names = {operation["operationId"] for _, operation in operations()}
    assert names >= {"recall", "send_messages", "flush", "get_context", "get_profile", "edit_message", "erase"}


@pytest.mark.parametrize(("name", "operation"), list(operations()))
async def test_body_without_a_required_field_is_refused(name: str, operation: dict[str, Any]) -> None:
    """And a body of nothing else is not."""
    method, path = name.split()
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", parameter["example"])
    if (described := operation.get("requestBody")) is None:
        return
    content = described["content"]["application/json"]
    required = schema_of(content["schema"]).get("required", ())
    async with serving() as served:
        await served.remembered.say("I am allergic to peanuts.", conversation_id="chat-1")
        least = {field: content["example"][field] for field in required} or content["example"]
        assert (await served.client.request(method, path, json=least)).status_code in (200, 202)
        for field in required:
            without = {name: value for name, value in least.items() if name != field}
            assert (await served.client.request(method, path, json=without)).status_code == 422, field


def schema_of(reference: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["components"]["schemas"][reference["$ref"].rpartition("/")[2]]
    return found


async def test_parameter_that_is_required_is_refused_if_missing() -> None:
    async with serving() as served:
        assert (await served.client.get("/v1/conversations")).status_code == 422


def test_edit_schema_uses_no_alternatives() -> None:
    assert not {"anyOf", "oneOf", "allOf"} & DOCUMENT["components"]["schemas"]["ChangeBody"].keys()
    assert DOCUMENT["components"]["schemas"]["ChangeBody"]["minProperties"] == 1


async def test_docs_page_is_served_only_if_configured() -> None:
    async with serving() as served:
        assert (await served.client.get("/docs")).status_code == 404
    async with serving(docs=True) as served:
        page = await served.client.get("/docs")
    assert page.status_code == 200
    assert "POST /v1/recall" in page.text
    assert '<h3 id="recallbody">' in page.text
    assert "May I eat peanuts?" in page.text
    assert "//" not in "".join(re.findall(r'(?:src|href)="([^"]*)"', page.text))


def test_body_fields_are_described() -> None:
    for name in ("RecallBody", "MessagesBody", "ChangeBody", "FlushBody"):
        for field in DOCUMENT["components"]["schemas"][name]["properties"].values():
            assert field.get("description"), (name, field)


PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_committed_page_matches_the_code(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name], f"docs/{name} is stale: make docs"


@pytest.mark.parametrize("name", [name for name in PAGES if name.endswith(".md")])
def test_every_row_and_option_has_a_description(name: str) -> None:
    unexplained = re.compile(r"\| `.*\|\s+\|$|- `.*`: *$")
    assert [line for line in PAGES[name].splitlines() if unexplained.match(line)] == []
