"""Episodes, rolling summaries and conversations in MongoDB.

Every write names the version it follows and goes by `_id`, so that repeating it, or being late with it, changes
nothing. An upsert whose filter asks for an older version meets a duplicate key when the version is there already.
"""

from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any

from pymongo.errors import DuplicateKeyError

from afterword.schemas import SummaryCreated
from afterword.schemas.ids import row_id
from afterword.streams.stores.documents import (
    EPISODE_REF_FIELDS,
    conversation_from,
    episode_document,
    episode_from,
    episode_ref_from,
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
from afterword.streams.stores.mongo import Collection, Database, each, unavailable

COUNTERS = ("episode_count", "message_count", "token_count", "counted_episodes")
REVISED = ("title", "last_revision", "updated_at")
"""What a higher revision of a conversation's last episode changes."""


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
        with unavailable():
            document = await self._rows.find_one({"conversation_id": conversation_id}, sort=[("row", -1)])
        return row_from(document) if document else None

    async def put_row(self, row: RollingRow, after: RollingRow | None) -> bool:
        document = row_document(row)
        if after is None or after.row != row.row:
            return await _unless_duplicate(self._rows.insert_one(document))
        revision: Any = (
            after.last_revision if after.last_revision > 1 else {"$in": [1, None]}
        )  # None: an older version's
        fence = {"last_ordinal": after.last_ordinal, "last_revision": revision}
        unchanged = {"_id": row_id(after.conversation_id, after.row), **fence}
        with unavailable():
            result = await self._rows.replace_one(unchanged, document)
        return bool(result.matched_count)

    async def advance(self, summary: SummaryCreated) -> None:
        key = scope_of(summary)
        while not await self._advanced(key, summary):
            known = await self.conversation(key)
            if known and known.last_ordinal >= summary.ordinal:
                await self._revise(key, summary)
                return

    async def conversation(self, conversation_id: str) -> Conversation | None:
        document = await _find(self._conversations, conversation_id)
        return conversation_from(document) if document else None

    async def latest(
        self, conversation_id: str, limit: int, *, before: int | None = None, agent_id: str | None = None
    ) -> list[StoredEpisode]:
        wanted = _of_scope(conversation_id, agent_id) | ({} if before is None else {"ordinal": {"$lt": before}})
        cursor = self._episodes.find(wanted, sort=[("ordinal", -1)], limit=limit)
        return [episode_from(document) async for document in each(cursor)]

    async def tokens_before(self, conversation_id: str, agent_id: str | None = None) -> int:
        total = {"$group": {"_id": None, "tokens": {"$sum": "$compression.tokens_before"}}}
        with unavailable():
            found = await self._episodes.aggregate([{"$match": _of_scope(conversation_id, agent_id)}, total]).to_list(1)
        return int(found[0]["tokens"]) if found else 0

    async def following(self, episode_id: str | None, limit: int) -> list[StoredEpisode]:
        wanted = {} if episode_id is None else {"_id": {"$gt": episode_id}}
        cursor = self._episodes.find(wanted, sort=[("_id", 1)], limit=limit)
        return [episode_from(document) async for document in each(cursor)]

    async def all_episodes(self) -> AsyncIterator[EpisodeRef]:
        async for document in each(self._episodes.find({}, (*EPISODE_REF_FIELDS, "episode_revision"))):
            yield episode_ref_from(document)

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


def _of_scope(conversation_id: str, agent_id: str | None) -> dict[str, Any]:
    prefix = id_prefix(conversation_id, agent_id)
    return {"conversation_id": conversation_id, "_id": {"$gte": prefix, "$lt": prefix[:-1] + chr(ord(prefix[-1]) + 1)}}


async def _find(collection: Collection, key: str) -> Mapping[str, Any] | None:
    with unavailable():
        found: Mapping[str, Any] | None = await collection.find_one({"_id": key})
    return found


async def _unless_duplicate(write: Awaitable[Any]) -> bool:
    """False if a document with this `_id` is in the way."""
    with unavailable():
        try:
            await write
        except DuplicateKeyError:
            return False
    return True
