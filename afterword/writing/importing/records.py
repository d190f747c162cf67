"""The records of a history: how they are read from a JSON file, whose they are, and what an import makes of them.

Files of any size are read one record at a time.
"""

import codecs
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, BinaryIO, NamedTuple

import orjson

from afterword.schemas import InvalidRecord, MessageCreated
from afterword.schemas.base import BYTE_ORDER_MARK, mended, rfc3339
from afterword.schemas.decoding import validate
from afterword.streams.ingest.sources import UNENCODABLE, Unit, encoded, id_of, moment_of
from afterword.streams.text.content import name_words
from afterword.writing.produce import bounded_lines

CHUNK_BYTES = 256 * 1024
MOST_CHARACTERS = 128 * 2**20
"""Upper limit for a record."""
BETWEEN = re.compile(r"[ \t\r\n,]*")
"""What separates two values."""
NUMBER_ENDS = re.compile(r"[-+.eE0-9]*\Z")


class Malformed(NamedTuple):
    """Stands for an unreadable record, with the reason and the number of its messages if that is known."""

    reason: str
    messages: int = 1


TOO_LARGE = Malformed("too_large: more than 128 MiB")
UNREADABLE = Malformed(
    "cut off, not JSON in UTF-8, nested too deeply, or more than 128 MiB; the rest of the file was not read"
)


def records(file: BufferedReader, is_lines: bool = False) -> Iterator[tuple[int, Any | Malformed]]:
    """Yield a file's records: the elements of an array, consecutive JSON values, or one value per line.

    Each has its number, from 1, or that of its line. `is_lines` forces one record per line even if the first is
    damaged. A damaged line does not affect the others; a damaged array ends there. Raises: OSError.
    """
    first = file.peek(CHUNK_BYTES).removeprefix(BYTE_ORDER_MARK).split(b"\n", 1)[0].strip()
    if not (is_lines or (first.startswith(b"{") and not isinstance(_parsed(first), Malformed))):
        yield from enumerate(_values(file), start=1)
        return
    for number, line in enumerate(bounded_lines(file, MOST_CHARACTERS), start=1):
        if len(line) > MOST_CHARACTERS:
            yield number, TOO_LARGE
        elif text := line.removeprefix(BYTE_ORDER_MARK).strip():
            yield number, _parsed(text)


def _values(file: BinaryIO) -> Iterator[Any | Malformed]:
    # bytes that are not UTF-8 are passed on, for the record that has them
    utf8 = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
    # only the end of a value is used, so numbers need not be converted
    decoder = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)
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
    """Parse a JSON value leniently: NaN and infinity become null, and half of a surrogate pair becomes U+FFFD."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(mended(data).decode(), strict=False, parse_constant=lambda _: None, parse_float=_number)
    except json.JSONDecodeError as error:
        return Malformed(f"not JSON at column {error.colno}")
    except UnicodeDecodeError as error:
        return Malformed(f"not UTF-8 at byte {error.start + 1}")
    except (ValueError, RecursionError):  # a number with thousands of digits, or deep nesting
        return Malformed("not JSON")


def _number(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


DIGITS = re.compile(r"\d+(\.\d*)?", re.ASCII)
USER_IDS = (("user", "id"), ("userid",), ("user",))
CONVERSATION_IDS = tuple(
    spelling for name in ("conversation", "thread", "session", "chat") for spelling in ((name, "id"), (f"{name}id",))
)
"""Names of the fields that are read, split into words, in order of preference."""
OWN_IDS = (("id",), ("uuid",))
"""Names of an object's own id: the conversation's in a record of a conversation, the message's in a message."""

_PEOPLE = """
account actor author by client contact creator customer email employee from guest human identity login member owner
participant patient person phone principal profile sender speaker sub subject subscriber uid visitor
"""
PEOPLE = frozenset(_PEOPLE.split())
CONVERSATIONS = frozenset(["chat", "conversation", "dialog", "dialogue", "session", "thread"])
ID_WORDS = frozenset(
    ["code", "guid", "hash", "id", "identifier", "key", "name", "no", "number", "ref", "reference", "uuid"]
)
OF_OTHERS = ("messages", "tools", "functions")
"""Fields whose contents say nothing about their record: its messages, and the parameters of tools."""
NAME_CHARACTERS = 80
"""Longer names are cut in errors."""


class Refused(ValueError):
    """Part of a record cannot be imported. The text gives the reason and never repeats the content."""


class LeftOut(NamedTuple):
    """Parts of a history that are not messages."""

    reason: str
    number: int = 1


class Rejected(NamedTuple):
    """A part of a history that cannot be imported."""

    where: str
    """The file, the record's number in it, and the message's number."""
    reason: str
    messages: int = 1
    """Number of messages in it."""

    def __str__(self) -> str:
        number = f" ({self.messages:,} messages)" if self.messages > 1 else ""
        return f"{self.where}: {self.reason}{number}"


class Found(NamedTuple):
    """A message of a history."""

    where: str
    message: MessageCreated
    is_shared: bool = False
    """Whether its conversation may belong to several users."""


ImportOutcome = Found | LeftOut | Rejected


