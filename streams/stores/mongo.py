"""Episodes, messages and small records in MongoDB. This is the only module that imports motor (see docs/adr).

Every write goes by `_id` and names the version that it replaces, so a repeated or late write changes nothing: an upsert
whose filter asks for an older version meets a duplicate key if a newer one is stored.

Filters compare with `$eq` or `$in`, so that no id is ever taken for an operator.
"""

import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import orjson
import pymongo
import structlog
from motor.motor_asyncio import AsyncIOMotorClient as Client
from pymongo import ReplaceOne, UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError, PyMongoError, ServerSelectionTimeoutError

from afterword.schemas import Fact, MessageCreated
from afterword.schemas.base import scope_id
from afterword.streams.errors import ConfigurationError, StoreUnavailable
from afterword.streams.settings import Mongo, variable
from afterword.streams.stores.bookkeeping import RecordKind, Records
from afterword.streams.stores.episodes import (
    EPISODES,
    Conditions,
    Episode,
    EpisodeQueries,
    EpisodeTotals,
    FactOfUser,
    Kind,
    UsageBy,
    UsageTotals,
    UserTotals,
    parts,
)
from afterword.streams.stores.messages import (
    MOST_READ,
    NEVER,
    ArchivedMessage,
    Counted,
    Decide,
    DeletedMessage,
    Kept,
    MessageArchive,
    MessageText,
    PendingMessage,
    Selection,
    StoredMessage,
    Whose,
    agent_scope,
)
from afterword.streams.tasks import in_parts
from afterword_text.tokens import message_tokens

log = structlog.get_logger(__name__)

MongoDatabase: TypeAlias = Any
"""A database handle, motor's or that of pymongo's async client."""
Collection: TypeAlias = Any
T = TypeVar("T")

STORE = "mongodb"
TIMEOUT_SECONDS = 10.0
"""Timeout of an operation, and of finding a server."""
BATCH_SIZE = 1000
"""Maximum number of operations in one bulk write, and of ids in one `$in`."""
SCAN_SECONDS = 120.0
"""Timeout of what reads all episodes, which the server keeps too: usage, and the list of users."""
BUILD_SECONDS = 86_400.0
"""Timeout of building an index, in which no other call has to wait."""
SCAN_SIZE = 1000
"""The same when a whole collection is read in its own order, where both MongoDB and the embedded server split
replies."""
LAST_CHARACTER = "\U0010ffff"
DUPLICATE_KEY = 11000

INDEXES: dict[str, tuple[tuple[tuple[str, int], ...], ...]] = {
    "messages": (
        (("conversation_id", 1), ("source.offset", 1)),
        (("conversation_id", 1), ("episode_id", 1), ("source.offset", 1)),
        (("tenant_id", 1), ("user_id", 1), ("conversation_id", 1)),
        (("tenant_id", 1), ("user_id", 1), ("episode_id", 1), ("sent_at", -1)),
        (("sent_at", 1),),
    ),
    "episodes": (
        (("scope", 1), ("ordinal", 1)),
        (("conversation_id", 1), ("core_ids", 1)),
        (("conversation_id", 1), ("overlap_ids", 1)),
        (("due_at", 1),),
        (("ended_at", 1),),
        (("tenant_id", 1), ("participants", 1), ("conversation_id", 1)),
        (("tenant_id", 1), ("summary.facts.user_id", 1), ("ended_at", -1)),
    ),
    "conversation_summaries": ((("conversation_id", 1), ("row", 1)),),
    "conversations": ((("tenant_id", 1), ("user_id", 1), ("updated_at", -1)),),
}
"""Indexes for reading a conversation, and for finding those of a user, what is due, and what has expired. Uniqueness
relies on `_id` alone."""

