"""Episodes, messages, budgets and kept LLM replies in MongoDB. The only module that imports motor (see docs/adr).

Every write goes by `_id` and names the version it replaces, so a repeated or late write changes nothing: an upsert
whose filter asks for an older version meets a duplicate key when a newer one is stored.

Ids and other texts of callers are data, twice over: each method requires texts, and filters compare with `$eq`,
except `_id`, for which the embedded server then scans the collection (20,000 documents: 36 ms instead of 3 ms).
"""

import asyncio
import math
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

from motor.motor_asyncio import AsyncIOMotorClient as Client
from pymongo import ReplaceOne, ReturnDocument, UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError, PyMongoError, ServerSelectionTimeoutError

from afterword.schemas import ConversationDeleted, MessageDeleted, SummaryCreated, SummaryDeleted, Usage
from afterword.schemas.ids import message_key, row_id
from afterword.streams.errors import ConfigurationError, StoreUnavailable
from afterword.streams.settings import Mongo, variable
from afterword.streams.stores.arguments import require, require_texts, require_within
from afterword.streams.stores.coalescing import Coalesced
from afterword.streams.stores.documents import (
    EPISODE_SCAN_FIELDS,
    EPISODE_VERSION_FIELDS,
    MESSAGE_REF_FIELDS,
    TEXT_FIELDS,
    any_episode_from,
    any_message_from,
    archived_key,
    conversation_from,
    deleted_document,
    deleted_from,
    deleted_message_document,
    deletion_from,
    deletion_key,
    edit_document,
    episode_document,
    episode_from,
    episode_ref_from,
    is_archived,
    message_document,
    message_from,
    message_ref_from,
    row_document,
    row_from,
    text_from,
    version_from,
)
from afterword.streams.stores.episodes import (
    Conversation,
    DeletedEpisode,
    EpisodeRef,
    EpisodeVersion,
    RollingRow,
    StoredEpisode,
    agent_of_scope,
    first_advance,
    id_prefix,
    scope_of,
    sibling_id,
)
from afterword.streams.stores.erasures import ErasedConversation, Erasure
from afterword.streams.stores.keys import ApiKey
from afterword.streams.stores.messages import (
    KEPT,
    ArchiveChange,
    ArchivedMessage,
    Authors,
    Counted,
    DeletedMessage,
    MessageRef,
    MessageText,
    PendingDeletion,
    Selection,
    agent_scope,
)
from afterword.streams.stores.replies import KeptReply, ReplyOrigin
from afterword.streams.tls import present, trusting
from afterword.streams.together import together

MongoDatabase: TypeAlias = Any
"""A database handle, motor's or that of pymongo's async client."""
Collection: TypeAlias = Any

STORE = "mongodb"
BATCH_SIZE = 1000
"""Operations in one bulk write, and ids in one `$in`."""
PAGE_SIZE = 40
"""Documents of one reply. A message has up to 1 MB, the driver refuses 48 MB, and not every server splits a reply at
16 MB, as MongoDB does."""
SCAN_SIZE = 1000
"""The same, where a whole collection is read in its order: there MongoDB and the embedded server both split replies."""
DUPLICATE_KEY = 11000
NEWEST_FIRST = [("source.offset", -1)]

INDEXES: dict[str, tuple[tuple[tuple[str, int], ...], ...]] = {
    "messages": (
        (("conversation_id", 1), ("source.offset", 1)),
        (("conversation_id", 1), ("episode_id", 1), ("source.offset", 1)),
        (("tenant_id", 1), ("user_id", 1), ("conversation_id", 1)),
    ),
    "episodes": (
        (("conversation_id", 1), ("ordinal", 1)),
        (("conversation_id", 1), ("message_ids", 1)),
        (("conversation_id", 1), ("overlap_ids", 1)),
        (("conversation_id", 1), ("changes.message_id", 1)),
        (("tenant_id", 1), ("participants", 1), ("conversation_id", 1)),
        (("tenant_id", 1), ("user_id", 1), ("conversation_id", 1)),
    ),
    "llm_cache": ((("scope", 1), ("ordinal", 1)),),
    "conversation_summaries": ((("conversation_id", 1), ("row", 1)),),
    "deletions": ((("conversation_id", 1), ("offset", -1)),),
    "conversations": ((("tenant_id", 1), ("user_id", 1), ("updated_at", -1)),),
}
"""Indexes for reading a conversation, and for finding those of a user. Uniqueness rests on `_id` alone."""

REPLIES = "llm_cache"
BUDGETS = "budgets"
DELETIONS = "deletions"
EXPIRING = {REPLIES: "expires_at", BUDGETS: "expires_at", DELETIONS: "expires_at"}
"""The field that holds the moment after which the server deletes a document."""

AGES = {"messages": "sent_at", "episodes": "ended_at"}
"""The field by which a document expires. Workers delete them, page by page: see `streams/summarizer/retention.py`."""

HOLDING = ("message_ids", "overlap_ids", "changes.message_id")
"""Fields of an episode with the messages that it has, or had."""

REFUSED = "refused"
"""Positions of an episode's records of which nothing may be stored any more; the next revision has none."""
MOST_REFUSED = 20
"""The last ones: an older one would have to come from a writer that was suspended during all of these."""
EPISODES = "episode_count"
LIVING = {EPISODES: {"$ne": 0}}
"""Selects conversations of which something is left."""
COUNTERS = (EPISODES, "message_count", "token_count")
REVISED = ("title", "last_revision", "updated_at")
"""Fields of a conversation that a higher revision of its last episode changes."""


