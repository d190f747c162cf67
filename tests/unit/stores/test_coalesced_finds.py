"""Documents that many episodes in flight ask for at a time are found with one command."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from afterword.streams.stores.mongo import MongoReplies

REPLY = {"text": "hello", "usage": {}, "cut_off": False, "refused": False}


class Found:
    """A cursor."""

    def __init__(self, documents: list[Mapping[str, Any]]) -> None:
        self._documents = documents

    def batch_size(self, _: int) -> Self:
        return self

    async def __aiter__(self) -> AsyncIterator[Mapping[str, Any]]:
        for document in self._documents:
            yield document


class Collection:
    """Has a document for each of its ids, and notes the commands."""

    def __init__(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        self._documents = documents
        self.asked: list[list[str]] = []

    async def find_one(self, wanted: Mapping[str, str]) -> Mapping[str, Any] | None:
        self.asked.append([wanted["_id"]])
        await asyncio.sleep(0)
        return self._documents.get(wanted["_id"])

    def find(self, wanted: Mapping[str, Mapping[str, list[str]]]) -> Found:
        self.asked.append(wanted["_id"]["$in"])
        return Found([self._documents[key] for key in self.asked[-1] if key in self._documents])


async def test_who_asks_while_a_command_is_away_shares_the_next_one() -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    kept = Collection({key: {**REPLY, "_id": key, "text": key, "expires_at": later} for key in "abc"})
    replies = MongoReplies({"llm_cache": kept})
    found = await asyncio.gather(*[replies.get(key) for key in "abcx"])
    assert [reply and reply.text for reply in found] == ["a", "b", "c", None]
    assert kept.asked == [["a"], ["b", "c", "x"]]
