"""Episodes, messages, budgets and kept LLM replies in MongoDB. The only module that imports motor (see docs/adr).

Every write goes by `_id` and names the version it replaces, so a repeated or late write changes nothing: an upsert
whose filter asks for an older version meets a duplicate key when a newer one is stored.

Ids and other texts of callers are data, twice over: each method requires texts, and filters compare with `$eq`,
except `_id`, for which the embedded server then scans the collection (20,000 documents: 36 ms instead of 3 ms).
"""

import asyncio
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

from motor.motor_asyncio import AsyncIOMotorClient as Client
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError, PyMongoError

from afterword.schemas import SummaryCreated, Usage
from afterword.schemas.ids import earlier_scope_id, episode_of_scope, row_id
from afterword.streams.errors import ConfigurationError, StoreUnavailable
from afterword.streams.settings import Mongo, variable
from afterword.streams.stores.arguments import require, require_texts
from afterword.streams.stores.documents import (
    EPISODE_REF_FIELDS,
    MESSAGE_REF_FIELDS,
    archived_key,
    conversation_from,
    episode_document,
    episode_from,
    episode_ref_from,
    message_document,
    message_from,
    message_ref_from,
    row_document,
    row_from,
)
from afterword.streams.stores.episodes import (
    Conversation,
    EpisodeRef,
    RollingRow,
    StoredEpisode,
    first_advance,
    id_prefix,
    scope_of,
)
from afterword.streams.stores.messages import ArchivedMessage, Counted, MessageRef, Selection, agent_scope
from afterword.streams.stores.replies import KeptReply
from afterword.streams.tls import present, trusting

Database: TypeAlias = Any
"""A database handle, motor's or that of pymongo's async client."""
Collection: TypeAlias = Any

STORE = "mongodb"
BATCH_SIZE = 1000
"""Operations in one bulk write, and ids in one `$in`."""
PAGE_SIZE = 50
"""Documents fetched at a time by a reader that may stop early."""
DUPLICATE_KEY = 11000
NEWEST_FIRST = [("sent_at", -1), ("source.offset", -1)]

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
"""The field that holds the moment after which the server deletes a document."""

COUNTERS = ("episode_count", "message_count", "token_count", "counted_episodes")
REVISED = ("title", "last_revision", "updated_at")
"""Fields of a conversation that a higher revision of its last episode changes."""


def connect(settings: Mongo) -> Database:
    """A handle of the configured database. Connects at its first use; ends with `close`. Raises: ConfigurationError.

    What is read decides what is announced and committed, so it must not be rolled back: reads are of the primary and of
    what a majority has, whatever the URI says.
    """
    milliseconds = int(settings.timeout_seconds * 1000)
    with _usable():
        client: Any = Client(
            settings.uri.get_secret_value(),
            tz_aware=True,
            timeoutMS=milliseconds,
            connectTimeoutMS=milliseconds,
            serverSelectionTimeoutMS=milliseconds,
            readPreference="primary",
            readConcernLevel="majority",
            w="majority",
            journal=True,  # an offset is committed after the write: it must outlive the server's crash
            appname="afterword",
            **_tls_options(settings),
        )
    return client[settings.database]


async def close(database: Database) -> None:
    """Close the handle's connections."""
    database.client.close()  # to be awaited with pymongo's async client


async def ping(database: Database) -> None:
    """Raises: StoreUnavailable."""
    with unavailable():
        await database.command("ping")


async def ensure_indexes(database: Database) -> None:
    """Create the indexes that are missing; may be repeated. Raises: StoreUnavailable."""
    with unavailable():
        for name, indexes in INDEXES.items():
            for keys in indexes:
                await database[name].create_index(list(keys))
        for name, field in EXPIRING.items():
            await database[name].create_index(field, expireAfterSeconds=0)


