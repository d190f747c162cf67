"""The record that ends each transaction in a changelog: which source records its rows were made from."""

from dataclasses import dataclass, field
from uuid import uuid4

import orjson

KEY = b"\0eos.bookmark"
"""Being a key like any other, compaction keeps the last bookmark. Rows get out of its way: see `changelog_key`."""


@dataclass(frozen=True, slots=True)
class Bookmark:
    source: int
    """Next offset of the source partition."""
    lineage: str
    """Which changelog this is: a random id that its first transaction gave it."""
    tables: list[str] = field(default_factory=list)
    """Whose changelogs have a bookmark of this transaction: a table that is named and has none has lost its rows."""

    def encode(self) -> bytes:
        return orjson.dumps(self)


def decode(value: bytes) -> Bookmark:
    return Bookmark(**orjson.loads(value))


def changelog_key(row_key: bytes) -> bytes:
    """Of a row. Keys come from outside: one that is the bookmark's, or begins so, is made longer by a byte."""
    return row_key + b"\0" if row_key.startswith(KEY) else row_key


def row_key(changelog_key: bytes) -> bytes:
    return changelog_key[:-1] if changelog_key.startswith(KEY) else changelog_key


def new_lineage() -> str:
    return uuid4().hex
