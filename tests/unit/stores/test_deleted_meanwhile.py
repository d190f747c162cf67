"""What is deleted after a server has found it and before it answers: the embedded one hands over what is left."""

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from afterword.streams.stores.documents import deleted_message_document, episode_document, message_document
from afterword.streams.stores.messages import ArchivedMessage, Selection
from afterword.streams.stores.mongo import MongoEpisodes, MongoMessages
from tests.samples import a_message, a_stored_episode, a_summary

Document = Mapping[str, Any]
LIVING = a_stored_episode(2)
DELETED = {"_id": "c1:1", "deleted": True, "revision": 2}
MESSAGE = ArchivedMessage(a_message("m2"), 0, 2)


class Cursor:
    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents = documents

    def batch_size(self, _: int) -> "Cursor":
        return self

    async def __aiter__(self) -> AsyncIterator[Document]:
        for document in self._documents:
            yield document

    async def close(self) -> None: ...


class Collection:
    """Answers one question after the other, whatever is asked."""

    def __init__(self, *answers: Iterable[Document]) -> None:
        self._answers = iter(answers)

    def find(self, *_: Any, **__: Any) -> Cursor:
        return Cursor(next(self._answers))

    async def find_one(self, *_: Any, **__: Any) -> Document | None:
        return next(iter(next(self._answers)), None)


def database(**collections: Collection) -> Any:
    return defaultdict(Collection, collections)


READS: dict[str, Callable[[MongoEpisodes], Awaitable[object]]] = {
    "later": lambda episodes: episodes.later(a_summary(), 10, 1),
    "expired": lambda episodes: episodes.expired(datetime(2026, 1, 1, tzinfo=UTC), 10),
    "latest": lambda episodes: episodes.latest("c1", 10),
    "following": lambda episodes: episodes.following(None, 10),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_a_page_of_episodes_is_read_again(read: Callable[[MongoEpisodes], Awaitable[object]]) -> None:
    """A page that lacks an episode would be taken for the last one."""
    known = episode_document(LIVING)
    assert await read(MongoEpisodes(database(episodes=Collection([DELETED, known], [known])))) == [LIVING]


async def test_an_episode_is_left_out_of_all() -> None:
    episodes = MongoEpisodes(database(episodes=Collection([DELETED, episode_document(LIVING)])))
    assert [found.episode_id async for found in episodes.all_episodes()] == [LIVING.summary.episode_id]


async def test_a_message_is_left_out_of_the_newest() -> None:
    messages = MongoMessages(
        database(messages=Collection([deleted_message_document("c1:m1", 5), message_document(MESSAGE)]))
    )
    assert [found async for found in messages.newest(Selection("c1", None))] == [MESSAGE]


async def test_the_first_message_is_the_next_one_then() -> None:
    left, known = deleted_message_document("c1:m1", 5), message_document(MESSAGE)
    assert await MongoMessages(database(messages=Collection([left], [known]))).first("c1") == MESSAGE
    assert await MongoMessages(database(messages=Collection([left], []))).first("c1") is None
