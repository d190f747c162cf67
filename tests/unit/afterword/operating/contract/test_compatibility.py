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


def test_narrowing_breaks_old_producers_and_widening_old_subscribers() -> None:
    narrower = copy.deepcopy(OLD)
    narrower["properties"]["id"]["maxLength"] = 8
    assert breaking_changes(OLD, narrower, "input") == [".id: maxLength is narrower"]
    assert breaking_changes(narrower, OLD, "output") == [".id: maxLength is narrower"]
    assert breaking_changes(narrower, OLD, "input") == []


@pytest.mark.parametrize("direction", ["input", "output"])
def test_removed_field_breaks_producers_and_subscribers(direction: Any) -> None:
    removed = copy.deepcopy(OLD)
    removed["$defs"]["Part"] = {"type": "object", "properties": {}}
    assert ".parts.n: removed" in breaking_changes(OLD, removed, direction)


@pytest.mark.parametrize("event", EVENTS)
def test_users_of_the_last_release_break_on_nothing(event: str) -> None:
    last = max(RELEASED.iterdir(), key=lambda path: [int(part) for part in path.name.split(".")])
    file = last / f"{event}.schema.json"
    if not file.exists():  # it is new since then
        return
    released = orjson.loads(file.read_bytes())
    assert breaking_changes(released, event_schema(event), "input" if event in INPUT_TYPES else "output") == []
