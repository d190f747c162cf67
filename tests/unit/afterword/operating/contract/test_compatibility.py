"""Changes that break producers or subscribers of the last release are found."""

import copy
from pathlib import Path
from typing import Any

import orjson
import pytest

from afterword.operating.contract import EVENTS, event_schema
from afterword.schemas.messages import INPUT_TYPES
from tests.compatibility import breaking_changes

RELEASED = Path(__file__).parents[5] / "schemas" / "released"
OLD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "maxLength": 9},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/Part"}},
    },
    "required": ["id"],
    "$defs": {"Part": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
}


def test_what_is_narrower_breaks_old_producers_and_what_is_wider_old_subscribers() -> None:
    narrower = copy.deepcopy(OLD)
    narrower["properties"]["id"]["maxLength"] = 8
    assert breaking_changes(OLD, narrower, "input") == [".id: maxLength is narrower"]
    assert breaking_changes(narrower, OLD, "output") == [".id: maxLength is narrower"]
    assert breaking_changes(narrower, OLD, "input") == []


@pytest.mark.parametrize("direction", ["input", "output"])
def test_a_field_that_is_removed_breaks_both(direction: Any) -> None:
    removed = copy.deepcopy(OLD)
    removed["$defs"]["Part"] = {"type": "object", "properties": {}}
    assert ".parts.n: removed" in breaking_changes(OLD, removed, direction)


@pytest.mark.parametrize("event", EVENTS)
def test_nothing_breaks_those_who_have_the_last_release(event: str) -> None:
    last = max(RELEASED.iterdir(), key=lambda path: [int(part) for part in path.name.split(".")])
    file = last / f"{event}.schema.json"
    if not file.exists():  # it is new since then
        return
    released = orjson.loads(file.read_bytes())
    assert breaking_changes(released, event_schema(event), "input" if event in INPUT_TYPES else "output") == []