def connect(settings: Mongo) -> MongoDatabase:
    """A handle of the configured database. Connects at its first use; ends with `close`. Raises: ConfigurationError.

    What is read decides what is announced and committed, so it must not be rolled back: reads are of the primary and of
    what a majority has, whatever the URI says.
    """
    milliseconds = int(settings.timeout_seconds * 1000)
    selection = int(min(settings.answer_seconds or math.inf, settings.timeout_seconds) * 1000)
    # with timeoutMS the driver looks for a server for as long as that, whatever serverSelectionTimeoutMS says
    operation: dict[str, Any] = {"socketTimeoutMS" if settings.answer_seconds else "timeoutMS": milliseconds}
    with _usable():
        client: Any = Client(
            settings.uri.get_secret_value(),
            tz_aware=True,
            **operation,
            connectTimeoutMS=selection,
            serverSelectionTimeoutMS=selection,
            readPreference="primary",
            readConcernLevel="majority",
            w="majority",
            journal=True,  # an offset is committed after the write: it must outlive the server's crash
            appname="afterword",
            **_tls_options(settings),
        )
    return client[settings.database]


async def close(database: MongoDatabase) -> None:
    """Close the handle's connections."""
    database.client.close()  # to be awaited with pymongo's async client


async def ping(database: MongoDatabase) -> None:
    """Raises: StoreUnavailable."""
    with mongo_errors():
        await database.command("ping")


async def check(database: MongoDatabase) -> str:
    """Describe the database that answers. Raises: StoreUnavailable."""
    await ping(database)
    return f"database {database.name}"


async def ensure_indexes(database: MongoDatabase, expires: Set[str] = frozenset()) -> None:
    """Create the indexes that are missing; may be repeated. Raises: StoreUnavailable.

    `expires`: collections of which something expires: only these need an index by age.
    """
    with mongo_errors():
        for name in expires:
            await database[name].create_index(AGES[name])
        for name, indexes in INDEXES.items():
            for keys in indexes:
                await database[name].create_index(list(keys))
        for name, field in EXPIRING.items():
            await database[name].create_index(field, expireAfterSeconds=0)


