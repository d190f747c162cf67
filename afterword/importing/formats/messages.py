"""Message lists in the style of OpenAI's API and of LangGraph: a record has `messages` with roles and contents."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from afterword.importing.identity import conversation_of, identifier, user_of
from afterword.importing.outcomes import (
    Files,
    ImportOptions,
    ImportOutcome,
    LeftOut,
    Place,
    Refused,
    mapping,
    message,
    rfc3339_of,
    sequence,
    text,
)
from afterword.importing.records import MAX_WEIGHT, TOO_LARGE, Malformed, is_lines, json_records, line_records

ROLES = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
}
SAID_FIELDS = ("content", "parts", "tool_calls", "function_call", "additional_kwargs", "response_metadata", "artifact")
"""Fields of a message that do not say whose it is: tools' arguments and results may name anybody."""
TIMES = ("sent_at", "created_at", "create_time", "timestamp", "created")
TEXTS = ("text", "refusal", "content")
NOT_SAID = ("thinking", "redacted_thinking", "reasoning")
CALLS = ("tool_use", "tool_call", "function_call")
PLACEHOLDERS = {
    "image": "[image]",
    "image_url": "[image]",
    "input_image": "[image]",
    "audio": "[audio]",
    "input_audio": "[audio]",
    "file": "[file]",
    "input_file": "[file]",
    "document": "[file]",
}
MAX_PART_DEPTH = 4
ID_DIGITS = 32
MESSAGE_WEIGHT = 512
"""Bytes of memory of a message beside its characters."""


def read(files: Files, options: ImportOptions) -> Iterator[ImportOutcome]:
    """Read every conversation; an array of messages is one."""
    for name in files.names:
        with files.open(name) as file:
            as_lines = is_lines(name, file)
        with files.open(name) as file:
            records = line_records(file) if as_lines else _conversations(json_records(file))
            for number, record in enumerate(records, start=1):
                yield from _conversation(Place(name, number), record, options)


def _conversations(records: Iterator[Any]) -> Iterator[Any]:
    """Join the records of an array of messages to one conversation, unless that is too large."""
    joined: list[Any] = []
    weight = 0
    for record in records:
        if _role(record) is None or _messages(record) is not None:
            yield record
            continue
        weight += MESSAGE_WEIGHT + len(str(record))
        if weight <= MAX_WEIGHT:
            joined.append(record)
        else:
            joined.clear()
    if weight > MAX_WEIGHT:
        yield TOO_LARGE
    elif joined:
        yield {"messages": joined}


def _conversation(place: Place, record: Any, options: ImportOptions) -> Iterator[ImportOutcome]:
    if record is None:
        yield LeftOut("blank line")
        return
    if isinstance(record, Malformed):
        yield place.rejected(record.reason)
        return
    messages = _messages(record)
    if messages is None:
        yield place.rejected("not a conversation: it has no messages")
        return
    try:
        named = user_of(record)
        owners = [named] * len(messages) if named is not None else _users(messages)
        time = _time(record)
        conversation_id = conversation_of(record) or _digest([record, owners])
    except Refused as error:
        yield place.rejected(str(error))
        return
    repeats: Counter[str] = Counter()
    for number, (said, owner) in enumerate(zip(messages, owners, strict=True), start=1):
        where = place._replace(part=f"message {number}")
        user_id = options.user_id if owner is None else owner
        if user_id is None:
            yield where.rejected("it has no user; give --user")
            continue
        try:
            fields = _fields(said, repeats)
            time = fields["sent_at"] = _time(mapping(said)) or time
        except Refused as error:
            yield where.rejected(str(error))
            continue
        is_empty = not fields["content"].strip() and not fields["tools"]
        yield (
            LeftOut("empty")
            if is_empty
            else message(where, options, {"conversation_id": conversation_id, "user_id": user_id, **fields})
        )


