"""Records of foreign topics, and mappings of them."""

import json
from typing import Any, NamedTuple

from afterword.schemas import InputEvent, decode_input
from afterword.schemas.records import ProducerRecord
from afterword.streams.ingest.sources import Source, map_items, parse_sources

FIELDS = """
id = "value.id"
conversation_id = "value.thread"
user_id = "value.user"
role = "value.role"
content = "value.text"
"""
VALUE = {"id": "m1", "thread": "c1", "user": "u1", "role": "user", "text": "Where is my order?"}


class Foreign(NamedTuple):
    """A record of another application."""

    value: bytes | None = b""
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    topic: str = "chat"
    partition: int = 1
    offset: int = 7
    timestamp: int = 1_790_000_000_000


def data_of(given: Any) -> bytes | None:
    """Return the bytes of a row's key, header or value; `hex:` begins those that are no text."""
    if given is None or (isinstance(given, str) and given.startswith("hex:")):
        return given and bytes.fromhex(given.removeprefix("hex:"))
    return given.encode() if isinstance(given, str) else json.dumps(given).encode()


def source(fields: str = FIELDS, above: str = "", below: str = "") -> Source:
    text = f'[[sources]]\ntopics = ["chat"]\n{above}\n[sources.map]\n{fields}\n{below}'
    return parse_sources(text, "afterword.toml")[0]


def map_record(of: Source, record: Foreign, value: Any) -> list[ProducerRecord]:
    made, invalid = map_items(of, record, value)
    if invalid:
        raise invalid
    return made


def events(of: Source, value: Any, record: Foreign | None = None) -> list[InputEvent]:
    """Return the events that a segmenter reads from the converted record."""
    made = map_record(of, record or Foreign(), value)
    return [decode_input(one.conversation_id.encode(), one.value, one.headers, 0) for one in made]
