"""An LLM's answers in MongoDB, which deletes what has expired; where it does not (docs/adr), they are passed over."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from afterword.schemas import Usage
from afterword.streams.stores.mongo import REPLIES, Database, unavailable
from afterword.streams.stores.replies import KeptReply


class MongoReplies:
    """A ReplyCache."""

    def __init__(self, database: Database) -> None:
        self._replies = database[REPLIES]

    async def get(self, key: str) -> KeptReply | None:
        with unavailable():
            found = await self._replies.find_one({"_id": key})
        return _reply_from(found) if found and found["expires_at"] > datetime.now(UTC) else None

    async def put(self, key: str, reply: KeptReply, expires_at: datetime) -> None:
        document = {**vars(reply), "_id": key, "usage": reply.usage.model_dump(), "expires_at": expires_at}
        with unavailable():
            await self._replies.replace_one({"_id": key}, document, upsert=True)

    async def forget(self, keys: Sequence[str]) -> None:
        if keys:
            with unavailable():
                await self._replies.delete_many({"_id": {"$in": list(keys)}})


def _reply_from(document: Mapping[str, Any]) -> KeptReply:
    return KeptReply(
        text=document["text"],
        usage=Usage.model_validate(document["usage"]),
        cut_off=document["cut_off"],
        refused=document["refused"],
    )
