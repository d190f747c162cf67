"""Reads everything in a deployment's stores, for tests that look for data that should be gone."""

from typing import Any

import apsw
import orjson

from afterword.streams.settings import Settings
from afterword.streams.stores import mongo

BATCH_SIZE = 20
"""Documents per reply. Some have 2 MB, and the test server only limits their number."""
SHADOWS = "words_%"
"""FTS5's internal tables."""


async def stored(settings: Settings) -> dict[str, list[dict[str, Any]]]:
    """Return all documents by collection, or all rows by table, with the fields of the records inside them."""
    if settings.sqlite.path is not None:
        return _rows(str(settings.sqlite.path))
    database = mongo.connect(settings.mongo)
    try:
        names = await database.list_collection_names()
        return {name: [_fields(found) async for found in database[name].find(batch_size=BATCH_SIZE)] for name in names}
    finally:
        await mongo.close(database)


def _rows(path: str) -> dict[str, list[dict[str, Any]]]:
    connection = apsw.Connection(path)
    try:
        connection.set_busy_timeout(10_000)
        tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE ?"
        return {
            name: [_fields(dict(zip([column for column, *_ in found.description], row, strict=True))) for row in found]
            for (name,) in connection.execute(tables, (SHADOWS,)).fetchall()
            for found in [connection.execute(f"SELECT * FROM {name}")]
        }
    finally:
        connection.close()


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a document or row, of its JSON, and of a summary or its deletion in it."""
    text = row.get("document", "")
    document = row | (orjson.loads(text) if text.startswith("{") else {})
    return {**document, **document.get("summary", {}), **document.get("deletion", {})}