class MongoEpisodes:
    """An EpisodeStore."""

    def __init__(self, database: MongoDatabase) -> None:
        self._episodes = database["episodes"]
        self._rows = database["conversation_summaries"]
        self._conversations = database["conversations"]
        # read for every episode of a summarizer, of which many are in flight
        self._find_conversations = _coalesced_find(self._conversations)

    async def find(self, episode_id: str) -> StoredEpisode | None:
        found = await self.lookup(episode_id)
        return found if isinstance(found, StoredEpisode) else None

    async def lookup(self, episode_id: str) -> StoredEpisode | DeletedEpisode | None:
        document = await _find(self._episodes, episode_id)
        return any_episode_from(document) if document else None

    async def find_many(self, episode_ids: Sequence[str]) -> dict[str, StoredEpisode]:
        require_texts(episode_ids=episode_ids)
        found: dict[str, StoredEpisode] = {}
        for batch in batches(episode_ids):
            async for document in _each(self._episodes.find({"_id": {"$in": list(batch)}})):
                if not document.get("deleted"):
                    found[document["_id"]] = episode_from(document)
        return found

    async def versions(self, episode_ids: Sequence[str]) -> dict[str, EpisodeVersion]:
        require_texts(episode_ids=episode_ids)
        found: dict[str, EpisodeVersion] = {}
        for batch in batches(episode_ids):
            async for document in _each(self._episodes.find({"_id": {"$in": list(batch)}}, EPISODE_VERSION_FIELDS)):
                found[document["_id"]] = version_from(document)
        return found

    async def has_any(self, conversation_id: str, agent_id: str | None, message_ids: Sequence[str]) -> bool:
        require_texts(message_ids=message_ids)
        scope = _in_scope(conversation_id, agent_id)
        del scope["deleted"]
        for field in HOLDING:
            wanted = scope | {field: {"$in": list(message_ids)}}
            with mongo_errors():
                if await self._episodes.find_one(wanted, {"_id": 1}):
                    return True
        return False

    async def has_before(self, conversation_id: str, agent_id: str | None, offset: int, ordinal: int) -> bool:
        require(int, offset=offset, ordinal=ordinal)
        scope = _in_scope(conversation_id, agent_id)
        living = scope | {"last_offset": {"$lte": offset}}
        left = scope | {"deleted": True, "as_of": offset, "ordinal": {"$gte": ordinal}}
        with mongo_errors():
            return bool(
                await self._episodes.find_one(living, {"_id": 1}) or await self._episodes.find_one(left, {"_id": 1})
            )

    async def add(self, episode: StoredEpisode) -> StoredEpisode | DeletedEpisode:
        known = await self._put_revision(episode_document(episode))
        return known or episode

    async def remove(self, deleted: DeletedEpisode) -> StoredEpisode | DeletedEpisode:
        known = await self._put_revision(deleted_document(deleted))
        return known or deleted

    async def _put_revision(self, document: dict[str, Any]) -> StoredEpisode | DeletedEpisode | None:
        """Store the document; or return what is stored, if that is as new or deleted."""
        older = {"_id": document["_id"], "revision": {"$lt": document["revision"]}, "deleted": None}
        position = document["announced_by"]
        if position is not None:
            older[REFUSED] = {"$ne": position}
        replaces = document["revision"] > 1  # most likely one that is there
        while True:
            with mongo_errors():
                if replaces and (await self._episodes.replace_one(older, document)).matched_count:
                    return None
            if not replaces and await _unless_duplicate(self._episodes.insert_one(document)):
                return None
            known = await self.lookup(document["_id"])
            if known and (isinstance(known, DeletedEpisode) or known.summary.revision >= document["revision"]):
                return known
            if known and position is not None and await self._refuses(document["_id"], position):
                return known
            replaces = known is not None

    async def _refuses(self, episode_id: str, position: str) -> bool:
        with mongo_errors():
            return await self._episodes.find_one({"_id": episode_id, REFUSED: position}, {"_id": 1}) is not None

    async def refuse(self, episode_id: str, position: str) -> StoredEpisode | DeletedEpisode | None:
        require(str, episode_id=episode_id, position=position)
        change = {"$push": {REFUSED: {"$each": [position], "$slice": -MOST_REFUSED}}}
        with mongo_errors():
            await self._episodes.update_one({"_id": {"$eq": episode_id}, "deleted": None}, change)
        return await self.lookup(episode_id)

    async def mark(self, episode: StoredEpisode, as_of: int) -> None:
        require(int, as_of=as_of)
        same = {"_id": episode.summary.episode_id, "revision": episode.summary.revision}
        with mongo_errors():
            await self._episodes.update_one(same, {"$max": {"as_of": as_of}})

    async def holding(self, conversation_id: str, message_id: str) -> list[StoredEpisode | DeletedEpisode]:
        require(str, conversation_id=conversation_id, message_id=message_id)
        # all fields in each part: so each has its index
        wanted = [{"conversation_id": {"$eq": conversation_id}, field: {"$eq": message_id}} for field in HOLDING]
        found = [any_episode_from(document) async for document in _each(self._episodes.find({"$or": wanted}))]
        return sorted(found, key=lambda episode: episode.ordinal)

    async def of_conversation(
        self, conversation_id: str, after: str | None, limit: int
    ) -> list[StoredEpisode | DeletedEpisode]:
        require(str, conversation_id=conversation_id)
        require(str | None, after=after)
        wanted: dict[str, Any] = {"conversation_id": {"$eq": conversation_id}}
        if after is not None:
            wanted["_id"] = {"$gt": after}
        cursor = self._episodes.find(wanted, sort=[("_id", 1)], limit=limit)
        return [any_episode_from(document) async for document in _each(cursor)]

    async def conversations_of(self, user_id: str, tenant_id: str | None, after: str | None, limit: int) -> list[str]:
        fields = ("participants", "user_id")  # one after the other: each has its index
        pages = [await _conversations(self._episodes, field, user_id, tenant_id, after, limit) for field in fields]
        return sorted({found for page in pages for found in page}, key=str.encode)[:limit]

    async def taken_part_in(
        self, conversation_ids: Sequence[str], user_id: str, tenant_id: str | None
    ) -> dict[str, int]:
        wanted = _of_tenant(conversation_ids, user_id, tenant_id)
        wanted["$or"] = [{field: {"$eq": user_id}} for field in ("participants", "user_id")]
        counts = {"$group": {"_id": "$conversation_id", "episodes": {"$sum": 1}}}
        with mongo_errors():
            found = await self._episodes.aggregate([{"$match": wanted}, counts]).to_list(None)
        return {group["_id"]: group["episodes"] for group in found}

    async def later(self, episode: SummaryCreated | SummaryDeleted, limit: int, after: int) -> list[StoredEpisode]:
        require(int, limit=limit, after=after)
        wanted = _in_scope(episode.conversation_id, agent_of_scope(episode)) | {"ordinal": {"$gt": after}}
        cursor = self._episodes.find(wanted, sort=[("ordinal", 1)], limit=limit)
        return [episode_from(document) async for document in _each(cursor)]

    async def rows_from(self, conversation_id: str, ordinal: int) -> list[RollingRow]:
        require(str, conversation_id=conversation_id)
        require(int, ordinal=ordinal)
        own = {"conversation_id": {"$eq": conversation_id}, "last_ordinal": {"$gte": ordinal}}
        return [row_from(document) async for document in _each(self._rows.find(own, sort=[("row", 1)]))]

    async def recount(self, event: SummaryCreated | SummaryDeleted) -> None:
        key = scope_of(event)
        while known := await _find(self._conversations, key):
            unchanged = {"_id": key, **{name: known[name] for name in ("last_ordinal", *COUNTERS)}}
            change = await self._recounted(event, known["last_ordinal"])
            with mongo_errors():
                result = await self._conversations.update_one(unchanged, {"$set": change})
            if result.matched_count:
                return

    async def expired(self, before: datetime, limit: int) -> list[StoredEpisode]:
        require(datetime, before=before)
        require(int, limit=limit)
        require_within(1, limit=limit)
        wanted = {"ended_at": {"$lt": before}}  # what stays of a deleted one has no such field
        cursor = self._episodes.find(wanted, sort=[("ended_at", 1)], limit=limit)
        return [episode_from(document) async for document in _each(cursor)]

    async def end_conversation(self, last: StoredEpisode) -> bool:
        scope, agent = scope_of(last.summary), agent_of_scope(last.summary)
        others = _in_scope(last.summary.conversation_id, agent) | {"ordinal": {"$ne": last.ordinal}}
        ended = {"last_ordinal": {"$lte": last.ordinal}}
        with mongo_errors():
            if await self._episodes.find_one(others, {"_id": 1}):
                return False
            await self._rows.delete_many({"conversation_id": {"$eq": scope}, **ended})
            await self._conversations.delete_one({"_id": scope, **ended})
        return True

    async def _recounted(self, event: SummaryCreated | SummaryDeleted, last_ordinal: int) -> dict[str, Any]:
        """Counts, title and user of the scope's episodes up to this ordinal; nobody's and none if none is left.

        Later ones are not counted yet: whoever has stored one is about to.
        """
        scope = _in_scope(event.conversation_id, agent_of_scope(event)) | {"ordinal": {"$lte": last_ordinal}}
        sums = {"episodes": {"$sum": 1}, "messages": {"$sum": "$message_count"}}
        sums["tokens"] = {"$sum": "$compression.tokens_before"}
        ends = {"first": {"$min": "$ordinal"}, "last": {"$max": "$ordinal"}}
        counted = [{"$match": scope}, {"$group": {"_id": None, **sums, **ends}}]
        with mongo_errors():
            found = await self._episodes.aggregate(counted).to_list(1)
        if not found:
            return {**dict.fromkeys(COUNTERS, 0), "title": "", "user_id": ""}
        [total] = found
        first, last = await asyncio.gather(*[self.find(sibling_id(event, total[name])) for name in ends])
        if first is None or last is None:  # deleted meanwhile
            return await self._recounted(event, last_ordinal)
        change = {
            "episode_count": total["episodes"],
            "message_count": total["messages"],
            "token_count": total["tokens"],
            "title": last.summary.title,
            "updated_at": last.summary.created_at,
            "user_id": first.summary.user_id,
        }
        return change | ({"last_revision": last.summary.revision} if last.ordinal == last_ordinal else {})

    async def latest_row(self, conversation_id: str) -> RollingRow | None:
        require(str, conversation_id=conversation_id)
        with mongo_errors():
            found = await self._rows.find_one({"conversation_id": {"$eq": conversation_id}}, sort=[("row", -1)])
        return row_from(found) if found else None

    async def put_row(self, row: RollingRow, after: RollingRow | None) -> bool:
        document = row_document(row)
        if after is None or after.row != row.row:
            return await _unless_duplicate(self._rows.insert_one(document))
        fence = {"last_ordinal": after.last_ordinal, "last_revision": after.last_revision}
        unchanged = {"_id": row_id(after.conversation_id, after.row), **fence}
        with mongo_errors():
            result = await self._rows.replace_one(unchanged, document)
        return bool(result.matched_count)

    async def advance(self, summary: SummaryCreated) -> None:
        key = scope_of(summary)
        while not await self._advanced(key, summary):
            known = await _find(self._conversations, key)
            if known and known["last_ordinal"] >= summary.ordinal:
                await self._revise(key, summary)
                return
            if known and known[EPISODES] == 0 and await self._begun_again(key, summary):
                return

    async def conversation(self, conversation_id: str) -> Conversation | None:
        require(str, conversation_id=conversation_id)
        document = (await self._find_conversations([conversation_id])).get(conversation_id)
        return conversation_from(document) if document and document[EPISODES] != 0 else None

    async def conversations(
        self, user_id: str, tenant_id: str | None, limit: int, before: tuple[datetime, str] | None = None
    ) -> list[Conversation]:
        require(str, user_id=user_id)
        require(str | None, tenant_id=tenant_id)
        require(int, limit=limit)
        require_within(1, limit=limit)
        wanted: dict[str, Any] = {"tenant_id": {"$eq": tenant_id}, "user_id": {"$eq": user_id}, **LIVING}
        if before is not None:
            updated_at, scope = before
            require(datetime, before=updated_at)
            require(str, before=scope)
            wanted["updated_at"] = {"$lte": updated_at}
            earlier = {"updated_at": {"$lt": updated_at}}
            wanted["$or"] = [earlier, {"updated_at": {"$eq": updated_at}, "_id": {"$lt": scope}}]
        cursor = self._conversations.find(wanted, sort=[("updated_at", -1), ("_id", -1)], limit=limit)
        return [conversation_from(document) async for document in _each(cursor)]

    async def latest(
        self, conversation_id: str, limit: int, *, before: int | None = None, agent_id: str | None = None
    ) -> list[StoredEpisode]:
        require(int, limit=limit)
        require_within(1, limit=limit)
        require(int | None, before=before)
        wanted = _in_scope(conversation_id, agent_id) | ({} if before is None else {"ordinal": {"$lt": before}})
        cursor = self._episodes.find(wanted, sort=[("ordinal", -1)], limit=limit)
        return [episode_from(document) async for document in _each(cursor)]

    async def following(self, episode_id: str | None, limit: int) -> list[StoredEpisode]:
        require(str | None, episode_id=episode_id)
        require(int, limit=limit)
        require_within(1, limit=limit)
        cursor = self._episodes.find(_following(episode_id), sort=[("_id", 1)], limit=limit)
        return [episode_from(document) async for document in _each(cursor)]

    async def count_following(self, episode_id: str | None) -> int:
        require(str | None, episode_id=episode_id)
        with mongo_errors():
            found: int = await self._episodes.count_documents(_following(episode_id))
        return found

    async def count_all(self) -> int:
        with mongo_errors():
            found: int = await self._episodes.estimated_document_count()  # of the collection, without reading it
        return found

    async def users_of(self, conversation_id: str) -> set[str]:
        require(str, conversation_id=conversation_id)
        wanted = {"conversation_id": {"$eq": conversation_id}}
        with mongo_errors():
            found = [await self._episodes.distinct(field, wanted) for field in ("participants", "user_id")]
        return {user for users in found for user in users if user is not None}

    async def all_episodes(self) -> AsyncIterator[EpisodeRef | DeletedEpisode]:
        # without a filter: where few match, the server would answer only when it has looked at all of them
        async for document in _each(self._episodes.find({}, EPISODE_SCAN_FIELDS), SCAN_SIZE):
            yield deleted_from(document) if document.get("deleted") else episode_ref_from(document)

    async def _advanced(self, key: str, summary: SummaryCreated) -> bool:
        """Count the episode; False if nothing was changed: it is counted already, or the key has another document."""
        first = first_advance(summary)
        behind = {"_id": key, "last_ordinal": {"$lt": summary.ordinal}, **LIVING}
        change = {
            "$set": {name: getattr(first, name) for name in ("last_ordinal", *REVISED)},
            "$inc": {name: getattr(first, name) for name in COUNTERS},
            "$setOnInsert": {"user_id": first.user_id, "tenant_id": first.tenant_id},
        }
        return await _unless_duplicate(self._conversations.update_one(behind, change, upsert=True))

    async def _begun_again(self, key: str, summary: SummaryCreated) -> bool:
        """Count the episode as the first one after all before it are gone; False if that is not so."""
        gone = {"_id": key, "last_ordinal": {"$lt": summary.ordinal}, EPISODES: 0}
        names = ("last_ordinal", *REVISED, *COUNTERS, "user_id", "tenant_id")
        first = first_advance(summary)
        with mongo_errors():
            result = await self._conversations.update_one(
                gone, {"$set": {name: getattr(first, name) for name in names}}
            )
        return bool(result.matched_count)

    async def _revise(self, key: str, summary: SummaryCreated) -> None:
        first = first_advance(summary)
        older = {"$lt": summary.revision}
        change = {"$set": {name: getattr(first, name) for name in REVISED}}
        with mongo_errors():
            await self._conversations.update_one(
                {"_id": key, "last_ordinal": summary.ordinal, "last_revision": older, **LIVING}, change
            )


