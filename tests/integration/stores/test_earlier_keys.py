"""Counts and rolling rows that an earlier version kept under keys that two scopes could share."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from afterword.schemas.ids import earlier_scope_id
from afterword.streams.settings import Settings
from afterword.streams.stores import mongo
from afterword.streams.stores.documents import row_document
from afterword.streams.stores.episodes import RollingRow, StoredEpisode, scope_of
from afterword.streams.stores.mongo import Database, MongoEpisodes
from tests.samples import NOON, a_stored_episode

MINE: dict[str, dict[str, Any]] = {
    "an agent's part": {"conversation_id": "a", "agent_id": "b", "episode_id": "a/b:1"},
    "a conversation": {"conversation_id": "a/b", "episode_id": "a%2Fb:1"},
}


@pytest_asyncio.fixture
async def database(make_settings: Callable[..., Settings]) -> AsyncIterator[Database]:
    opened = mongo.connect(make_settings().mongo)
    await mongo.ensure_indexes(opened)
    yield opened
    await mongo.close(opened)


def stored(name: str, ordinal: int = 1, **fields: Any) -> StoredEpisode:
    given = MINE[name]
    ids = {"episode_id": given["episode_id"].replace(":1", f":{ordinal}")}
    return a_stored_episode(ordinal, **{**given, **ids, "rolling_summary": f"{name}.", "title": name, **fields})


async def as_once_written(database: Database, episode: StoredEpisode) -> RollingRow:
    """The documents of one episode as that version wrote them."""
    episodes, summary = MongoEpisodes(database), episode.summary
    await episodes.add(episode)
    await episodes.advance(summary)
    made = await database["conversations"].find_one({"_id": scope_of(summary)})
    await database["conversations"].delete_one({"_id": scope_of(summary)})
    await database["conversations"].insert_one({**made, "_id": "a/b"})
    row = RollingRow("a/b", 1, summary.rolling_summary, 3, first_ordinal=1, last_ordinal=1, updated_at=NOON)
    await database["conversation_summaries"].insert_one(row_document(row))
    return row


@pytest.mark.parametrize("name", MINE)
async def test_the_owner_goes_on_where_it_was(database: Database, name: str) -> None:
    episodes, first, second = MongoEpisodes(database), stored(name), stored(name, 2)
    scope = scope_of(first.summary)
    assert earlier_scope_id(scope) == "a/b"
    row = replace(await as_once_written(database, first), conversation_id=scope)
    assert await episodes.latest_row(scope) == row
    await episodes.add(second)
    await episodes.advance(second.summary)
    known = await episodes.conversation(scope)
    assert known is not None
    assert (known.episode_count, known.last_ordinal, known.conversation_id) == (2, 2, scope)
    following = replace(row, last_ordinal=2, content="Both.")
    assert await episodes.put_row(following, after=row)
    assert not await episodes.put_row(replace(following, content="Late."), after=row)
    assert await episodes.latest_row(scope) == following


@pytest.mark.parametrize(("owner", "other"), [tuple(MINE), tuple(reversed(MINE))])
async def test_the_other_scope_of_that_key_gets_nothing_of_it(database: Database, owner: str, other: str) -> None:
    episodes = MongoEpisodes(database)
    await as_once_written(database, stored(owner, tenant_id="X"))
    foreign = stored(other, tenant_id="Y")
    scope = scope_of(foreign.summary)
    for _ in range(2):
        assert await episodes.conversation(scope) is None
        assert await episodes.latest_row(scope) is None
        await episodes.add(foreign)
    await episodes.advance(foreign.summary)
    known = await episodes.conversation(scope)
    assert known is not None
    assert (known.tenant_id, known.title, known.episode_count) == ("Y", other, 1)