class MongoEpisodes:
    """An EpisodeStore."""

    def __init__(self, database: Database) -> None:
        self._episodes = database["episodes"]
        self._rows = database["conversation_summaries"]
        self._conversations = database["conversations"]

    async def find(self, episode_id: str) -> StoredEpisode | None:
        document = await _find(self._episodes, episode_id)
        return episode_from(document) if document else None

    async def add(self, episode: StoredEpisode) -> StoredEpisode:
        document = episode_document(episode)
        older = {"_id": document["_id"], "revision": {"$lt": document["revision"]}}
        while not await _unless_duplicate(self._episodes.insert_one(document)):
            known = await self.find(document["_id"])
            if known and known.summary.revision >= document["revision"]:
                return known
            with unavailable():
                if (await self._episodes.replace_one(older, document)).matched_count:
                    return episode
        return episode

    async def latest_row(self, conversation_id: str) -> RollingRow | None:
        require(str, conversation_id=conversation_id)
        with unavailable():
            document = await self._rows.find_one({"conversation_id": {"$eq": conversation_id}}, sort=[("row", -1)])
        return row_from(document) if document else await self._earlier_row(conversation_id)

    async def put_row(self, row: RollingRow, after: RollingRow | None) -> bool:
        document = row_document(row)
        if after is None or after.row != row.row:
            return await _unless_duplicate(self._rows.insert_one(document))
        # rows of an older version have no revision
        revision: Any = after.last_revision if after.last_revision > 1 else {"$in": [1, None]}
        fence = {"last_ordinal": after.last_ordinal, "last_revision": revision}
        unchanged = {"_id": row_id(after.conversation_id, after.row), **fence}
        with unavailable():
            result = await self._rows.replace_one(unchanged, document)
        if result.matched_count or earlier_scope_id(row.conversation_id) is None:
            return bool(result.matched_count)
        return await _unless_duplicate(self._rows.insert_one(document))  # `after` is still under its earlier key

    async def advance(self, summary: SummaryCreated) -> None:
        key = scope_of(summary)
        await self._adopt(key)
        while not await self._advanced(key, summary):
            known = await self.conversation(key)
            if known and known.last_ordinal >= summary.ordinal:
                await self._revise(key, summary)
                return

    async def conversation(self, conversation_id: str) -> Conversation | None:
        document = await _find(self._conversations, conversation_id) or await self._earlier(conversation_id)
        return conversation_from(document) if document else None

    async def latest(
        self, conversation_id: str, limit: int, *, before: int | None = None, agent_id: str | None = None
    ) -> list[StoredEpisode]:
        require(int, limit=limit)
        require(int | None, before=before)
        wanted = _in_scope(conversation_id, agent_id) | ({} if before is None else {"ordinal": {"$lt": before}})
        cursor = self._episodes.find(wanted, sort=[("ordinal", -1)], limit=limit)
        return [episode_from(document) async for document in _each(cursor)]

    async def tokens_before(self, conversation_id: str, agent_id: str | None = None) -> int:
        total = {"$group": {"_id": None, "tokens": {"$sum": "$compression.tokens_before"}}}
        with unavailable():
            found = await self._episodes.aggregate([{"$match": _in_scope(conversation_id, agent_id)}, total]).to_list(1)
        return int(found[0]["tokens"]) if found else 0

    async def following(self, episode_id: str | None, limit: int) -> list[StoredEpisode]:
        require(str | None, episode_id=episode_id)
        require(int, limit=limit)
        wanted = {} if episode_id is None else {"_id": {"$gt": episode_id}}
        cursor = self._episodes.find(wanted, sort=[("_id", 1)], limit=limit)
        return [episode_from(document) async for document in _each(cursor)]

    async def all_episodes(self) -> AsyncIterator[EpisodeRef]:
        async for document in _each(self._episodes.find({}, (*EPISODE_REF_FIELDS, "episode_revision"))):
            yield episode_ref_from(document)

    async def _earlier(self, scope: str) -> dict[str, Any] | None:
        """The document of the scope's earlier key, if the episode that it ends with says that it is this scope's."""
        earlier = earlier_scope_id(scope)
        found = await _find(self._conversations, earlier) if earlier else None
        last = await self.find(episode_of_scope(scope, found["last_ordinal"])) if found else None
        if found is None or last is None:
            return None
        same = (last.summary.title, last.summary.tenant_id) == (found["title"], found["tenant_id"])
        return {**found, "_id": scope} if same else None

    async def _earlier_row(self, scope: str) -> RollingRow | None:
        """The latest row of the scope's earlier key, if its text is that of the scope's episode."""
        earlier = earlier_scope_id(scope)
        if earlier is None:
            return None
        with unavailable():
            found = await self._rows.find_one({"conversation_id": {"$eq": earlier}}, sort=[("row", -1)])
        last = await self.find(episode_of_scope(scope, found["last_ordinal"])) if found else None
        same = found is not None and last is not None and last.summary.rolling_summary == found["content"]
        return replace(row_from(found), conversation_id=scope) if same else None

    async def _adopt(self, scope: str) -> None:
        """Copy the counts of the scope's earlier key, once, so that they go on under the new one."""
        if earlier_scope_id(scope) is None or await _find(self._conversations, scope):
            return
        if earlier := await self._earlier(scope):
            await _unless_duplicate(self._conversations.insert_one(earlier))

    async def _advanced(self, key: str, summary: SummaryCreated) -> bool:
        first = first_advance(summary)
        behind = {"_id": key, "last_ordinal": {"$lt": summary.ordinal}}
        change = {
            "$set": {name: getattr(first, name) for name in ("last_ordinal", *REVISED)},
            "$inc": {name: getattr(first, name) for name in COUNTERS},
            "$setOnInsert": {"user_id": first.user_id, "tenant_id": first.tenant_id},
        }
        return await _unless_duplicate(self._conversations.update_one(behind, change, upsert=True))

    async def _revise(self, key: str, summary: SummaryCreated) -> None:
        first = first_advance(summary)
        older = {"$not": {"$gte": summary.revision}}
        change = {"$set": {name: getattr(first, name) for name in REVISED}}
        with unavailable():
            await self._conversations.update_one(
                {"_id": key, "last_ordinal": summary.ordinal, "last_revision": older}, change
            )