class MongoMessages:
    """A MessageArchive: one document for each message, to which archiver and summarizer write different fields.

    The `_id` of a message is its `message_key`.
    """

    def __init__(self, database: MongoDatabase) -> None:
        self._messages = database["messages"]
        self._deletions = database[DELETIONS]

    async def put_many(self, messages: Sequence[ArchivedMessage]) -> None:
        first = {archived_key(archived): archived for archived in reversed(messages)}
        await together(*[self._put({key: first[key] for key in keys}) for keys in batches(list(first))])

    async def assign(self, episode_id: str, keys: Sequence[str]) -> None:
        require(str, episode_id=episode_id)
        require_texts(keys=keys)
        change: dict[str, Any] = {"$set": {"episode_id": episode_id}}
        if scope := agent_scope(episode_id):
            change["$addToSet"] = {"agent_scopes": scope}  # a user's message may be in an episode of each agent
        for batch in batches(keys):
            await self._upsert(batch, change)

    async def newest(self, selection: Selection) -> AsyncGenerator[ArchivedMessage, None]:
        cursor = self._messages.find(_selected(selection), sort=NEWEST_FIRST)
        try:
            async for document in _each(cursor):
                yield message_from(document)
        finally:
            await cursor.close()

    async def count(self, selection: Selection) -> Counted:
        counts = {"messages": {"$sum": 1}, "tokens": {"$sum": "$token_count"}}
        groups = {"$group": {"_id": "$skip_summarization", **counts}}
        with mongo_errors():
            found = await self._messages.aggregate([{"$match": _selected(selection)}, groups]).to_list(None)
        messages = {group["_id"]: group["messages"] for group in found}
        return Counted(sum(messages.values()), sum(group["tokens"] for group in found), messages.get(True, 0))

    async def conversations_of(self, user_id: str, tenant_id: str | None, after: str | None, limit: int) -> list[str]:
        return await _conversations(self._messages, "user_id", user_id, tenant_id, after, limit)

    async def authors(self, conversation_ids: Sequence[str], user_id: str, tenant_id: str | None) -> dict[str, Authors]:
        wanted = _of_tenant(conversation_ids, user_id, tenant_id)
        counts = {"$group": {"_id": "$conversation_id", "messages": {"$sum": 1}}}
        numbers: list[dict[str, int]] = []
        for selected in (wanted, {**wanted, "user_id": {"$eq": user_id}}):
            with mongo_errors():
                found = await self._messages.aggregate([{"$match": selected}, counts]).to_list(None)
            numbers.append({group["_id"]: group["messages"] for group in found})
        every, own = numbers
        return {i: Authors(own.get(i, 0), number - own.get(i, 0)) for i, number in every.items()}

    async def first(self, conversation_id: str) -> ArchivedMessage | None:
        require(str, conversation_id=conversation_id)
        with mongo_errors():
            found = await self._messages.find_one(
                {"conversation_id": {"$eq": conversation_id}}, sort=[("source.offset", 1)]
            )
        return message_from(found) if found else None

    async def get_many(self, keys: Sequence[str]) -> dict[str, ArchivedMessage]:
        require_texts(keys=keys)
        found = {}
        for batch in batches(keys):
            async for document in _each(self._messages.find({"_id": {"$in": list(batch)}})):
                if is_archived(document):
                    found[document["_id"]] = message_from(document)
        return found

    async def texts(self, keys: Sequence[str], characters: int) -> dict[str, MessageText]:
        require_texts(keys=keys)
        beginning = {"$substrCP": ["$content", 0, characters]}  # on the server: then a reply can hold all
        fields = {**dict.fromkeys(TEXT_FIELDS, 1), "content": beginning}
        found: dict[str, MessageText] = {}
        for batch in batches(keys):
            with mongo_errors():
                stages = [{"$match": {"_id": {"$in": list(batch)}}}, {"$project": fields}]
                documents = await self._messages.aggregate(stages, batchSize=BATCH_SIZE).to_list(None)
            found.update((one["_id"], text_from(one)) for one in documents if is_archived(one))
        return found

    async def states(self, keys: Sequence[str]) -> dict[str, ArchivedMessage | DeletedMessage]:
        require_texts(keys=keys)
        found = {}
        for batch in batches(keys):
            async for document in _each(self._messages.find({"_id": {"$in": list(batch)}})):
                if _is_settled(document):
                    found[document["_id"]] = any_message_from(document)
        return found

    async def changed(self, keys: Sequence[str]) -> dict[str, ArchivedMessage | DeletedMessage]:
        require_texts(keys=keys)
        changed: list[str] = []
        for batch in batches(keys):
            found = _each(self._messages.find({"_id": {"$in": list(batch)}}, {"offset": 1}))
            changed += [document["_id"] async for document in found if "offset" in document]
        return await self.states(changed) if changed else {}

    async def change(self, change: ArchiveChange) -> None:
        event = change.event
        if isinstance(event, ConversationDeleted):
            await self._delete_conversation(event, change.offset)
            return
        key = message_key(event.conversation_id, event.id, event.tenant_id)
        while (document := await _find(self._messages, key)) and _is_older(document, change.offset):
            unchanged = {"_id": key, "offset": document.get("offset")}
            with mongo_errors():
                if isinstance(event, MessageDeleted):
                    if document.get("episode_id") or not document.get("skip_summarization"):
                        await self._note(
                            PendingDeletion(event.conversation_id, event.tenant_id, event.id, change.offset)
                        )
                    remains = deleted_message_document(key, change.offset)
                    done = bool((await self._messages.replace_one(unchanged, remains)).matched_count)
                elif is_archived(document):
                    edited = {"$set": edit_document(event, change.offset)}
                    done = bool((await self._messages.update_one(unchanged, edited)).matched_count)
                else:
                    return
            if done:
                return

    async def _note(self, deletion: PendingDeletion) -> None:
        document = {**vars(deletion), "expires_at": datetime.now(UTC) + KEPT}
        await self._deletions.update_one({"_id": deletion_key(deletion)}, {"$set": document}, upsert=True)

    async def pending_deletions(self, conversation_ids: Sequence[str], limit: int) -> list[PendingDeletion]:
        require_texts(conversation_ids=conversation_ids)
        require(int, limit=limit)
        require_within(1, limit=limit)
        wanted = {"conversation_id": {"$in": list(conversation_ids)}}
        return [deletion_from(document) async for document in _each(self._deletions.find(wanted, limit=limit))]

    async def settle(self, deletion: PendingDeletion) -> None:
        with mongo_errors():
            await self._deletions.delete_one({"_id": deletion_key(deletion), "offset": deletion.offset})

    async def _delete_conversation(self, event: ConversationDeleted, offset: int) -> None:
        """Page by page: what was replaced is not selected any more."""
        selected = _selected(Selection(event.conversation_id, event.tenant_id)) | {"source.offset": {"$lt": offset}}
        while True:
            with mongo_errors():
                found = await self._messages.find(selected, {"_id": 1}, limit=BATCH_SIZE).to_list(None)
            if not found:
                return
            with mongo_errors():
                await self._note(PendingDeletion(event.conversation_id, event.tenant_id, None, offset))
            remains = [deleted_message_document(document["_id"], offset) for document in found]
            await bulk(self._messages, [ReplaceOne({"_id": one["_id"]}, one, upsert=True) for one in remains])

    async def missing(self, keys: Sequence[str]) -> set[str]:
        require_texts(keys=keys)
        there: set[str] = set()
        for batch in batches(keys):
            async for document in _each(self._messages.find({"_id": {"$in": list(batch)}}, {"_id": 1})):
                there.add(document["_id"])
        return set(keys) - there

    async def expire(self, before: datetime, limit: int) -> int:
        require(datetime, before=before)
        require(int, limit=limit)
        require_within(1, limit=limit)
        older = {"sent_at": {"$lt": before}}  # what stays of a deleted one has no such field
        with mongo_errors():
            found = await self._messages.find(older, {"_id": 1}, sort=[("sent_at", 1)], limit=limit).to_list(None)
            if found:
                await self._messages.delete_many({"_id": {"$in": [document["_id"] for document in found]}, **older})
        return len(found)

    async def count_all(self) -> int:
        with mongo_errors():
            found: int = await self._messages.estimated_document_count()  # of the collection, without reading it
        return found

    async def all_messages(self) -> AsyncIterator[MessageRef]:
        async for document in _each(self._messages.find({}, MESSAGE_REF_FIELDS), SCAN_SIZE):
            yield message_ref_from(document)

    async def _put(self, messages: dict[str, ArchivedMessage]) -> None:
        """Create the missing documents in one write, then complete those that only the summarizer has written.

        Meanwhile another archiver may have written them, and changed them since: these stay as they are.
        """
        new = [
            UpdateOne({"_id": key}, {"$setOnInsert": message_document(message)}, upsert=True)
            for key, message in messages.items()
        ]
        created = (await bulk(self._messages, new)).created
        there = [key for position, key in enumerate(messages) if position not in created]
        archived = await self._archived(there)
        incomplete = [key for key in there if key not in archived]
        if incomplete:
            completed = [
                UpdateOne({"_id": key, "source": None, "deleted": None}, {"$set": message_document(messages[key])})
                for key in incomplete
            ]
            await bulk(self._messages, completed)

    async def _upsert(self, keys: Sequence[str], change: Mapping[str, Any]) -> None:
        """Change or create each document; if archiver and summarizer create one at once, the slower one repeats."""
        while keys:
            writes = [UpdateOne({"_id": key}, change, upsert=True) for key in keys]
            keys = [keys[position] for position in (await bulk(self._messages, writes)).duplicates]

    async def _archived(self, keys: Sequence[str]) -> set[str]:
        if not keys:
            return set()
        with mongo_errors():
            cursor = self._messages.find({"_id": {"$in": list(keys)}}, {"source": 1, "deleted": 1})
            documents: list[Mapping[str, Any]] = await cursor.to_list(None)
        return {document["_id"] for document in documents if _is_settled(document)}


