"""Hostile input from clients, an LLM's server and operators, which must not disturb the workers."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.partitioner import DefaultPartitioner

from afterword.operating.topics import LARGE_RECORD_BYTES
from afterword.streams.segmenter.state import TABLES
from afterword.streams.settings import Kafka
from tests import raw_batches
from tests.e2e.deployment import environment_of
from tests.e2e.faults import hostile_records as records
from tests.e2e.faults.fault import Fault
from tests.e2e.faults.hostile_records import ACCEPTED, COVERED, REFUSED, Attack, Fates, flush, message, one
from tests.e2e.faults.memory import peak
from tests.e2e.faults.nonsense import nonsense
from tests.e2e.faults.world import PATIENCE_SECONDS, World
from tests.hostile import IDS
from tests.nasty_texts import mixed
from tests.openai_server import MODEL
from tests.waiting import until

MOST_MEGABYTES = 700
MOST_LOOP_SECONDS = 1.0
MOST_STALL_SECONDS = 15.0
CPU_SHARE = 0.2
LITTLE_CPU_SECONDS = 1800.0
"""Enough for a busy machine; on an idle one, the long form's load takes a sixth of this."""
PERIOD_SECONDS = 0.1
"""Period of the quotas by which Linux limits CPU time."""
COMMAND_SECONDS = 600.0
ANY_TIME = {"message_timestamp_after_max_ms": str(2**63 - 1)}
"""Kafka's default refuses records of the next hours; not every broker is configured so."""
ROOT = Path(__file__).parents[4]
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

    def forget_stalls(self, world: World) -> None:
        """Ignore the stalls of a worker that was not allowed to run."""
        for stalls in world.groups.values():
            stalls.lap()

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
        "llm": {
            "provider": "openai",
            "model": MODEL,
            "attempts": 2,
            "timeout_seconds": 2,
            "retry_budget_seconds": 3,
        },
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
        await self.send(world, await asyncio.to_thread(type(self).family, name, chance))  # compressing takes seconds


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


class Compressed(Records):
    name = "compressed batches: legal, cut off, mislabelled, rubbish"
    family = records.compressed


class Bombs(Records):
    name = "batches that decompress to much more"
    family = records.bombs


class Shapes(Records):
    name = "batches of very many records, and that count wrongly"
    family = records.shapes


class Texts(Records):
    name = "texts and ids: runs, marks, control tokens, escapes"
    family = records.strange_texts


class Overrides(Records):
    name = "overrides: out of range, wrong types, never summarized"
    family = records.overrides


class Flushes(Records):
    name = "flushes: of nobody, of other tenants, again and again"
    family = records.flushes


class LittleCpu(Records):
    """Legal but expensive messages, for workers with a fifth of a core, like a pod at its CPU limit.

    The long form sends 800 messages of 600 kB in one batch, and 1,500 of 40 kB of one conversation, once in a run: they
    take the segmenter some five minutes, and the summarizer fifteen after that, well within the audit's patience.
    """

    name = "long messages, and very many of a conversation, for a fifth of a core"

    async def inject(self, world: World, chance: random.Random) -> None:
        for name in world.targets():
            await world.ready(name)
        before = {name: _rebalances(world, name) for name in world.targets()}
        async with throttled([pid for pid, _ in world.targets().values()]):
            await self.attack(world, chance)
        rebalanced = [name for name, number in before.items() if _rebalances(world, name) > number]
        if rebalanced:
            self._surprises.append(f"{', '.join(rebalanced)} lost a heartbeat")
        blocked, who = world.loops.lap()
        self.notes.append(f"the event loop of {who} was blocked for at most {blocked:.1f} s")
        if blocked > MOST_LOOP_SECONDS / CPU_SHARE:
            self._surprises.append(f"{who}: {blocked:.1f} s in which the event loop was blocked")
        self.cost.forget_stalls(world)
        self.cost.add(world)

    async def attack(self, world: World, chance: random.Random) -> None:
        name = f"littlecpu-{self.injected}-{chance.randbytes(4).hex()}"
        long, many = (800, 1500) if world.long and not self.injected else (5, 20)
        attacks = records.costly(name, long, many)
        began = time.monotonic()
        await self.send(world, attacks, LITTLE_CPU_SECONDS)
        self.notes.append(f"{len(attacks)} sendings took {time.monotonic() - began:.0f} s")


