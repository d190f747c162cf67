"""ChatGPT's data export: `conversations.json`, an array of conversations, each with a tree of messages."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from afterword.streams.text.content import flatten, said
from afterword.writing.importing.outcomes import (
    ImportOptions,
    ImportOutcome,
    LeftOut,
    Refused,
    Rejected,
    identifier,
    mapping,
    outcomes_of,
    placeholders,
    rfc3339_of,
)

ROLES = ("user", "assistant", "system", "tool")
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


def read(where: str, record: Any, options: ImportOptions) -> Iterator[ImportOutcome]:
    """Read the branch of a conversation that ends with its current message."""
    known = mapping(record)
    conversation_id = identifier(known.get("conversation_id")) or identifier(known.get("id"))
    nodes = known.get("mapping")
    if conversation_id is None or not isinstance(nodes, dict):
        yield Rejected(where, "not a conversation: it has no id or no mapping")
        return
    messages = {name for name, node in nodes.items() if isinstance(mapping(node).get("message"), dict)}
    try:
        branch = _branch(nodes, known.get("current_node"))
        time = rfc3339_of(known.get("create_time"))
    except Refused as error:
        yield Rejected(where, str(error), max(1, len(messages)))
        return
    yield from _beside(where, nodes, branch, messages)
    ids = {"conversation_id": conversation_id, "user_id": options.user_id or ""}

    def fields_of(name: str) -> list[dict[str, Any]]:
        nonlocal time
        message = nodes[name]["message"]
        time = rfc3339_of(message.get("create_time")) or time
        return [{**one, **ids, "sent_at": time} for one in _fields(message, name)]

    yield from outcomes_of(where, options, (name for name in branch if name in messages), fields_of)


def _branch(nodes: Mapping[str, Any], last: object) -> list[str]:
    """Return the nodes up to the current one, from the root or from a node with a missing parent. Raises: Refused."""
    if nodes and not (isinstance(last, str) and last in nodes):
        raise Refused("current_node is not in its mapping")
    branch: dict[str, None] = {}
    while isinstance(last, str) and last in nodes:
        if last in branch:
            raise Refused("its branch is circular")
        branch[last] = None
        last = mapping(nodes[last]).get("parent")
    return [*branch][::-1]


def _beside(where: str, nodes: Mapping[str, Any], branch: list[str], messages: set[str]) -> Iterator[ImportOutcome]:
    """Account for messages outside the branch: those on other branches, and those with no connection to it."""
    leaving: dict[str, bool] = dict.fromkeys(branch, True)
    for name in nodes:
        way, at = [], name
        while at not in leaving:
            way.append(at)
            leaving[at] = False
            parent = mapping(nodes[at]).get("parent")
            if not (isinstance(parent, str) and parent in nodes):
                break
            at = parent
        leaving |= dict.fromkeys(way, leaving[at])
    beside = messages.difference(branch)
    replaced = sum(leaving[name] for name in beside)
    if replaced:
        yield LeftOut("on another branch (regenerated answers and replaced messages)", replaced)
    if lost := len(beside) - replaced:
        yield Rejected(where, "a parent is missing between these messages and the current one", lost)


def _fields(message: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    role, content = mapping(message.get("author")).get("role"), message.get("content")
    if role not in ROLES:
        raise Refused("its author has no known role")
    kind, recipient = mapping(content).get("content_type"), message.get("recipient")
    about = mapping(message.get("metadata"))
    is_hidden = about.get("is_visually_hidden_from_conversation") is True
    attachments = about.get("attachments")
    files = [  # without images, which are among the parts of the content
        one
        for one in (attachments if isinstance(attachments, list) else [])
        if not str(mapping(one).get("mime_type")).startswith("image/")
    ]
    is_call = role == "assistant" and isinstance(recipient, str) and recipient not in ("", "all")
    return [
        {
            **fields,
            "role": "system" if is_hidden and role == "user" else fields["role"],
            "content": OTHER_MARKS.sub("", MARK.sub(_shown, fields["content"])),
            "tools": [*fields["tools"], *([recipient] if is_call else [])],
            "skip_summarization": fields["skip_summarization"] or is_hidden or kind in (*NOT_SAID, *PAGES),
            "metadata": {"imported_from": "chatgpt"},
        }
        for fields in said(
            role, flatten([content, *placeholders(files, "name")]), identifier(message.get("id")) or name
        )
    ]


def _shown(mark: re.Match[str]) -> str:
    """Return the text that ChatGPT shows for the mark of a citation, a link or a name; empty if none."""
    kind, *arguments = mark[1].split("\ue202")
    space = " " if mark[0].startswith(" ") else ""
    if kind == "url" and arguments:
        return space + arguments[0]
    try:
        named = json.loads(arguments[0]) if kind.endswith("entity") and arguments else None
    except ValueError:
        named = None
    return space + named[1] if isinstance(named, list) and len(named) > 1 and isinstance(named[1], str) else ""