class MongoBudgets:
    """Budgets of all workers on one database: a document for each counter, which the server deletes when it expires."""

    def __init__(self, database: MongoDatabase) -> None:
        self._counters = database[BUDGETS]

    async def take(self, key: str, amount: int, limit: int, expires_at: datetime) -> bool:
        require(str, key=key)
        require(int, amount=amount, limit=limit)
        below = {"_id": key, "tokens": {"$lt": limit}}
        change = {"$inc": {"tokens": amount}, "$setOnInsert": {"expires_at": expires_at}}
        with mongo_errors():
            for _ in range(2):  # a counter that another worker created meanwhile is a duplicate key too: look again
                try:
                    await self._counters.update_one(below, change, upsert=True)
                except DuplicateKeyError:
                    continue
                return True
        return False

    async def correct(self, key: str, amount: int) -> int:
        require(str, key=key)
        require(int, amount=amount)
        change = {"$inc": {"tokens": amount}}
        with mongo_errors():
            found = await self._counters.find_one_and_update({"_id": key}, change, return_document=ReturnDocument.AFTER)
        return int(found["tokens"]) if found else 0


class MongoReplies:
    """A ReplyCache. Expired replies that the server has not deleted yet are ignored."""

    def __init__(self, database: MongoDatabase) -> None:
        self._replies = database[REPLIES]
        self._find_replies = _coalesced_find(self._replies)

    async def get(self, key: str) -> KeptReply | None:
        require(str, key=key)
        found = (await self._find_replies([key])).get(key)
        return _reply_from(found) if found and found["expires_at"] > datetime.now(UTC) else None

    async def put(self, key: str, reply: KeptReply, expires_at: datetime) -> None:
        require(str, key=key)
        fields = {name: value for name, value in vars(reply).items() if name != "origin"}
        origin = reply.origin._asdict() if reply.origin else {}
        document = {**fields, **origin, "_id": key, "usage": reply.usage.model_dump(), "expires_at": expires_at}
        with mongo_errors():
            await self._replies.replace_one({"_id": key}, document, upsert=True)

    async def forget(self, scope: str, ordinal: int) -> None:
        require(str, scope=scope)
        require(int, ordinal=ordinal)
        with mongo_errors():
            await self._replies.delete_many({"scope": {"$eq": scope}, "ordinal": {"$gte": ordinal}})


