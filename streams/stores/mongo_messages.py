"""The archive of messages in MongoDB: one document for each, which archiver and summarizer fill from both sides."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

from pymongo import UpdateOne

from afterword.schemas.ids import scope_id
from afterword.streams.stores.documents import (
    MESSAGE_REF_FIELDS,
    archived_key,
    message_document,
    message_from,
    message_ref_from,
)
from afterword.streams.stores.messages import ArchivedMessage, Counted, MessageRef, Selection, agent_scope
from afterword.streams.stores.mongo import Database, batches, bulk, each, unavailable, upserted

NEWEST_FIRST = [("sent_at", -1), ("source.offset", -1)]
PAGE_SIZE = 50
"""Documents that are loaded at a time where a reader may soon have enough."""


class MongoMessages:
    """A MessageArchive."""

    def __init__(self, database: Database) -> None:
        self._messages = database["messages"]

    async def put_many(self, messages: Sequence[ArchivedMessage]) -> None:
        first = {archived_key(archived): archived for archived in reversed(messages)}
        await asyncio.gather(*[self._put({key: first[key] for key in keys}) for keys in batches(list(first))])

    async def assign(self, episode_id: str, keys: Sequence[str]) -> None:
        change: dict[str, Any] = {"$set": {"episode_id": episode_id}}
        if scope := agent_scope(episode_id):
            change["$addToSet"] = {"agent_scopes": scope}  # what a user says may be in an episode of each agent
        for batch in batches(keys):
            missed = batch
            while missed:  # two upserts of one new document: the slower one meets the other's, and is repeated
                writes = [UpdateOne({"_id": key}, change, upsert=True) for key in missed]
                missed = [missed[position] for position in await bulk(self._messages, writes)]

    async def recent(self, conversation_id: str, limit: int) -> list[ArchivedMessage]:
        if limit < 1:
            return []
        cursor = self._messages.find({"conversation_id": conversation_id}, sort=NEWEST_FIRST, limit=limit)
        return [message_from(document) async for document in each(cursor)][::-1]

    async def newest(self, selection: Selection) -> AsyncGenerator[ArchivedMessage, None]:
        cursor = self._messages.find(_selected(selection), sort=NEWEST_FIRST, batch_size=PAGE_SIZE)
        try:
            async for document in each(cursor):
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
        with unavailable():
            found = await self._messages.find_one({"conversation_id": conversation_id}, sort=[("source.offset", 1)])
        return message_from(found) if found else None

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
        """Makes what is not there, in one write; of what is there, completes what only the summarizer has written.

        Between reading that and completing it only another archiver of the same partition can write, and it writes the
        same. By `_id` alone: with a second condition the embedded server scans the collection.
        """
        made = await upserted(self._messages, [_new(key, message) for key, message in messages.items()])
        there = [key for position, key in enumerate(messages) if position not in made]
        archived = await self._archived(there)
        missed = [key for key in there if key not in archived]
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


def _selected(selection: Selection) -> dict[str, Any]:
    wanted: dict[str, Any] = {"conversation_id": selection.conversation_id, "tenant_id": selection.tenant_id}
    if selection.agent_id is not None:
        wanted["agent_id"] = {"$in": [selection.agent_id, None]}
    if selection.unsummarised and selection.agent_id is None:
        wanted["episode_id"] = None  # there is an index for it
    elif selection.unsummarised:
        wanted["agent_scopes"] = {"$ne": scope_id(selection.conversation_id, selection.agent_id)}
    return wanted


def _new(key: str, archived: ArchivedMessage) -> UpdateOne:
    return UpdateOne({"_id": key}, {"$setOnInsert": message_document(archived)}, upsert=True)


def _archive(key: str, archived: ArchivedMessage) -> UpdateOne:
    return UpdateOne({"_id": key}, {"$set": message_document(archived)}, upsert=True)
