"""Reads histories: exports of applications, message lists of OpenAI and Anthropic, and our own lines.

Files of any size are read one record at a time. In the exports of `EXPORTS`, a conversation is a tree of messages; one
of its branches becomes a message list, which is a record whose `messages` have roles and contents.
"""

import codecs
import hashlib
import json
import lzma
import math
import re
import shutil
import tomllib
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from io import BufferedReader
from itertools import pairwise
from operator import itemgetter
from tempfile import TemporaryFile
from typing import Any, BinaryIO, NamedTuple, cast
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZIP_LZMA, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import orjson

from afterword.schemas import InvalidRecord, MessageCreated
from afterword.schemas.base import BYTE_ORDER_MARK, mended, rfc3339
from afterword.schemas.messages import MESSAGE_CREATED
from afterword.schemas.records import UNENCODABLE, Unit, encoded, id_of, moment_of, validate
from afterword.writing.produce import bounded_lines
from afterword_text.content import (
    ROLES,
    ContentUnreadable,
    Piece,
    flatten,
    flatten_message,
    is_too_deep,
    name_words,
    said,
)

CHUNK_BYTES = 256 * 1024
MOST_CHARACTERS = 128 * 2**20
"""Upper limit for a record."""
BETWEEN = re.compile(r"[\s,\ufeff]*")
"""What separates two values. Files that were joined have byte order marks inside."""
NUMBER_ENDS = re.compile(r"[-+.eE0-9]*\Z")
AFTER_NUMBER = re.compile(r"[\s,\]\ufeff]")
"""What follows a whole number in an array."""


class Rejected(NamedTuple):
    """A part of a history that cannot be imported."""

    where: str
    """The file, the record's number in it, and the message's number; empty for a record that is just being read."""
    reason: str
    messages: int = 1
    """Number of messages in it."""

    def __str__(self) -> str:
        number = f" ({self.messages:,} messages)" if self.messages > 1 else ""
        return f"{self.where}: {self.reason}{number}"


TOO_LARGE = Rejected("", "too_large: more than 128 MiB")
TOO_DEEP = Rejected("", "it is nested too deeply")
UNREADABLE = Rejected(
    "", "cut off, not JSON in UTF-8, nested too deeply, or more than 128 MiB; the rest of the file was not read"
)


def records(file: BufferedReader, is_lines: bool = False) -> Iterator[tuple[int, Any | Rejected]]:
    """Yield a file's records: the elements of an array, consecutive JSON values, or one value per line.

    Each has its number, from 1, or that of its line. `is_lines` forces one record per line even if the first is
    damaged. A damaged line does not affect the others; a damaged array ends there. Raises: OSError.
    """
    first = file.peek(CHUNK_BYTES).removeprefix(BYTE_ORDER_MARK).split(b"\n", 1)[0].strip()
    is_utf16 = first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # as PowerShell writes files
    recoded: BinaryIO = codecs.EncodedFile(file, "utf-8", "utf-16", "surrogatepass") if is_utf16 else file
    parsed = _parsed(first)
    if not (is_lines or (first.startswith(b"{") and (parsed is TOO_DEEP or not isinstance(parsed, Rejected)))):
        yield from enumerate(_values(recoded), start=1)
        return
    for number, line in enumerate(bounded_lines(recoded, MOST_CHARACTERS), start=1):
        if len(line) > MOST_CHARACTERS:
            yield number, TOO_LARGE
        elif text := line.removeprefix(BYTE_ORDER_MARK).strip():
            yield number, _parsed(text)


def _values(file: BinaryIO) -> Iterator[Any | Rejected]:
    # bytes that are not UTF-8 are passed on, for the record that has them
    utf8 = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    # only the end of a value is used, so numbers need not be converted
    decoder = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)
    text, at, in_array, is_whole = "", 0, False, False
    while True:
        at = BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # it always matches
        if text[at : at + 1] == ("]" if in_array else "["):
            at, in_array = at + 1, not in_array
            continue
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            is_complete = False
        else:
            is_complete = _has_ended(text, end, in_array, is_whole) and not is_too_deep(value)
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


def _has_ended(text: str, end: int, in_array: bool, is_whole: bool) -> bool:
    """Return whether a value ends here: a number may continue in the next chunk, or was cut off in an array."""
    if in_array and text[end - 1].isdigit():
        return AFTER_NUMBER.match(text, end) is not None
    return (is_whole and not in_array) or not NUMBER_ENDS.match(text, end)


