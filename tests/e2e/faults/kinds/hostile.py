"""Hostile input from clients, which must not disturb the workers."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.partitioner import DefaultPartitioner

from afterword.operating.topics import LARGE_RECORD_BYTES
from afterword.streams.settings import Kafka
from tests import raw_batches
from tests.e2e.faults import hostile_records as records
from tests.e2e.faults.fault import Fault
from tests.e2e.faults.hostile_records import ACCEPTED, COVERED, REFUSED, Attack, Fates
from tests.e2e.faults.memory import peak
from tests.e2e.faults.world import PATIENCE_SECONDS, World
from tests.openai_server import MODEL

MOST_MEGABYTES = 700
MOST_LOOP_SECONDS = 1.0
MOST_STALL_SECONDS = 15.0
ANY_TIME = {"message_timestamp_after_max_ms": str(2**63 - 1)}
"""Kafka's default refuses records of the next hours; not every broker is configured so."""
EXAMPLES = 5

Position = tuple[int, int]


@dataclass
class Cost:
    """The highest cost of an injection for any worker, with the worker's name."""

    megabytes: tuple[int, str] = (0, "")
    loop: tuple[float, str] = (0.0, "")
    stall: tuple[float, str] = (0.0, "")

    def add(self, world: World) -> None:
        workers = world.deployment.workers.items()
        self.megabytes = max(self.megabytes, *((peak(worker), name) for name, worker in workers))
        self.loop = max(self.loop, world.loops.lap())
        self.stall = max(self.stall, *((stalls.lap(), role) for role, stalls in world.groups.items()))

    def beyond_bounds(self) -> list[str]:
        """Describe each figure that is out of bounds."""
        bounds = (
            (self.megabytes, MOST_MEGABYTES, "MB of memory"),
            (self.loop, MOST_LOOP_SECONDS, "s in which the event loop was blocked"),
            (self.stall, MOST_STALL_SECONDS, "s in which a partition stalled"),
        )
        return [f"{who}: {much:.4g} {what}, at most {most:g}" for (much, who), most, what in bounds if much > most]


class Hostile(Fault):
    """One kind of input. Each of its records must have the predicted outcome and affect nothing else."""

    settings: ClassVar = {
        # no worker is killed: a machine that is too busy for a heartbeat is no failure
        "kafka": {"session_timeout_seconds": 20},
        "llm": {"provider": "openai", "model": MODEL, "attempts": 2, "timeout_seconds": 2, "retry_budget_seconds": 3},
    }
    company = "hostile"
    counted = False
    pause_seconds = (0.1, 0.5)

    def __init__(self) -> None:
        super().__init__()
        self.cost = Cost()
        self.dead = Counter[str]()
        """Dead letters by error type."""
        self.records = 0
        self.refused = Counter[str]()
        """Records that the broker refused, by its error."""
        self._foretold: dict[Position, Fates] = {}
        self._surprises: list[str] = []

    async def inject(self, world: World, chance: random.Random) -> None:
        await self.attack(world, chance)
        self.cost.add(world)

    async def attack(self, world: World, chance: random.Random) -> None:
        raise NotImplementedError

    async def send(self, world: World, attacks: list[Attack], seconds: float = PATIENCE_SECONDS) -> None:
        """Send in order, and wait up to this many seconds until segmenter and archiver are done."""
        kafka = world.deployment.settings.kafka
        producer = AIOKafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers, linger_ms=5, max_request_size=LARGE_RECORD_BYTES
        )
        async with producer:
            sent = [(attack, await _send(producer, kafka, attack)) for attack in attacks]
        last: dict[int, int] = {}
        for attack, delivery in sent:
            for (partition, offset), fates in self._delivered(attack, delivery):
                self._foretold[partition, offset] = fates
                last[partition] = max(last.get(partition, -1), offset)
        await world.handled(last, seconds)

    def _delivered(self, attack: Attack, delivery: "asyncio.Future[Position]") -> Iterator[tuple[Position, Fates]]:
        """Return the positions of an attack's records, without those that the broker has refused."""
        fates = attack.fates_in_batch or [attack.fates]
        self.records += len(fates)
        self.strays += sum(len(each) > 1 and ACCEPTED in each for each in fates)
        if error := delivery.exception():
            self.refused[type(error).__name__] += len(fates)
            if not any(REFUSED in each for each in fates):
                self._surprises.append(f"{type(error).__name__} for {attack.conversation}")
            return
        partition, offset = delivery.result()
        yield from (((partition, offset + delta), each) for delta, each in enumerate(fates))

    async def check(self, world: World) -> None:
        dead = await world.dead_letters()
        wrong = list(self._surprises)
        for position, fates in self._foretold.items():
            fate = dead.get(position, ACCEPTED)
            self.dead[fate] += fate != ACCEPTED
            if fate not in fates and not (fate == ACCEPTED and COVERED in fates):
                wrong.append(f"{position}: {fate}, not {' or '.join(fates)}")
        self.cost.add(world)
        wrong += self.cost.beyond_bounds()
        assert not wrong, f"{len(wrong)} problems: {'; '.join(wrong[:EXAMPLES])}"
        assert not world.ended, f"ended by themselves: {world.ended}"


