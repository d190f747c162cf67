"""A table as the segmenter sees it, and a batch's own view of one."""

from typing import Protocol


class Rows(Protocol):
    """A dictionary of bytes, or a table that behaves like one."""

    def get(self, key: bytes, /) -> bytes | None: ...
    def __setitem__(self, key: bytes, value: bytes, /) -> None: ...
    def __delitem__(self, key: bytes, /) -> None: ...


class BufferedRows:
    """All of a batch's changes, or none: they reach the table with `flush`, each key once.

    A key that is in the table must be read here before it is deleted; so a row that came and went within the batch
    never reaches the table, and a lookup in it is spared.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._read: dict[bytes, bytes | None] = {}
        self._changed: dict[bytes, bytes | None] = {}

    def get(self, key: bytes, /) -> bytes | None:
        if key in self._changed:
            return self._changed[key]
        if key not in self._read:
            self._read[key] = self._rows.get(key)
        return self._read[key]

    def __setitem__(self, key: bytes, value: bytes, /) -> None:
        self._changed[key] = value

    def __delitem__(self, key: bytes, /) -> None:
        if self._read.get(key) is None:
            self._changed.pop(key, None)
        else:
            self._changed[key] = None

    def flush(self) -> None:
        for key, value in self._changed.items():
            if value is None:
                del self._rows[key]
            else:
                self._rows[key] = value