def _rebalances(world: World, name: str) -> int:
    return world.said(name).count(b'"event": "rebalanced"')


@asynccontextmanager
async def throttled(pids: Sequence[int]) -> AsyncIterator[None]:
    """Let processes run for a fifth of the time, as Linux does at a CPU limit."""

    def signal_all(number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    async def alternate() -> None:
        while True:
            signal_all(signal.SIGSTOP)
            await asyncio.sleep(PERIOD_SECONDS * (1 - CPU_SHARE))
            signal_all(signal.SIGCONT)
            await asyncio.sleep(PERIOD_SECONDS * CPU_SHARE)

    task = asyncio.create_task(alternate())
    try:
        yield
    finally:
        task.cancel()
        signal_all(signal.SIGCONT)


class Nonsense(Hostile):
    """Ordinary conversations continue while the LLM gives a different nonsensical answer each time."""

    name = "LLM answers nonsense, bombs, half, too late or not at all"

    async def attack(self, world: World, chance: random.Random) -> None:
        async with world.servers.llm.answering(nonsense(chance)):
            await asyncio.sleep(world.seconds(8, 20))
        self.records += 1


class Topics(Hostile):
    """Misconfigures the topics of a running deployment, then restores them."""

    name = "topics: size limits, retention, cleanup.policy of a changelog"
    times = 3

    async def attack(self, world: World, chance: random.Random) -> None:
        await (self._sizes, self._retention, self._policy)[self.injected % 3](world)
        await world.progress()

    async def _sizes(self, world: World) -> None:
        """Check that clients are refused, and that dead letters of 900 kB still fit."""
        kafka = world.deployment.settings.kafka
        name = f"sizes-{self.injected}"
        await world.configure(kafka.dead_letters(kafka.messages_topic), max_message_bytes=str(2**20))
        large = message(name, 1, content="x" * 900_000)
        await self.send(world, [one(name, large, "too_large"), one(name, message(name), ACCEPTED)])
        await world.configure(kafka.messages_topic, **ANY_TIME, max_message_bytes="20000")
        await self.send(world, [one(name, large, REFUSED), one(name, message(name, 2), ACCEPTED), flush(name)])
        await world.configure(kafka.messages_topic, **ANY_TIME)
        await world.configure(kafka.dead_letters(kafka.messages_topic), max_message_bytes=str(LARGE_RECORD_BYTES))

    async def _retention(self, world: World) -> None:
        """Let records expire that have been read."""
        topic = world.deployment.settings.kafka.messages_topic
        await world.configure(topic, **ANY_TIME, retention_ms="600000", segment_bytes=str(2**20))
        await world.busy()
        await world.configure(topic, **ANY_TIME)

    async def _policy(self, world: World) -> None:
        """Check that a running worker continues, that `topics create` names the topic, and that a worker does not start
        until it is repaired.
        """
        changelog = world.deployment.settings.kafka.changelog(TABLES[0])
        limits = {"max_message_bytes": str(LARGE_RECORD_BYTES)}
        await world.configure(changelog, **limits, cleanup_policy="compact,delete")
        await world.progress()
        done = await command(world, "topics", "create")
        assert done.code == 1, f"topics create takes {changelog} for fine"
        assert changelog in done.output, f"topics create does not name {changelog}:\n{done.output}"
        [name] = world.running("segmenter")
        self.cost.add(world)
        await world.stop(name)
        async with world.ending(name, "cleanup.policy"):
            world.start("segmenter", name)
            await until(lambda: not world.worker(name).running, f"{name} starts, although {changelog} deletes")
            await world.configure(changelog, **limits, cleanup_policy="compact")
        world.worker(name).kill()  # reaps it
        world.start("segmenter", name)
        await world.ready(name)
        await self.send(world, [one(f"policy-{self.injected}", b"not JSON", "invalid_json")])
        self.cost.forget_stalls(world)


class Commands(Hostile):
    """Commands read what the other kinds have left, and print it on a terminal."""

    name = "commands: dlq list, show, replay, episodes, context, recall, users, conversations, watch"

    def __init__(self) -> None:
        super().__init__()
        self._megabytes = 0
        self._seconds = (0.0, "")

    async def attack(self, world: World, chance: random.Random) -> None:
        name = f"commands-{self.injected}"
        await self.send(world, [one(name, b"not JSON\x1b[2J", "invalid_json"), *records.strange_texts(name, chance)])
        strange = f"{chance.choice(IDS)[:200]}~{name}".replace("\0", "")
        query = mixed(chance.choice((100, 20_000))).replace("\0", "").encode(errors="ignore").decode()
        for arguments in (
            ("dlq", "list", "--limit", "200"),
            ("dlq", "replay", "--yes", "--conversation", name),
            ("episodes", "--limit", "5", "--", strange),
            ("context", "--", strange),
            ("recall", "--user", "mallory", "--", query),
            ("users", "--limit", "200"),
            ("conversations", "--user", "mallory"),
            ("watch", "--from-beginning", "--limit", "20"),
        ):
            done = await command(world, *arguments)
            self._megabytes = max(self._megabytes, done.megabytes)
            self._seconds = max(self._seconds, (done.seconds, " ".join(arguments[:2])))
            self._judge(arguments, done)
            self.records += 1
        await self.send(world, [flush(name)])  # after the replayed records

    def _judge(self, arguments: tuple[str, ...], done: "Done") -> None:
        said = f"afterword {' '.join(arguments)[:100]!r}"
        if done.code not in (0, 1) or "Traceback" in done.output:
            self._surprises.append(f"{said} ends with {done.code}: {done.output[-500:]}")
        if obeyed := {c for c in done.output if c < " " and c not in "\n\t"} | {
            c for c in done.output if c in "\x7f\x9b\u202e"
        }:
            self._surprises.append(f"{said} prints {obeyed}")
        if any(line.startswith("clean: ") for line in done.output.splitlines()):
            self._surprises.append(f"{said} prints a forged line")

    async def check(self, world: World) -> None:
        audit = await command(world, "audit")
        self.notes.append(f"commands: at most {self._megabytes} MB, {self._seconds[0]:.1f} s ({self._seconds[1]})")
        self.notes.append(f"audit as a command: {audit.megabytes} MB, {audit.seconds:.1f} s")
        if audit.code:
            self._surprises.append(f"afterword audit ends with {audit.code}: {audit.output[-500:]}")
        self.cost.megabytes = max(self.cost.megabytes, (self._megabytes, "a command"), (audit.megabytes, "audit"))
        await super().check(world)


@dataclass(frozen=True)
class Done:
    """A command that has ended. `output` includes standard error."""

    code: int
    output: str
    seconds: float
    megabytes: int


async def command(world: World, *arguments: str) -> Done:
    """Run an `afterword` command on the deployment, and wait for its end."""
    return await asyncio.to_thread(_run, environment_of(world.deployment.settings), arguments)


MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:], stdin=subprocess.DEVNULL)
megabytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
open(sys.argv[1], "w").write(f"{code} {megabytes}")
"""
"""A small program between us and the command, because a child shares its parent's memory until it runs its own program.
"""


def _run(environment: Mapping[str, str], arguments: Sequence[str]) -> Done:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        measured = Path(directory, "measured")
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, str(measured), sys.executable, "-m", "afterword", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            cwd=ROOT,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        code, megabytes = map(int, measured.read_text().split())
    return Done(code, done.stdout.decode(errors="replace"), time.monotonic() - began, megabytes)


HOSTILE: tuple[type[Hostile], ...] = (
    Bytes,
    Flips,
    Headers,
    Times,
    Compressed,
    Bombs,
    Shapes,
    Texts,
    Overrides,
    Flushes,
    LittleCpu,
    Nonsense,
    Topics,
    Commands,
)
