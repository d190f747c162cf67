"""Erasing without servers: stores in memory, and a log in which tests set what the workers have not finished."""

from collections.abc import AsyncGenerator, Sequence, Set
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

from afterword.operating.dlq import DeadLetterCounts
from afterword.operating.eraser import Eraser
from afterword.operating.person import Receipt
from afterword.schemas import ConversationDeleted, MessageDeleted
from afterword.schemas.dead_letters import DeadLetter
from afterword.streams.kafka.clients import Position
from afterword.streams.settings import load_settings
from afterword.streams.stores.messages import ArchiveChange, ArchivedMessage
from afterword.writing.producer import WrittenAt
from tests.doubles.index import MemoryIndex
from tests.doubles.stores import MemoryEpisodes, MemoryErasures, MemoryMessages
from tests.samples import a_message
from tests.summarizer_world import NO_FAULTS, Faults

SETTINGS = load_settings()
TENANT = "acme"


@dataclass(frozen=True)
class Unread:
    """A record that a worker has not finished."""

    topic: str
    offset: int
    key: bytes
    partition: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass
class World:
    """The stores and the log, which outlive the erasing process."""

    messages: MemoryMessages = field(default_factory=MemoryMessages)
    episodes: MemoryEpisodes = field(default_factory=MemoryEpisodes)
    erasures: MemoryErasures = field(default_factory=MemoryErasures)
    offsets: Any = field(default_factory=count)
    unread: list[Unread] = field(default_factory=list)
    sent: list[ConversationDeleted | MessageDeleted] = field(default_factory=list)

    async def say(self, conversation: str, user: str) -> None:
        """Archive a message."""
        offset = next(self.offsets)
        message = a_message(f"m{offset}", conversation, user_id=user, tenant_id=TENANT)
        await self.messages.put_many([ArchivedMessage(message, 0, offset)])

    async def erase(self, faults: Faults = NO_FAULTS, timeout_seconds: float = 60) -> Receipt:
        return await ErasesWithoutBroker(self, faults).erase("ann", TENANT, timeout_seconds=timeout_seconds)


class ErasesWithoutBroker(Eraser):
    """An eraser whose records are archived at once, on topics without dead letters."""

    def __init__(self, world: World, faults: Faults = NO_FAULTS) -> None:
        self.world = world
        given = {name: faults.around(getattr(world, name)) for name in ("messages", "episodes", "erasures")}
        parts: Any = SimpleNamespace(**given, index=MemoryIndex(), prepare_database=nothing)
        self.log = self
        super().__init__(SETTINGS, parts, self, faults.around(self))  # type: ignore[arg-type]

    async def send_all(self, events: Sequence[ConversationDeleted | MessageDeleted]) -> list[WrittenAt]:
        self.world.sent += events
        written = [WrittenAt(0, next(self.world.offsets)) for _ in events]
        for event, (partition, offset) in zip(events, written, strict=True):
            await self.world.messages.change(ArchiveChange(event, partition, offset))
        return written

    async def ends(self, _topic: str) -> dict[Any, int]:
        return {}

    async def left(self, *_: Any) -> int:
        return 0

    async def unread(self, _group: str, topic: str, _ends: Any) -> AsyncGenerator[Any, None]:
        for record in self.world.unread:
            if record.topic == topic:
                yield record

    async def unfinished(self, _group: str, topic: str, records: Set[Position]) -> set[Position]:
        return {Position(one.partition, one.offset) for one in self.world.unread if one.topic == topic} & records

    sources = ()

    async def topics(self) -> list[str]:
        return ["messages.dlq", "chat.dlq"]

    async def unresolved(self, *_: Any) -> AsyncGenerator[DeadLetter, None]:
        for letter in ():
            yield letter

    async def resolve(self, *_: Any) -> DeadLetterCounts:
        return DeadLetterCounts()

    async def count(self, *_: Any) -> DeadLetterCounts:
        return DeadLetterCounts()

    async def _topic_dates(self, *_: Any) -> tuple[()]:
        return ()


async def nothing() -> None: ...