class MongoKeys:
    """ApiKeys: a document for each, whose `_id` is its digest."""

    def __init__(self, database: MongoDatabase) -> None:
        self._keys = database["api_keys"]

    async def put(self, key: ApiKey) -> None:
        fields = {name: value for name, value in vars(key).items() if name != "digest"}
        with mongo_errors():
            await self._keys.replace_one({"_id": key.digest}, fields, upsert=True)

    async def find(self, digest: str) -> ApiKey | None:
        found = await _find(self._keys, digest)
        return _key_from(found) if found else None

    async def list(self) -> list[ApiKey]:
        return [_key_from(document) async for document in _each(self._keys.find({}, sort=[("created_at", 1)]))]

    async def remove(self, key_id: str) -> bool:
        require(str, key_id=key_id)
        with mongo_errors():
            return bool((await self._keys.delete_one({"key_id": {"$eq": key_id}})).deleted_count)


def _key_from(document: Mapping[str, Any]) -> ApiKey:
    fields = {name: document[name] for name in document if name not in ("_id", "scopes")}
    return ApiKey(digest=document["_id"], scopes=tuple(document["scopes"]), **fields)


class MongoErasures:
    """Erasures: a document for each that is under way, under the digest of its person, and one for each receipt."""

    def __init__(self, database: MongoDatabase) -> None:
        self._erasures = database["erasures"]
        self._receipts = database["erasure_receipts"]

    async def begin(self, erasure: Erasure) -> Erasure:
        fields = {**vars(erasure), "conversations": [vars(one) for one in erasure.conversations]}
        await _unless_duplicate(self._erasures.insert_one({**fields, "_id": erasure.key}))
        found = await _find(self._erasures, erasure.key)
        return _erasure_from(found) if found else erasure

    async def add(self, erasure: Erasure, conversations: Sequence[ErasedConversation]) -> None:
        change = {"$push": {"conversations": {"$each": [vars(one) for one in conversations]}}}
        with mongo_errors():
            await self._erasures.update_one(_own_erasure(erasure), change)

    async def report(self, erasure: Erasure) -> None:
        names = ("is_running", "stage", "left", "problem", "detail")
        change = {"$set": {name: getattr(erasure, name) for name in names}}
        with mongo_errors():
            await self._erasures.update_one(_own_erasure(erasure), change)

    async def under_way(self) -> list[Erasure]:
        return [_erasure_from(document) async for document in _each(self._erasures.find({}))]

    async def find(self, erasure_id: str) -> Erasure | None:
        done = await _find(self._receipts, erasure_id)
        if done is not None:
            return Erasure(done["_id"], None, done["tenant_id"], None, done["asked_at"], receipt=done["receipt"])
        with mongo_errors():
            found = await self._erasures.find_one({"erasure_id": {"$eq": erasure_id}})
        return _erasure_from(found) if found else None

    async def end(self, erasure: Erasure, receipt: str) -> None:
        kept = {"tenant_id": erasure.tenant_id, "asked_at": erasure.asked_at, "receipt": receipt}
        await _unless_duplicate(self._receipts.insert_one({**kept, "_id": erasure.erasure_id}))
        with mongo_errors():
            await self._erasures.delete_one(_own_erasure(erasure))


