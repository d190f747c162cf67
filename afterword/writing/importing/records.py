"""Reads the records of a JSON file one at a time, each of bounded size. A damaged record does not affect the others."""

import json
import math
import re
from collections.abc import Iterator
from io import BufferedReader
from typing import Any, BinaryIO, NamedTuple

import orjson

from afterword.schemas.mending import BYTE_ORDER_MARK, mended

CHUNK_BYTES = 256 * 1024
MAX_WEIGHT = 128 * 2**20
"""Limit for a record: its bytes plus `VALUE_WEIGHT` per comma and bracket, which approximates its memory in bytes."""
VALUE_WEIGHT = 64
OUTSIDE = re.compile(rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
"""Matches everything up to the next bracket, or up to a string that does not end here."""
QUOTE = ord('"')


class Malformed(NamedTuple):
    """Stands for an unreadable record, with the reason."""

    reason: str


BLANK = Malformed("a blank line")
"""A blank line is counted as a record, so that a record's number is its line number, and otherwise ignored."""
TOO_LARGE = Malformed(f"too_large: more than {MAX_WEIGHT >> 20} MiB in memory")


def records(file: BufferedReader, is_lines: bool = False) -> Iterator[Any | Malformed]:
    """Yield a file's records: the elements of an array, consecutive JSON values, or one value per line.

    `is_lines` forces one record per line even if the first is damaged. Raises: OSError.
    """
    head = file.peek(CHUNK_BYTES)
    if head.startswith(BYTE_ORDER_MARK):
        file.read(len(BYTE_ORDER_MARK))
    first = head.removeprefix(BYTE_ORDER_MARK).split(b"\n", 1)[0].strip()
    if is_lines or (first.startswith(b"{") and not isinstance(parsed(first), Malformed)):
        return _lines(file)
    return _elements(file)


def parsed(data: bytes | None) -> Any | Malformed:
    """Parse a JSON value; None stands for one that is too large.

    NaN and infinity, which are not JSON, become null, and half of a surrogate pair becomes U+FFFD.
    """
    if data is None or len(data) + VALUE_WEIGHT * sum(data.count(one) for one in (b",", b"[", b"{")) > MAX_WEIGHT:
        return TOO_LARGE
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(mended(data), parse_constant=lambda _: None, parse_float=_number)
    except json.JSONDecodeError as error:
        return Malformed(f"not JSON at column {error.colno}")
    except (ValueError, RecursionError):  # not UTF-8, or a number with thousands of digits
        return Malformed("not JSON")


def _number(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def _lines(file: BinaryIO) -> Iterator[Any | Malformed]:
    while line := file.readline(MAX_WEIGHT + 1):
        if len(line) > MAX_WEIGHT:
            while line and not line.endswith(b"\n"):
                line = file.readline(CHUNK_BYTES)
            yield TOO_LARGE
        else:
            yield parsed(line.strip()) if line.strip() else BLANK


def _elements(file: BinaryIO) -> Iterator[Any | Malformed]:
    document = _Document(file)
    depth, in_array = 0, False
    while sign := document.next_bracket():
        if depth:
            depth += 1 if sign in b"[{" else -1
            if not depth:
                yield parsed(document.take(document.at))
            continue
        yield from _scalars(document.take(document.at - 1))
        if sign in b"]}":
            document.take(document.at)
            in_array = False
        elif sign == b"[" and not in_array:
            document.take(document.at)
            in_array = True
        else:
            depth = 1
    if depth or in_array or not document.ended:
        yield Malformed("cut off, or not JSON; what follows is not read")
    else:
        yield from _scalars(document.take(document.at))


class _Document:
    """Position in a document, which goes from bracket to bracket, and the bytes since the last record."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._buffer = b""
        self._start = 0
        self._dropped = 0
        self.at = 0
        self.ended = False

    def next_bracket(self) -> bytes:
        """Advance past the next bracket outside strings and return it; b"" at the end or in an unterminated string."""
        while True:
            self.at = OUTSIDE.match(self._buffer, self.at).end()  # type: ignore[union-attr]  # it always matches
            if self.at < len(self._buffer) and self._buffer[self.at] != QUOTE:
                self.at += 1
                return self._buffer[self.at - 1 : self.at]
            if self.at - self._start > MAX_WEIGHT:
                self._dropped += self.at - self._start
                self._start = self.at
            held = len(self._buffer) - self._start
            # doubling the buffer keeps the time linear
            more = self._file.read(max(CHUNK_BYTES, held)) if held <= 2 * MAX_WEIGHT else b""
            if not more:
                self.ended = self.at == len(self._buffer)
                return b""
            self._buffer, self._start, self.at = self._buffer[self._start :] + more, 0, self.at - self._start

    def take(self, end: int) -> bytes | None:
        """Return the bytes since the last record, or None if there are too many."""
        found = None if self._dropped else self._buffer[self._start : end]
        self._start, self._dropped = end, 0
        return found


def _scalars(text: bytes | None) -> Iterator[Any | Malformed]:
    """Yield the values between two bracketed records, where there should only be a comma."""
    if text is None or (text := text.strip(b" \t\r\n,")):
        values = parsed(None if text is None else b"[" + text + b"]")
        yield from [values] if isinstance(values, Malformed) else values