NAMES = {"id": "_id"}
OPERATORS = {"": "$eq", "!=": "$ne", "<": "$lt", "<=": "$lte", ">": "$gt", ">=": "$gte", "in": "$in"}
HOLDING = ("core_ids", "overlap_ids")
"""Fields of an episode with the messages that it has, or had."""
TEXT_FIELDS = ("source", "role", "author", "sent_at", "user_id", "agent_id")
FACT_FIELDS = {
    "_id": 0,
    "episode_id": "$_id",
    **{name: f"${name}" for name in ("conversation_id", "ordinal", "ended_at")},
    **{name: f"$summary.facts.{name}" for name in Fact.model_fields if name != "user_id"},
}


def connect(settings: Mongo) -> MongoDatabase:
    """Return a handle of the configured database, which connects on first use and must be closed with `close`.

    Readers decide what is announced and committed, so what they have read must not be rolled back. Therefore, reads go
    to the primary and see what a majority has, whatever the URI says. Raises: ConfigurationError.
    """
    selection_ms = int((settings.answer_seconds or TIMEOUT_SECONDS) * 1000)
    try:
        with warnings.catch_warnings():
            # the driver only warns of an option that it ignores, and would connect without TLS for `tls=yes`
            warnings.simplefilter("error", UserWarning)
            client: Any = Client(
                settings.uri.get_secret_value(),
                tz_aware=True,
                connectTimeoutMS=selection_ms,
                serverSelectionTimeoutMS=selection_ms,
                socketTimeoutMS=int(TIMEOUT_SECONDS * 1000),
                readPreference="primary",
                readConcernLevel="majority",
                w="majority",
                journal=True,  # an offset is committed after the write, so the write must survive a crash of the server
                appname="afterword",
            )
    except UserWarning:
        problem = "an option in it is unknown, or its value is not one it can have"
    except (PyMongoError, ValueError, TypeError, OSError) as error:
        problem = f"it cannot be used: {type(error).__name__}"  # the error's own text may quote the connection string
    else:
        return client[settings.database]
    raise ConfigurationError(setting=variable(("mongo", "uri")), problem=problem)


async def close(database: MongoDatabase) -> None:
    """Close the handle's connections."""
    database.client.close()  # must be awaited with pymongo's async client


async def ping(database: MongoDatabase) -> None:
    """Check that the database answers. Raises: StoreUnavailable."""
    with mongo_errors():
        await database.command("ping")


async def check(database: MongoDatabase) -> str:
    """Describe the database that answers. Raises: ConfigurationError, StoreUnavailable."""
    await require_mongodb(database)
    return f"database {database.name}"


async def require_mongodb(database: MongoDatabase) -> None:
    """Refuse a server that speaks MongoDB's protocol but answers wrongly. Raises: ConfigurationError."""
    with mongo_errors():
        about = await database.command("buildInfo")
    if version := about.get("ferretdbVersion"):
        problem = (
            f"FerretDB {version} cannot be used: it has no TTL indexes, its conditional updates are not atomic, and of "
            "several sums in one $group all but the first are 0. Use MongoDB"
        )
        raise ConfigurationError(setting=variable(("mongo", "uri")), problem=problem)


async def ensure_indexes(database: MongoDatabase) -> None:
    """Create the missing indexes, which takes long if there are many documents; may be repeated.

    Raises: ConfigurationError, StoreUnavailable.
    """
    await require_mongodb(database)
    with mongo_errors(), pymongo.timeout(BUILD_SECONDS):
        for name, indexes in INDEXES.items():
            known = [index["key"] for index in (await database[name].index_information()).values()]
            for keys in indexes:
                if list(keys) not in known:
                    log.info("index_build_began", stage="indexes", collection=name, fields=[field for field, _ in keys])
                    await database[name].create_index(list(keys))


