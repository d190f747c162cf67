"""Topics, workers and a checker for one test of the engine."""

import asyncio
import itertools
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import GroupCoordinatorNotAvailableError

from afterword.embedded.process import Process
from tests.integration.engine.counter import VARIABLE, Told

ROOT = Path(__file__).parents[3]
FAST = {
    "tick_seconds": 0.2,
    "retry_wait_seconds": 0.05,
    "revoke_drain_seconds": 3.0,
    "drain_seconds": 10.0,
    "source_look_seconds": 0.5,
}
PATIENCE_SECONDS = 150.0
STOP_SECONDS = 60.0


async def until(
    condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS, *, watching: "Lab | None" = None
) -> None:
    """Wait for the condition, and fail with the workers' logs if it is not met."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s\n{watching.logs() if watching else ''}")
        await asyncio.sleep(0.02)


@dataclass(frozen=True)
class Seen:
    """A committed record of the output topic."""

    partition: int
    key: bytes
    value: dict[str, Any]


class Lab:
    """One source, its changelog and one output, each with `partitions`. All names are unique to the test."""

    def __init__(self, bootstrap_servers: str, name: str, directory: Path, partitions: int) -> None:
        self.brokers = bootstrap_servers
        self.partitions = partitions
        self.app_id = f"counter-{name}"
        self.source, self.output = f"in-{name}", f"out-{name}"
        self.changelog = f"{self.app_id}-counts-changelog"
        self.directory = directory
        self.faults = directory / "faults"
        self.faults.mkdir(parents=True)
        self.journal = directory / "journal"
        self.journal.touch()
        self.workers: list[Process] = []
        self.outputs: list[Seen] = []
        self.keys: list[bytes] = []
        self._numbers = itertools.count()
        self._stop_load = asyncio.Event()

    # -- topics

    async def create(self, *names: str, partitions: int | None = None, **configs: str) -> None:
        number = partitions or self.partitions
        topics = [NewTopic(name, number, 1, topic_configs=configs) for name in names]
        response = await self.admin.create_topics(topics)
        assert not any(error for _, error, *_ in response.topic_errors), response

    async def delete(self, name: str) -> None:
        """Delete the topic, and return once the broker has forgotten it."""
        await self.admin.delete_topics([name])
        while name in await self.admin.list_topics():  # noqa: ASYNC110 – nobody sets an event for it
            await asyncio.sleep(0.02)

    async def add_partitions(self, name: str, total: int) -> None:
        await self.admin.create_partitions({name: NewPartitions(total)})

    async def configure(self, name: str, **configs: str) -> None:
        await self.admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, configs=configs)])

    async def expire(self, before: int, partition: int = 0) -> None:
        """Delete the source's records before this offset, as retention does."""
        records = RecordsToDelete(before_offset=before)
        await self.admin.delete_records({TopicPartition(self.source, partition): records})

    async def committed(self, partition: int = 0) -> int:
        """Return the group's offset, or −1 if it has none, as before the broker's first group has a coordinator."""
        try:
            offsets = await self.admin.list_consumer_group_offsets(self.app_id)
        except GroupCoordinatorNotAvailableError:
            return -1
        found = offsets.get(TopicPartition(self.source, partition))
        return -1 if found is None else int(found.offset)

    async def until_committed(self, offset: int, partition: int = 0) -> None:
        """Wait for a commit, because the broker answers it before everybody can see its offsets."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := await self.committed(partition)) < offset:
            assert time.monotonic() < deadline, f"committed {found}, not {offset}\n{self.logs()}"
            await asyncio.sleep(0.05)

    # -- records

    async def produce(self, records: Iterable[tuple[int, dict[str, Any]]]) -> None:
        """Produce records: pairs of a key's number, which also chooses the partition, and the requested behaviour."""
        sent = [await self.put(number, **asked) for number, asked in records]
        await asyncio.gather(*sent)

    async def put(self, number: int, *, key: bytes | None = None, **asked: Any) -> Any:
        key = b"key-%d" % number if key is None else key
        i = next(self._numbers)
        self.keys.append(key)
        value = orjson.dumps({"i": i, **asked})
        return await self.producer.send(self.source, value, key, partition=number % self.partitions)

    async def load(self, count: int, per_second: float = 400, keys: int = 12, **asked: Any) -> None:
        """Produce records of many keys at this rate."""
        for first in range(0, count, 20):
            if self._stop_load.is_set():
                break
            await self.produce((number % keys, asked) for number in range(first, min(first + 20, count)))
            await asyncio.sleep(20 / per_second)

    @asynccontextmanager
    async def loaded(self, per_second: float = 200, **asked: Any) -> AsyncIterator[None]:
        """Produce records of many keys steadily during the block."""
        task = asyncio.create_task(self.load(1_000_000, per_second, **asked))
        self._stop_load.clear()
        try:
            yield
        finally:
            self._stop_load.set()
            await task

    # -- workers

    def worker(self, name: str = "a", *, static: bool = False, **told: Any) -> Process:
        """Start a worker, with a state directory for each name."""
        options = {**FAST, **told.pop("options", {})}
        config = Told(
            app_id=self.app_id,
            brokers=self.brokers,
            source=self.source,
            output=self.output,
            state=str(self.state(name)),
            faults=str(self.faults),
            journal=str(self.journal),
            instance=name if static else None,
            options=options,
            **told,
        )
        process = Process(
            f"worker {name}",
            [sys.executable, "-m", "tests.integration.engine.counter"],
            self.directory / f"{name}.log",
            environment={VARIABLE: orjson.dumps(asdict(config)).decode()},
            directory=ROOT,
        )
        self.workers.append(process)
        return process

    def state(self, name: str = "a") -> Path:
        return self.directory / f"state-{name}"

    def databases(self, name: str = "a") -> list[Path]:
        """Return the databases, one for each partition that the worker had."""
        return [found.parent for found in self.state(name).rglob("CURRENT")]

    def wipe(self, name: str = "a") -> None:
        shutil.rmtree(self.state(name))

    def fault(self, name: str, times: int) -> None:
        (self.faults / name).write_text(str(times))

    def fault_left(self, name: str) -> int:
        return int((self.faults / name).read_text() or 0)

    def logs(self) -> str:
        return "\n".join(f"--- {worker.name}: {worker.returncode}\n{worker.tail()}" for worker in self.workers)

    async def exit_code(self, worker: Process, seconds: float = PATIENCE_SECONDS) -> int:
        await until(lambda: not worker.running, seconds, watching=self)
        return int(worker.returncode or 0)

    async def stop(self, worker: Process) -> None:
        """Send SIGTERM. The worker has to end by itself, and successfully."""
        assert await asyncio.to_thread(worker.stop, STOP_SECONDS) == 0, self.logs()

    # -- what came out

    def counted(self) -> list[Seen]:
        return [seen for seen in self.outputs if "i" in seen.value]

    def ticks(self) -> list[Seen]:
        return [seen for seen in self.outputs if "tick" in seen.value]

    async def all_counted(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Check that every record was counted exactly once, without a gap or a repeat in any key."""
        await until(lambda: len(self.counted()) >= len(self.keys), seconds, watching=self)
        numbers = [seen.value["i"] for seen in self.counted()]
        assert sorted(numbers) == list(range(len(self.keys)))
        counts: dict[bytes, list[int]] = defaultdict(list)
        order: dict[bytes, list[int]] = defaultdict(list)
        for seen in self.counted():
            counts[seen.key].append(seen.value["n"])
            order[seen.key].append(seen.value["i"])
        for key, found in counts.items():
            assert found == list(range(1, len(found) + 1)), key
            assert order[key] == sorted(order[key]), key

    async def all_told_once(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Check that each record led to one committed output, whichever at-least-once worker handled it how often."""
        await until(lambda: len(self.counted()) >= len(self.keys), seconds, watching=self)
        assert sorted(seen.value["i"] for seen in self.counted()) == list(range(len(self.keys)))

    async def collect(self) -> None:
        async for record in self.reader:
            self.outputs.append(Seen(record.partition, record.key, orjson.loads(record.value)))


@asynccontextmanager
async def laboratory(
    bootstrap_servers: str, name: str, directory: Path, *, partitions: int = 2, topics: bool = True
) -> AsyncIterator[Lab]:
    lab = Lab(bootstrap_servers, name, directory, partitions)
    lab.admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    lab.producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, enable_idempotence=True, linger_ms=5)
    lab.reader = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    for client in (lab.admin, lab.producer, lab.reader):
        await client.start()
    await lab.create(lab.source, lab.output)
    if topics:
        await lab.create(lab.changelog, **{"cleanup.policy": "compact"})
    lab.reader.assign([TopicPartition(lab.output, partition) for partition in range(partitions)])
    collecting = asyncio.create_task(lab.collect())
    try:
        yield lab
    finally:
        for worker in lab.workers:
            await asyncio.to_thread(worker.kill)
        collecting.cancel()
        await asyncio.wait([collecting])
        for closing in (lab.reader.stop, lab.producer.stop, lab.admin.close):
            await closing()


def said(worker: Process, event: str) -> list[dict[str, Any]]:
    """Return the log lines of that event, of all workers with the worker's name."""
    return [line for line in _lines(worker) if line.get("event") == event]


def _lines(worker: Process) -> Iterator[dict[str, Any]]:
    for line in worker.log.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            yield orjson.loads(line)
