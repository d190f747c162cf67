"""One source partition while it is open: poll, run the agent, commit; and tick when nothing is unread."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError
from faust.types.tuples import TP

from afterword.streams.runtime.batch import Batch, BatchMessage, NotTaken, Tick
from afterword.streams.runtime.changelog import Bookmark, Link, new_lineage
from afterword.streams.runtime.database import Database, Position
from afterword.streams.runtime.errors import AgentFailed, NoAgent
from afterword.streams.runtime.lag import Work
from afterword.streams.runtime.options import Options
from afterword.streams.runtime.transaction import TransactionalProducer

log = structlog.get_logger()

NOT_TAKEN_WAIT_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Horizon:
    """A moment, and the end of the partition then: every record from before the moment is below that end."""

    now_ms: int
    end: int


@dataclass(frozen=True)
class Session:
    """Resources of an open partition, and its work with them; after any failure there is a new one."""

    source: TopicPartition
    group: str
    kafka: Any
    tables: Mapping[str, Any]
    producer: TransactionalProducer
    database: Database
    delivery: "Delivery"
    options: Options
    written: set[str]
    """Topics that the agent has sent to; kept by the partition, so that its next session knows them."""

    def changelogs(self) -> dict[str, TopicPartition]:
        """Return the changelog partition of each table."""
        return {
            name: TopicPartition(table.changelog_topic.get_topic_name(), self.source.partition)
            for name, table in self.tables.items()
        }

    async def poll(self, *, wait: bool = True) -> None:
        """Process at most one batch; pause afterwards if a little lag makes the next batch larger.

        `wait`: for records, if there are none, until the deadlines are due for a check.
        """
        options = self.options
        timeout_ms = int(options.tick_seconds * 1000) if wait else 0
        got = await self.kafka.getmany(self.source, timeout_ms=timeout_ms, max_records=options.max_batch)
        for records in got.values():
            check_order(self.source, records[0].offset, self.database.position.source)
            await self.process(records, records[-1].offset + 1)
        if got and 0 < await self.lag() < options.max_batch:
            await asyncio.sleep(options.linger_ms / 1000)

    async def lag(self) -> int:
        """Return the number of unread records, as of the last fetch."""
        return int((self.kafka.highwater(self.source) or 0) - await self.kafka.position(self.source))

    async def horizon(self) -> Horizon | None:
        """Return the present moment if some deadline has passed, else None.

        A tick must not act on a deadline that an unread record would have moved: hence the end at that moment.
        """
        now = self.options.clock()
        deadline = self.database.next_deadline()
        if deadline is None or deadline > now:
            return None
        end = (await self.kafka.end_offsets([self.source]))[self.source]
        return Horizon(now, end)

    async def reached(self, horizon: Horizon) -> bool:
        return bool(await self.kafka.position(self.source) >= horizon.end)

    async def tick(self, now_ms: int) -> bool:
        """Give the agent the keys whose deadlines had passed at `now_ms`; the source offset stays.

        Returns whether there may be more of them.
        """
        due = self.database.due(now_ms, self.options.tick_keys)
        if due:
            tick = Tick(self.source.topic, self.source.partition, now_ms, tuple(due))
            await self.process(tick, max(self.database.position.source, 0))
        return len(due) == self.options.tick_keys

    async def process(self, work: Sequence[Any] | Tick, next_offset: int) -> None:
        """Run the agent and commit what it wrote.

        Raises: AgentFailed, ChangelogReplaced, KafkaError, TimeoutError, StoreFailed.
        """
        batch = await self.delivery.run(work, next_offset)
        async with asyncio.timeout(self.options.commit_timeout_seconds):
            await self._commit(batch, next_offset)
        self.delivery.committed()

    async def _commit(self, batch: Batch, next_offset: int) -> None:
        self.written.update(output.topic for output in batch.outputs)
        # each commit puts a bookmark into each changelog: else a lost changelog looks like one of a table at rest
        changes = {name: table.data.changes(batch) for name, table in self.tables.items()}
        changelogs, before = self.changelogs(), self.database.position
        bookmark = Bookmark(next_offset, before.lineage or new_lineage(), sorted(changes))
        rows = {changelogs[name]: changed for name, changed in changes.items()}
        links = {changelogs[name]: Link(before.bookmarks.get(name, -1), len(changes[name]) + 1) for name in changes}
        marks = await self.producer.commit(batch.outputs, rows, bookmark, self.source, self.group, links)
        for changelog, link in links.items():
            link.check(changelog, marks[changelog])
        bookmarks = {**before.bookmarks, **{name: marks[changelogs[name]] for name in changes}}
        self.database.write(changes, Position(bookmark.source, bookmark.lineage, bookmarks))


class Delivery:
    """Runs the agent on one batch at a time. A failed batch is retried on the same records: nothing was sent."""

    def __init__(self, consumer: Any, source: TopicPartition, database: Database) -> None:
        self._consumer = consumer
        self._app = consumer.app
        self._options = consumer.app.engine
        self._tp = TP(*source)
        self._where = f"{source.topic}-{source.partition}"
        self._database = database
        self._current: BatchMessage | None = None
        self._stopping = False
        self._in_hand_ms: int | None = None
        self._last_ms: int | None = None

    @property
    def begun(self) -> bool:
        """The agent is working on a batch, or its batch is being committed."""
        return self._current is not None and self._current.tracked

    @property
    def busy(self) -> bool:
        """A batch is queued for the agent, in its hands, or being committed."""
        return self._current is not None

    def stop(self) -> None:
        """Do not retry a failure from now on."""
        self._stopping = True

    def abandon(self) -> None:
        """Drop whatever the agent still writes."""
        if self._current is not None:
            self._current.batch.abandon()

    def committed(self) -> None:
        self._current = self._in_hand_ms = None

    @property
    def work(self) -> Work:
        return Work(self._database.position.source, self._in_hand_ms, self._last_ms)

    async def run(self, work: Sequence[Any] | Tick, next_offset: int) -> Batch:
        """Return the batch as the agent left it. Raises: AgentFailed when it failed too often, NoAgent."""
        failures = 0
        if not isinstance(work, Tick):
            self._in_hand_ms, self._last_ms = work[0].timestamp, work[-1].timestamp
        while True:
            try:
                return await self._deliver(work, next_offset)
            except AgentFailed as error:
                if self._stopping:
                    raise
                if isinstance(error.cause, NotTaken):  # a rebalance has begun and will cancel us
                    await asyncio.sleep(NOT_TAKEN_WAIT_SECONDS)
                    continue
                failures += 1
                await self._failed(error, failures)

    async def _failed(self, error: AgentFailed, failures: int) -> None:
        name = type(error.cause).__name__
        log.error("agent_failed", partition=self._where, stage="agent", error_type=name, attempt=failures)
        if failures > self._options.agent_retries:
            raise error
        self._current = None  # nothing is begun between two runs: a stop need not wait
        await asyncio.sleep(self._options.retry_wait_seconds * 2 ** (failures - 1))

    async def _deliver(self, work: Sequence[Any] | Tick, next_offset: int) -> Batch:
        batch = Batch(self._where, self._database, self._consumer.stop_worker)
        message = self._current = self._message(batch, work, next_offset - 1)
        await self._consumer.callback(message)
        if not message.refcount and not message.acked:
            raise NoAgent(where=self._where)
        await batch.done
        return batch

    def _message(self, batch: Batch, work: Sequence[Any] | Tick, offset: int) -> BatchMessage:
        return BatchMessage(
            batch,
            topic=self._tp.topic,
            partition=self._tp.partition,
            offset=offset,
            timestamp=self._options.clock() / 1000,
            timestamp_type=0,
            headers=(),
            key=None,
            value=work,
            checksum=None,
            serialized_key_size=0,
            serialized_value_size=0,
            tp=self._tp,
            generation_id=self._app.consumer_generation_id,
        )


def check_order(source: TopicPartition, found: int, expected: int) -> None:
    """Refuse records from before the expected offset: aiokafka restarts by itself if the topic was made anew meanwhile.

    Raises: OffsetOutOfRangeError.
    """
    if found < expected:
        raise OffsetOutOfRangeError(f"{source.topic}-{source.partition} went back from {expected} to {found}")
