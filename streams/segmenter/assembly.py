"""Messages of an episode as they are in their rows: their JSON goes into the event as it is.

The same bytes as those of the models, in a part of the time: what the models would check is checked here. Whatever is
not as this release writes it is left to the models.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from itertools import product
from typing import NamedTuple, get_args

import orjson

from afterword.schemas import EpisodeMessage
from afterword.schemas.messages import Role
from afterword.streams.segmenter.state import Body

FIELDS = tuple(EpisodeMessage.model_fields)
FIELDS_BUT_LAST = FIELDS[:-1]
"""Fields of a message that was never changed: `changed`, the last one, is not in its row."""
UNCHANGED = b',"changed":null}'
NULL = type(None)
_TYPES: dict[str, tuple[type, ...]] = dict.fromkeys(FIELDS, (str,)) | {
    "agent_id": (str, NULL),
    "sentiment": (float, NULL),
    "flows": (list,),
    "tools": (list,),
    "changed": (int, NULL),
}
SIGNATURES = frozenset(product(*(_TYPES[name] for name in FIELDS_BUT_LAST))) | frozenset(product(*_TYPES.values()))
"""Types that the fields may have, all together: one look-up checks a message."""
ROLES = frozenset(get_args(Role))
MOST_CHARACTERS = 256
"""Characters of an id."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)


class RowFields(NamedTuple):
    """Fields of an `EpisodeMessage`; the time is a text."""

    id: str
    role: str
    content: str
    sent_at: str
    user_id: str
    agent_id: str | None
    sentiment: float | None
    flows: list[str]
    tools: list[str]
    changed: int | None = None


class RowMessage(NamedTuple):
    """A message, and its JSON for the event."""

    fields: RowFields
    json: orjson.Fragment


def all_written(bodies: Sequence[Body], read: dict[bytes, RowMessage]) -> list[RowMessage] | None:
    """None where one of them is sealed, damaged, or not as this release would write it.

    `read`: what was read before, by its JSON, and is added to: an overlap has messages of the episode before it.
    """
    found = []
    for body in bodies:
        each = written(body, read)
        if each is None:
            return None
        found.append(each)
    return found


def written(body: Body, read: dict[bytes, RowMessage]) -> RowMessage | None:
    """The message of a row, where it is as in `all_written`."""
    if body.encrypted:
        return None
    found = read.get(body.json) or _parsed(body.json)
    if found:
        read[body.json] = found
    return found


def _parsed(json: bytes) -> RowMessage | None:
    try:
        found = orjson.loads(json)
    except orjson.JSONDecodeError:
        return None
    if type(found) is not dict or tuple(map(type, found.values())) not in SIGNATURES:
        return None
    names = tuple(found)
    if names != FIELDS and names != FIELDS_BUT_LAST:
        return None
    fields = RowFields(*found.values())
    whole = json if len(names) == len(FIELDS) else json[:-1] + UNCHANGED
    return RowMessage(fields, orjson.Fragment(whole)) if _is_valid(fields) else None


def _is_valid(fields: RowFields) -> bool:
    if (fields.flows or fields.tools) and not all(type(name) is str for name in (*fields.flows, *fields.tools)):
        return False
    longest = max(len(fields.id), len(fields.user_id), len(fields.agent_id or ""))
    return len(fields.id) > 0 and longest <= MOST_CHARACTERS and fields.role in ROLES and _is_time(fields.sent_at)


def _is_time(text: str) -> bool:
    if not _TIME.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
