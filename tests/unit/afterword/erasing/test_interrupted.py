"""An erasure that is killed, or whose store is away for a moment: run again, it ends the same."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition

from afterword.dlq import DeadLetterCounts
from afterword.erasing.eraser import Eraser
from afterword.erasing.receipt import Receipt
from afterword.producer import WrittenAt
from afterword.schemas import ConversationDeleted, MessageDeleted
from afterword.schemas.dead_letters import DeadLetter
from afterword.streams.errors import StoreUnavailable
from afterword.streams.settings import load_settings
from afterword.streams.stores.messages import ArchiveChange, ArchivedMessage
from tests.doubles.index import MemoryIndex
from tests.doubles.stores import MemoryEpisodes, MemoryErasures, MemoryMessages, MemoryReplies
from tests.samples import a_message
from tests.summarizer_world import NO_FAULTS, Crash, Fault, Faults, crash, outage
from tests.virtual_time import run_in_virtual_time

SETTINGS = load_settings()
TENANT = "acme"


@dataclass
class World:
    """All that outlives the process that erases."""

    messages: MemoryMessages = field(default_factory=MemoryMessages)
    episodes: MemoryEpisodes = field(default_factory=MemoryEpisodes)
    replies: MemoryReplies = field(default_factory=MemoryReplies)
    erasures: MemoryErasures = field(default_factory=MemoryErasures)
    offsets: Any = field(default_factory=count)
    receipts: list[Receipt] = field(default_factory=list)
    """Those that were kept."""

    async def say(self, conversation: str, user: str) -> None:
        """Archive a message."""
        offset = next(self.offsets)
        message = a_message(f"m{offset}", conversation, user_id=user, tenant_id=TENANT)
        await self.messages.put_many([ArchivedMessage(message, 0, offset)])

    async def erase(self, faults: Faults = NO_FAULTS) -> Receipt:
        return await ErasesWithoutBroker(self, faults).erase("ann", TENANT, keep=self.receipts.append)

    @property
    def end(self) -> Any:
        """What is left, and what the receipts of the first request say."""
        said = [one.counts for one in self.receipts if one.receipt_id == self.first]
        return self.messages.messages, self.erasures.erasures, said[-1]

    @property
    def first(self) -> str:
        return self.receipts[0].receipt_id


class ErasesWithoutBroker(Eraser):
    """What it produces is archived at once, everything is read, and no topic has anything."""

    def __init__(self, world: World, faults: Faults) -> None:
        super().__init__(SETTINGS)
        self._world = world
        given = {name: getattr(world, name) for name in ("messages", "episodes", "replies")}
        erasures = faults.around(world.erasures)
        parts: Any = SimpleNamespace(**given, erasures=erasures, index=MemoryIndex(), prepare_database=nothing)
        self._stores = parts
        self._log = self._producer = self._queue = self._episodes_reader = self  # type: ignore[assignment]

    async def send_all(self, events: Sequence[ConversationDeleted | MessageDeleted]) -> list[WrittenAt]:
        written = [WrittenAt(0, next(self._world.offsets)) for _ in events]
        for event, (partition, offset) in zip(events, written, strict=True):
            await self._world.messages.change(ArchiveChange(event, partition, offset))
        return written

    def assignment(self) -> tuple[()]:
        return ()

    async def end_offsets(self, _: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {}

    async def lags(self, *_: Any) -> dict[TopicPartition, int]:
        return {}

    async def ends(self, _topic: str) -> dict[Any, int]:
        return {}

    async def left(self, *_: Any) -> int:
        return 0

    async def unread(self, *_: Any) -> AsyncGenerator[Any, None]:
        for record in ():
            yield record

    async def unresolved(self, *_: Any) -> AsyncGenerator[DeadLetter, None]:
        for letter in ():
            yield letter

    async def resolve(self, *_: Any) -> DeadLetterCounts:
        return DeadLetterCounts()

    async def _configs(self) -> dict[str, dict[str, str]]:
        return {}


async def nothing() -> None: ...


async def a_world() -> World:
    """Somebody alone and among others."""
    world = World()
    await world.say("alone", "ann")
    for user in ("ann", "bob", "ann"):
        await world.say("shared", user)
    return world


async def undisturbed() -> World:
    world = await a_world()
    await world.erase()
    return world


async def disturbed(faults: Faults) -> World:
    """An erasure that a fault ends, and the next one."""
    world = await a_world()
    with suppress(Crash, StoreUnavailable):
        await world.erase(faults)
    if faults.struck:
        await world.erase()
    return world


def test_messages_of_others_stay() -> None:
    world = run_in_virtual_time(undisturbed())
    assert [one.message.user_id for one in world.messages.messages.values()] == ["bob"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("fault", [crash, outage])
def test_a_kill_or_an_outage_at_any_call_ends_the_same(fault: Fault, after: bool) -> None:
    expected = run_in_virtual_time(undisturbed()).end
    for at in count(1):
        faults = Faults(at, after, fault)
        assert run_in_virtual_time(disturbed(faults)).end == expected, f"call {at}"
        if not faults.struck:
            break
    assert at > 10
