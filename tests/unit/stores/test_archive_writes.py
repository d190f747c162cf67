"""A batch of messages that is written in several requests at a time."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from afterword.streams.errors import StoreUnavailable
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.stores.mongo import BATCH_SIZE, MongoMessages
from tests.samples import a_message


class OneFails:
    """A collection whose first write fails, when the others are under way and do not end."""

    def __init__(self) -> None:
        self.running = 0

    async def bulk_write(self, operations: Sequence[Any], ordered: bool) -> None:
        self.running += 1
        first = self.running == 1
        try:
            await asyncio.sleep(0)
            if first:
                raise AutoReconnect("gone")
            await asyncio.Event().wait()
        finally:
            self.running -= 1


async def test_after_a_failed_write_none_is_under_way_that_a_retry_could_meet() -> None:
    collection = OneFails()
    messages = [ArchivedMessage(a_message(f"m{n}"), 0, n) for n in range(2 * BATCH_SIZE + 1)]
    with pytest.raises(StoreUnavailable):
        await MongoMessages({"messages": collection, "deletions": collection}).put_many(messages)
    assert collection.running == 0