def _messages(record: Any) -> Sequence[Any] | None:
    """`messages` of a record, or of the `values` of a LangGraph state."""
    known = mapping(record)
    found = known.get("messages", mapping(known.get("values")).get("messages"))
    return found if isinstance(found, list) else None


def _users(messages: Sequence[Any]) -> list[str | None]:
    """Return the user of each message, for a record that names none itself.

    A message without a user has that of the others. Raises: Refused if they have several.
    """
    found = [user_of({k: v for k, v in _inner(said).items() if k not in SAID_FIELDS}) for said in messages]
    named = {user for user in found if user is not None}
    if len(named) > 1 and None in found:
        raise Refused("its messages name more than one user, and some of them none")
    return [user or next(iter(named), None) for user in found]


def _fields(said: Any, repeats: Counter[str]) -> dict[str, Any]:
    """Fields of a message. `repeats`: how often the same was said in the conversation so far. Raises: Refused."""
    role = _role(said)
    if role is None:
        raise Refused("it has no known role")
    inner = _inner(said)
    content, calls = _content(inner.get("content"), MAX_PART_DEPTH)
    calls = [*calls, *_calls(inner)]
    same = _digest([role, content, calls])
    repeats[same] += 1
    return {
        "id": identifier(inner.get("id")) or f"{same}-{repeats[same]}",
        "role": role,
        "content": content,
        "tools": list(dict.fromkeys(calls)),
        "skip_summarization": role == "system",
        "metadata": {"imported_from": "messages"},
    }


def _inner(said: Any) -> Mapping[str, Any]:
    """Fields of a message, which LangChain also writes below `data` or `kwargs`."""
    known = mapping(said)
    return mapping(known.get("data")) or mapping(known.get("kwargs")) or known


def _role(said: Any) -> str | None:
    """Role of a message, None for what is none; LangChain calls it `type`."""
    for known in (mapping(said), _inner(said)):
        for name in ("role", "type"):
            found = known.get(name)
            if isinstance(found, str) and found in ROLES:
                return ROLES[found]
    return None


def _content(content: Any, depth: int) -> tuple[str, list[str]]:
    """Text of a message, with placeholders for what is no text, and names of the tools that are called in it."""
    if isinstance(content, str):
        return content, []
    texts, calls = [], []
    for part in sequence(content):
        kind = mapping(part).get("type")
        if isinstance(part, str):
            texts.append(part)
        elif kind in CALLS:
            calls += [name] if (name := text(part.get("name"))) else []
        elif kind not in NOT_SAID:
            texts.append(_part(mapping(part), kind, depth))
    return "\n".join(said for said in texts if said), calls


def _part(part: Mapping[str, Any], kind: object, depth: int) -> str:
    for name in TEXTS:
        if found := text(part.get(name)):
            return found
    if depth and isinstance(part.get("content"), list):  # the result of a tool
        return _content(part["content"], depth - 1)[0]
    return PLACEHOLDERS.get(kind, "[attachment]") if isinstance(kind, str) and kind != "text" else ""


def _calls(said: Mapping[str, Any]) -> list[str]:
    """Names of the tools that a message calls beside its content, in OpenAI's and in LangChain's form."""
    extra = mapping(said.get("additional_kwargs"))
    called = [
        *sequence(said.get("tool_calls")),
        *sequence(extra.get("tool_calls")),
        {"function": said.get("function_call")},
    ]
    names = [
        text(mapping(call).get("name")) or text(mapping(mapping(call).get("function")).get("name")) for call in called
    ]
    return [name for name in names if name]


def _time(fields: Mapping[str, Any]) -> str | None:
    """Raises: Refused."""
    known = _inner(fields)
    return next((rfc3339_of(known[name]) for name in TIMES if known.get(name) is not None), None)


def _digest(value: Any) -> str:
    """Hexadecimal digest of JSON. Raises: Refused."""
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        raise Refused("it is nested too deeply, or has an integer of more than 64 bits") from None
    return hashlib.sha256(data).hexdigest()[:ID_DIGITS]
