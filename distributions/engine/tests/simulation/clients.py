"""Clients with the interface of aiokafka's that the engine uses, on the broker in memory."""

import asyncio
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import IllegalOperation, OffsetOutOfRangeError
from aiokafka.structs import OffsetAndMetadata

from distributions.engine.tests.simulation.broker import DELETE_RETENTION_MS, Broker, Offset
from distributions.engine.tests.simulation.network import Network, Process

RECORDS_IN_BATCH, BYTES_IN_BATCH = 4, 1500
"""Small, so that a transaction needs several."""
BYTES_IN_FETCH = 2500
"""Maximum bytes of a fetch. At least one record is returned, as by the bounded consumer."""


class Clients:
    """The clients of one process."""

    def __init__(self, network: Network, broker: Broker, process: Any) -> None:
        self.network, self.broker, self.process = network, broker, process

    def producer(self, *, transactional_id: str, **_: Any) -> "Producer":
        return Producer(self.network, self.broker, self.process, transactional_id)

    def consumer(self, *, isolation_level: str = "read_uncommitted", **_: Any) -> "Consumer":
        committed = isolation_level == "read_committed"
        return Consumer(self.network, self.broker, self.process, committed=committed)

    def admin(self) -> "Admin":
        return Admin(self.network, self.process)

    async def committed(self, _kafka: Any, _group: str, source: TopicPartition) -> OffsetAndMetadata | None:
        """Return the group's offset once it is stable."""
        return await self.network.call(
            self.process,
            "committed",
            lambda: self.broker.offsets.get(source),
            ready=lambda: self.broker.is_stable(source),
        )

    async def metadata(self, _kafka: Any, _group: str, topic: str, _partitions: int) -> list[str]:
        """Return the metadata of all the commits of the group in the topic."""
        offsets = self.broker.offsets
        return await self.network.call(
            self.process, "describe", lambda: [one.metadata for source, one in offsets.items() if source.topic == topic]
        )


class Builder:
    def __init__(self) -> None:
        self.rows: list[Any] = []

    def append(self, *, key: bytes | None, value: bytes | None, timestamp: int | None, headers: Any) -> object | None:
        size = sum(len(row[1] or b"") for row in self.rows) + len(value or b"")
        if len(self.rows) == RECORDS_IN_BATCH or (self.rows and size > BYTES_IN_BATCH):
            return None
        self.rows.append((key, value, timestamp or 0, tuple(headers)))
        return self.rows

    def record_count(self) -> int:
        return len(self.rows)


