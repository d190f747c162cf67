"""The record that ends each transaction in a changelog: which source records its rows were made from."""

from dataclasses import dataclass
from uuid import uuid4

import orjson

KEY = b"\0eos.bookmark"
"""Reserved: no row of a table may have it. Being a key like any other, compaction keeps the last bookmark."""


@dataclass(frozen=True, slots=True)
class Bookmark:
    source: int
    """Next offset of the source partition."""
    lineage: str
    """Which changelog this is: a random id that its first transaction gave it."""

    def encode(self) -> bytes:
        return orjson.dumps(self)


def decode(value: bytes) -> Bookmark:
    return Bookmark(**orjson.loads(value))


def new_lineage() -> str:
    return uuid4().hex