class MongoMessages:
    """A MessageArchive: one document for each message, to which archiver and summarizer write different fields."""

    def __init__(self, database: Database) -> None:
        self._messages = database["messages"]

    async def put_many(self, messages: Sequence[ArchivedMessage]) -> None:
        first = {archived_key(archived): archived for archived in reversed(messages)}
        await asyncio.gather(*[self._put({key: first[key] for key in keys}) for keys in batches(list(first))])

    async def assign(self, episode_id: str, keys: Sequence[str]) -> None:
        require(str, episode_id=episode_id)
        require_texts(keys=keys)
        change: dict[str, Any] = {"$set": {"episode_id": episode_id}}
        if scope := agent_scope(episode_id):
            change["$addToSet"] = {"agent_scopes": scope}  # a user's message may be in an episode of each agent
        for batch in batches(keys):
            await self._upsert(batch, lambda _: change)

    async def newest(self, selection: Selection) -> AsyncGenerator[ArchivedMessage, None]:
        cursor = self._messages.find(_selected(selection), sort=NEWEST_FIRST, batch_size=PAGE_SIZE)
        try:
            async for document in _each(cursor):
                yield message_from(document)
        finally:
            await cursor.close()

    async def count(self, selection: Selection) -> Counted:
        counts = {"messages": {"$sum": 1}, "tokens": {"$sum": "$token_count"}}
        groups = {"$group": {"_id": "$skip_summarization", **counts}}
        with unavailable():
            found = await self._messages.aggregate([{"$match": _selected(selection)}, groups]).to_list(None)
        messages = {group["_id"]: group["messages"] for group in found}
        return Counted(sum(messages.values()), sum(group["tokens"] for group in found), messages.get(True, 0))

    async def first(self, conversation_id: str) -> ArchivedMessage | None:
        require(str, conversation_id=conversation_id)
        with unavailable():
            found = await self._messages.find_one(
                {"conversation_id": {"$eq": conversation_id}}, sort=[("source.offset", 1)]
            )
        return message_from(found) if found else None

    async def get_many(self, keys: Sequence[str]) -> dict[str, ArchivedMessage]:
        require_texts(keys=keys)
        found = {}
        for batch in batches(keys):
            async for document in _each(self._messages.find({"_id": {"$in": list(batch)}})):
                if "source" in document:  # else only the summarizer has written it
                    found[document["_id"]] = message_from(document)
        return found

    async def all_messages(self) -> AsyncIterator[MessageRef]:
        async for document in _each(self._messages.find({}, MESSAGE_REF_FIELDS)):
            yield message_ref_from(document)

    async def _put(self, messages: dict[str, ArchivedMessage]) -> None:
        """Create the missing documents in one write, then complete those that only the summarizer has written.

        Between the read and the second write only another archiver of the same partition can write, and it writes the
        same. Filters by `_id` alone: with a second condition the embedded server scans the collection.
        """
        new = [
            UpdateOne({"_id": key}, {"$setOnInsert": message_document(message)}, upsert=True)
            for key, message in messages.items()
        ]
        created = (await bulk(self._messages, new)).created
        there = [key for position, key in enumerate(messages) if position not in created]
        archived = await self._archived(there)
        incomplete = [key for key in there if key not in archived]
        await self._upsert(incomplete, lambda key: {"$set": message_document(messages[key])})

    async def _upsert(self, keys: Sequence[str], change: Callable[[str], Mapping[str, Any]]) -> None:
        """Upsert each document; where archiver and summarizer create one at the same time, the slower one repeats."""
        while keys:
            writes = [UpdateOne({"_id": key}, change(key), upsert=True) for key in keys]
            keys = [keys[position] for position in (await bulk(self._messages, writes)).duplicates]

    async def _archived(self, keys: Sequence[str]) -> set[str]:
        if not keys:
            return set()
        with unavailable():
            cursor = self._messages.find({"_id": {"$in": list(keys)}}, {"source": 1})
            documents: list[Mapping[str, Any]] = await cursor.to_list(None)
        return {document["_id"] for document in documents if "source" in document}


