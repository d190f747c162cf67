"""Connecting to MongoDB, and what all that talk to it share. The only module that imports motor (see docs/adr)."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from motor.motor_asyncio import AsyncIOMotorClient as Client
from pymongo.errors import BulkWriteError, PyMongoError

from afterword.streams.errors import StoreUnavailable
from afterword.streams.settings import Mongo
from afterword.streams.stores.mongo_options import tls_options, usable

Database: TypeAlias = Any
"""A database handle, motor's or that of pymongo's async client."""
Collection: TypeAlias = Any

STORE = "mongodb"
BATCH_SIZE = 1000
"""Operations in one bulk write, and ids in one `$in`."""
DUPLICATE_KEY = 11000

INDEXES: dict[str, tuple[tuple[tuple[str, int], ...], ...]] = {
    "messages": (
        (("conversation_id", 1), ("sent_at", 1), ("source.offset", 1)),
        (("conversation_id", 1), ("episode_id", 1), ("sent_at", 1), ("source.offset", 1)),
    ),
    "episodes": ((("conversation_id", 1), ("ordinal", 1)),),
    "conversation_summaries": ((("conversation_id", 1), ("row", 1)),),
}
"""For reading a conversation. Uniqueness rests on `_id` alone."""

REPLIES = "llm_cache"
BUDGETS = "budgets"
EXPIRING = {REPLIES: "expires_at", BUDGETS: "expires_at"}
"""A document is deleted when the moment that this field names has passed."""


def connect(settings: Mongo) -> Database:
    """A handle of the configured database. Connects at its first use; ends with `close`. Raises: ConfigurationError."""
    milliseconds = int(settings.timeout_seconds * 1000)
    with usable():
        client: Any = Client(
            settings.uri.get_secret_value(),
            tz_aware=True,
            timeoutMS=milliseconds,
            connectTimeoutMS=milliseconds,
            serverSelectionTimeoutMS=milliseconds,
            w="majority",
            journal=True,  # an offset is committed after the write: it must outlive the server's crash
            appname="afterword",
            **tls_options(settings),
        )
    return client[settings.database]


async def close(database: Database) -> None:
    """Ends the handle's connections."""
    database.client.close()  # to be awaited with pymongo's async client


async def ping(database: Database) -> None:
    """Raises: StoreUnavailable."""
    with unavailable():
        await database.command("ping")


async def ensure_indexes(database: Database) -> None:
    """Creates what is missing; may be repeated. Raises: StoreUnavailable."""
    with unavailable():
        for name, indexes in INDEXES.items():
            for keys in indexes:
                await database[name].create_index(list(keys))
        for name, field in EXPIRING.items():
            await database[name].create_index(field, expireAfterSeconds=0)


@contextmanager
def unavailable() -> Iterator[None]:
    """Turns the driver's errors into StoreUnavailable.

    All of them: also what a server refuses (credentials, a full disk) is repaired outside, and then goes on. The
    driver's text is left out, for it may quote documents and addresses.
    """
    try:
        yield
    except PyMongoError as error:
        code = getattr(error, "code", None)
        problem = type(error).__name__ + (f" {code}" if code else "")
        raise StoreUnavailable(store=STORE, problem=problem) from error


async def bulk(collection: Collection, operations: Sequence[Any]) -> list[int]:
    """Runs at most BATCH_SIZE writes in any order; returns the positions of those that met a duplicate key.

    Raises: StoreUnavailable.
    """
    with unavailable():
        try:
            await collection.bulk_write(list(operations), ordered=False)
        except BulkWriteError as error:
            return duplicates(error.details)
    return []


async def upserted(collection: Collection, operations: Sequence[Any]) -> set[int]:
    """Runs at most BATCH_SIZE upserts in any order; returns the positions of those that made a document.

    Of the others there was one, or somebody else made it at the same time. Raises: StoreUnavailable.
    """
    with unavailable():
        try:
            details = (await collection.bulk_write(list(operations), ordered=False)).bulk_api_result
        except BulkWriteError as error:
            duplicates(error.details)
            details = error.details
    return {made["index"] for made in details["upserted"]}


def duplicates(details: Mapping[str, Any]) -> list[int]:
    """Positions of the writes that met a duplicate key. Raises: StoreUnavailable if one failed for another reason."""
    failed = [*details["writeErrors"], *details["writeConcernErrors"]]
    others = [error["code"] for error in failed if error["code"] != DUPLICATE_KEY]
    if others:
        raise StoreUnavailable(store=STORE, problem=f"write error {others[0]}")
    return [error["index"] for error in details["writeErrors"]]


async def each(cursor: Any) -> AsyncIterator[Mapping[str, Any]]:
    """The cursor's documents. Raises: StoreUnavailable."""
    with unavailable():
        async for document in cursor:
            yield document


def batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The items, at most BATCH_SIZE at a time."""
    return (items[start : start + BATCH_SIZE] for start in range(0, len(items), BATCH_SIZE))