class MongoEpisodes(EpisodeQueries):
    """The EpisodeQueries of MongoDB: one document per record, which also has the kind's fields."""

    def __init__(self, database: MongoDatabase) -> None:
        self._database = database
        self._episodes = database[EPISODES.name]

    async def _find(self, kind: Kind[T], wanted: Conditions, order: str = "", limit: int = 0) -> list[T]:
        sort = [(NAMES.get(name.lstrip("-"), name.lstrip("-")), -1 if name[0] == "-" else 1) for name in order.split()]
        cursor = self._database[kind.name].find(condition(wanted), sort=sort or None, limit=limit)
        return [_read(kind, document) async for document in _each(cursor)]

    async def _replace(self, kind: Kind[T], record: T, before: T | None) -> bool:
        fields = kind.fields(record)
        document = {"_id": fields.pop("id"), **kind.adapter(fields).dump_python(record), **fields}
        version = {name: kind.fields(before)[name] for name in kind.version} if before else None
        return await _replaced(self._database[kind.name], document, version)

    async def holding(self, conversation_id: str, message_id: str) -> list[Episode]:
        # a complete condition for each field, so that each can use its index
        wanted = [condition({"conversation_id": conversation_id, field: message_id}) for field in HOLDING]
        found = self._episodes.find({"$or": wanted}, sort=[("ordinal", 1)])
        return [_read(EPISODES, document) async for document in _each(found)]

    async def totals(self, conversation_id: str, agent_id: str | None = None) -> EpisodeTotals:
        sums = {
            "episodes": {"$sum": 1},
            "messages": {"$sum": "$summary.message_count"},
            "tokens": {"$sum": "$summary.compression.tokens_before"},
            "first_ordinal": {"$min": "$ordinal"},
            "last_ordinal": {"$max": "$ordinal"},
        }
        wanted = condition({"scope": scope_id(conversation_id, agent_id), "deleted": False})
        groups = await _aggregated(self._episodes, [{"$match": wanted}, {"$group": {"_id": None, **sums}}])
        return EpisodeTotals(**{name: groups[0][name] for name in EpisodeTotals._fields}) if groups else EpisodeTotals()

    async def conversations_of(self, user_id: str, tenant_id: str | None, after: str | None, limit: int) -> list[str]:
        return await _conversations(self._episodes, "participants", user_id, tenant_id, after, limit)

    async def facts_of(self, user_id: str, tenant_id: str | None, limit: int) -> list[FactOfUser]:
        of_user = {"summary.facts.user_id": {"$eq": user_id}}
        stages: list[dict[str, Any]] = [
            {"$match": {"tenant_id": {"$eq": tenant_id}, **of_user}},
            {"$sort": {"ended_at": -1}},
            {"$unwind": "$summary.facts"},
            {"$match": of_user},
            {"$limit": limit},
            {"$project": FACT_FIELDS},
        ]
        return [FactOfUser(**document) for document in await _aggregated(self._episodes, stages)]

    async def usage(self, by: UsageBy) -> list[UsageTotals]:
        day = {"$dateToString": {"format": "%Y-%m-%d", "date": "$summary.created_at"}}
        model = {"$ifNull": ["$calls.model", "$summary.model"]}
        of_calls = {"model": model, "outcome": "$calls.outcome"}
        key = {"tenant": "$tenant_id", "user": "$summary.user_id", "day": day, **of_calls}[by]
        used = {name: f"$calls.usage.{name}" for name in UsageTotals._fields[2:]}
        stages: list[dict[str, Any]] = [
            {"$match": {"deleted": False}},
            {"$unwind": {"path": "$calls", "preserveNullAndEmptyArrays": True}},
            # grouped twice, because an episode may have several calls of a group, and counts once
            {"$group": {"_id": {"group": key, "episode": "$_id"}} | _sums(used)},
            {"$group": {"_id": "$_id.group"} | _sums({"episodes": 1, **{name: f"${name}" for name in used}})},
        ]
        groups = await self._scanned(stages)
        totals = [UsageTotals(group["_id"], *(group[name] for name in UsageTotals._fields[1:])) for group in groups]
        return sorted(totals, key=lambda group: group.group or "")

    async def users(
        self, tenant_id: str | None, prefix: str, before: tuple[datetime, str] | None, limit: int
    ) -> list[UserTotals]:
        own = {"$gt": "", "$gte": prefix, "$lt": prefix + LAST_CHARACTER}
        earlier: dict[str, Any] = {}
        if before is not None:
            last_at, user_id = before
            same_time = {"last_at": {"$eq": last_at}, "_id": {"$lt": user_id}}
            earlier = {"$or": [{"last_at": {"$lt": last_at}}, same_time]}
        spent = ("prompt_tokens", "cached_tokens", "completion_tokens")
        sums: dict[str, Any] = {
            "episodes": 1,
            "tokens": "$summary.compression.tokens_before",
            **{name: {"$sum": f"$calls.usage.{name}"} for name in spent},
        }
        # grouped twice, because a set of all conversations of a user has no bound
        in_conversation = {"user": "$participants", "conversation": "$conversation_id"}
        stages: list[dict[str, Any]] = [
            {"$match": {"tenant_id": {"$eq": tenant_id}, "participants": {"$elemMatch": own}}},
            {"$unwind": "$participants"},
            {"$match": {"participants": own}},
            {"$group": {"_id": in_conversation, "last_at": {"$max": "$ended_at"}} | _sums(sums)},
            {
                "$group": {"_id": "$_id.user", "last_at": {"$max": "$last_at"}}
                | _sums({"conversations": 1, **{name: f"${name}" for name in sums}})
            },
            {"$match": earlier},
            {"$sort": {"last_at": -1, "_id": -1}},
            {"$limit": limit},
        ]
        return [UserTotals(user_id=user.pop("_id"), **user) for user in await self._scanned(stages)]

    async def _scanned(self, stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        await ping(self._database)  # during the scan's timeout, the driver would also wait for an absent server
        with pymongo.timeout(SCAN_SECONDS):
            return await _aggregated(self._episodes, stages)

    async def count(self) -> int:
        with mongo_errors():
            number: int = await self._episodes.estimated_document_count()  # read from the collection's metadata
        return number


def _read(kind: Kind[T], document: Mapping[str, Any]) -> T:
    # not strict, because BSON has arrays where we have tuples
    record: T = kind.adapter(document).validate_python(document, strict=False)
    return record


class MongoMessages(MessageArchive):
    """The MessageArchive of MongoDB, with one document per message, whose `_id` is its `message_key`.

    `offset` is the offset of the last change; it may be missing. `metadata` is JSON, so that its names cannot act as
    operators or paths, and is missing until the archiver has written it. Every write except that of the episode
    increments `version`. A tombstone has no version, because it never changes.
    """

    def __init__(self, database: MongoDatabase) -> None:
        self._messages = database["messages"]
        self.records = MongoRecords(database)

    async def _revise(self, keys: Sequence[str], decide: Decide) -> None:
        for batch in in_parts(keys, BATCH_SIZE):
            left = batch
            while left:  # repeat for messages that another writer has changed since they were read
                documents, writes = await self._documents(left), {}
                for key in left:
                    document = documents.get(key)
                    known = _kept(document) if document else None
                    kept = decide(key, known)
                    if kept is not None and kept != known:
                        writes[key] = _write(key, kept, document["version"] if document else 0)
                refused = await bulk(self._messages, list(writes.values())) if writes else []
                left = [key for at, key in enumerate(writes) if at in refused]

    async def _label(self, episode_id: str, keys: Sequence[str]) -> None:
        change: dict[str, Any] = {"$set": {"episode_id": episode_id}}
        if scope := agent_scope(episode_id):
            change["$addToSet"] = {"agent_scopes": scope}  # a user's message may be in an episode of every agent
        for batch in in_parts(keys, BATCH_SIZE):
            with mongo_errors():
                await self._messages.update_many({"_id": {"$in": list(batch)}}, change)

    async def _keys(self, selection: Selection) -> list[str]:
        with mongo_errors():
            documents = await self._messages.find(_selected(selection), {"_id": 1}, limit=BATCH_SIZE).to_list(None)
        return [document["_id"] for document in documents]

    async def _page(self, selection: Selection) -> list[ArchivedMessage]:
        found = self._messages.find(_selected(selection), sort=[("source.offset", -1)], limit=MOST_READ)
        return [message_from(document) async for document in _each(found)]

    async def count(self, selection: Selection) -> Counted:
        sums = {"messages": {"$sum": 1}, "tokens": {"$sum": "$token_count"}}
        stages = [{"$match": _selected(selection)}, {"$group": {"_id": "$skip_summarization", **sums}}]
        groups = await _aggregated(self._messages, stages)
        messages = {group["_id"]: group["messages"] for group in groups}
        return Counted(sum(messages.values()), sum(group["tokens"] for group in groups), messages.get(True, 0))

    async def total(self) -> int:
        with mongo_errors():  # from the collection's metadata and an index, because there may be millions
            deleted = await self._messages.count_documents({"sent_at": None})
            number: int = await self._messages.estimated_document_count() - deleted
        return number

    async def conversations_of(self, user_id: str, tenant_id: str | None, after: str | None, limit: int) -> list[str]:
        return await _conversations(self._messages, "user_id", user_id, tenant_id, after, limit)

    async def owners(self, conversation_ids: Sequence[str]) -> dict[str, Whose]:
        stages: list[dict[str, Any]] = [  # an index on conversation and offset reads one entry of each conversation
            {"$match": {"conversation_id": {"$in": list(conversation_ids)}}},
            {"$sort": {"conversation_id": 1, "source.offset": 1}},
            {"$group": {"_id": "$conversation_id", **{name: {"$first": f"${name}"} for name in Whose._fields}}},
        ]
        found = await _aggregated(self._messages, stages)
        return {document.pop("_id"): Whose(**document) for document in found}

    async def texts(self, keys: Sequence[str], characters: int) -> dict[str, MessageText]:
        # the server cuts the contents, so that one reply has room for all
        texts: dict[str, MessageText] = {}
        for batch in in_parts(keys, BATCH_SIZE):
            stages = [{"$match": {"_id": {"$in": list(batch)}}}, {"$project": _text_fields(characters)}]
            found = await _aggregated(self._messages, stages)
            # a tombstone has no source
            texts |= {document["_id"]: _text(document) for document in found if "source" in document}
        return texts

    async def pending(
        self, user_id: str, tenant_id: str | None, limit: int, characters: int, since: datetime | None = None
    ) -> list[PendingMessage]:
        wanted: dict[str, Any] = {"user_id": {"$eq": user_id}, "tenant_id": {"$eq": tenant_id}, "episode_id": None}
        wanted["skip_summarization"] = {"$ne": True}
        if since is not None:
            wanted["sent_at"] = {"$gte": since}
        stages: list[dict[str, Any]] = [
            {"$match": wanted},
            {"$sort": {"sent_at": -1, "source.offset": -1}},
            {"$limit": limit},
            {"$project": {**_text_fields(characters), **dict.fromkeys(("id", "conversation_id", "reply_to"), 1)}},
        ]
        names = ("conversation_id", "id", "agent_id", "reply_to")
        found = await _aggregated(self._messages, stages)
        return [PendingMessage._make((*map(one.get, names), one["source"]["offset"], _text(one))) for one in found]

    async def states(
        self, keys: Sequence[str], *, with_metadata: bool = True
    ) -> dict[str, ArchivedMessage | DeletedMessage]:
        documents = await self._documents(keys, None if with_metadata else {"metadata": 0})
        return {key: state_from(document) for key, document in documents.items()}

    async def _documents(
        self, keys: Sequence[str], fields: Mapping[str, int] | None = None
    ) -> dict[str, Mapping[str, Any]]:
        by_key: dict[str, Mapping[str, Any]] = {}
        for batch in in_parts(keys, BATCH_SIZE):
            async for document in _each(self._messages.find({"_id": {"$in": list(batch)}}, fields)):
                by_key[document["_id"]] = document
        return by_key

    async def expire(self, before: datetime, limit: int) -> int:
        older = {"sent_at": {"$lt": before}}  # a tombstone has no such field
        with mongo_errors():
            documents = await self._messages.find(older, {"_id": 1}, sort=[("sent_at", 1)], limit=limit).to_list(None)
            if documents:
                await self._messages.delete_many({"_id": {"$in": [document["_id"] for document in documents]}, **older})
        return len(documents)

    async def all_messages(self) -> AsyncIterator[StoredMessage]:
        # without a filter: if few documents match, the server would answer only after looking at all of them
        cursor = self._messages.find({}, ("episode_id", "content", "source", "offset"))
        async for document in _each(cursor, SCAN_SIZE):
            source, changed = document.get("source", {}), document.get("offset", NEVER)
            said = document.get("episode_id"), document.get("content")
            yield StoredMessage(document["_id"], *said, source.get("partition"), source.get("offset"), changed)


def _write(key: str, kept: Kept, version: int) -> UpdateOne | ReplaceOne[dict[str, Any]]:
    """Return the write that replaces this version (0: no message yet). It fails with a duplicate key if another is
    stored."""
    own, state = {"_id": key, "version": version}, kept.state
    if isinstance(state, DeletedMessage):
        return ReplaceOne(own, {"_id": key, "deleted": True, "offset": state.changed}, upsert=True)
    fields = {
        **state.message.model_dump(exclude={"metadata"}),
        "source": {"partition": state.partition, "offset": state.offset},
        "token_count": message_tokens(state.message.content),
        "version": version + 1,
        **({} if state.changed == NEVER else {"offset": state.changed}),
        **({"metadata": orjson.dumps(state.message.metadata).decode()} if kept.is_whole else {}),
        **({} if kept.metadata_offset == NEVER else {"metadata_offset": kept.metadata_offset}),
        **({"said": kept.said} if kept.said else {}),
    }
    return UpdateOne(own, {"$set": fields}, upsert=True)


def _text_fields(characters: int) -> dict[str, Any]:
    """Return a projection on the fields of a MessageText; the server cuts the contents to `characters`."""
    return {**dict.fromkeys(TEXT_FIELDS, 1), "content": {"$substrCP": ["$content", 0, characters]}}


def _text(document: Mapping[str, Any]) -> MessageText:
    author = {"user": document["user_id"], "assistant": document.get("agent_id")}.get(document["role"])
    said = document["content"], document["role"], document["sent_at"]
    return MessageText(*said, author, document.get("author"), document["user_id"])


def _kept(document: Mapping[str, Any]) -> Kept:
    is_whole = "metadata" in document or "deleted" in document
    return Kept(state_from(document), is_whole, document.get("metadata_offset", NEVER), document.get("said", ""))


def message_from(document: Mapping[str, Any]) -> ArchivedMessage:
    fields = {**document, "metadata": orjson.loads(document.get("metadata", "{}"))}
    message = MessageCreated.model_validate(fields, strict=False)
    source = document["source"]
    return ArchivedMessage(message, source["partition"], source["offset"], document.get("offset", NEVER))


def state_from(document: Mapping[str, Any]) -> ArchivedMessage | DeletedMessage:
    return DeletedMessage(document["offset"]) if document.get("deleted") else message_from(document)


class MongoRecords(Records):
    """The Records of MongoDB: one collection per kind."""

    def __init__(self, database: MongoDatabase) -> None:
        self._database = database

    async def read_some(self, kind: RecordKind, keys: Sequence[str]) -> dict[str, str]:
        found = self._database[kind].find({"_id": {"$in": list(keys)}})
        return {one["_id"]: one["record"] async for one in _each(found)}

    async def read_all(self, kind: RecordKind) -> dict[str, str]:
        return {document["_id"]: document["record"] async for document in _each(self._database[kind].find({}))}

    async def replace(self, kind: RecordKind, key: str, before: str | None, after: str | None) -> bool:
        known = None if before is None else {"record": before}
        if after is not None:
            return await _replaced(self._database[kind], {"_id": key, "record": after}, known)
        with mongo_errors():
            return bool((await self._database[kind].delete_one({"_id": key, "record": before})).deleted_count)


@contextmanager
def mongo_errors() -> Iterator[None]:
    """Turn the driver's errors into StoreUnavailable.

    This covers all of them, because the cause of a refusal (credentials, a full disk) is repaired outside too, and then
    work continues. The driver's text is left out, because it may quote documents and addresses.
    """
    try:
        yield
    except PyMongoError as error:
        code = getattr(error, "code", None)
        problem = type(error).__name__ + (f" {code}" if code else "")
        if isinstance(error, ServerSelectionTimeoutError):
            problem = f"no server answered in time ({problem})"
        raise StoreUnavailable(store=STORE, problem=problem) from error


async def bulk(collection: Collection, operations: Sequence[Any]) -> list[int]:
    """Run at most BATCH_SIZE writes in any order; return the positions of those that met a duplicate key.

    Raises: StoreUnavailable.
    """
    with mongo_errors():
        try:
            await collection.bulk_write(list(operations), ordered=False)
        except BulkWriteError as error:
            return duplicates(error.details)
    return []


def duplicates(details: Mapping[str, Any]) -> list[int]:
    """Return the positions of writes that met a duplicate key. Raises: StoreUnavailable for any other failure."""
    failed = [*details["writeErrors"], *details["writeConcernErrors"]]
    others = [error["code"] for error in failed if error["code"] != DUPLICATE_KEY]
    if others:
        raise StoreUnavailable(store=STORE, problem=f"write error {others[0]}")
    return [error["index"] for error in details["writeErrors"]]


async def _each(cursor: Any, most: int = MOST_READ) -> AsyncIterator[Mapping[str, Any]]:
    """Yield a cursor's documents; a reply has at most `most` of them.

    A message has up to 1 MB, the driver refuses 48 MB, and unlike MongoDB not every server splits a reply at 16 MB.
    """
    with mongo_errors():
        async for document in cursor.batch_size(most):
            yield document


async def _aggregated(collection: Collection, stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    with mongo_errors():
        found = collection.aggregate(list(stages), batchSize=BATCH_SIZE, allowDiskUse=True)
        documents: list[dict[str, Any]] = await found.to_list(None)
    return documents


async def _replaced(collection: Collection, document: dict[str, Any], version: Mapping[str, Any] | None) -> bool:
    """Replace the document with this version, or insert one if `version` is None; return False if that fails."""
    with mongo_errors():
        if version is not None:
            return bool((await collection.replace_one({"_id": document["_id"], **version}, document)).matched_count)
        try:
            await collection.insert_one(document)
        except DuplicateKeyError:
            return False
    return True


def _sums(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {"$sum": value} for name, value in values.items()}


def condition(wanted: Conditions, names: Mapping[str, str] = NAMES) -> dict[str, Any]:
    """Return a filter. Values are always compared by an operator, so that none is taken for one."""
    asked: dict[str, dict[str, Any]] = {}
    for field, operator, value in parts(wanted):
        compared = {"$in": [value, None]} if operator == "or none" else {OPERATORS[operator]: value}
        asked.setdefault(names.get(field, field), {}).update(compared)
    return asked


def _selected(selection: Selection) -> dict[str, Any]:
    return condition(selection.conditions(), {"offset": "source.offset"})


async def _conversations(
    collection: Collection, field: str, user_id: str, tenant_id: str | None, after: str | None, limit: int
) -> list[str]:
    """Return a sorted page of the ids of the conversations in which a document names the user in this field.

    It runs one short query per conversation: a `$group` would read every document of the user for each page.
    """
    wanted: dict[str, Any] = {"tenant_id": {"$eq": tenant_id}, field: {"$eq": user_id}}
    names: list[str] = []
    while len(names) < limit:
        if after is not None:
            wanted["conversation_id"] = {"$gt": after}
        with mongo_errors():
            document = await collection.find_one(wanted, {"conversation_id": 1}, sort=[("conversation_id", 1)])
        if document is None:
            break
        after = document["conversation_id"]
        names.append(after)
    return names
