"""ChatGPT's data export: `conversations.json`, an array of conversations, each with a tree of messages."""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from afterword.importing.outcomes import (
    Files,
    HistoryRefused,
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
from afterword.importing.records import Malformed, json_records

NAME = re.compile(r"conversations(-\d+)?\.json")
"""A large export has several: `conversations-000.json` and so on."""
ROLES = ("user", "assistant", "system", "tool")
NOT_SAID = ("thoughts", "reasoning_recap", "user_editable_context", "model_editable_context", "system_error")
PAGES = ("sonic_webpage", "tether_quote", "tether_browsing_display")
PLACEHOLDERS = {
    "image_asset_pointer": "[image]",
    "audio_asset_pointer": "[audio]",
    "real_time_user_audio_video_asset_pointer": "[audio]",
    "video_container_asset_pointer": "[video]",
}


def read(files: Files, options: ImportOptions) -> Iterator[ImportOutcome]:
    """Read every conversation: the branch that ends with its current message.

    Raises: HistoryRefused.
    """
    for name in _conversation_files(files):
        with files.open(name) as file:
            for number, record in enumerate(json_records(file), start=1):
                yield from _conversation(Place(name, number), record, options)


def _conversation_files(files: Files) -> list[str]:
    found = [name for name in files.names if NAME.fullmatch(PurePosixPath(name).name)]
    if not found and len(files.names) != 1:
        raise HistoryRefused(file="not an export of ChatGPT", problem="it has no conversations.json")
    return found or list(files.names)


def _conversation(place: Place, record: Any, options: ImportOptions) -> Iterator[ImportOutcome]:
    if isinstance(record, Malformed):
        yield place.rejected(record.reason)
        return
    conversation_id = text(mapping(record).get("conversation_id")) or text(mapping(record).get("id"))
    if conversation_id is None or not isinstance(record.get("mapping"), dict):
        yield place.rejected("not a conversation: it has no id, or no mapping")
        return
    try:
        branch = _branch(record["mapping"], record.get("current_node"))
        began = rfc3339_of(record.get("create_time"))
    except Refused as error:
        yield place.rejected(str(error))
        return
    if not branch:
        yield LeftOut("empty conversation")
    for number, (node_id, said) in enumerate(branch, start=1):
        where = place._replace(part=f"message {number}")
        ids = {"conversation_id": conversation_id, "id": text(said.get("id")) or node_id}
        outcome, began = _message(where, ids, said, began, options)
        yield outcome


def _branch(nodes: Mapping[str, Any], last: object) -> list[tuple[str, Mapping[str, Any]]]:
    """Messages from the root to the current node, by the id of their node. Raises: Refused."""
    found: dict[str, Mapping[str, Any]] = {}
    if nodes and not (isinstance(last, str) and last in nodes):
        raise Refused("current_node is not in its mapping")
    while isinstance(last, str) and last in nodes:
        if last in found:
            raise Refused("its branch is a circle")
        found[last] = mapping(nodes[last])
        last = found[last].get("parent")
    said = [(node_id, node["message"]) for node_id, node in found.items() if isinstance(node.get("message"), dict)]
    return said[::-1]


def _message(
    place: Place, ids: Mapping[str, str], node: Mapping[str, Any], time: str | None, options: ImportOptions
) -> tuple[ImportOutcome, str | None]:
    """Convert a message; also return its time, or else that of the one before it."""
    try:
        time = rfc3339_of(node.get("create_time")) or time
        author, metadata = mapping(node.get("author")), mapping(node.get("metadata"))
        role = author.get("role")
        if role not in ROLES:
            raise Refused("its author has no known role")
        said = _said(mapping(node.get("content")))
        if metadata.get("is_visually_hidden_from_conversation") is True:
            said = LeftOut("hidden")
    except Refused as error:
        return place.rejected(str(error)), time
    if isinstance(said, LeftOut):
        return said, time
    recipient = text(node.get("recipient"))
    fields = {
        **ids,
        "user_id": options.user_id or "",
        "role": role,
        "content": said,
        "sent_at": time,
        "tools": [recipient] if role == "assistant" and recipient not in (None, "all") else [],
        "skip_summarization": role == "system",
        "metadata": {"imported_from": "chatgpt"},
    }
    return message(place, options, fields), time


def _said(content: Mapping[str, Any]) -> str | LeftOut:
    """Text of a message, with placeholders for what is no text."""
    kind = content.get("content_type")
    if kind in NOT_SAID:
        return LeftOut("reasoning, instructions or an error")
    if kind in PAGES:
        return LeftOut("page of the web or of a file")
    parts = [_part(part) for part in sequence(content.get("parts"))]
    said = "\n".join(part for part in parts if part) or text(content.get("text")) or ""
    return said if said.strip() else LeftOut("empty")


def _part(part: object) -> str:
    if isinstance(part, str):
        return part
    known = mapping(part)
    kind = known.get("content_type")
    return text(known.get("text")) or PLACEHOLDERS.get(kind if isinstance(kind, str) else "", "[attachment]")