@dataclass(frozen=True)
class ImportOptions:
    """The caller's options for an import."""

    user_id: str | None = None
    """The user of records that name none."""
    tenant_id: str | None = None
    prefix: str = ""
    """A prefix for every conversation id."""


def found(where: str, options: ImportOptions, fields: Mapping[str, Any], is_shared: bool = False) -> Found | Rejected:
    """Build a message from the fields, with the tenant and the prefix of the options."""
    named = {**fields, "conversation_id": f"{options.prefix}{fields['conversation_id']}"}
    if options.tenant_id is not None:
        if named.get("tenant_id") not in (None, options.tenant_id):
            return Rejected(where, "its tenant is not the one given with --tenant")
        named["tenant_id"] = options.tenant_id
    try:
        return Found(where, validate(MessageCreated, encoded(named)), is_shared)
    except orjson.JSONEncodeError:
        return Rejected(where, f"schema_violation: {UNENCODABLE}")
    except InvalidRecord as error:
        return Rejected(where, str(error))


def rfc3339_of(value: object) -> str | None:
    """Convert a time to RFC 3339; None and an empty string give None.

    Accepted are seconds or milliseconds since 1970, as a number or a string of digits, and ISO 8601, in UTC unless it
    has an offset. Raises: Refused.
    """
    if value is None or value == "":
        return None
    is_text = isinstance(value, str) and not DIGITS.fullmatch(value.strip())
    units: tuple[Unit, ...] = ("iso",) if is_text else ("s", "ms")  # no number is a plausible time in both units
    moment = next((moment for unit in units if (moment := moment_of(value, unit))), None)
    if moment is None:
        raise Refused("its time is neither seconds or milliseconds since 1970 nor ISO 8601")
    return rfc3339(moment)


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def user_of(record: Mapping[str, Any]) -> str | None:
    """Return the id of the user named by a record or a message; None if it names nobody. Raises: Refused."""
    found = named_user(record)
    if found is None:
        _check_hidden(record, _is_person, "user")
    return found


def named_user(record: Mapping[str, Any]) -> str | None:
    """Return the id in a record's or a message's own field for its user, or None. Raises: Refused."""
    return _named(record, USER_IDS, "user")


def conversation_of(record: Mapping[str, Any], is_message: bool = False) -> str | None:
    """Return the id of the conversation named by a record or a message; None if it names none. Raises: Refused."""
    found = _named(record, CONVERSATION_IDS if is_message else (*CONVERSATION_IDS, *OWN_IDS), "conversation")
    if found is None:
        _check_hidden(record, _is_conversation, "conversation")
    return found


def owner_of(record: Any) -> dict[str, Any]:
    """Return the fields of a record that name a person."""
    fields = mapping(record).items()
    return {name: value for name, value in fields if _is_person(name_words(name)) and not _is_empty(value)}


def identifier(value: object) -> str | None:
    """Return a non-blank string or a whole number as an id, and None for anything else."""
    found = id_of(value)
    return found if found and found.strip() else None


def _named(record: Mapping[str, Any], spellings: Sequence[tuple[str, ...]], what: str) -> str | None:
    filled = [(name_words(name), name) for name, value in record.items() if not _is_empty(value)]
    for spelling in spellings:
        names = [name for words, name in filled if words == spelling]
        ids = {identifier(record[name]) for name in names}
        if None in ids:
            raise Refused(f"its {what} cannot be read: {names[0]} is neither a text nor a whole number")
        if len(ids) > 1:
            raise Refused(f"it names more than one {what}: {', '.join(sorted(names))}")
        if ids:
            return ids.pop()
    return None


def _check_hidden(record: Mapping[str, Any], is_such: Callable[[tuple[str, ...]], bool], what: str) -> None:
    """Refuse a record in which another field, at any depth, seems to name its user or conversation."""
    for path, value in _fields(record):
        if is_such(name_words(path[-1])) and not _is_empty(value):
            name = ".".join(path)[:NAME_CHARACTERS]
            raise Refused(f"it names its {what} in {name}, which is not read; copy the id to {what}_id")


def _fields(record: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the fields of a record and of everything nested in it, even as JSON in a text, each with its path."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), record)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str) and value.startswith(("{", "[")):
            with suppress(orjson.JSONDecodeError):
                value = orjson.loads(value)
        if isinstance(value, list):
            waiting += [(path, one) for one in value]
        elif isinstance(value, dict):
            if isinstance(value.get("key"), str) and "value" in value:  # an attribute as OpenTelemetry writes it
                value = {value["key"]: value["value"]}
            for name, inner in value.items():
                if name not in OF_OTHERS:
                    yield (*path, name), inner
                    waiting.append(((*path, name), inner))


def _is_person(words: tuple[str, ...]) -> bool:
    if any("user" in word for word in words):
        return True
    singular = [word.removesuffix("s") for word in words]
    return not PEOPLE.isdisjoint(singular) and (singular[-1] in PEOPLE or singular[-1] in ID_WORDS)


def _is_conversation(words: tuple[str, ...]) -> bool:
    if not CONVERSATIONS.intersection(words):
        return any(word.removesuffix("id") in CONVERSATIONS for word in words)
    return len(words) == 1 or words[-1] in ID_WORDS


def _is_empty(value: object) -> bool:
    return value is None or value in ("", [], {})