class MongoBudgets:
    """Budgets of all workers on one database: a document for each counter, which the server deletes when it expires."""

    def __init__(self, database: Database) -> None:
        self._counters = database[BUDGETS]

    async def take(self, key: str, amount: int, limit: int, expires_at: datetime) -> bool:
        require(str, key=key)
        require(int, amount=amount, limit=limit)
        below = {"_id": key, "tokens": {"$lt": limit}}
        change = {"$inc": {"tokens": amount}, "$setOnInsert": {"expires_at": expires_at}}
        with unavailable():
            for _ in range(2):  # a counter that another worker created meanwhile is a duplicate key too: look again
                try:
                    await self._counters.update_one(below, change, upsert=True)
                except DuplicateKeyError:
                    continue
                return True
        return False

    async def correct(self, key: str, amount: int) -> None:
        require(str, key=key)
        require(int, amount=amount)
        with unavailable():
            await self._counters.update_one({"_id": key}, {"$inc": {"tokens": amount}})

    async def used(self, key: str) -> int:
        found = await _find(self._counters, key)
        return int(found["tokens"]) if found else 0


class MongoReplies:
    """A ReplyCache. Expired replies that the server has not deleted yet are ignored."""

    def __init__(self, database: Database) -> None:
        self._replies = database[REPLIES]

    async def get(self, key: str) -> KeptReply | None:
        found = await _find(self._replies, key)
        return _reply_from(found) if found and found["expires_at"] > datetime.now(UTC) else None

    async def put(self, key: str, reply: KeptReply, expires_at: datetime) -> None:
        require(str, key=key)
        document = {**vars(reply), "_id": key, "usage": reply.usage.model_dump(), "expires_at": expires_at}
        with unavailable():
            await self._replies.replace_one({"_id": key}, document, upsert=True)


@contextmanager
def unavailable() -> Iterator[None]:
    """Turn the driver's errors into StoreUnavailable.

    All of them: what a server refuses (credentials, a full disk) is repaired outside as well, and then work goes on.
    The driver's text is left out, for it may quote documents and addresses.
    """
    try:
        yield
    except PyMongoError as error:
        code = getattr(error, "code", None)
        problem = type(error).__name__ + (f" {code}" if code else "")
        raise StoreUnavailable(store=STORE, problem=problem) from error


class Bulk(NamedTuple):
    """The result of a bulk write, by positions of its operations."""

    created: set[int]
    """Upserts that created a document."""
    duplicates: list[int]
    """Writes that met a duplicate key."""


async def bulk(collection: Collection, operations: Sequence[Any]) -> Bulk:
    """Run at most BATCH_SIZE writes in any order. Raises: StoreUnavailable."""
    with unavailable():
        try:
            details = (await collection.bulk_write(list(operations), ordered=False)).bulk_api_result
        except BulkWriteError as error:
            details = error.details
    return Bulk({made["index"] for made in details["upserted"]}, duplicates(details))