def _own_erasure(erasure: Erasure) -> dict[str, str]:
    return {"_id": erasure.key, "erasure_id": erasure.erasure_id}


def _erasure_from(document: Mapping[str, Any]) -> Erasure:
    fields = {name: document[name] for name in document if name not in ("_id", "conversations")}
    return Erasure(conversations=tuple(ErasedConversation(**one) for one in document["conversations"]), **fields)


@contextmanager
def mongo_errors() -> Iterator[None]:
    """Turn the driver's errors into StoreUnavailable.

    All of them: what a server refuses (credentials, a full disk) is repaired outside as well, and then work goes on.
    The driver's text is left out, for it may quote documents and addresses.
    """
    try:
        yield
    except PyMongoError as error:
        code = getattr(error, "code", None)
        problem = type(error).__name__ + (f" {code}" if code else "")
        if isinstance(error, ServerSelectionTimeoutError):
            problem = f"no server answered in time ({problem})"
        raise StoreUnavailable(store=STORE, problem=problem) from error


class Bulk(NamedTuple):
    """The result of a bulk write, by positions of its operations."""

    created: set[int]
    """Upserts that created a document."""
    duplicates: list[int]
    """Writes that met a duplicate key."""


async def bulk(collection: Collection, operations: Sequence[Any]) -> Bulk:
    """Run at most BATCH_SIZE writes in any order. Raises: StoreUnavailable."""
    with mongo_errors():
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


