"""A source partition processed exactly once, batch after batch; each batch is committed before the next one begins."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import structlog
from aiokafka import TopicPartition

from faust_eos.batch import Batches
from faust_eos.changelog import recover
from faust_eos.errors import FATAL, TRANSIENT, AgentFailed, ChangelogLost, StateLost, restart_seconds
from faust_eos.failures import Isolation
from faust_eos.lag import Work
from faust_eos.options import Clients
from faust_eos.session import Delivery, Session, readable
from faust_eos.sources import check_partitions
from faust_eos.transaction import TransactionalProducer, require_outputs, transactional_id
from faust_eos.watchdog import Mark

log = structlog.get_logger()

CANCEL_SECONDS = 6.0


class ExactlyOncePartition:
    """Runs until it is stopped, and answers every failure by closing the partition and opening it again.

    Opening a partition fences earlier owners, replays the changelogs, and seeks to the source offset that they hold.
    """

    def __init__(self, consumer: Any, source: TopicPartition, schema: Batches | None = None) -> None:
        self._consumer = consumer
        self._app = consumer.app
        self._options = consumer.app.engine
        self._source = source
        self._where = f"{source.topic}-{source.partition}"
        self._isolation = Isolation(self._where, self._options, self._app.breaker, schema)
        self._tables = {table.name: table for table in self._app.tables.values() if table.takes(source.topic)}
        self._draining = False
        self._most_replayed = 0
        self._saved: tuple[int, Mapping[str, int]] = (-1, {})
        """Source offset, and the bookmark in each changelog: a tick moves only the bookmarks."""
        self._start = 0
        """Source offset at which the partition was last opened."""
        self._written: set[str] = set()
        self.last_error = ""
        """Class name of the error that made it start over; empty after the next commit."""
        self.session: Session | None = None
        self.task = asyncio.create_task(self._run(), name=f"partition {self._where}")
        self.task.add_done_callback(consumer.on_partition_exit)

    @property
    def ready(self) -> bool:
        """True when the partition is open: earlier owners are fenced and the state is recovered."""
        return self.session is not None and not self._draining

    def work(self) -> Work:
        return self.session.delivery.work if self.session is not None else Work()

    async def to_do(self, end: int) -> dict[str, Mark]:
        """Return the marks of unfinished work for the watchdog. `end` is the end offset of the source."""
        session = self.session
        if session is not None:
            if session.delivery.declined:  # it waits for something, and reports that itself
                return {}
            position = session.database.position
            saved = position.source, position.bookmarks
            if saved != self._saved:
                self._saved, self.last_error = saved, ""
            if not session.delivery.busy and await self._consumer.kafka.position(self._source) >= end:
                return {}
        sizes = self._isolation.slices.most, self._isolation.ticks.most
        return {f"nothing is committed of {self._where}": Mark((self._saved, self._most_replayed, sizes))}

    async def stop(self, within_seconds: float) -> None:
        """Finish the running batch or drop it whole; nothing can be written once this returns."""
        self._draining = True
        delivery = self.session.delivery if self.session else None
        if delivery is not None and delivery.begun:
            delivery.stop()
        else:  # the agent has not begun the batch, so the next owner processes it
            if delivery is not None:
                delivery.withdraw()
            self.task.cancel()
        await asyncio.wait([self.task], timeout=within_seconds)
        if not self.task.done():
            if delivery is not None:
                delivery.abandon()
            self.task.cancel()
            await asyncio.wait([self.task], timeout=CANCEL_SECONDS)

    async def _run(self) -> None:
        failures = 0
        while not self._draining:
            await self._consumer.in_group.wait()  # a rebalance under way may give the partition to another worker
            try:
                async with self._opened() as session:
                    failures = 0
                    await self._work(session)
            except FATAL:
                raise
            except TRANSIENT as error:
                self.last_error = name = type(error).__name__
                log.warning("partition_restarted", partition=self._where, stage="engine", error_type=name)
            except AgentFailed:
                if not self._draining:
                    raise
            if not self._draining:
                failures += 1
                await asyncio.sleep(restart_seconds(self._app.conf.broker_heartbeat_interval, failures))

    async def _work(self, session: Session) -> None:
        loop, horizon, looked, more = asyncio.get_running_loop(), None, 0.0, False
        while not self._draining:
            await session.poll(wait=not more)
            if horizon is None and loop.time() - looked >= self._options.tick_seconds:
                horizon, looked = await session.horizon(), loop.time()
            if horizon is not None and await session.reached(horizon):
                more = await session.tick(horizon.now_ms)
                horizon = horizon if more else None  # keys that are due at the same time share one horizon

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Session]:
        clients, group = self._consumer.clients(), self._app.conf.id
        partitions = await check_partitions(
            clients, self._consumer.kafka, group, self._source.topic, may_grow=self._options.sources_may_grow
        )
        async with AsyncExitStack() as closing:
            producer = TransactionalProducer(transactional_id(group, self._source), clients, self._options)
            closing.push_async_callback(producer.close)
            await producer.open()
            deadlines = {name: table.deadline for name, table in self._tables.items()}
            database = self._consumer.open_database(self._where, deadlines)
            closing.callback(database.close)
            session = Session(
                source=self._source,
                group=group,
                kafka=self._consumer.kafka,
                tables=self._tables,
                producer=producer,
                database=database,
                delivery=Delivery(self._consumer, self._source, database),
                options=self._options,
                written=self._written,
                isolation=self._isolation,
                partitions=partitions,
            )
            if self.last_error and self._written:  # a deleted topic may be the cause of the failure
                await require_outputs(clients, self._written)
            self._consumer.kafka.seek(self._source, await self._recovered(session, clients))
            self._consumer.kafka.resume(self._source)
            self.session = session
            try:
                yield session
            finally:
                self.session = None

    async def _recovered(self, session: Session, clients: Clients) -> int:
        """Return the source offset at which to begin.

        Raises: StateLost, ChangelogLost, SourceReplaced, KafkaError, TimeoutError.
        """
        try:
            await self._recover(session, clients)
            return await self._start_offset(session.database.position.source, clients)
        except (StateLost, ChangelogLost):
            # Commits of a later owner look the same if only some of them are seen; then `check_owner` fails, and we
            # start over
            async with asyncio.timeout(self._options.commit_timeout_seconds):
                await session.producer.check_owner(self._source, session.group)
            raise

    async def _recover(self, session: Session, clients: Clients) -> None:
        if self._tables:
            done = await recover(
                session.database,
                session.changelogs,
                clients,
                self._source.topic,
                self._options.stale_seconds,
                self._note_replayed,
            )
            for _ in session.database.reindex():
                await asyncio.sleep(0)
            self._app.engine_metrics.recovered(done.records, done.seconds)
            log.info(
                "recovered",
                partition=self._where,
                records=done.records,
                seconds=round(done.seconds, 3),
                rebuilt=done.rebuilt,
            )

    def _note_replayed(self, records: int) -> None:
        # if several openings fail in a row, only one that gets further than the others counts as progress
        self._most_replayed = max(self._most_replayed, records)

    async def _start_offset(self, recovered: int, clients: Clients) -> int:
        """Return the source offset of the changelogs' last transaction; without tables, the group's committed offset.

        Raises: StateLost, SourceReplaced, KafkaError, TimeoutError.
        """
        kafka, source = self._consumer.kafka, self._source
        async with asyncio.timeout(self._options.commit_timeout_seconds):
            found = await clients.committed(kafka, self._app.conf.id, source)
        committed = -1 if found is None else found.offset
        if not self._tables:
            recovered = committed
        if committed > recovered:
            raise StateLost(where=self._where, committed=committed, source=max(recovered, 0))
        self._start = await readable(kafka, source, recovered, self._app.engine_metrics, counted=self._start)
        return self._start
