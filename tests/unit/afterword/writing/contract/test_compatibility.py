"""A change that breaks old producers or old subscribers is found; one that breaks nobody is not called breaking."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from afterword.writing.contract import EVENTS, Direction, EventType, event_schema
from tests.compatibility import breaking_changes

RELEASED = Path(__file__).parents[5] / "schemas" / "released"

OLD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "minLength": 1, "maxLength": 9},
        "role": {"type": "string", "enum": ["user", "tool"]},
        "score": {"anyOf": [{"type": "number", "minimum": -1, "maximum": 1}, {"type": "null"}], "default": None},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/Part"}, "minItems": 1},
        "at": {"type": "string", "format": "date-time"},
    },
    "required": ["id", "role"],
    "$defs": {"Part": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
}
Change = Callable[[dict[str, Any]], object]

NARROWER: dict[str, Change] = {
    "a field is required": lambda s: s["required"].append("score"),
    "a new field is required": lambda s: (s["properties"].update(new={"type": "string"}), s["required"].append("new")),
    "a shorter maximum": lambda s: s["properties"]["id"].update(maxLength=8),
    "a longer minimum": lambda s: s["properties"]["id"].update(minLength=2),
    "a value less": lambda s: s["properties"]["role"]["enum"].remove("tool"),
    "only one value": lambda s: s["properties"]["role"].update(const="user"),
    "null no more": lambda s: s["properties"].update(score={"type": "number", "minimum": -1, "maximum": 1}),
    "a smaller range": lambda s: s["properties"]["score"]["anyOf"][0].update(maximum=0),
    "whole numbers only": lambda s: s["properties"]["score"]["anyOf"][0].update(type="integer"),
    "another type": lambda s: s["properties"]["id"].update(type="integer"),
    "a pattern": lambda s: s["properties"]["id"].update(pattern="^a"),
    "a format": lambda s: s["properties"]["id"].update(format="uuid"),
    "more items": lambda s: s["properties"]["parts"].update(minItems=2),
    "a field in an item is required": lambda s: s["$defs"]["Part"].update(required=["n", "m"]),
    "another type in an item": lambda s: s["$defs"]["Part"]["properties"].update(n={"type": "string"}),
    "unknown fields refused": lambda s: s.update(additionalProperties=False),
}
OTHERWISE = ("a new field is required", "another type", "another type in an item")
"""Changes that are not simply narrower: in the other direction they break something too."""
HARMLESS: dict[str, Change] = {
    "a new optional field": lambda s: s["properties"].update(new={"type": "string"}),
    "a description": lambda s: s["properties"]["id"].update(description="of the message"),
    "a definition is called otherwise": lambda s: s["properties"]["parts"].update(items=s["$defs"].pop("Part")),
}
REMOVED: dict[str, Change] = {
    "a field": lambda s: s["properties"].pop("at"),
    "a field in an item": lambda s: (s["$defs"]["Part"]["properties"].pop("n"), s["$defs"]["Part"].pop("required")),
}


def changed(change: Change) -> dict[str, Any]:
    schema = copy.deepcopy(OLD)
    change(schema)
    return schema


@pytest.mark.parametrize("name", NARROWER)
def test_what_is_narrower_breaks_old_producers(name: str) -> None:
    assert breaking_changes(OLD, changed(NARROWER[name]), "input")


@pytest.mark.parametrize("name", NARROWER)
def test_what_is_wider_breaks_old_subscribers(name: str) -> None:
    if name != "a new field is required":  # seen the other way round it is a field that was removed
        assert breaking_changes(changed(NARROWER[name]), OLD, "output")


@pytest.mark.parametrize("name", [name for name in NARROWER if name not in OTHERWISE])
def test_what_is_wider_does_not_break_old_producers(name: str) -> None:
    assert breaking_changes(changed(NARROWER[name]), OLD, "input") == []


@pytest.mark.parametrize("name", REMOVED)
@pytest.mark.parametrize("direction", ["input", "output"])
def test_a_field_that_is_removed_breaks_both(name: str, direction: Direction) -> None:
    assert breaking_changes(OLD, changed(REMOVED[name]), direction)


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("direction", ["input", "output"])
def test_what_harms_nobody_is_not_called_breaking(name: str, direction: Direction) -> None:
    assert breaking_changes(OLD, changed(HARMLESS[name]), direction) == []


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_nothing_breaks_those_who_have_the_last_release(event: EventType) -> None:
    last = max(RELEASED.iterdir(), key=lambda path: [int(part) for part in path.name.split(".")])
    file = last / f"{event.name}.schema.json"
    if not file.exists():  # it is new since then
        return
    released = orjson.loads(file.read_bytes())
    assert breaking_changes(released, event_schema(event), event.direction) == []


def test_a_finding_names_the_field() -> None:
    assert breaking_changes(OLD, changed(NARROWER["a shorter maximum"]), "input") == [".id: maxLength is narrower"]