def duplicates(details: Mapping[str, Any]) -> list[int]:
    """Positions of the writes that met a duplicate key. Raises: StoreUnavailable if one failed for another reason."""
    failed = [*details["writeErrors"], *details["writeConcernErrors"]]
    others = [error["code"] for error in failed if error["code"] != DUPLICATE_KEY]
    if others:
        raise StoreUnavailable(store=STORE, problem=f"write error {others[0]}")
    return [error["index"] for error in details["writeErrors"]]


def batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The items, at most BATCH_SIZE at a time."""
    return (items[start : start + BATCH_SIZE] for start in range(0, len(items), BATCH_SIZE))


async def _each(cursor: Any) -> AsyncIterator[Mapping[str, Any]]:
    with unavailable():
        async for document in cursor:
            yield document


async def _find(collection: Collection, key: str) -> Mapping[str, Any] | None:
    require(str, id=key)
    with unavailable():
        found: Mapping[str, Any] | None = await collection.find_one({"_id": key})
    return found


async def _unless_duplicate(write: Awaitable[Any]) -> bool:
    """False if a document with this `_id` exists."""
    with unavailable():
        try:
            await write
        except DuplicateKeyError:
            return False
    return True


def _in_scope(conversation_id: str, agent_id: str | None) -> dict[str, Any]:
    require(str, conversation_id=conversation_id)
    require(str | None, agent_id=agent_id)
    prefix = id_prefix(conversation_id, agent_id)
    return {
        "conversation_id": {"$eq": conversation_id},
        "_id": {"$gte": prefix, "$lt": prefix[:-1] + chr(ord(prefix[-1]) + 1)},
    }


def _selected(selection: Selection) -> dict[str, Any]:
    owned = {"conversation_id": selection.conversation_id, "tenant_id": selection.tenant_id}
    wanted: dict[str, Any] = {field: {"$eq": value} for field, value in owned.items()}
    if selection.agent_id is not None:
        wanted["agent_id"] = {"$in": [selection.agent_id, None]}
    if selection.unsummarised and selection.agent_id is None:
        wanted["episode_id"] = None  # there is an index for it
    elif selection.unsummarised:
        wanted["agent_scopes"] = {"$ne": id_prefix(selection.conversation_id, selection.agent_id).removesuffix(":")}
    return wanted


def _reply_from(document: Mapping[str, Any]) -> KeptReply:
    return KeptReply(
        text=document["text"],
        usage=Usage.model_validate(document["usage"]),
        cut_off=document["cut_off"],
        refused=document["refused"],
    )


def _tls_options(settings: Mongo) -> dict[str, Any]:
    """The options that are set; the URI may set the same. Raises: ConfigurationError when a file cannot be used."""
    options: dict[str, Any] = {}
    # read here first: the driver's error for an unusable file does not say what is wrong with it
    context = trusting(settings.tls_ca_file, variable(("mongo", "tls_ca_file")))
    if settings.tls_ca_file:
        options |= {"tls": True, "tlsCAFile": str(settings.tls_ca_file)}
    if settings.tls_cert_file:
        setting = variable(("mongo", "tls_cert_file"))
        present(context, settings.tls_cert_file, None, settings.tls_key_password, setting)
        options |= {"tls": True, "tlsCertificateKeyFile": str(settings.tls_cert_file)}
    if settings.tls_key_password:
        options["tlsCertificateKeyFilePassword"] = settings.tls_key_password.get_secret_value()
    return options


@contextmanager
def _usable() -> Iterator[None]:
    """Turn the driver's errors about a connection string into ConfigurationError, without their text: it may quote it.

    Its warnings too: it ignores an option that it does not understand, and would connect without TLS where somebody
    wrote `tls=yes`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            yield
    except UserWarning:
        raise _unusable("an option in it is unknown, or its value is not one it can have") from None
    except (PyMongoError, ValueError, TypeError, OSError) as error:
        raise _unusable(f"it cannot be used: {type(error).__name__}") from None


def _unusable(problem: str) -> ConfigurationError:
    return ConfigurationError(setting=variable(("mongo", "uri")), problem=problem)
