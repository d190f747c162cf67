"""Replacements: small records that stand in for those that a consumer could not pass on as they were.

A header says what was wrong with the original. It carries facts but no free text: a producer may forge it, and its
content ends up in logs and dead letters.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import orjson

from afterword.schemas.headers import REPLACED

_SENTENCES = {
    "too_large": "{bytes} bytes, including a value of {value_bytes} bytes with SHA-256 {value_sha256}",
    "invalid_header": "a header's name is not UTF-8",
    "undecodable_batch": "offsets {first} to {last} cannot be read: {cause}",
}


def _is_number(found: object) -> bool:
    return type(found) is int


def _is_digest(found: object) -> bool:
    return isinstance(found, str) and re.fullmatch("[0-9a-f]{64}", found) is not None


def _is_name(found: object) -> bool:
    return isinstance(found, str) and re.fullmatch("[A-Za-z]{1,40}", found) is not None


_FACTS: dict[str, dict[str, Callable[[object], bool]]] = {
    "too_large": {"bytes": _is_number, "value_bytes": _is_number, "value_sha256": _is_digest},
    "invalid_header": {},
    "undecodable_batch": {"first": _is_number, "last": _is_number, "cause": _is_name},
}


class Replaced(NamedTuple):
    """Why the original was replaced."""

    error_type: str
    detail: str


def replacement_header(error_type: str, **facts: int | str) -> tuple[str, bytes]:
    """Build the header of a replacement. Numbers must fit into 64 bits."""
    return REPLACED, orjson.dumps({"error_type": error_type, **facts})


def read_replacement(headers: Sequence[tuple[str, bytes | None]]) -> Replaced | None:
    """Read the header of a replacement; None for any other record, including most forgeries."""
    if len(headers) != 1 or headers[0][0] != REPLACED:
        return None
    try:
        said = orjson.loads(headers[0][1] or b"")
    except orjson.JSONDecodeError:
        return None
    error_type = said.pop("error_type", None) if isinstance(said, dict) else None
    if not isinstance(error_type, str) or error_type not in _FACTS:
        return None
    facts = _FACTS[error_type]
    if said.keys() != facts.keys() or not all(holds(said[name]) for name, holds in facts.items()):
        return None
    return Replaced(error_type, _SENTENCES[error_type].format(**said))
