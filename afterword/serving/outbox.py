"""What goes to the topic `messages`: the records of writes, their checks, and the producer."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Generic, TypeVar

import orjson

from afterword.reading.memory import Memory
from afterword.schemas import (
    ConversationAssigned,
    ConversationDeleted,
    ConversationFlush,
    InputEvent,
    InvalidRecord,
    MessageCreated,
    decode_input,
)
from afterword.schemas.base import ANYONE, Id, Model, Owner
from afterword.schemas.records import ProducerRecord, owner_header, to_record
from afterword.serving.problems import MAX_PROBLEMS_NAMED, NotFound, RequestInvalid
from afterword.streams.errors import BrokerUnavailable
from afterword.streams.settings import Kafka
from afterword.streams.tasks import in_parts, paced
from afterword.writing.producer import Producer, WrittenAt

SOURCE = "afterword/server"
"""CloudEvents source of records written through the server."""
LOOKED_UP_TOGETHER = 100
"""The owners of this many conversations are asked for at once."""
METADATA_BYTES = 64 * 1024
"""Upper limit for the metadata of a message."""
K = TypeVar("K")
T = TypeVar("T")
BEGUN_SECONDS = 60.0
MOST_BEGUN = 10_000
ACKNOWLEDGE_SECONDS = 15.0
"""How long Kafka may take to acknowledge all records of a request. The client itself would keep trying for minutes."""


class RecordPlace(Model):
    """A record's position on the topic."""

    partition: int
    """The record's partition."""
    offset: int
    """The record's offset."""


class WrittenAnswer(Model):
    """Positions of the records that Kafka acknowledged, in the order of the request."""

    records: tuple[RecordPlace, ...]
    """One position for each event."""


async def require_own(memory: Memory, owner: Owner, conversation_ids: Iterable[Id], new: bool = False) -> frozenset[Id]:
    """Check that conversations belong to the owner, and return those that are not known yet.

    An unknown conversation is accepted with `new`, or if the principal may act for any user. Raises: NotFound for
    somebody else's, and StoreUnavailable.
    """
    if owner.tenant_id is ANYONE and owner.user_id is ANYONE:
        return frozenset()
    unknown = set(conversation_ids)
    async for some in paced(in_parts([*unknown], LOOKED_UP_TOGETHER)):
        owners = await memory.owners(some)
        unknown.difference_update(owners)
        if not all(owner.has(*whose) for whose in owners.values()):
            raise NotFound(what="conversation")
    if unknown and not new and owner.user_id is not ANYONE:
        raise NotFound(what="conversation")
    return frozenset(unknown)


async def write_change(memory: Memory, outbox: "Outbox", owner: Owner, event: InputEvent) -> WrittenAnswer:
    """Send a change of a conversation that belongs to the principal, or a flush of one that is not known yet.

    Raises: NotFound, RequestInvalid, StoreUnavailable, BrokerUnavailable, TopicMissing.
    """
    is_flush = isinstance(event, ConversationFlush)
    unknown = await require_own(memory, owner, {event.conversation_id}, new=is_flush)
    return await write_events(outbox, [event], owner, unknown)


async def write_events(
    outbox: "Outbox", events: Sequence[InputEvent], owner: Owner, unknown: Container[Id]
) -> WrittenAnswer:
    """Send events of an owner. Records of `unknown` conversations claim them, which the segmenter compares.

    Raises: RequestInvalid, BrokerUnavailable, TopicMissing.
    """
    # in a thread, because a large batch takes long
    records = await asyncio.to_thread(records_of, events)
    if isinstance(owner.user_id, str):
        claim = owner_header(None if owner.tenant_id is ANYONE else owner.tenant_id, owner.user_id)
        for record in records:
            record.headers.extend([claim] if record.conversation_id in unknown else [])
    written = await outbox.send(records)
    outbox.begun.add(events)
    return WrittenAnswer(records=tuple(RecordPlace(partition=one.partition, offset=one.offset) for one in written))


def records_of(events: Sequence[InputEvent]) -> list[ProducerRecord]:
    """Make records, and decode each as a worker will, so that a 202 is never followed by a dead letter.

    Raises: RequestInvalid.
    """
    now = datetime.now(UTC)
    records = [to_record(event, now, SOURCE) for event in events]
    problems: list[tuple[str, str]] = []
    for at, (record, event) in enumerate(zip(records, events, strict=True)):
        if len(orjson.dumps(getattr(event, "metadata", None))) > METADATA_BYTES:
            problems.append((f"body.messages.{at}.metadata", f"must have at most {METADATA_BYTES:,} bytes"))
        try:
            decode_input(record.conversation_id.encode(), record.value, record.headers, 0)
        except InvalidRecord as error:
            problems.append((f"body.messages.{at}", f"{error.error_type}: {error.detail}"))
    if problems:
        raise RequestInvalid(problems=problems[:MAX_PROBLEMS_NAMED])
    return records


