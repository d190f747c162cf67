"""Moving from the SQLite file to MongoDB: everything is there afterwards, as it was."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from afterword.operating.copying import copy_stores
from afterword.schemas import ConversationAssigned, MessageDeleted, MessageEdited
from afterword.schemas.base import episode_id, scope_id
from afterword.streams.errors import ConfigurationError
from afterword.streams.settings import Mongo, Settings, Sqlite
from afterword.streams.stores.bookkeeping import ApiKey
from afterword.streams.stores.messages import ArchiveChange, ArchivedMessage
from afterword.streams.stores.opening import Stores, open_stores
from tests.samples import NOON, a_conversation, a_message, a_row, a_stored_episode, a_tombstone

MESSAGES = 450
EPISODES = 120
SCOPES = "c1", scope_id("c1", "a1"), "c2"
KEY = ApiKey("digest", "reader", ("read",), "t1", None, NOON)


async def fill(stores: Stores) -> None:
    """Store more than a page of everything, with an edit, deletions, an agent's part, and a lone message."""
    said = [
        ArchivedMessage(
            a_message(f"m{n}", tenant_id="t1", metadata={"a.b": n}, sent_at=NOON + timedelta(seconds=n)), 0, n
        )
        for n in range(MESSAGES)
    ]
    await stores.messages.put_many(said)
    for ordinal in range(1, EPISODES + 1):
        await stores.episodes.put(a_stored_episode(ordinal), None)
        core = said[3 * (ordinal - 1) : 3 * ordinal]
        await stores.messages.assign(f"c1:{ordinal}", core)
    await stores.episodes.put(a_tombstone(1, conversation_id="c2"), None)
    last = tuple(archived.message.id for archived in said[-3:])
    agents = a_stored_episode(1, agent_id="a1", episode_id=episode_id("c1", 1, "a1"), core_ids=last, message_ids=last)
    await stores.episodes.put(agents, None)
    await stores.messages.assign(episode_id("c1", 1, "a1"), said[-3:])
    for scope in SCOPES[:2]:
        await stores.episodes.put_row(a_row(1, scope), None)
        await stores.episodes.put_row(a_row(2, scope), None)
        await stores.episodes.put_conversation(a_conversation(scope), None)
    edit = MessageEdited(id="m1", conversation_id="c1", tenant_id="t1", content="As it was meant.")
    await stores.messages.change(ArchiveChange(edit, 0, 1000))
    gone = MessageDeleted(id="m2", conversation_id="c1", tenant_id="t1")
    await stores.messages.change(ArchiveChange(gone, 0, 1001))
    await stores.keys.put(KEY)


async def contents(stores: Stores) -> dict[str, Any]:
    """Return everything that is copied."""
    refs = [ref async for ref in stores.messages.all_messages()]
    episodes = stores.episodes
    return {
        "messages": sorted(refs, key=lambda ref: ref.key),
        "states": await stores.messages.states([ref.key for ref in refs]),
        "episodes": await episodes.page(None, 1000),
        "rows": {scope: await episodes.rows(scope) for scope in SCOPES},
        "conversations": {scope: await episodes.conversation(scope) for scope in SCOPES},
        "keys": await stores.keys.list(),
    }


async def test_repeated_copies_leave_mongodb_equal_to_the_source(tmp_path: Path, mongo_settings: Mongo) -> None:
    file = tmp_path / "afterword.sqlite"
    settings = Settings(mongo=mongo_settings)
    async with open_stores(Settings(sqlite=Sqlite(path=file))) as source, open_stores(settings) as target:
        await fill(source)
        expected = await contents(source)
        for _ in range(2):
            done = await copy_stores(settings, file, lambda _: None)
            assert (done.messages, done.episodes, done.conversations, done.keys) == (MESSAGES - 1, EPISODES + 2, 2, 1)
            assert await contents(target) == expected


async def test_repeated_copy_brings_what_has_changed_since(tmp_path: Path, mongo_settings: Mongo) -> None:
    file = tmp_path / "afterword.sqlite"
    settings = Settings(mongo=mongo_settings)
    async with open_stores(Settings(sqlite=Sqlite(path=file))) as source, open_stores(settings) as target:
        await fill(source)
        await copy_stores(settings, file, lambda _: None)
        await source.messages.change(assigned("u1", "u2", 2000))
        edit = MessageEdited(id="m5", conversation_id="c1", tenant_id="t1", content="Once more.")
        await source.messages.change(ArchiveChange(edit, 0, 2001))
        await source.episodes.put(a_stored_episode(2, revision=2, title="New"), a_stored_episode(2))
        await source.episodes.put(a_tombstone(3, revision=2), a_stored_episode(3))
        await source.episodes.put_row(a_row(1, revision=2, content="New."), a_row(1))
        await source.episodes.put_conversation(a_conversation(revision=2, title="New"), a_conversation())
        await copy_stores(settings, file, lambda _: None)
        assert await contents(target) == await contents(source)
        assert (await target.messages.conversations_of("u2", "t1", None, 1)) == ["c1"]


def assigned(from_user_id: str, user_id: str, offset: int) -> ArchiveChange:
    event = ConversationAssigned(conversation_id="c1", tenant_id="t1", from_user_id=from_user_id, user_id=user_id)
    return ArchiveChange(event, 0, offset)


async def test_repeated_copy_brings_later_assignments_and_forgets_users(tmp_path: Path, mongo_settings: Mongo) -> None:
    file = tmp_path / "afterword.sqlite"
    settings = Settings(mongo=mongo_settings)
    async with open_stores(Settings(sqlite=Sqlite(path=file))) as source, open_stores(settings) as target:

        async def users() -> list[str]:
            await copy_stores(settings, file, lambda _: None)
            return [*(await target.messages.present_users("c1", "t1")).names.values()]

        await source.messages.change(assigned("guest", "ann", 1))
        assert await users() == ["ann"]
        await source.messages.change(assigned("visitor", "bob", 2))
        assert await users() == ["ann", "bob"]
        await source.messages.forget_user("ann", "t1")
        assert await users() == ["bob"]
        await target.messages.forget_user("bob", "t1")
        assert await users() == []
        await target.messages.change(assigned("other", "cat", 3))
        assert await users() == ["cat"]


@pytest.mark.parametrize("is_there", [False, True])
async def test_copy_needs_a_file_and_servers(tmp_path: Path, is_there: bool) -> None:
    file = tmp_path / "afterword.sqlite"
    settings = Settings(sqlite=Sqlite(path=file)) if is_there else Settings()
    with pytest.raises(ConfigurationError, match="AFTERWORD_SQLITE__PATH" if is_there else "is not a file"):
        await copy_stores(settings, file, lambda _: None)
    assert not file.exists()
