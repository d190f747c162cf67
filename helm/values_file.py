"""Read values.yaml with its comments, which give each value's purpose and form."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

Place = tuple[str, ...]
"""Keys from the top of the file down to a value."""

KEY = re.compile(r"^(?P<indent> *)(?P<name>[\w.]+):")
COMMENT = re.compile(r"^ *# ?(?P<text>.*)$")
SCHEMA = "@schema "
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


@dataclass(frozen=True)
class Described:
    """A value with its description. `schema` holds what the comment says beyond what the default shows."""

    place: Place
    default: Any
    description: str
    schema: Mapping[str, Any]

    @property
    def as_schema(self) -> dict[str, Any]:
        known = {"type": TYPES[type(self.default)], **self.schema}
        return {**known, "description": self.description} if self.description else known


def described(text: str) -> dict[Place, Described]:
    """Find every value that has a comment, and all top-level ones.

    Raises: KeyError for a default whose type has no name in JSON Schema.
    """
    values = yaml.safe_load(text)
    return {
        place: Described(place, at(values, place), *_split(comment))
        for place, comment in _commented(text)
        if comment or len(place) == 1
    }


def at(values: Any, place: Place) -> Any:
    for name in place:
        values = values[name]
    return values


def _commented(text: str) -> Iterator[tuple[Place, list[str]]]:
    """Yield each key with the comment lines right above it."""
    stack: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        if found := COMMENT.match(line):
            comment.append(found["text"])
            continue
        if found := KEY.match(line):
            indent = len(found["indent"])
            stack = [*(entry for entry in stack if entry[0] < indent), (indent, found["name"])]
            yield tuple(name for _, name in stack), comment
        comment = []


def _split(comment: list[str]) -> tuple[str, dict[str, Any]]:
    text = " ".join(line for line in comment if not line.startswith(SCHEMA))
    added = [yaml.safe_load(line.removeprefix(SCHEMA)) for line in comment if line.startswith(SCHEMA)]
    return text, {name: value for part in added for name, value in part.items()}
