"""The export of a person's data contains everything of theirs and nothing of others."""

from typing import Any

from afterword.operating.copying import export_lines
from afterword.operating.person import PAGE
from afterword.schemas import MessageCreated, MessageDeleted
from afterword.streams.stores.messages import ArchiveChange, ArchivedMessage
from tests.doubles.stores import MemoryEpisodes, MemoryMessages, at_once
from tests.samples import NOON, a_row, a_stored_episode


class World:
    def __init__(self) -> None:
        self.episodes, self.messages = MemoryEpisodes(), MemoryMessages()
        self._offset = 0

    async def say(self, conversation: str, message_id: str, user: str, tenant: str | None = "acme") -> None:
        named = {"conversation_id": conversation, "user_id": user, "tenant_id": tenant, "role": "user"}
        message = MessageCreated(id=message_id, content=f"{user} says {message_id}", sent_at=NOON, **named)
        await self.messages.put_many([ArchivedMessage(message, 0, self._offset)])
        self._offset += 1

    def summarize(
        self, conversation: str, ordinal: int, *users: str, ids: tuple[str, ...] = (), tenant: str = "acme", **more: Any
    ) -> None:
        name = f"{conversation}:{ordinal}"
        of = {"episode_id": name, "conversation_id": conversation, "tenant_id": tenant}
        whose = {"user_id": users[0], "message_ids": ids, "long_summary": f"Long {name}."}
        self.episodes.episodes[name] = a_stored_episode(ordinal, **of | whose | {"participants": users} | more)
        row = a_row(ordinal, conversation, content=f"So far {name}.")
        at_once(self.episodes.put_row(row, None))

    async def export(self, user: str, tenant: str | None = "acme") -> list[dict[str, Any]]:
        return [line async for line in export_lines(self.episodes, self.messages, user, tenant)]


def of_type(lines: list[dict[str, Any]], kind: str, field: str) -> list[str]:
    return [line[field] for line in lines if line["type"] == kind]


async def test_export_has_messages_episodes_and_rolling_summaries() -> None:
    world = World()
    await world.say("a", "m1", "ann")
    await world.say("b", "m2", "ann")
    world.summarize("a", 1, "ann", ids=("m1",))
    lines = await world.export("ann")
    assert (lines[0]["type"], lines[0]["user_id"], lines[0]["tenant_id"]) == ("export", "ann", "acme")
    assert of_type(lines, "message", "content") == ["ann says m1", "ann says m2"]
    assert of_type(lines, "episode", "long_summary") == ["Long a:1."]
    assert of_type(lines, "rolling_summary", "content") == ["So far a:1."]
    assert lines[-1] == {"type": "end", "conversations": 2, "messages": 2, "episodes": 1, "rolling_summaries": 1}


async def test_export_of_shared_conversations_has_own_messages_and_episodes() -> None:
    world = World()
    for message_id, user in (("m1", "bob"), ("m2", "ann"), ("m3", "bob")):
        await world.say("a", message_id, user)
    world.summarize("a", 1, "bob")
    world.summarize("a", 2, "bob", "ann")
    lines = await world.export("ann")
    assert of_type(lines, "message", "id") == ["m2"]
    assert of_type(lines, "episode", "episode_id") == ["a:2"]
    assert of_type(lines, "rolling_summary", "content") == ["So far a:2."]
    assert "m3" in of_type(await world.export("bob"), "message", "id")


async def test_export_has_nothing_of_others_or_deleted() -> None:
    world = World()
    await world.say("a", "m1", "ann")
    await world.say("a", "m2", "ann")
    await world.say("z", "m3", "ann", tenant="other")
    await world.say("n", "m4", "ann", tenant=None)
    await world.say("b", "m5", "anna")
    deletion = MessageDeleted(id="m2", conversation_id="a", tenant_id="acme")
    await world.messages.change(ArchiveChange(deletion, 0, 99))
    world.summarize("a", 1, "ann", tenant="other")  # began it anew when the segmenter's state was lost
    assert of_type(await world.export("ann"), "message", "id") == ["m1"]
    assert of_type(await world.export("ann"), "episode", "episode_id") == []
    assert of_type(await world.export("ann", None), "message", "id") == ["m4"]
    assert (await world.export("nobody"))[-1]["conversations"] == 0


async def test_every_conversation_is_exported_once() -> None:
    world = World()
    for n in range(PAGE + 30):
        await world.say(f"c{n}", "m1", "ann")
        if n % 3 == 0:
            world.summarize(f"c{n}", 1, "ann")
    world.summarize("only-an-episode", 1, "ann")
    found = of_type(await world.export("ann"), "message", "conversation_id")
    assert len(found) == len(set(found)) == PAGE + 30
    assert "only-an-episode" in of_type(await world.export("ann"), "episode", "conversation_id")