@asynccontextmanager
async def in_time(kafka: Kafka, seconds: float) -> AsyncIterator[None]:
    """Limit the time that a block may wait for Kafka. Raises: BrokerUnavailable."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise BrokerUnavailable(servers=kafka.bootstrap_servers, problem=f"no answer in {seconds:g} s") from None


class Pace(Generic[K, T]):
    """Lets a write of each key begin every so many seconds. Of those that wait meanwhile, only the last is made."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begun: OrderedDict[K, float] = OrderedDict()
        self._last: dict[K, Callable[[], Awaitable[T]]] = {}
        self._waiting: dict[K, asyncio.Task[T]] = {}

    async def write(self, key: K, write: Callable[[], Awaitable[T]]) -> T:
        """Write now, or when the key's last write is long enough ago. All who wait get the result of the last `write`.

        Raises: what `write` raises.
        """
        now = time.monotonic()
        while self._begun and next(iter(self._begun.values())) <= now - self._seconds:
            self._begun.popitem(last=False)
        self._last[key] = write
        if key not in self._waiting:
            self._waiting[key] = asyncio.create_task(self._write(key, self._begun.get(key)))
        return await asyncio.shield(self._waiting[key])

    async def _write(self, key: K, before: float | None) -> T:
        if before is not None:
            await asyncio.sleep(before + self._seconds - time.monotonic())
        del self._waiting[key]
        self._begun[key] = time.monotonic()
        self._begun.move_to_end(key)
        return await self._last.pop(key)()


class Begun:
    """Conversations that were written to a moment ago, and may not be archived yet, with their users and tenants."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, tuple[float, str, str | None]] = OrderedDict()

    def add(self, events: Sequence[InputEvent]) -> None:
        for event in events:
            if isinstance(event, MessageCreated) and not self.is_of(Owner(), event.conversation_id):
                self._owners[event.conversation_id] = time.monotonic(), event.user_id, event.tenant_id
            elif isinstance(event, ConversationAssigned):
                at, user_id, tenant_id = self._owners.get(event.conversation_id, (0.0, "", None))
                if (user_id, tenant_id) == (event.from_user_id, event.tenant_id):
                    self._owners[event.conversation_id] = at, event.user_id, tenant_id
            elif isinstance(event, ConversationDeleted):
                self._owners.pop(event.conversation_id, None)
        while len(self._owners) > MOST_BEGUN:
            self._owners.popitem(last=False)

    def forget(self, user_id: str, tenant_id: str | None) -> None:
        for name in self.of(user_id, tenant_id):
            del self._owners[name]

    def of(self, user_id: str, tenant_id: str | None) -> list[str]:
        """Return the conversations that are this user's."""
        return [name for name in list(self._owners) if self.is_of(Owner(user_id, tenant_id), name)]

    def is_of(self, owner: Owner, conversation_id: str) -> bool:
        """Return whether this process took the owner's first message of the conversation within BEGUN_SECONDS."""
        at, user_id, tenant_id = self._owners.get(conversation_id, (float("-inf"), "", None))
        if time.monotonic() - at > BEGUN_SECONDS:
            self._owners.pop(conversation_id, None)
            return False
        return owner.has(user_id, tenant_id)


class Outbox:
    """Sends records to the topic `messages`. Use it within `aclosing`.

    `make` builds a producer that is not yet connected. `seconds` limits the wait for acknowledgement of a request's
    records.
    """

    def __init__(self, kafka: Kafka, make: Callable[[], Producer], seconds: float = ACKNOWLEDGE_SECONDS) -> None:
        self._kafka = kafka
        self._make = make
        self._seconds = seconds
        self._opening = asyncio.Lock()
        self._running = AsyncExitStack()
        self._producer: Producer | None = None
        self.begun = Begun()

    async def send(self, records: Sequence[ProducerRecord]) -> list[WrittenAt]:
        """Send the records, and return their positions once all are acknowledged.

        Raises: TopicMissing; BrokerUnavailable, also if there is no answer in time. In that case some records may still
        be written later, and a repeated message is dropped as a duplicate.
        """
        async with in_time(self._kafka, self._seconds):
            return await (await self.open()).send_all(records)

    async def open(self) -> Producer:
        """Return the producer, connecting it first if necessary. Raises: BrokerUnavailable, TopicMissing."""
        async with self._opening:
            if self._producer is None:
                self._producer = await self._running.enter_async_context(self._make())
        return self._producer

    async def aclose(self) -> None:
        """Wait for all acknowledgements, then disconnect."""
        await self._running.aclose()
