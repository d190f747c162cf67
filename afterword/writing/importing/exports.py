"""Converts the data exports of ChatGPT and Claude to the records that `messages.read` takes.

A conversation is a tree of messages in ChatGPT's export and a list in Claude's.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from afterword.streams.text.content import ContentUnreadable, Kind, Piece, flatten, said
from afterword.writing.importing import messages
from afterword.writing.importing.outcomes import ImportOptions, ImportOutcome, LeftOut, Rejected, identifier, mapping

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
    named = {name: mapping(one).get("parent") for name, one in nodes.items()}
    parents = {name: parent for name, parent in named.items() if isinstance(parent, str)}
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
            each = _messages(written[name], name)
        except ContentUnreadable as error:
            yield Rejected(f"{where}: message {number}", str(error))
        else:
            branched += each
            numbers += [number] * len(each)
    converted = {"id": conversation_id, "user_id": options.user_id, "created_at": known.get("create_time")}
    yield from messages.read(where, {**converted, "messages": branched}, options, "chatgpt", numbers)


def _elsewhere(
    where: str, others: Collection[str], branch: Sequence[str], parents: Mapping[str, str]
) -> Iterator[ImportOutcome]:
    """Account for the messages that are not in the branch. Those whose parents do not lead to it may be lost parts."""
    joined = dict.fromkeys(branch, True)
    for name in others:
        way, node = list[str](), name
        while node in parents and node not in joined:
            joined[node] = False  # so that a circle ends here
            way.append(node)
            node = parents[node]
        joined.update(dict.fromkeys(way, joined.get(node, False)))
    left_out = sum(joined.get(name, False) for name in others)
    if left_out:
        yield LeftOut("on another branch (regenerated answers and replaced messages)", left_out)
    if left_out < len(others):
        problem = "no chain of parents connects these messages and the current one"
        yield Rejected(where, problem, len(others) - left_out)


def _messages(message: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
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
        with suppress(ContentUnreadable):  # which `messages.read` rejects
            content = content if flatten(content) else one.get("text")
        fields = {"role": one.get("sender"), "content": [content, *files], "created_at": one.get("created_at")}
        converted.append({"id": one.get("uuid"), **fields})
    record = {"id": conversation_id, "user_id": user_id, "messages": converted}
    yield from messages.read(where, record, options, "claude")


def _placeholders(files: object, name: str) -> list[str]:
    """Return a placeholder for each file in a list. `name` is the field with a file's name."""
    names = [mapping(file).get(name) for file in files] if isinstance(files, list) else []
    return [f"[file: {one}]" if one and isinstance(one, str) else "[file]" for one in names]
