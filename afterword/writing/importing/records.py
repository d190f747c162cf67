"""Reads the records of a JSON file one at a time, so that a file may be of any size."""

import codecs
import json
import math
import re
from collections.abc import Iterator
from io import BufferedReader
from typing import Any, BinaryIO, NamedTuple

import orjson

from afterword.schemas.mending import BYTE_ORDER_MARK, mended
from afterword.writing.produce import bounded_lines

CHUNK_BYTES = 256 * 1024
MOST_CHARACTERS = 128 * 2**20
"""Upper limit for a record."""
BETWEEN = re.compile(r"[ \t\r\n,]*")
"""What separates two values."""
NUMBER_ENDS = re.compile(r"[-+.eE0-9]*\Z")


class Malformed(NamedTuple):
    """Stands for an unreadable record, with the reason."""

    reason: str


BLANK = Malformed("a blank line")
"""A blank line is counted as a record, so that a record's number is its line number, and otherwise ignored."""
TOO_LARGE = Malformed("too_large: more than 128 MiB")
UNREADABLE = Malformed("cut off, not JSON, nested too deeply, or more than 128 MiB; the rest of the file was not read")


def records(file: BufferedReader, is_lines: bool = False) -> Iterator[Any | Malformed]:
    """Yield a file's records: the elements of an array, consecutive JSON values, or one value per line.

    `is_lines` forces one record per line even if the first is damaged. A damaged line does not affect the others; a
    damaged array ends there. Raises: OSError.
    """
    head = file.peek(CHUNK_BYTES)
    if head.startswith(BYTE_ORDER_MARK):
        file.read(len(BYTE_ORDER_MARK))
    first = head.removeprefix(BYTE_ORDER_MARK).split(b"\n", 1)[0].strip()
    if not (is_lines or (first.startswith(b"{") and not isinstance(_parsed(first), Malformed))):
        yield from _values(file)
        return
    for line in bounded_lines(file, MOST_CHARACTERS):
        if len(line) > MOST_CHARACTERS:
            yield TOO_LARGE
        else:
            yield _parsed(line.strip()) if line.strip() else BLANK


def _values(file: BinaryIO) -> Iterator[Any | Malformed]:
    # bytes that are not UTF-8 are passed on, for the record that has them
    utf8 = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    # only the end of a value is used, so numbers need not be converted
    decoder = json.JSONDecoder(parse_int=str, parse_float=str)
    text, at, in_array, is_whole = "", 0, False, False
    while True:
        at = BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # it always matches
        if text[at : at + 1] == ("]" if in_array else "["):
            at, in_array = at + 1, not in_array
            continue
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            is_complete = False
        else:  # a number at the end of the text may continue in the next chunk
            is_complete = is_whole or not NUMBER_ENDS.match(text, end)
        if is_complete:
            yield _parsed(text[at:end].encode(errors="surrogateescape"))
            at = end
            continue
        text, at = text[at:], 0
        if is_whole or len(text) > MOST_CHARACTERS:
            if text or in_array:
                yield UNREADABLE
            return
        chunk = file.read(max(CHUNK_BYTES, len(text)))  # doubling the text keeps the time linear
        text, is_whole = text + utf8.decode(chunk, not chunk), not chunk


def _parsed(data: bytes) -> Any | Malformed:
    """Parse a JSON value. NaN and infinity become null, and half of a surrogate pair becomes U+FFFD."""
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