async def _send(producer: AIOKafkaProducer, kafka: Kafka, attack: Attack) -> "asyncio.Future[Position]":
    """Send, and wait where that matters: raw batches bypass the producer, and the broker refuses whole batches."""
    if attack.batch is not None:
        await producer.flush()
        return await _send_raw(kafka, attack.conversation, attack.batch)
    alone = REFUSED in attack.fates
    if alone:
        await producer.flush()
    delivery = await producer.send(
        kafka.messages_topic, attack.value, attack.key, timestamp_ms=attack.timestamp_ms, headers=attack.headers
    )
    position = asyncio.ensure_future(_position(delivery))
    if alone:
        await asyncio.wait([position])
    return position


async def _position(delivery: Any) -> Position:
    metadata = await delivery
    return metadata.partition, metadata.offset


async def _send_raw(kafka: Kafka, conversation: str, batch: bytes) -> "asyncio.Future[Position]":
    everywhere = list(range(kafka.partitions))
    partition = DefaultPartitioner()(conversation.encode(), everywhere, everywhere)
    delivery: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
    try:
        [offset] = await raw_batches.produce(kafka.bootstrap_servers, kafka.messages_topic, partition, batch)
        delivery.set_result((partition, offset))
    except KafkaError as error:
        delivery.set_exception(error)
    return delivery


class Records(Hostile):
    """Records of one family, each time in new conversations."""

    family: ClassVar[Callable[[str, random.Random], list[Attack]]]

    async def attack(self, world: World, chance: random.Random) -> None:
        # the names differ in many bits, so that a flipped bit turns none of them into another
        name = f"{type(self).__name__.lower()}-{self.injected}-{chance.randbytes(4).hex()}"
        await self.send(world, await asyncio.to_thread(type(self).family, name, chance))


class Bytes(Records):
    name = "bytes: not JSON, deep, huge, twice, cut off"
    family = records.strange_bytes


class Flips(Records):
    name = "bits flipped in messages"
    family = records.flipped_bits


class Headers(Records):
    name = "headers: bad names, huge, forged"
    family = records.strange_headers


class Times(Records):
    name = "times: impossible, far away, skewed clocks"
    family = records.strange_times

    async def attack(self, world: World, chance: random.Random) -> None:
        await world.configure(world.deployment.settings.kafka.messages_topic, **ANY_TIME)
        await super().attack(world, chance)


class Shapes(Records):
    name = "batches of very many records, and that count wrongly"
    family = records.shapes


class Texts(Records):
    name = "texts and ids: runs, marks, control tokens, escapes"
    family = records.strange_texts


class Overrides(Records):
    name = "overrides: out of range, wrong types, never summarized"
    family = records.overrides


HOSTILE: tuple[type[Hostile], ...] = (Bytes, Flips, Headers, Times, Shapes, Texts, Overrides)
