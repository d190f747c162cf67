from datetime import UTC, datetime

import pytest

from afterword.context import read_context
from schemas import MessageCreated
from streams.stores.episodes import Conversation, RollingRow
from streams.stores.memory import MemoryEpisodes, MemoryMessages
from streams.stores.messages import ArchivedMessage

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def archived(n: int, tenant: str | None = None) -> ArchivedMessage:
    message = MessageCreated(
        id=str(n),
        conversation_id="c",
        user_id="u",
        tenant_id=tenant,
        role="user",
        content=f"text {n}",
        sent_at=NOON.replace(minute=n),
    )
    return ArchivedMessage(message, 0, n)


@pytest.fixture
def episodes() -> MemoryEpisodes:
    store = MemoryEpisodes()
    store.conversations["c"] = Conversation("c", "A title", "u", "ours", 2, 2, 12, NOON)
    store.rows["c"] = [RollingRow("c", 1, "What happened so far.", 5, 1, 2, NOON)]
    return store


@pytest.fixture
async def messages() -> MemoryMessages:
    store = MemoryMessages()
    await store.put_many([archived(n, "ours") for n in range(1, 7)])
    return store


async def test_title_rolling_summary_and_the_last_messages(episodes, messages):
    found = await read_context(episodes, messages, "c", 4)
    assert found is not None
    assert (found.title, found.rolling_summary, found.episode_count) == ("A title", "What happened so far.", 2)
    assert [m.id for m in found.messages] == ["3", "4", "5", "6"]
    assert list(found.lines())[-1] == "user: text 6"
    assert found.as_dict()["messages"][0]["content"] == "text 3"


async def test_a_conversation_without_episodes_shows_its_messages(messages):
    found = await read_context(MemoryEpisodes(), messages, "c", 2)
    assert found is not None
    assert (found.title, found.rolling_summary) == ("", "")
    assert [m.id for m in found.messages] == ["5", "6"]


async def test_no_messages_at_all_may_be_asked_for(episodes, messages):
    found = await read_context(episodes, messages, "c", 0)
    assert found is not None
    assert found.messages == ()


async def test_an_unknown_conversation_is_none(episodes, messages):
    assert await read_context(episodes, messages, "another", 4) is None


async def test_messages_of_another_tenant_are_never_shown(episodes, messages):
    await messages.put_many([archived(7, "theirs")])
    found = await read_context(episodes, messages, "c", 4)
    assert found is not None
    assert {m.tenant_id for m in found.messages} == {"ours"}
