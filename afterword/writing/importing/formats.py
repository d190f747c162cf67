"""The formats of histories: exports of ChatGPT and Claude, message lists of OpenAI and Anthropic, and our own lines.

The exports are converted to message lists, which are records whose `messages` have roles and contents. In ChatGPT's
export, a conversation is a tree of messages.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from io import BufferedReader
from operator import itemgetter
from typing import Any

import orjson

from afterword.schemas.messages import MESSAGE_CREATED
from afterword.streams.text.content import (
    ROLES,
    ContentUnreadable,
    Kind,
    Piece,
    flatten,
    flatten_message,
    name_words,
    said,
)
from afterword.writing.importing.records import (
    MOST_CHARACTERS,
    TOO_LARGE,
    ImportOptions,
    ImportOutcome,
    LeftOut,
    Malformed,
    Refused,
    Rejected,
    conversation_of,
    found,
    identifier,
    mapping,
    named_user,
    owner_of,
    records,
    rfc3339_of,
    user_of,
)

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
TOO_DEEP_OR_LARGE = "it is nested too deeply, or has an integer of more than 64 bits"


def conversations(records: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Yield numbered records, and at the end one conversation of the messages that are records of their own.

    It has the number of its first message. It is held in memory and therefore limited to `MOST_CHARACTERS`.
    """
    joined: list[Any] = []
    first = count = weight = 0
    for number, record in records:
        if _role(record) is None or _listed(record) is not None:
            yield number, record
            continue
        try:
            weight += MESSAGE_WEIGHT + len(orjson.dumps(record))
        except orjson.JSONEncodeError:
            yield number, Malformed(TOO_DEEP_OR_LARGE)
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


