"""Records of a file of JSON, one at a time, each of bounded size and depth."""

from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from io import BytesIO
from itertools import chain
from typing import Any, BinaryIO, NamedTuple

import ijson
import orjson

CHUNK_BYTES = 64 * 1024
LONG_CHUNK_BYTES = 2**20
"""The parser reads a text that does not end in a chunk once more with each further one; so these are larger."""
MAX_WEIGHT = 128 * 2**20
"""Characters of a record's texts and names, and `VALUE_WEIGHT` for each of its values: about its bytes of memory."""
VALUE_WEIGHT = 64
MAX_DEPTH = 64
"""Levels of lists and objects in a record."""
MAX_LINE_BYTES = 64 * 2**20
PLAIN_LINE_BYTES = 2**20
"""Longer lines are parsed within the bounds, which is slower."""

ParserEvent = tuple[str, Any]
START: dict[str, Callable[[], Any]] = {"start_map": dict, "start_array": list}


class Malformed(NamedTuple):
    """The reason why a record cannot be read."""

    reason: str


TOO_LARGE = Malformed(f"too_large: more than {MAX_WEIGHT >> 20} MiB")
TOO_DEEP = Malformed(f"nested deeper than {MAX_DEPTH} levels")


def json_records(file: BinaryIO) -> Iterator[Any | Malformed]:
    """Yield the elements of an array, or JSON values that follow each other.

    A record that is too large or too deep is passed over. What is not JSON, and a single text longer than any record
    may be, ends the file: the last record is Malformed then.
    """
    source = _BoundedReader(file)
    in_array = False
    try:
        events = source.answered(ijson.basic_parse(source, CHUNK_BYTES, multiple_values=True))
        for event, value in events:
            if event == "start_array" and not in_array:
                in_array = True
            elif event == "end_array":  # an inner one ends within `_built`
                in_array = False
            else:
                yield _built(chain([(event, value)], events))
    except _TextTooLong:
        yield TOO_LARGE
    except (ijson.JSONError, ValueError, SystemError):  # the last: ijson 3.6 at a number of more than 4,300 digits
        yield Malformed(f"not JSON, or cut off, within {source.bytes_read} bytes; what follows is not read")


def line_records(file: BinaryIO) -> Iterator[Any | Malformed | None]:
    """Yield the value of each line, None for a blank one."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            while line and not line.endswith(b"\n"):
                line = file.readline(CHUNK_BYTES)
            yield Malformed(f"too_large: a line of more than {MAX_LINE_BYTES >> 20} MiB")
        else:
            yield _line(line) if line.strip() else None


def is_lines(name: str, file: BinaryIO) -> bool:
    """Tell JSON Lines from one JSON document, by the file's name or else by its first line."""
    if name.lower().endswith((".jsonl", ".ndjson")):
        return True
    first = file.readline(PLAIN_LINE_BYTES).strip()
    return first.startswith(b"{") and not isinstance(_line(first), Malformed)


def _line(line: bytes) -> Any | Malformed:
    if len(line) > PLAIN_LINE_BYTES:
        found = list(json_records(BytesIO(b"[" + line + b"]")))
        return found[0] if len(found) == 1 else Malformed("not JSON")
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return Malformed(f"not JSON at column {error.colno}")


def _built(events: Iterator[ParserEvent]) -> Any | Malformed:
    """Build the value that begins with the first event, and take no event after its last.

    Numbers with a fraction arrive as Decimal: the parser's own floats come with integers of 64 bits at most.
    """
    root: list[Any] = []
    open_values: list[Any] = [root]
    name, weight = "", 0
    for event, value in events:
        weight += VALUE_WEIGHT + (len(value) if isinstance(value, str) else 0)
        if event == "map_key":
            name = value
            continue
        if event in ("end_map", "end_array"):
            open_values.pop()
        else:
            built = START[event]() if event in START else value
            _add(open_values[-1], name, float(built) if isinstance(built, Decimal) else built)
            if event in START:
                open_values.append(built)
        if len(open_values) == 1:
            return root[0]
        if weight > MAX_WEIGHT or len(open_values) > MAX_DEPTH:
            root.clear()
            _pass_over(events, len(open_values) - 1)
            return TOO_LARGE if weight > MAX_WEIGHT else TOO_DEEP
    raise ijson.IncompleteJSONError


def _add(parent: Any, name: str, value: Any) -> None:
    if isinstance(parent, dict):
        parent[name] = value
    else:
        parent.append(value)


def _pass_over(events: Iterable[ParserEvent], depth: int) -> None:
    for event, _ in events:
        depth += event.startswith("start") - event.startswith("end")
        if not depth:
            return


class _TextTooLong(Exception):
    """More was read without an event of the parser than any record may have."""


class _BoundedReader:
    """A file for the parser, which buffers a text until it is whole."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unanswered = 0
        self.bytes_read = 0

    def read(self, size: int) -> bytes:
        if self._unanswered > MAX_WEIGHT:
            raise _TextTooLong
        chunk = self._file.read(max(size, min(self._unanswered, LONG_CHUNK_BYTES)))
        self._unanswered += len(chunk)
        self.bytes_read += len(chunk)
        return chunk

    def answered(self, events: Iterable[ParserEvent]) -> Iterator[ParserEvent]:
        for event in events:
            self._unanswered = 0
            yield event
