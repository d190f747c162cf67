"""The documents as files."""

from pathlib import Path
from typing import Any

import orjson

from afterword.contract.asyncapi import document
from afterword.contract.json_schemas import event_schemas
from afterword.streams.settings import Kafka

ASYNCAPI = "asyncapi.json"


def documents(kafka: Kafka) -> dict[str, bytes]:
    """Contents by file name."""
    schemas = {f"{event_type}.schema.json": schema for event_type, schema in event_schemas().items()}
    return {name: _json(found) for name, found in (schemas | {ASYNCAPI: document(kafka)}).items()}


def stale(directory: Path, kafka: Kafka) -> list[str]:
    """Names of the files that are missing or different."""
    return [name for name, content in documents(kafka).items() if _content(directory / name) != content]


def export(directory: Path, kafka: Kafka) -> list[str]:
    """Writes all of them; their names."""
    directory.mkdir(parents=True, exist_ok=True)
    found = documents(kafka)
    for name, content in found.items():
        (directory / name).write_bytes(content)
    return list(found)


def _json(found: dict[str, Any]) -> bytes:
    return orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
