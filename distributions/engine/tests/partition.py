"""One open partition in memory: the engine's session with a simple agent, producer and database."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import for_code

from distributions.engine.tests.simulation.database import MemoryDatabase
from faust_eos.batch import Batch, Batches, BatchMessage, Tick, _current
from faust_eos.database import DeadlineOf
from faust_eos.errors import OutputRefused, place_of
from faust_eos.exactly_once import Session, written_bytes
from faust_eos.failures import Breaker, Isolation
from faust_eos.options import Options
from faust_eos.transaction import Output

SOURCE = TopicPartition("in", 0)
TABLE = "due"
INVALID_RECORD = 87
"""Kafka's code for a record without a key on a compacted topic."""

Agent = Callable[[Any, Batch], Awaitable[None]]


def record(offset: int, key: bytes | None = None, size: int = 10) -> Any:
    key = b"%d" % offset if key is None else key
    return SimpleNamespace(
        topic="in", partition=0, offset=offset, key=key, value=b"x" * size, headers=[], timestamp=offset
    )


def rejected(given: Any, error: Exception) -> Output:
    return Output("in.dlq", given.key, b"%d %s" % (given.offset, place_of(error).encode()))


def deadline_of(row: bytes) -> int | None:
    return int(row) or None


def changes_of(batch: Batch) -> list[tuple[bytes, bytes | None]]:
    return list(batch.tables[TABLE].items())


def table(name: str, data: Any) -> Any:
    """Table like Faust's."""
    return SimpleNamespace(data=data, changelog_topic=SimpleNamespace(get_topic_name=lambda: f"{name}-changelog"))


@dataclass
class Producer:
    """Remembers transactions. A transaction of more than `most_bytes` times out, and one with an output that
    `refuses` is refused."""

    most_bytes: int | None = None
    refuses: Callable[[Output], bool] = lambda _: False
    transactions: list[tuple[int, list[Output]]] = field(default_factory=list)
    """Source offset and outputs."""
    tried: list[int] = field(default_factory=list)
    """Bytes of each transaction, including those that timed out."""

    _end: int = 0

    async def commit(self, outputs: Sequence[Output], rows: Any, bookmark: Any, *_: Any) -> dict[TopicPartition, int]:
        self.tried.append(written_bytes(outputs, rows))
        if self.most_bytes is not None and self.tried[-1] > self.most_bytes:
            raise TimeoutError
        for output in filter(self.refuses, outputs):
            raise OutputRefused(output.topic, for_code(INVALID_RECORD)())
        self.transactions.append((bookmark.source, list(outputs)))
        self._end += max(map(len, rows.values())) + 2
        return dict.fromkeys(rows, self._end)


class Partition:
    """Passes each event and its batch to `agent`, which writes through `batch.outputs` and `write`."""

    def __init__(
        self,
        agent: Agent,
        *,
        reject: bool = True,
        breaker: Breaker | None = None,
        schema: Batches | None = None,
        producer: Producer | None = None,
        tables: Mapping[str, Any] = MappingProxyType({TABLE: SimpleNamespace(changes=changes_of)}),
        deadlines: Mapping[str, DeadlineOf | None] = MappingProxyType({TABLE: deadline_of}),
        **options: Any,
    ) -> None:
        """`tables` maps each table's name to its data."""
        self.agent = agent
        self.tables = tables
        self.options = Options(**{"retry_wait_seconds": 0.0, "clock": lambda: 1000, **options})
        self.producer = producer or Producer()
        self.app = SimpleNamespace(engine=self.options, conf=SimpleNamespace(id="group"), consumer_generation_id=0)
        self.kafka = None
        schema = schema or Batches(reject=rejected if reject else None, stops=(NotADirectoryError,))
        self.breaker = breaker or Breaker()
        self.isolation = Isolation("in-0", self.options, self.breaker, schema)
        self.database: Any = MemoryDatabase(Path("state"), deadlines, disk={})
        self.errors: list[BaseException] = []
        self.events: list[list[int]] = []
        """Offsets of the events that the agent was given."""
        self.open()

    def open(self) -> None:
        """Open a new session of the same partition, as after a failure."""
        self.session = Session(
            self,
            SOURCE,
            tables={name: table(name, data) for name, data in self.tables.items()},
            producer=self.producer,  # type: ignore[arg-type]  # a double
            database=self.database,
            isolation=self.isolation,
            written=set(),
            partitions=1,
        )

    async def process(self, records: Sequence[Any]) -> None:
        """Process records until all are committed. After a timeout or a refusal, open the session again, as the
        partition does."""
        while left := [one for one in records if one.offset >= self.committed]:
            try:
                await self.session.process(left)
            except (TimeoutError, OutputRefused):
                self.open()

    @property
    def committed(self) -> int:
        return max(self.database.position.source, 0)

    @property
    def outputs(self) -> list[Output]:
        return [output for _, outputs in self.producer.transactions for output in outputs]

    def values(self, topic: str) -> list[bytes | None]:
        return [output.value for output in self.outputs if output.topic == topic]

    # -- what the engine's consumer does

    async def callback(self, message: BatchMessage) -> None:
        message.incref()
        message.tracked = True
        if not isinstance(message.value, Tick):
            self.events.append([one.offset for one in message.value])
        self._task = asyncio.create_task(self._handle(message))

    async def _handle(self, message: BatchMessage) -> None:
        _current.set(message.batch)
        try:
            await self.agent(message.value, message.batch)
        except Exception as error:  # noqa: BLE001 – as Faust does
            _, _, traceback = sys.exc_info()
            message.batch.fail(error.with_traceback(traceback and traceback.tb_next))  # stands in for a line of Faust's
        else:
            message.acked = True

    def stop_worker(self, error: BaseException) -> None:
        self.errors.append(error)


def echo(given: Any, size: int | None = None) -> Output:
    value = b"%d" % given.offset if size is None else b"y" * size
    return Output("out", given.key, value)