async def _each(cursor: Any, most: int = PAGE_SIZE) -> AsyncIterator[Mapping[str, Any]]:
    """Documents of a cursor; a reply holds at most so many of them."""
    with mongo_errors():
        async for document in cursor.batch_size(most):
            yield document


async def _find(collection: Collection, key: str) -> Mapping[str, Any] | None:
    require(str, id=key)
    with mongo_errors():
        found: Mapping[str, Any] | None = await collection.find_one({"_id": key})
    return found


def _coalesced_find(collection: Collection) -> Coalesced[Mapping[str, Any]]:
    """Find documents by their `_id`s, with one command for all who ask while another one is away."""

    async def find(keys: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        if len(keys) == 1:  # takes less than a cursor
            document = await _find(collection, keys[0])
            return {} if document is None else {keys[0]: document}
        return {document["_id"]: document async for document in _each(collection.find({"_id": {"$in": list(keys)}}))}

    return Coalesced(find)


async def _unless_duplicate(write: Awaitable[Any]) -> bool:
    """False if a document with this `_id` exists."""
    with mongo_errors():
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
        "deleted": None,
    }


def _following(episode_id: str | None) -> dict[str, Any]:
    return {"deleted": None} | ({} if episode_id is None else {"_id": {"$gt": episode_id}})


def _selected(selection: Selection) -> dict[str, Any]:
    owned = {"conversation_id": selection.conversation_id, "tenant_id": selection.tenant_id}
    wanted: dict[str, Any] = {field: {"$eq": value} for field, value in owned.items()}
    if selection.agent_id is not None:
        wanted["agent_id"] = {"$in": [selection.agent_id, None]}
    if selection.user_id is not None:
        wanted["user_id"] = {"$eq": selection.user_id}
    if selection.before is not None:
        wanted["source.offset"] = {"$lt": selection.before}
    if selection.unsummarised and selection.agent_id is None:
        wanted["episode_id"] = None  # there is an index for it
    elif selection.unsummarised:
        wanted["agent_scopes"] = {"$ne": id_prefix(selection.conversation_id, selection.agent_id).removesuffix(":")}
    return wanted


async def _conversations(
    collection: Collection, field: str, user_id: str, tenant_id: str | None, after: str | None, limit: int
) -> list[str]:
    """A page of the conversations of documents that name the user in this field, each once, by id.

    One short query for each: a `$group` would read every document of the user for each page.
    """
    require(str, user_id=user_id)
    require(str | None, tenant_id=tenant_id, after=after)
    require(int, limit=limit)
    require_within(1, limit=limit)
    wanted: dict[str, Any] = {"tenant_id": {"$eq": tenant_id}, field: {"$eq": user_id}}
    found: list[str] = []
    while len(found) < limit:
        if after is not None:
            wanted["conversation_id"] = {"$gt": after}
        with mongo_errors():
            document = await collection.find_one(wanted, {"conversation_id": 1}, sort=[("conversation_id", 1)])
        if document is None:
            break
        after = document["conversation_id"]
        found.append(after)
    return found


def _of_tenant(conversation_ids: Sequence[str], user_id: str, tenant_id: str | None) -> dict[str, Any]:
    """The filter of these conversations' documents, after a look at all arguments."""
    require_texts(conversation_ids=conversation_ids)
    require(str, user_id=user_id)
    require(str | None, tenant_id=tenant_id)
    return {"conversation_id": {"$in": list(conversation_ids)}, "tenant_id": {"$eq": tenant_id}}


def _is_settled(document: Mapping[str, Any]) -> bool:
    """False while only the summarizer has written it."""
    return is_archived(document) or bool(document.get("deleted"))


def _is_older(document: Mapping[str, Any], offset: int) -> bool:
    """Return whether what is archived of a message is older than a change; so is what only the summarizer wrote."""
    if document.get("deleted"):
        return False
    return not is_archived(document) or bool(document.get("offset", document["source"]["offset"]) < offset)


def _reply_from(document: Mapping[str, Any]) -> KeptReply:
    return KeptReply(
        text=document["text"],
        usage=Usage.model_validate(document["usage"]),
        cut_off=document["cut_off"],
        refused=document["refused"],
        origin=ReplyOrigin(document["scope"], document["ordinal"]) if "scope" in document else None,
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
