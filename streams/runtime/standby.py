"""Standby of a partition: a worker that does not own it keeps its state up to date, from its changelogs.

The database is the one that the worker would open as the owner. When it becomes that, the standby is closed, and
recovery goes on from its bookmarks: only the tail is left. A standby writes nothing to Kafka.
"""

import asyncio
from typing import Any

import structlog
from aiokafka import TopicPartition

from afterword.streams.runtime.changelog import Replay, changelogs_of
from afterword.streams.runtime.database import Database
from afterword.streams.runtime.errors import FATAL, TRANSIENT, EngineError, described, place_of
from afterword.streams.runtime.lag import Following
from afterword.streams.runtime.layouts import read_layout

log = structlog.get_logger()

MOST_RECORDS = 500
"""Most records in one poll: the worker's own partitions wait while they are applied."""
SHARE = 0.25
"""Share of the event loop that all standbys of a worker may take together."""
FOLLOW_SECONDS = 1.0
"""Pause between two looks at the ends of the changelogs: what comes meanwhile is the tail that is left to replay."""
FETCH_WAIT_MS = 500
CLOSE_SECONDS = 1.0
RESTART_SECONDS = 2.0
"""Wait after an error: nobody waits for a standby."""


class Standby:
    """Follows until it is stopped, or until it finds what no retry can mend: then recovery is left to refuse it."""

    def __init__(self, consumer: Any, source: TopicPartition) -> None:
        self._consumer = consumer
        self._app = consumer.app
        self._source = source
        self._where = f"{source.topic}-{source.partition}"
        self._tables = {table.name: table for table in self._app.tables.values() if table.takes(source.topic)}
        self._database: Database | None = None
        self.has_caught_up = False
        """Its state was up to date since it was opened."""
        self._replay: Replay | None = None
        self.task = asyncio.create_task(self._run(), name=f"standby {self._where}")
        self.task.add_done_callback(self._note_exit)

    @property
    def offset(self) -> int:
        """Next source offset of its state; −1 until it has caught up."""
        return -1 if self._database is None or not self.has_caught_up else max(0, self._database.position.source)

    def standing(self) -> Following | None:
        """Return lag and size; None while it is not open."""
        if self._database is None or self._replay is None:
            return None
        return Following(self._source.topic, self._source.partition, self._replay.left, self._database.size_bytes)

    async def stop(self) -> None:
        """Close; returns when the database is closed."""
        self.task.cancel()
        self._close()  # at once, so that nothing that Kafka delays holds up the next owner: it is read in one step only
        await asyncio.wait([self.task], timeout=CLOSE_SECONDS)

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = self._replay = None
        self.has_caught_up = False

    def _note_exit(self, task: "asyncio.Task[None]") -> None:
        """Log what was not foreseen: the worker goes on with its own partitions."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("standby_failed", partition=self._where, stage="standby", error_type=place_of(error))

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except (EngineError, *FATAL) as error:
                name = getattr(error, "error_type", type(error).__name__)
                log.error(
                    "standby_closed", partition=self._where, stage="standby", error_type=name, error=described(error)
                )
                return
            except (*TRANSIENT, AssertionError) as error:  # aiokafka asserts that a broker names some topic
                name = type(error).__name__
                log.warning("standby_restarted", partition=self._where, stage="standby", error_type=name)
            await asyncio.sleep(RESTART_SECONDS)

    async def _follow(self) -> None:
        """Open the state and follow the changelogs; return if the source's layout does not admit the partition."""
        clients, options, source = self._consumer.clients(), self._app.engine, self._source
        layout = await read_layout(clients, self._consumer.kafka, self._app.conf.id, source.topic)
        if not layout.admits(source.partition):
            return
        deadlines = {name: table.deadline for name, table in self._tables.items()}
        database = self._database = self._consumer.open_database(self._where, deadlines)
        try:
            changelogs = changelogs_of(self._tables, source.partition)
            replay = self._replay = Replay(
                database,
                changelogs,
                source.topic,
                options.stale_seconds,
                pace=self._consumer.pace,
                is_alone=False,
            )
            async with replay.opened(clients, layout.partitions, FETCH_WAIT_MS):
                done = await replay.catch_up()
                log.info("standby_caught_up", partition=self._where, records=done.records, rebuilt=done.rebuilt)
                for _ in database.reindex():
                    await asyncio.sleep(0)
                self.has_caught_up = True
                self._consumer.rejoin_when_warm()
                while True:
                    replay.consumer.pause(*changelogs.values())
                    await asyncio.sleep(FOLLOW_SECONDS)
                    replay.consumer.resume(*changelogs.values())
                    await replay.catch_up()
        finally:
            self._close()