def _parsed(data: bytes) -> Any | Rejected:
    """Parse a JSON value leniently: NaN and infinity become null, and half of a surrogate pair becomes U+FFFD."""
    try:
        value = _loaded(data)
    except json.JSONDecodeError as error:
        return Rejected("", f"not JSON at column {error.colno}")
    except UnicodeDecodeError as error:
        return Rejected("", f"not UTF-8 at byte {error.start + 1}")
    except RecursionError:
        return TOO_DEEP
    except ValueError:  # for a number with thousands of digits
        return Rejected("", "not JSON")
    return TOO_DEEP if is_too_deep(value) else value


def _loaded(data: bytes) -> Any:
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(data)
    return json.loads(mended(data).decode(), strict=False, parse_constant=lambda _: None, parse_float=_number)


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


_NAMES = tomllib.loads((files(__package__) / "names.toml").read_text(encoding="utf-8"))
WORDS: Mapping[str, frozenset[str]] = {group: frozenset(words.split()) for group, words in _NAMES["words"].items()}
"""Words of the names of fields."""
FIELDS: Mapping[str, Sequence[str]] = {group: names.split() for group, names in _NAMES["fields"].items()}
TYPES: Mapping[str, Sequence[str]] = {group: names.split() for group, names in _NAMES["chatgpt"].items()}
"""Types of contents in ChatGPT's exports."""
PATTERNS = {name: re.compile(pattern.replace("\n", "")) for name, pattern in _NAMES["patterns"].items()}
NAME_CHARACTERS = 80
"""Longer names are cut in errors."""


class Refused(ValueError):
    """Part of a record cannot be imported. The text gives the reason and never repeats the content."""


class LeftOut(NamedTuple):
    """Parts of a history that are not messages."""

    reason: str
    number: int = 1


class Found(NamedTuple):
    """A message of a history."""

    where: str
    message: MessageCreated
    is_shared: bool = False
    """Whether its conversation may belong to several users."""
    copied_from: tuple[str, ...] = ()
    """Other conversations that may have the same message: a chat that was branched off repeats it."""


ImportOutcome = Found | LeftOut | Rejected


@dataclass(frozen=True)
class ImportOptions:
    user_id: str | None = None
    """The user of records that name none."""
    tenant_id: str | None = None
    prefix: str = ""
    """A prefix for every conversation id."""
    with_excluded: bool = False
    """Whether to read conversations that their owner excluded from memory."""


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


def mappings(value: object) -> list[Mapping[str, Any]]:
    """Return the items of a list, with empty objects for those that are no objects; nothing for anything else."""
    return [*map(mapping, value)] if isinstance(value, list) else []


def user_of(record: Mapping[str, Any]) -> str | None:
    """Return the id of the user named by a record or a message; None if it names nobody. Raises: Refused."""
    user = named_user(record)
    if user is None:
        _check_hidden(record, _is_person, "user")
    return user


def named_user(record: Mapping[str, Any]) -> str | None:
    """Return the id in a record's or a message's own field for its user, or None. Raises: Refused."""
    return _named(record, USER_IDS, "user")


def conversation_of(record: Mapping[str, Any], is_message: bool = False) -> str | None:
    """Return the id of the conversation named by a record or a message; None if it names none. Raises: Refused."""
    conversation = _named(record, CONVERSATION_IDS if is_message else (*CONVERSATION_IDS, *OWN_IDS), "conversation")
    if conversation is None:
        _check_hidden(record, _is_conversation, "conversation")
    return conversation


def owner_of(record: Any) -> dict[str, Any]:
    """Return the fields of a record that name a person, or else the `user` of its first message that has one."""
    named = {
        name: value for name, value in mapping(record).items() if _is_person(name_words(name)) and not _is_empty(value)
    }
    users = ({"user": one["user"]} for one in mappings(_listed(record)) if one.get("user"))
    return named or next(users, {})


def identifier(value: object) -> str | None:
    """Return a non-blank string or a whole number as an id, and None for anything else."""
    name = id_of(value)
    return name if name and name.strip() else None


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
    for path, value in _nested_fields(record):
        if is_such(name_words(path[-1])) and not _is_empty(value):
            name = ".".join(path)[:NAME_CHARACTERS]
            raise Refused(f"it names its {what} in {name}, which is not read; copy the id to {what}_id")


