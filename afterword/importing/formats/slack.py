"""Slack's export: a folder for each channel, in it a file for each day, and lists of users and channels beside them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
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

USERS = ("users.json", "org_users.json")
CHANNELS = ("channels.json", "groups.json", "mpims.json", "dms.json")
DAY = re.compile(r"\d{4}-\d{2}-\d{2}\.json")
SAID = (None, "bot_message", "me_message", "thread_broadcast", "file_share", "file_comment", "bot_add_message")
"""Subtypes of messages that somebody wrote; all others tell what was done, such as that somebody joined."""
TIMESTAMP = re.compile(r"\d{1,10}\.\d{1,9}")
MARKED = re.compile(r"<([^<>|]*)(?:\|([^<>]*))?>")
ESCAPED = re.compile("&(amp|lt|gt);")
"""All that Slack escapes."""
CHARACTERS = {"amp": "&", "lt": "<", "gt": ">"}
ATTACHED = ("fallback", "pretext", "title", "text")
MAX_ATTACHMENTS = 20
MAX_NAMES = 500_000
MAX_NAME = 256
"""Names of people and channels are kept while the export is read: at most so many, of so many characters."""


@dataclass(frozen=True)
class Names:
    """Names of people by id, and ids of channels by the name of their folder."""

    people: Mapping[str, str]
    channels: Mapping[str, str]


def read(files: Files, options: ImportOptions) -> Iterator[ImportOutcome]:
    """Read every day of every channel, a channel after the other; each thread is a conversation of its own.

    Raises: HistoryRefused.
    """
    days = [name for name in files.names if DAY.fullmatch(PurePosixPath(name).name) and "/" in name]
    if not days:
        raise HistoryRefused(file="not a Slack export", problem="it has no folder with a file YYYY-MM-DD.json")
    names = Names(dict(islice(_people(files), MAX_NAMES)), dict(islice(_channels(files), MAX_NAMES)))
    for name in days:
        folder = PurePosixPath(name).parent.name
        with files.open(name) as file:
            for number, record in enumerate(json_records(file), start=1):
                yield _message(Place(name, number), folder, record, names, options)


def _people(files: Files) -> Iterator[tuple[str, str]]:
    for record in _listed(files, USERS):
        profile = mapping(record.get("profile"))
        shown = text(profile.get("display_name")) or text(record.get("real_name")) or text(record.get("name"))
        if (user_id := text(record.get("id"))) and shown:
            yield user_id[:MAX_NAME], shown[:MAX_NAME]


def _channels(files: Files) -> Iterator[tuple[str, str]]:
    for record in _listed(files, CHANNELS):
        if (channel_id := text(record.get("id"))) and len(channel_id) <= MAX_NAME:
            yield (text(record.get("name")) or channel_id)[:MAX_NAME], channel_id


def _listed(files: Files, wanted: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    for name in files.names:
        if PurePosixPath(name).name in wanted:
            with files.open(name) as file:
                yield from (record for record in json_records(file) if isinstance(record, dict))


def _message(place: Place, folder: str, record: Any, names: Names, options: ImportOptions) -> ImportOutcome:
    if isinstance(record, Malformed):
        return place.rejected(record.reason)
    if not isinstance(record, dict):
        return place.rejected("not a message")
    if record.get("subtype") not in SAID or record.get("hidden") is True:
        return LeftOut("not said by anybody")
    try:
        sent = _timestamp(record.get("ts"))
        thread = None if record.get("thread_ts") is None else _timestamp(record["thread_ts"])
        edited = rfc3339_of(_seconds(mapping(record.get("edited")).get("ts")))
        sent_at = rfc3339_of(float(sent))
    except Refused as error:
        return place.rejected(str(error))
    content = _content(record, names)
    if not content.strip():
        return LeftOut("empty")
    channel = names.channels.get(folder, folder)
    is_bot = record.get("subtype") == "bot_message" or bool(record.get("bot_id"))
    author = text(record.get("user")) or text(record.get("bot_id")) or ""
    shown = text(record.get("username")) or names.people.get(author) or author
    metadata = {"imported_from": "slack", "channel": folder, "author": shown}
    fields = {
        "id": sent,
        "conversation_id": f"{channel}-{thread}" if thread else channel,
        "user_id": author,
        "role": "assistant" if is_bot else "user",
        "content": content,
        "sent_at": sent_at,
        "metadata": metadata | ({"edited_at": edited} if edited else {}),
    }
    return message(place, options, fields)


def _timestamp(value: object) -> str:
    """Check a message's `ts`, which is its id in the channel. Raises: Refused."""
    if isinstance(value, str) and TIMESTAMP.fullmatch(value):
        return value
    raise Refused("its ts, or its thread_ts, is no timestamp of Slack")


def _seconds(value: object) -> float | None:
    return None if value is None else float(_timestamp(value))


def _content(record: Mapping[str, Any], names: Names) -> str:
    """Text with names for ids; an app's attachments where it has none, and the names of files."""
    said = [text(record.get("text")) or ""]
    if not said[0]:
        said = [_attached(mapping(one)) for one in sequence(record.get("attachments"))[:MAX_ATTACHMENTS]]
    found = "\n".join(without_marks(one, names.people) for one in said if one)
    named = [text(mapping(file).get("name")) for file in sequence(record.get("files"))]
    return "\n".join([found, *(f"[file: {name}]" for name in named if name)]).strip("\n")


def _attached(attachment: Mapping[str, Any]) -> str:
    """The first of an attachment's texts: `fallback` is made for those who show no attachments."""
    return next((found for name in ATTACHED if (found := text(attachment.get(name)))), "")


def without_marks(said: str, people: Mapping[str, str]) -> str:
    """Replace Slack's marks by what they show: `<@U1>` by `@Ann`, `<https://a|b>` by `b (https://a)`."""
    shown = MARKED.sub(lambda found: _shown(found[1], found[2], people), said)
    return ESCAPED.sub(lambda found: CHARACTERS[found[1]], shown)


def _shown(target: str, label: str | None, people: Mapping[str, str]) -> str:
    if target.startswith("@"):
        return f"@{label or people.get(target[1:], target[1:])}"
    if target.startswith("#"):
        return f"#{label or target[1:]}"
    if target.startswith("!"):
        return label or f"@{target[1:]}"
    return f"{label} ({target})" if label and label != target else target
