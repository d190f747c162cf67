"""The archive of messages in MongoDB: one document for each, which archiver and summarizer fill from both sides."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from pymongo import UpdateOne

from streams.stores.documents import (
    MESSAGE_REF_FIELDS,
    archived_key,
    message_document,
    message_from,
    message_ref_from,
)
from streams.stores.messages import ArchivedMessage, MessageRef
from streams.stores.mongo import Database, batches, bulk, each, unavailable


class MongoMessages:
    """A MessageArchive."""

    def __init__(self, database: Database) -> None:
        self._messages = database["messages"]

    async def put_many(self, messages: Sequence[ArchivedMessage]) -> None:
        first = {archived_key(archived): archived for archived in reversed(messages)}
        for keys in batches(list(first)):
            await self._put({key: first[key] for key in keys})

    async def assign(self, episode_id: str, keys: Sequence[str]) -> None:
        for batch in batches(keys):
            missed = batch
            while missed:  # two upserts of one new document: the slower one meets the other's, and is repeated
                writes = [UpdateOne({"_id": key}, {"$set": {"episode_id": episode_id}}, upsert=True) for key in missed]
                missed = [missed[position] for position in await bulk(self._messages, writes)]

    async def recent(self, conversation_id: str, limit: int) -> list[ArchivedMessage]:
        if limit < 1:
            return []
        newest_first = [("sent_at", -1), ("source.offset", -1)]
        cursor = self._messages.find({"conversation_id": conversation_id}, sort=newest_first, limit=limit)
        return [message_from(document) async for document in each(cursor)][::-1]

    async def get_many(self, keys: Sequence[str]) -> dict[str, ArchivedMessage]:
        found = {}
        for batch in batches(keys):
            async for document in each(self._messages.find({"_id": {"$in": list(batch)}})):
                if "source" in document:  # else only the summarizer has been here
                    found[document["_id"]] = message_from(document)
        return found

    async def all_messages(self) -> AsyncIterator[MessageRef]:
        async for document in each(self._messages.find({}, MESSAGE_REF_FIELDS)):
            yield message_ref_from(document)

    async def _put(self, messages: dict[str, ArchivedMessage]) -> None:
        """Reads first, and writes by `_id` alone: with a second condition the embedded server scans the collection.

        Between the two only another archiver of the same partition can write, and it writes the same.
        """
        there = await self._archived(list(messages))
        missed = [key for key in messages if key not in there]
        while missed:  # two upserts of one new document: the slower one meets the summarizer's, and is repeated
            writes = [_archive(key, messages[key]) for key in missed]
            missed = [missed[position] for position in await bulk(self._messages, writes)]

    async def _archived(self, keys: Sequence[str]) -> set[str]:
        if not keys:
            return set()
        with unavailable():
            cursor = self._messages.find({"_id": {"$in": list(keys)}}, {"source": 1})
            documents: list[Mapping[str, Any]] = await cursor.to_list(None)
        return {document["_id"] for document in documents if "source" in document}


def _archive(key: str, archived: ArchivedMessage) -> UpdateOne:
    return UpdateOne({"_id": key}, {"$set": message_document(archived)}, upsert=True)
