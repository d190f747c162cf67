"""Counts and rolling rows that an earlier version kept under keys that two scopes could share."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from afterword.schemas.ids import earlier_scope_id, escape
from afterword.streams.settings import Settings
from afterword.streams.stores import mongo
from afterword.streams.stores.episodes import RollingRow, StoredEpisode, first_advance, scope_of
from afterword.streams.stores.mongo import MongoDatabase, MongoEpisodes
from tests.samples import NOON, a_stored_episode

SCOPES: dict[str, dict[str, Any]] = {
    "agent b of a": {"conversation_id": "a", "agent_id": "b", "episode_id": "a/b:1"},
    "a/b": {"conversation_id": "a/b", "episode_id": "a%2Fb:1"},
    "a%2Fb": {"conversation_id": "a%2Fb", "episode_id": "a%252Fb:1"},
    "a%b": {"conversation_id": "a%b", "episode_id": "a%25b:1"},
    "a%25b": {"conversation_id": "a%25b", "episode_id": "a%2525b:1"},
    "a//b": {"conversation_id": "a//b", "episode_id": "a%2F%2Fb:1"},
}
PLAIN = {"conversation_id": "plain", "episode_id": "plain:1"}
EARLIER = {name: name for name in SCOPES} | {"agent b of a": "a/b"}
MEETING = [
    ("agent b of a", "a/b"),
    ("a/b", "agent b of a"),
    ("a%2Fb", "a/b"),
    ("a%25b", "a%b"),
    ("a//b", "agent b of a"),
]
"""An owner of earlier documents, and another scope that had or has the same key."""


@pytest_asyncio.fixture
async def database(make_settings: Callable[..., Settings]) -> AsyncIterator[MongoDatabase]:
    opened = mongo.connect(make_settings().mongo)
    await mongo.ensure_indexes(opened)
    yield opened
    await mongo.close(opened)


class Commands(CommandListener):
    """Collects the names of commands."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.names.append(event.command_name)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass


def stored(name: str, ordinal: int = 1, **fields: Any) -> StoredEpisode:
    given = SCOPES.get(name, PLAIN)
    ids = {"episode_id": given["episode_id"].replace(":1", f":{ordinal}")}
    return a_stored_episode(ordinal, **{**given, **ids, "rolling_summary": f"{name}.", "title": name, **fields})


async def as_once_written(database: MongoDatabase, name: str, **fields: Any) -> RollingRow:
    """Write the documents of a first episode as that version did; return the row under the scope's key of today."""
    episode, key = stored(name, **fields), EARLIER[name]
    summary = episode.summary
    await MongoEpisodes(database).add(episode)
    counts = {**vars(first_advance(summary))}
    del counts["conversation_id"]
    await database["conversations"].insert_one({**counts, "_id": key})
    row = RollingRow(key, 1, summary.rolling_summary, 3, first_ordinal=1, last_ordinal=1, updated_at=NOON)
    await database["conversation_summaries"].insert_one({**vars(row), "_id": f"{escape(key)}:1"})
    return replace(row, conversation_id=scope_of(summary))


async def goes_on(episodes: MongoEpisodes, name: str, row: RollingRow, **fields: Any) -> None:
    """Check that the scope is known as after its first episode, and write its second one."""
    second = stored(name, 2, **fields)
    scope = scope_of(second.summary)
    assert await episodes.latest_row(scope) == row
    await episodes.add(second)
    await episodes.advance(second.summary)
    known = await episodes.conversation(scope)
    assert known is not None
    assert (known.episode_count, known.last_ordinal, known.conversation_id) == (2, 2, scope)
    following = replace(row, last_ordinal=2, content=f"Two of {name}.")
    assert await episodes.put_row(following, after=row)
    assert not await episodes.put_row(replace(following, content="Late."), after=row)
    assert await episodes.latest_row(scope) == following


@pytest.mark.parametrize("name", SCOPES)
async def test_the_owner_goes_on_where_it_was(database: MongoDatabase, name: str) -> None:
    row = await as_once_written(database, name)
    assert earlier_scope_id(row.conversation_id) == EARLIER[name]
    await goes_on(MongoEpisodes(database), name, row)


@pytest.mark.parametrize(("owner", "other"), MEETING)
async def test_the_other_scope_of_that_key_gets_nothing_of_it(database: MongoDatabase, owner: str, other: str) -> None:
    episodes = MongoEpisodes(database)
    await as_once_written(database, owner, tenant_id="X")
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


@pytest.mark.parametrize(("owner", "other"), MEETING)
async def test_the_owner_and_the_other_scope_of_that_key_both_go_on(
    database: MongoDatabase, owner: str, other: str
) -> None:
    episodes = MongoEpisodes(database)
    row = await as_once_written(database, owner, tenant_id="X")
    foreign = stored(other, tenant_id="Y")
    await episodes.add(foreign)
    await episodes.advance(foreign.summary)
    begun = replace(row, conversation_id=scope_of(foreign.summary), content=f"{other}.")
    assert await episodes.put_row(begun, after=None)
    assert not await episodes.put_row(begun, after=None)
    await goes_on(episodes, owner, row, tenant_id="X")
    await goes_on(episodes, other, begun, tenant_id="Y")


@pytest.mark.parametrize("name", SCOPES)
async def test_a_higher_revision_of_the_last_episode_changes_the_title_of_an_earlier_document(
    database: MongoDatabase, name: str
) -> None:
    episodes = MongoEpisodes(database)
    row = await as_once_written(database, name)
    await episodes.advance(stored(name, revision=2, title="Again").summary)
    known = await episodes.conversation(row.conversation_id)
    assert known is not None
    assert (known.title, known.last_revision, known.episode_count) == ("Again", 2, 1)


@pytest.mark.parametrize("name", [*SCOPES, "plain"])
async def test_an_episode_is_counted_with_one_command_after_the_first(
    make_settings: Callable[..., Settings], name: str
) -> None:
    settings, commands = make_settings().mongo, Commands()
    client: Any = AsyncIOMotorClient(settings.uri.get_secret_value(), event_listeners=[commands])
    episodes = MongoEpisodes(client[settings.database])
    try:
        await episodes.advance(stored(name).summary)
        commands.names.clear()
        await episodes.advance(stored(name, 2).summary)
    finally:
        client.close()
    assert commands.names == ["update"]
