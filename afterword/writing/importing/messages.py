"""Message lists in the formats of OpenAI and Anthropic: records whose `messages` have roles and contents."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any

import orjson

from afterword.streams.text.content import ROLES, ContentUnreadable, flatten_message, name_words, said
from afterword.writing.importing.outcomes import (
    ImportOptions,
    ImportOutcome,
    LeftOut,
    Refused,
    Rejected,
    conversation_of,
    found,
    identifier,
    mapping,
    named_user,
    rfc3339_of,
    user_of,
)
from afterword.writing.importing.records import MOST_CHARACTERS, TOO_LARGE, Malformed

ITEMS = {"call": "assistant", "reasoning": "assistant", "output": "tool"}
"""Roles of items in OpenAI's Responses API, by the last word of their type."""
ANSWERED = {("tool", "call", "id"), ("tool", "use", "id")}
"""Names of the fields that hold the id of the tool call a message answers, split into words."""
_TIMES = "sent created create timestamp ts time datetime date at on"
TIMES = {word: place for place, word in enumerate(_TIMES.split())}
"""Fields whose names consist of these words hold a message's time. Names with the first words come first."""
ENDS_OF_TIMES = frozenset(["at", "date", "datetime", "ms", "time", "timestamp", "ts", "utc"])
SAID = ("content", "parts", "tool_calls", "function_call")
"""Fields of a message that do not identify its user: its text and the arguments and answers of tools may mention
anyone."""
ID_DIGITS = 32
MESSAGE_WEIGHT = 512
"""Bytes of memory that a message takes in addition to its characters."""
UNENCODABLE = "it is nested too deeply, or has an integer of more than 64 bits"


def conversations(records: Iterator[Any]) -> Iterator[Any]:
    """Group messages that are records of their own into conversations.

    A message that names its conversation is yielded by itself. All others, as in an array of messages, form one
    conversation, yielded at the end, which is held in memory and therefore limited to `MOST_CHARACTERS`.
    """
    joined: list[Any] = []
    weight = 0
    for record in records:
        if _role(record) is None or _messages(record) is not None:
            yield record
            continue
        if _is_of_a_conversation(record):
            yield {"messages": [record]}
            continue
        try:
            weight += MESSAGE_WEIGHT + len(orjson.dumps(record))
        except orjson.JSONEncodeError:
            yield Malformed(UNENCODABLE)
            continue
        if weight <= MOST_CHARACTERS:
            joined.append(record)
        else:
            joined.clear()
    if weight > MOST_CHARACTERS:
        yield TOO_LARGE
    elif joined:
        yield {"messages": joined}


def read(
    where: str,
    record: Any,
    options: ImportOptions,
    source: str = "messages",
    numbers: Sequence[int] | None = None,
) -> Iterator[ImportOutcome]:
    """Read a record with a list of messages.

    `source` is the format for the messages' metadata. `numbers` are the numbers that rejections give the messages, by
    default 1, 2, 3 and so on.
    """
    messages = _messages(record)
    if messages is None:
        yield Rejected(where, "not a conversation: it has no messages")
        return
    try:
        conversation_id, users = _owners(record, messages, options)
        time = _time(record)
    except Refused as error:
        yield Rejected(where, str(error), len(messages))
        return
    repeats: Counter[str] = Counter()
    is_alone = len(messages) == 1 and _is_of_a_conversation(messages[0])
    metadata, is_shared = {"imported_from": source}, len(set(users)) > 1
    numbers = range(1, len(messages) + 1) if numbers is None else numbers
    for number, message, user in zip(numbers, messages, users, strict=True):
        place = f"{where}: message {number}"
        try:
            own_time = _time(mapping(message))
            if is_alone and own_time is None and identifier(mapping(message).get("id")) is None:
                raise Refused("it has neither id nor time, so it cannot be told apart from another with the same words")
            time = own_time or time
            each = _fields(message, user, own_time, repeats)
        except (Refused, ContentUnreadable) as error:
            yield Rejected(place, str(error))
            continue
        common = {"conversation_id": conversation_id, "user_id": user, "sent_at": time, "metadata": metadata}
        for one in each:
            yield found(place, options, {**common, **one}, is_shared)
        if not each:
            yield LeftOut("empty")


def _messages(record: Any) -> Sequence[Any] | None:
    listed = mapping(record).get("messages")
    return listed if isinstance(listed, list) else None


def _owners(record: Mapping[str, Any], messages: Sequence[Any], options: ImportOptions) -> tuple[str, list[str]]:
    """Return a record's conversation and the user of each message. Raises: Refused."""
    user_id = user_of(record)
    users = [user_id] * len(messages) if user_id is not None else _users(messages, options.user_id)
    conversation_id = _conversation(record, messages)
    if conversation_id is None and len(set(users)) > 1:
        raise Refused("it names more than one user but no conversation")
    return conversation_id or _digest([record, users]), users


def _conversation(record: Mapping[str, Any], messages: Sequence[Any]) -> str | None:
    """Return the id of the conversation named by a record or its messages. Raises: Refused if they name several."""
    named = {conversation_of(record), *(conversation_of(_about(one), is_message=True) for one in messages)} - {None}
    if len(named) > 1:
        raise Refused("it and its messages name more than one conversation")
    return next(iter(named), None)


def _is_of_a_conversation(message: Any) -> bool:
    """Return whether a message names its conversation, readably or not."""
    try:
        return conversation_of(_about(message), is_message=True) is not None
    except Refused:
        return True


def _about(message: Any) -> dict[str, Any]:
    """Return the fields that may identify a message's user and conversation."""
    return {name: value for name, value in mapping(message).items() if name not in SAID}


def _users(messages: Sequence[Any], default: str | None) -> list[str]:
    """Return the user of each message in a record that names none itself.

    A message that names nobody gets the user of the others. Raises: Refused if there are several users, or none.
    """
    if any(_role(one) == "user" and mapping(one).get("name") for one in messages):
        raise Refused("it names its user in a message's name, which is not read; copy the id to user_id")
    # what others say may mention people, such as authors of sources
    named = [(user_of if _role(one) == "user" else named_user)(_about(one)) for one in messages]
    users = {user for user in named if user is not None}
    if len(users) > 1 and None in named:
        raise Refused("its messages name more than one user, and some of them name none")
    user = next(iter(users), default)
    if user is None:
        raise Refused("it has no user; give --user")
    return [one or user for one in named]


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
    return [{**one, "skip_summarization": one["skip_summarization"] or is_skipped} for one in fields]


def _role(message: Any) -> str | None:
    """Return a message's role, or None if it is not a message."""
    known = mapping(message)
    if any(name_words(name) in ANSWERED and value for name, value in known.items()):
        return "tool"  # even if it states another role
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
            if words[-1] in ENDS_OF_TIMES and (time := rfc3339_of(value)):
                others.append(time)
    return min(others, default=None)


def _digest(value: Any) -> str:
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        raise Refused(UNENCODABLE) from None
    return hashlib.sha256(data).hexdigest()[:ID_DIGITS]
