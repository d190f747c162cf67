"""Whether somebody else was in a conversation of the person decides what of it is deleted."""

from collections.abc import Sequence

import pytest

from afterword.producer import WrittenAt
from afterword.schemas import ConversationDeleted, MessageDeleted
from tests.samples import a_stored_episode
from tests.summarizer_world import NO_FAULTS
from tests.unit.afterword.erasing.test_interrupted import TENANT, ErasesWithoutBroker, World


class RecordingEraser(ErasesWithoutBroker):
    """Keeps what it sends."""

    def __init__(self, world: World) -> None:
        super().__init__(world, NO_FAULTS)
        self.sent: list[ConversationDeleted | MessageDeleted] = []

    async def send_all(self, events: Sequence[ConversationDeleted | MessageDeleted]) -> list[WrittenAt]:
        self.sent += events
        return await super().send_all(events)


@pytest.mark.parametrize(("other", "deleted"), [("bob", MessageDeleted), (None, ConversationDeleted)])
async def test_who_has_episodes_in_a_conversation_keeps_them_though_their_messages_have_expired(
    other: str | None, deleted: type
) -> None:
    world = World()
    await world.say("c1", "ann")
    if other:
        await world.episodes.add(a_stored_episode(user_id=other, tenant_id=TENANT))
    eraser = RecordingEraser(world)
    receipt = await eraser.erase("ann", TENANT)
    assert [type(event) for event in eraser.sent] == [deleted]
    assert len(receipt.shared_conversations) == bool(other)