class Producer:
    def __init__(self, network: Network, broker: Broker, process: Any, transactional_id: str) -> None:
        self._network, self._broker, self._process, self._id = network, broker, process, transactional_id
        self._epoch = -1
        self._note: Any = None
        self._in_transaction = False
        self._tasks: list[asyncio.Task[Any]] = []
        self._last: dict[TopicPartition, asyncio.Task[Any]] = {}
        self.client = SimpleNamespace(close=self.stop)

    async def start(self) -> None:
        self._epoch = await self._call("open", lambda: self._broker.open_producer(self._id))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def begin_transaction(self) -> None:
        if self._in_transaction:
            raise IllegalOperation("in a transaction already")
        self._in_transaction, self._note, self._tasks, self._last = True, self._process.note(), [], {}

    def create_batch(self) -> Builder:
        return Builder()

    async def partitions_for(self, topic: str) -> set[int]:
        return {0}

    async def send_batch(self, builder: Builder, topic: str, *, partition: int) -> asyncio.Task[Any]:
        where, note, rows = TopicPartition(topic, partition), self._note, builder.rows
        before = self._last.get(where)

        async def sent() -> Any:
            if before is not None:  # aiokafka sends one batch of a partition at a time
                await asyncio.wait([before])
            produced = await self._call(
                "produce", lambda: self._broker.produce(self._id, self._epoch, note, where, rows)
            )
            return SimpleNamespace(offset=produced)

        self._last[where] = self._in_background(sent())
        return self._last[where]

    async def send_offsets_to_transaction(self, offsets: dict[TopicPartition, int | Offset], group: str) -> None:
        note = self._note
        given = {source: Offset(one, "") if isinstance(one, int) else one for source, one in offsets.items()}
        await self._call("offsets", lambda: self._broker.add_offsets(self._id, self._epoch, note, given))

    async def abort_transaction(self) -> None:
        await self._call("abort", lambda: self._broker.abort(self._id, self._epoch))
        self._in_transaction = False

    async def commit_transaction(self) -> None:
        """Commit; like aiokafka's method, this continues in the background if its caller is cancelled."""
        await asyncio.shield(self._in_background(self._commit(list(self._tasks))))

    async def _commit(self, sent: list[asyncio.Task[Any]]) -> None:
        await asyncio.gather(*sent)
        await self._call("commit", lambda: self._broker.commit(self._id, self._epoch))
        self._in_transaction = False

    def _in_background(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._tasks.append(task)
        return task

    async def _call(self, name: str, effect: Any) -> Any:
        return await self._network.call(self._process, name, effect, writes=True)


class Consumer:
    """Consumes records, and is the group's member with the generation of its process."""

    def __init__(self, network: Network, broker: Broker, process: Any, *, committed: bool = True) -> None:
        self._network, self._broker, self._process = network, broker, process
        self._committed = committed
        self._positions: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}

    async def start(self) -> None:
        """Nothing to connect to."""

    async def stop(self) -> None:
        """Do nothing: there is nothing to release."""

    def assign(self, sources: Iterable[TopicPartition]) -> None:
        self._positions = dict.fromkeys(sources, 0)

    def seek(self, source: TopicPartition, offset: int) -> None:
        self._positions[source] = offset

    def resume(self, *_: TopicPartition) -> None:
        """Nothing is paused."""

    async def position(self, source: TopicPartition) -> int:
        return self._positions[source]

    def highwater(self, source: TopicPartition) -> int | None:
        return self._ends.get(source)

    async def beginning_offsets(self, sources: list[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._call("beginning_offsets", lambda: {s: self._broker.log(s).start for s in sources})

    async def end_offsets(self, sources: list[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._call("end_offsets", lambda: {s: self._end(s) for s in sources})

    async def committed(self, source: TopicPartition) -> int | None:
        found: Offset | None = await self._call("committed", lambda: self._broker.offsets.get(source))
        return found and found.offset

    async def getmany(
        self, *sources: TopicPartition, timeout_ms: int, max_records: int | None = None
    ) -> dict[TopicPartition, list[Any]]:
        asked = sources or tuple(self._positions)
        positions = {source: self._positions[source] for source in asked}
        answer = await self._network.call(
            self._process,
            "getmany",
            lambda: {source: self._fetched(source, positions[source], max_records) for source in asked},
            ready=lambda: any(positions[source] < self._end(source) for source in asked),
            timeout=timeout_ms / 1000,
        )
        for source, (_, position, end) in (answer or {}).items():
            self._positions[source], self._ends[source] = position, end
        return {source: records for source, (records, _, _) in (answer or {}).items() if records}

    def _end(self, source: TopicPartition) -> int:
        log = self._broker.log(source)
        return log.stable if self._committed else log.end

    def _fetched(self, source: TopicPartition, position: int, most: int | None) -> tuple[list[Any], int, int]:
        """Return the records, the position after them, and the high watermark. If all records fit, the
        position is also after the transaction markers that follow them.
        """
        log = self._broker.log(source)
        if not log.start <= position <= log.end:
            raise OffsetOutOfRangeError
        records = log.read(position, most, committed=self._committed)
        whole = list(fitting(records))
        cut = len(whole) < len(records) or (most is not None and len(records) == most)
        records = whole
        return records, records[-1].offset + 1 if cut else max(position, self._end(source)), log.end

    async def _call(self, name: str, effect: Any) -> Any:
        return await self._network.call(self._process, name, effect)


def fitting(records: Iterable[Any]) -> Iterator[Any]:
    """Yield as many records as fit into one fetch, and at least one."""
    left = BYTES_IN_FETCH
    for number, record in enumerate(records):
        left -= len(record.value or b"")
        if left < 0 and number:
            return
        yield record


class Admin:
    def __init__(self, network: Network, process: Process) -> None:
        self._network, self._process = network, process

    async def start(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""

    async def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]:
        return await self._network.call(
            self._process, "describe", lambda: [{"topic": topic, "partitions": [0]} for topic in topics]
        )

    async def topic_ids(self, topics: list[str]) -> dict[str, str]:
        return await self._network.call(self._process, "describe", lambda: dict.fromkeys(topics, "id"))

    async def describe_configs(self, resources: list[Any]) -> list[Any]:
        entries = [("cleanup.policy", "compact"), ("delete.retention.ms", str(DELETE_RETENTION_MS))]
        found = [(0, None, 2, resource.name, entries) for resource in resources]
        return await self._network.call(self._process, "describe", lambda: [SimpleNamespace(resources=found)])