def read_messages(
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
    repeats: Counter[str] = Counter()
    metadata, is_shared = {"imported_from": source}, len(set(users)) > 1
    numbers = range(1, len(messages) + 1) if numbers is None else numbers
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
        for one in each:
            yield found(place, options, {**common, **one}, is_shared)
        if not each:
            yield LeftOut("empty")


def _listed(record: Any) -> Sequence[Any] | None:
    listed = mapping(record).get("messages")
    return listed if isinstance(listed, list) else None


def _owners(record: Mapping[str, Any], messages: Sequence[Any], options: ImportOptions) -> tuple[str, list[str]]:
    """Return a record's conversation and the user of each message. Raises: Refused."""
    user_id = user_of(record)
    users = [user_id] * len(messages) if user_id is not None else _users(messages, options.user_id)
    named = {conversation_of(record), *(conversation_of(_about(one), is_message=True) for one in messages)} - {None}
    if len(named) > 1:
        raise Refused("it and its messages name more than one conversation")
    if not named and len(set(users)) > 1:
        raise Refused("it names more than one user but no conversation")
    return next(iter(named), None) or _digest([record, users]), users


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
        raise Refused(TOO_DEEP_OR_LARGE) from None
    return hashlib.sha256(data).hexdigest()[:ID_DIGITS]


NOT_SAID = ("thoughts", "reasoning_recap", "user_editable_context", "model_editable_context", "system_error")
PAGES = ("sonic_webpage", "tether_quote", "tether_browsing_display")
MARK = re.compile(" ?\ue200([^\ue201]*)\ue201")
"""A mark that ChatGPT shows as a link or a chip: its kind and its arguments, separated by U+E202."""
OTHER_MARKS = re.compile(
    " ?\ue200?(?:file)?cite(?:\ue202?turn[0-9]+[a-z]+[0-9]+)+\ue201?|[\ue200-\ue206]"
    r"| ?【[^【】]*(?:†|oaicite:)[^【】]*】"
    r"| ?(?::\w+)?\[oai_?cit[^\]]*\](?:\{[^}]*\}|\([^)]*\))?"
)
"""Citations that lost their delimiters on the way, ends of cited passages, and citations of earlier years."""


def chatgpt(where: str, record: Any, options: ImportOptions) -> Iterator[ImportOutcome]:
    """Read the branch of a conversation that ends with its current message."""
    known = mapping(record)
    conversation_id = identifier(known.get("conversation_id")) or identifier(known.get("id"))
    nodes, node = known.get("mapping"), known.get("current_node")
    if conversation_id is None or not isinstance(nodes, dict):
        yield Rejected(where, "not a conversation: it has no id or no mapping")
        return
    parents = {name: up for name, one in nodes.items() if isinstance(up := mapping(one).get("parent"), str)}
    written = {name: one["message"] for name, one in nodes.items() if isinstance(mapping(one).get("message"), dict)}
    branch: list[str] = []
    while isinstance(node, str) and node in nodes and len(branch) <= len(nodes):
        branch.append(node)
        node = parents.get(node)
    if len(branch) > len(nodes) or (nodes and not branch):
        problem = "its branch is circular" if branch else "current_node is not in its mapping"
        yield Rejected(where, problem, max(1, len(written)))
        return
    yield from _elsewhere(where, written.keys() - branch, branch, parents)
    branched, numbers = [], list[int]()
    for number, name in enumerate((name for name in reversed(branch) if name in written), start=1):
        try:
            each = _converted(written[name], name)
        except ContentUnreadable as error:
            yield Rejected(f"{where}: message {number}", str(error))
        else:
            branched += each
            numbers += [number] * len(each)
    converted = {"id": conversation_id, "user_id": options.user_id, "created_at": known.get("create_time")}
    yield from read_messages(where, {**converted, "messages": branched}, options, "chatgpt", numbers)


def _elsewhere(
    where: str, others: Set[str], branch: Sequence[str], parents: Mapping[str, str]
) -> Iterator[ImportOutcome]:
    """Account for the messages outside the branch. Those that do not descend from it may be lost parts of it."""
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


def _converted(message: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Raises: ContentUnreadable."""
    role = str(mapping(message.get("author")).get("role"))
    content, about = message.get("content"), message.get("metadata")
    kind, recipient = mapping(content).get("content_type"), message.get("recipient")
    is_hidden = mapping(about).get("is_visually_hidden_from_conversation") is True
    is_call = role == "assistant" and isinstance(recipient, str) and recipient not in ("", "all")
    attachments = mapping(about).get("attachments")
    files = [  # without images, which are among the parts of the content
        one
        for one in (attachments if isinstance(attachments, list) else [])
        if not str(mapping(one).get("mime_type")).startswith("image/")
    ]
    pieces = flatten([content, *_placeholders(files, "name")]) or [Piece(Kind.SAID, "")]
    return [
        {
            "id": one["id"],
            "role": "system" if is_hidden and role == "user" else one["role"],
            "content": OTHER_MARKS.sub("", MARK.sub(_shown, one["content"])),
            "tool_calls": [{"name": tool} for tool in (*one["tools"], *([recipient] if is_call else []))],
            "created_at": message.get("create_time"),
            "skip_summarization": one["skip_summarization"] or is_hidden or kind in (*NOT_SAID, *PAGES),
        }
        for one in said(role, pieces, identifier(message.get("id")) or name)
    ]


def _shown(mark: re.Match[str]) -> str:
    """Return the text that ChatGPT shows for the mark of a link or a name; empty for a reference, as to a source."""
    shown = "".join(mark[1].split("\ue202")[1:2])
    if named := re.match(r'\["[^"]*",\s*("(?:[^"\\]|\\.)*")', shown):
        with suppress(json.JSONDecodeError):
            shown = json.loads(named[1])
    elif re.match(r"turn\d|[\[{]", shown):
        return ""
    return f" {shown}" if shown and mark[0].startswith(" ") else shown


def claude(where: str, record: Any, options: ImportOptions) -> Iterator[ImportOutcome]:
    """Read a conversation. Its user is the account that it names, unless the options name one."""
    known = mapping(record)
    listed, conversation_id = known.get("chat_messages"), identifier(known.get("uuid"))
    if not isinstance(listed, list) or conversation_id is None:
        yield Rejected(where, "not a conversation: it has no uuid or no chat_messages")
        return
    user_id = options.user_id or identifier(mapping(known.get("account")).get("uuid"))
    converted = []
    for one in map(mapping, listed):
        files = [shown for name in ("attachments", "files") for shown in _placeholders(one.get(name), "file_name")]
        content = one.get("content")
        with suppress(ContentUnreadable):  # which `read_messages` rejects
            if all(_is_unknown(piece) for piece in flatten(content)):
                content = [one.get("text"), content]
        fields = {"role": one.get("sender"), "content": [content, *files], "created_at": one.get("created_at")}
        converted.append({"id": one.get("uuid"), **fields})
    record = {"id": conversation_id, "user_id": user_id, "messages": converted}
    yield from read_messages(where, record, options, "claude")


def _is_unknown(piece: Piece) -> bool:
    """Return whether a piece only says that there is something of an unknown type."""
    return not piece.tools and set(piece.text.split()) == {"[attachment]"}


def _placeholders(files: object, name: str) -> list[str]:
    """Return a placeholder for each file in a list. `name` is the field with a file's name."""
    names = [mapping(file).get(name) for file in files] if isinstance(files, list) else []
    return [f"[file: {one}]" if one and isinstance(one, str) else "[file]" for one in names]


def read_history(
    form: str, options: ImportOptions, files: Iterable[tuple[str, BufferedReader]]
) -> Iterator[ImportOutcome]:
    """Read files in the format `form`, a key of `FORMATS`. The order is always the same. Raises: OSError."""
    of_one_person = form in ("chatgpt", "claude") and options.user_id is not None
    owner: dict[str, Any] = {}
    for name, file in files:
        read = records(file, is_lines=form == "jsonl" or name.lower().endswith((".jsonl", ".ndjson")))
        for number, record in conversations(read) if form == "messages" else read:
            where = f"{name}:{number}"
            owner = owner or owner_of(record)
            if of_one_person and owner_of(record) not in ({}, owner):
                reason = "it belongs to another person than the conversations before it, but --user names only one"
                yield Rejected(where, reason)
                continue
            if isinstance(record, Malformed):
                yield Rejected(where, record.reason, record.messages)
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


FORMATS = {"chatgpt": chatgpt, "claude": claude, "messages": read_messages, "jsonl": _read_line}