def _nested_fields(record: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the fields of a record and of everything nested in it, even as JSON in a text, each with its path."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), record)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str) and value.startswith(("{", "[")):
            with suppress(orjson.JSONDecodeError):
                value = orjson.loads(value)
        if isinstance(value, list):
            waiting += [(path, each) for each in value]
        elif isinstance(value, dict):
            if isinstance(value.get("key"), str) and "value" in value:  # an attribute as OpenTelemetry writes it
                value = {value["key"]: value["value"]}
            for name, inner in value.items():
                if name not in FIELDS["of_others"]:
                    yield (*path, name), inner
                    waiting.append(((*path, name), inner))


def _is_person(words: tuple[str, ...]) -> bool:
    if any("user" in word for word in words):
        return True
    singular = [word.removesuffix("s") for word in words]
    people = WORDS["people"]
    return not people.isdisjoint(singular) and singular[-1] in people | WORDS["ids"]


def _is_conversation(words: tuple[str, ...]) -> bool:
    if not WORDS["conversations"].intersection(words):
        return any(word.removesuffix("id") in WORDS["conversations"] for word in words)
    return len(words) == 1 or words[-1] in WORDS["ids"]


def _is_empty(value: object) -> bool:
    return value is None or value in ("", [], {})


ITEMS = {"call": "assistant", "reasoning": "assistant", "output": "tool"}
"""Roles of items in OpenAI's Responses API, by the last word of their type."""
ANSWERED = {("tool", "call", "id"), ("tool", "use", "id")}
"""Names of the fields that hold the id of the tool call a message answers, split into words."""
TIMES = {word: place for place, word in enumerate(_NAMES["words"]["times"].split())}
ID_DIGITS = 32
MESSAGE_WEIGHT = 512
"""Bytes of memory that a message takes in addition to its characters."""
TOO_DEEP_OR_LARGE = "it is nested too deeply, or has an integer of more than 64 bits"


def conversations(numbered: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Yield numbered records, and at the end one conversation of the messages that are records of their own.

    That conversation gets the number of its first message. It is in memory, so it is limited to `MOST_CHARACTERS`.
    """
    joined: list[Any] = []
    first = count = weight = 0
    for number, record in numbered:
        if _role(record) is None or _listed(record) is not None:
            yield number, record
            continue
        try:
            weight += MESSAGE_WEIGHT + len(orjson.dumps(record))
        except orjson.JSONEncodeError:
            yield number, Rejected("", TOO_DEEP_OR_LARGE)
            continue
        first, count = first or number, count + 1
        if weight <= MOST_CHARACTERS:
            joined.append(record)
        else:
            joined.clear()
    if weight > MOST_CHARACTERS:
        yield first, TOO_LARGE._replace(messages=count)
    elif joined:
        yield first, {"messages": joined}


def read_messages(where: str, record: Any, options: ImportOptions, source: str = "messages") -> Iterator[ImportOutcome]:
    """Read a record with a list of messages. `source` is the format for the messages' metadata."""
    messages = _listed(record)
    if messages is None:
        yield Rejected(where, "not a conversation: it has no messages")
        return
    try:
        conversation_id, users = _owners(record, messages, options)
        time = _time(record)
    except Refused as error:
        yield Rejected(where, str(error), len(messages))
        return
    numbers = range(1, len(messages) + 1)
    if source == "messages" and _is_newest_first(messages):
        messages, users, numbers = messages[::-1], users[::-1], numbers[::-1]
    repeats: Counter[str] = Counter()
    metadata, is_shared = {"imported_from": source}, len(set(users)) > 1
    for number, message, user in zip(numbers, messages, users, strict=True):
        place = f"{where}: message {number}"
        try:
            own_time = _time(mapping(message))
            time = own_time or time
            each = _fields(message, user, own_time, repeats)
        except (Refused, ContentUnreadable) as error:
            yield Rejected(place, str(error))
            continue
        common = {"conversation_id": conversation_id, "user_id": user, "sent_at": time, "metadata": metadata}
        for fields in each:
            yield found(place, options, {**common, **fields}, is_shared)
        if not each:
            yield LeftOut("empty")


def _is_newest_first(messages: Sequence[Any]) -> bool:
    """Return whether the times of messages only fall, as in the answers of many APIs."""
    try:
        times = [time for message in messages if (time := _time(mapping(message)))]
    except Refused:
        return False
    return len(times) > 1 and times[0] > times[-1] and all(message >= other for message, other in pairwise(times))


def _listed(record: Any) -> Sequence[Any] | None:
    known = mapping(record)
    listed = known.get("messages", known.get("messagesTree"))
    return listed if isinstance(listed, list) else None


def _owners(record: Mapping[str, Any], messages: Sequence[Any], options: ImportOptions) -> tuple[str, list[str]]:
    """Return a record's conversation and the user of each message. Raises: Refused."""
    user_id = user_of(record)
    users = [user_id] * len(messages) if user_id is not None else _users(messages, options.user_id)
    named = {conversation_of(record), *(conversation_of(_about(message), is_message=True) for message in messages)} - {
        None
    }
    if len(named) > 1:
        raise Refused("it and its messages name more than one conversation")
    if not named and len(set(users)) > 1:
        raise Refused("it names more than one user but no conversation")
    return next(iter(named), None) or _digest([record, users]), users


def _about(message: Any) -> dict[str, Any]:
    """Return the fields that may identify a message's user and conversation."""
    return {name: value for name, value in mapping(message).items() if name not in FIELDS["said"]}


def _users(messages: Sequence[Any], default: str | None) -> list[str]:
    """Return the user of each message in a record that names none itself.

    A message that names nobody gets the user of the others. Raises: Refused if there are several users, or none.
    """
    if any(_role(message) == "user" and mapping(message).get("name") for message in messages):
        raise Refused("it names its user in a message's name, which is not read; copy the id to user_id")
    # what others say may mention people, such as authors of sources
    named = [(user_of if _role(message) == "user" else named_user)(_about(message)) for message in messages]
    users = {user for user in named if user is not None}
    if len(users) > 1 and None in named:
        raise Refused("its messages name more than one user, and some of them name none")
    user = next(iter(users), default)
    if user is None:
        raise Refused("it has no user; give --user")
    return [message or user for message in named]


def _fields(message: Any, user: str, time: str | None, repeats: Counter[str]) -> list[dict[str, Any]]:
    """Convert a message into the fields of our messages, none if it is empty.

    `repeats` counts how often the conversation had the same message so far. Raises: Refused, ContentUnreadable.
    """
    role = _role(message)
    if role is None:
        raise Refused("it has no known role")
    if role == "user" and named_user(_about(message)) not in (None, user):
        raise Refused("it names another user than its record")
    pieces = flatten_message(message, is_answer=role == "tool")
    same = _digest([user, time, role, [tuple(piece) for piece in pieces]])
    repeats[same] += 1
    fields = said(role, pieces, identifier(message.get("id")) or f"{same}-{repeats[same]}")
    is_skipped = message.get("skip_summarization") is True
    return [{**field, "skip_summarization": field["skip_summarization"] or is_skipped} for field in fields]


def _role(message: Any) -> str | None:
    """Return a message's role, or None if it is not a message."""
    known = mapping(message)
    if any(name_words(name) in ANSWERED and value for name, value in known.items()):
        return "tool"  # whatever role it states
    for role in (known.get("role"), known.get("type")):
        if isinstance(role, str) and role.lower() in ROLES:
            return ROLES[role.lower()]
    kind = known.get("type")
    return ITEMS.get(name_words(kind)[-1]) if isinstance(kind, str) and name_words(kind) else None


def _time(fields: Mapping[str, Any]) -> str | None:
    """Return the time in a field with a usual name, else the earliest in fields whose names end like a usual one."""
    named = [(words, value) for name, value in fields.items() if (words := name_words(name))]
    times = [(min(map(TIMES.__getitem__, words)), value) for words, value in named if {*words} <= TIMES.keys()]
    if usual := [time for _, value in sorted(times, key=itemgetter(0)) if (time := rfc3339_of(value))]:
        return usual[0]
    others: list[str] = []
    for words, value in named:
        with suppress(Refused):
            if words[-1] in WORDS["ends_of_times"] and (time := rfc3339_of(value)):
                others.append(time)
    return min(others, default=None)


def _digest(value: Any) -> str:
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        raise Refused(TOO_DEEP_OR_LARGE) from None
    return hashlib.sha256(data).hexdigest()[:ID_DIGITS]


ROOT = ""
"""Stands for the parent of first messages."""
ROOTS = (ROOT, "00000000-0000-4000-8000-000000000000", "00000000-0000-0000-0000-000000000000")
"""What exports write for it."""
NO_CONVERSATION = "not a conversation: it has no id or no messages"


class Tree(NamedTuple):
    """A conversation of an export, whose messages have parents."""

    conversation_id: str
    written: Mapping[str, Mapping[str, Any]]
    """Its messages by their ids, in the order of the file."""
    parents: Mapping[str, str]
    """The ids of parents, by those of their children."""
    user_id: str | None = None
    last: object = None
    """The id of the message that the application shows last."""
    originals: Set[str] = frozenset()
    """Other conversations that may have the same messages: a chat that was branched off repeats them."""
    is_excluded: bool = False
    """Whether its owner excluded it from memory."""


def _read_export(form: str, where: str, record: Any, options: ImportOptions) -> Iterator[ImportOutcome]:
    """Read the branch that ends with a conversation's last message, by default the newest one that has no answer."""
    known, (find_tree, convert) = mapping(record), EXPORTS[form]
    try:
        tree = find_tree(known)
    except Refused as error:
        yield Rejected(where, str(error), max(1, len(_listed(known) or ())))
        return
    written = tree.written
    if tree.is_excluded and not options.with_excluded:
        yield LeftOut("of conversations that their owner excluded from memory (--with-excluded)", len(written))
        return
    if (branch := _branch(tree)) is None:
        yield Rejected(where, "its branch is circular", max(1, len(written)))
        return
    yield from _elsewhere(where, written.keys() - branch, branch, tree.parents)
    conversation = {
        "id": tree.conversation_id,
        "user_id": options.user_id or tree.user_id,
        "created_at": known.get("create_time") or known.get("created_at"),
        "messages": [convert(written[name]) for name in reversed(branch) if name in written],
    }
    copied_from = tuple(f"{options.prefix}{one}" for one in tree.originals)
    for one in read_messages(where, conversation, options, form):
        yield one._replace(copied_from=copied_from) if isinstance(one, Found) else one


def _branch(tree: Tree) -> list[str] | None:
    """Return the ids from a conversation's last message up to the first, or None if they are circular."""
    last, written, parents = tree.last, tree.written, tree.parents
    if not isinstance(last, str) or last not in {**written, **parents}:
        answered = {parents.get(name) for name in written}
        leaves = [name for name in reversed([*written]) if name not in answered]
        last = max(leaves, key=lambda name: _moment(written[name]), default=None)
    branch: list[str] = []
    while last is not None and len(branch) <= len(parents) + 1:
        branch.append(last)
        last = parents.get(last)
    return branch if last is None and (branch or not written) else None


def _moment(message: Mapping[str, Any]) -> str:
    """Return a message's time in a form that sorts. Only the messages after an export's last change have none."""
    with suppress(Refused):
        return _time(message) or "9"
    return ""


def _required_id(*ids: object) -> str:
    """Return the first that can be an id. Raises: Refused."""
    if found := next(filter(None, map(identifier, ids)), None):
        return found
    raise Refused(NO_CONVERSATION)


def _by_id(messages: object, name: str) -> dict[str, Mapping[str, Any]]:
    """Return messages by their ids: those of an object, or those of a list by the field `name`.

    In a list, those without an id of their own get a number. Raises: Refused.
    """
    if isinstance(messages, dict):
        return {key: message for key, message in messages.items() if isinstance(message, dict)}
    if not isinstance(messages, list):
        raise Refused(NO_CONVERSATION)
    named: dict[str, Mapping[str, Any]] = {}
    for number, message in enumerate(mappings(messages)):
        key = message.get(name)
        named[key if isinstance(key, str) and key not in named else f"\0{number}"] = message
    return named


def _parents(written: Mapping[str, Mapping[str, Any]], name: str, is_tree: bool = False) -> dict[str, str]:
    """Return the parents of messages, from the field `name`. If none has it, each follows the one before it."""
    parents, before = dict[str, str](), ROOT
    is_tree = is_tree or any(isinstance(one.get(name), str) for one in written.values())
    for own, message in written.items():
        parent = (message[name] or ROOT) if is_tree and name in message else before
        parent = ROOT if parent in ROOTS else parent
        if isinstance(parent, str) and (parent == ROOT or parent in written):
            parents[own] = parent
        before = own
    return parents


def _elsewhere(
    where: str, others: Set[str], branch: Sequence[str], parents: Mapping[str, str]
) -> Iterator[ImportOutcome]:
    """Report the messages outside the branch. Those that do not descend from it may be missing parts of the branch."""
    children: dict[str, list[str]] = {}
    for name, parent in parents.items():
        children.setdefault(parent, []).append(name)
    connected, waiting = set(branch), [*branch]
    while waiting:
        below = children.pop(waiting.pop(), [])
        connected.update(below)
        waiting += below
    if others & connected:
        yield LeftOut("on another branch (regenerated answers and replaced messages)", len(others & connected))
    if others - connected:
        problem = "no chain of parents connects these messages and the current one"
        yield Rejected(where, problem, len(others - connected))


def _chatgpt(known: Mapping[str, Any]) -> Tree:
    nodes = _by_id(known.get("mapping"), "id")
    parents = {name: up for name, one in nodes.items() if isinstance(up := one.get("parent"), str) and up in nodes}
    messages = ((name, one.get("message")) for name, one in nodes.items())
    written = {name: {"node": name, **one} for name, one in messages if isinstance(one, dict)}
    own_id = _required_id(known.get("conversation_id"), known.get("id"))
    about = (mapping(one.get("metadata")) for one in written.values())
    originals = {original for one in about if (original := identifier(one.get("branching_from_conversation_id")))}
    scope = known.get("memory_scope")
    is_off = isinstance(scope, str) and PATTERNS["no_memory"].search(scope) is not None
    is_excluded = is_off or any(known.get(name) is True for name in FIELDS["excluded"])
    return Tree(own_id, written, parents, None, known.get("current_node"), originals - {own_id}, is_excluded)


def _of_chatgpt(message: Mapping[str, Any]) -> dict[str, Any]:
    role, recipient = mapping(message.get("author")).get("role"), message.get("recipient")
    content, about = mapping(message.get("content")), mapping(message.get("metadata"))
    parts = [_without_marks(part) for part in parts] if isinstance(parts := content.get("parts"), list) else []
    if any(mapping(part).get("content_type") == "audio_transcription" for part in parts):
        parts = [part for part in parts if mapping(part).get("content_type") not in TYPES["recordings"]]
    text = _without_marks(content.get("text"))
    whole = text if role == "tool" and isinstance(text, str) else {**content, "parts": parts, "text": text}
    is_hidden = about.get("is_visually_hidden_from_conversation") is True
    is_call = role == "assistant" and isinstance(recipient, str) and recipient not in ("", "all")
    # images are also among the parts of the content
    files = [one for one in _placeholders(about.get("attachments"), "name") if one != "[image]"]
    return {
        "id": identifier(message.get("id")) or message["node"],
        "role": "system" if is_hidden and role == "user" else role,
        "content": [] if is_call else [whole, *files],
        "tool_calls": [{"name": recipient}] if is_call else [],
        "created_at": message.get("create_time"),
        "skip_summarization": is_hidden or content.get("content_type") in TYPES["not_said"],
    }


def _without_marks(text: Any) -> Any:
    return PATTERNS["other_marks"].sub("", PATTERNS["mark"].sub(_shown, text)) if isinstance(text, str) else text


def _shown(mark: re.Match[str]) -> str:
    """Return the text that ChatGPT shows for the mark of a link or a name; empty for one that only cites a source."""
    shown = "".join(mark[1].split("\ue202")[1:2])
    if named := re.match(r'\["[^"]*",\s*("(?:[^"\\]|\\.)*")', shown):
        with suppress(json.JSONDecodeError):
            shown = json.loads(named[1])
    elif re.match(r"turn\d|[\[{]", shown):
        return ""
    return f" {shown}" if shown and mark[0].startswith(" ") else shown


MOST_PASTED_BYTES = 600_000


def _claude(known: Mapping[str, Any]) -> Tree:
    if "chat_messages" not in known and _listed(known) is not None:
        raise Refused("it is a design chat, which is not read")
    written = _by_id(known.get("chat_messages"), "uuid")
    account = identifier(mapping(known.get("account")).get("uuid"))
    return Tree(_required_id(known.get("uuid")), written, _parents(written, "parent_message_uuid"), account)


def _of_claude(message: Mapping[str, Any]) -> dict[str, Any]:
    content, text = message.get("content"), message.get("text")
    parts = content if isinstance(content, list) else [content]
    with suppress(ContentUnreadable):  # raised again when the message is read
        if isinstance(text, str) and all(_is_unknown(piece) for part in parts for piece in flatten(part)):
            content = [PATTERNS["unsupported"].sub("", text), content]
    attached = mappings(message.get("attachments"))
    texts = [one.get("extracted_content") for one in attached]
    pasted = _pasted(zip(_placeholders(attached, "file_name"), texts, strict=True))
    files = [*pasted, *_placeholders(message.get("files"), "file_name")]
    named = {file.split("\n", 1)[0] for file in files if file.startswith("[file: ") and "\n" in file}
    shown = dict.fromkeys(file for file in files if file not in named)
    fields = {"role": message.get("sender"), "content": [content, *shown], "created_at": message.get("created_at")}
    return {"id": message.get("uuid"), **fields}


def _pasted(files: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Yield the text of each file below its placeholder, within a message's size. Long pastes have no name."""
    left = MOST_PASTED_BYTES
    for placeholder, text in files:
        size = len(orjson.dumps(text)) if isinstance(text, str) and text.strip() else left + 1
        if size > left:
            yield placeholder
            continue
        left -= size
        yield str(text) if placeholder == "[file]" else f"{placeholder}\n{text}"


PASTED = "[file: Pasted_Text_"
"""Placeholder of the file that Open WebUI makes of a long paste."""


def _openwebui(known: Mapping[str, Any]) -> Tree:
    chat = mapping(known.get("chat")) or known
    history = mapping(chat.get("history"))
    written = _by_id(history.get("messages", chat.get("messages")), "id")
    parents = _parents(written, "parentId", is_tree="messages" in history)
    user_id = identifier(known.get("user_id"))
    return Tree(_required_id(known.get("id")), written, parents, user_id, history.get("currentId"))


def _of_openwebui(message: Mapping[str, Any]) -> dict[str, Any]:
    """Prefer the parts of an answer to its text, which has thoughts and calls inside as HTML."""
    items = [
        {**item, "type": "code_interpreter_call"} if item.get("type") == "open_webui:code_interpreter" else item
        for item in mappings(message.get("output"))
    ]
    files = mappings(message.get("files"))
    texts = (mapping(mapping(one.get("file")).get("data")).get("content") for one in files)
    attached = (
        ("[file]", text) if name.startswith(PASTED) else (name, None)
        for name, text in zip(_placeholders(files, "name"), texts, strict=True)
    )
    merged = mapping(message.get("merged")).get("content")  # of the answers of several models
    return {
        "id": message.get("id"),
        "role": message.get("role"),
        "content": [items if any(items) else message.get("content"), merged, *_pasted(attached)],
        "created_at": message.get("timestamp"),
        "skip_summarization": message.get("error") is True,
    }


OF_LIBRECHAT = ("error", "summary")
"""Types of parts that LibreChat itself writes into an answer."""


def _librechat(known: Mapping[str, Any]) -> Tree:
    listed = _listed(known)
    messages = mappings(listed)
    for message in messages:  # it grows meanwhile, because recursive exports have answers inside their questions
        messages += mappings(message.get("children"))
    written = _by_id(listed and messages, "messageId")
    users = {user for one in written.values() if (user := identifier(one.get("user")))}
    if len(users) > 1:
        raise Refused("its messages name more than one user")
    own_id, parents = _required_id(known.get("conversationId")), _parents(written, "parentMessageId")
    return Tree(own_id, written, parents, next(iter(users), None))


def _of_librechat(message: Mapping[str, Any]) -> dict[str, Any]:
    """The words of an agent are in `content`, others in `text`. Errors were not said by anybody."""
    is_users = message.get("isCreatedByUser")
    parts = [one for one in mappings(message.get("content")) if one.get("type") not in OF_LIBRECHAT]
    return {
        "id": message.get("messageId"),
        "role": ("user" if is_users else "assistant") if isinstance(is_users, bool) else None,
        "content": [parts or message.get("text"), *_placeholders(message.get("files"), "filename")],
        "created_at": message.get("createdAt"),
        "skip_summarization": message.get("error") is True,
    }


def _is_unknown(piece: Piece) -> bool:
    """Return whether a piece only says that there is something of an unknown type."""
    return not piece.tools and set(piece.text.split()) == {"[attachment]"}


def _placeholders(files: object, name: str) -> list[str]:
    """Return a placeholder for each file in a list. `name` is the field with a file's name."""
    return [
        "[image]"
        if any(str(one.get(kind)).startswith("image") for kind in FIELDS["kinds_of_files"])
        else f"[file: {one[name]}]"
        if str(one.get(name) or "").strip()
        else "[file]"
        for one in mappings(files)
    ]


NO_CONVERSATIONS = "files without conversations"
IN_ARCHIVE = b"PK\x03\x04"
MOST_ARCHIVES = 3
"""Archives in one another: an export has two levels."""


def _unpacked(
    form: str, name: str, file: BufferedReader, level: int = 1
) -> Iterator[tuple[str, BufferedReader] | LeftOut | Rejected]:
    """Yield a file, or those with conversations in an archive. Each is open until the next one is asked for."""
    pattern = _NAMES["conversations_in_archives"].get(form)
    if form == "claude" and PATTERNS["other_parts"].fullmatch(name.rsplit("/", 1)[-1]):
        yield LeftOut(NO_CONVERSATIONS)
        return
    if pattern is None or level > MOST_ARCHIVES or not file.peek(len(IN_ARCHIVE)).startswith(IN_ARCHIVE):
        yield name, file
        return
    with TemporaryFile() as copy:  # a pipe, or a file in an archive, is not read from its end
        shutil.copyfileobj(file, copy)
        try:
            with ZipFile(copy) as archive:
                for member in archive.infolist():
                    if not re.fullmatch(pattern, member.filename):
                        yield LeftOut(NO_CONVERSATIONS, int(not member.is_dir()))
                    elif problem := _problem(member):
                        yield Rejected(f"{name}/{member.filename}", problem)
                    else:
                        with TemporaryFile() as whole:  # so that damage is noticed here
                            with archive.open(member) as opened:
                                shutil.copyfileobj(opened, whole)
                            whole.seek(0)
                            inner = cast("BufferedReader", whole)
                            yield from _unpacked(form, f"{name}/{member.filename}", inner, level + 1)
        except NotImplementedError as error:  # such as a later version of ZIP
            yield Rejected(name, f"the archive is not supported: {error}")
        except (BadZipFile, EOFError, zlib.error, lzma.LZMAError):
            yield Rejected(name, "the archive is damaged")


def _problem(member: ZipInfo) -> str | None:
    """Return why a file in an archive cannot be unpacked."""
    if member.flag_bits & 1:
        return "it is encrypted"
    is_known = member.compress_type in (ZIP_STORED, ZIP_DEFLATED, ZIP_BZIP2, ZIP_LZMA)
    return None if is_known else f"its compression, method {member.compress_type} of ZIP, is not supported"


def read_history(
    form: str, options: ImportOptions, files: Iterable[tuple[str, BufferedReader]]
) -> Iterator[ImportOutcome]:
    """Read files in the format `form`, a key of `FORMATS`. The order is always the same. Raises: OSError."""
    of_one_person = form in EXPORTS and options.user_id is not None
    owner: dict[str, Any] = {}
    for part in (part for name, file in files for part in _unpacked(form, name, file)):
        if isinstance(part, LeftOut | Rejected):
            yield part
            continue
        name, file = part
        read = records(file, is_lines=form == "jsonl" or name.lower().endswith((".jsonl", ".ndjson")))
        for number, record in conversations(read) if form == "messages" else read:
            where = f"{name}:{number}"
            own = owner_of(record) if of_one_person else {}
            owner = owner or own
            if own not in ({}, owner):
                reason = "it belongs to another person than the conversations before it, but --user names only one"
                yield Rejected(where, reason)
                continue
            if isinstance(record, Rejected):
                yield record._replace(where=where)
            else:
                yield from FORMATS[form](where, record, options)


def _read_line(where: str, record: Any, options: ImportOptions) -> Iterator[ImportOutcome]:
    """Read a message as `afterword produce` accepts it."""
    if not isinstance(record, dict):
        yield Rejected(where, "schema_violation: not a JSON object")
    elif record.get("type", MESSAGE_CREATED) != MESSAGE_CREATED:
        yield Rejected(where, "not a message; send edits, deletions and flushes with afterword produce")
    elif not isinstance(record.get("conversation_id"), str):
        yield Rejected(where, "schema_violation: conversation_id: a string is required")
    else:
        try:
            user = {} if "user_id" in record else {"user_id": user_of(record) or options.user_id}
        except Refused as error:
            yield Rejected(where, str(error))
            return
        yield found(where, options, {**record, **user}, is_shared=True)


EXPORTS: dict[str, tuple[Callable[[Mapping[str, Any]], Tree], Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "chatgpt": (_chatgpt, _of_chatgpt),
    "claude": (_claude, _of_claude),
    "openwebui": (_openwebui, _of_openwebui),
    "librechat": (_librechat, _of_librechat),
}
"""Formats of exports that belong to one user. The first function finds a conversation's messages and may raise Refused;
the second makes of one what `read_messages` reads."""
FORMATS: dict[str, Callable[[str, Any, ImportOptions], Iterator[ImportOutcome]]] = {
    **{form: partial(_read_export, form) for form in EXPORTS},
    "messages": read_messages,
    "jsonl": _read_line,
}
