"""One source partition while it is open: poll, hand to the agent, commit; and tick when nothing is unread."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from afterword.streams.runtime.batch import Batch, Tick
from afterword.streams.runtime.bookmark import Bookmark, new_lineage
from afterword.streams.runtime.database import Database, Position
from afterword.streams.runtime.delivery import Delivery
from afterword.streams.runtime.options import Options
from afterword.streams.runtime.transaction import TransactionalProducer


@dataclass(frozen=True, slots=True)
class Horizon:
    """A moment, and the end of the partition at that moment: past that end all that came before it has been read."""

    now_ms: int
    end: int


@dataclass(frozen=True)
class Session:
    """What an open partition works with; when anything goes wrong there is a new one."""

    source: TopicPartition
    group: str
    kafka: Any
    tables: Mapping[str, Any]
    producer: TransactionalProducer
    database: Database
    delivery: Delivery
    options: Options
    written: set[str]
    """Topics that the agent has sent to; of the partition, so that its next session knows them."""

    def changelogs(self) -> dict[str, TopicPartition]:
        """The changelog partition of each table."""
        return {
            name: TopicPartition(table.changelog_topic.get_topic_name(), self.source.partition)
            for name, table in self.tables.items()
        }

    async def poll(self, *, wait: bool = True) -> None:
        """Takes what there is, at most one batch; waits a little where that makes a larger one.

        `wait`: for records, where there are none, until it is time to look at the deadlines.
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
        """Records that are not read yet, as far as the last fetch told."""
        return int((self.kafka.highwater(self.source) or 0) - await self.kafka.position(self.source))

    async def horizon(self) -> Horizon | None:
        """A moment at which some deadline had passed, None when none has.

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
        """Gives the agent the keys whose deadlines had passed at that moment; the source offset stays.

        Returns whether there may be more of them.
        """
        due = self.database.due(now_ms, self.options.tick_keys)
        if due:
            tick = Tick(self.source.topic, self.source.partition, now_ms, tuple(due))
            await self.process(tick, max(self.database.position.source, 0))
        return len(due) == self.options.tick_keys

    async def process(self, work: Sequence[Any] | Tick, next_offset: int) -> None:
        """Runs the agent and commits what it did. Raises: AgentFailed, KafkaError, TimeoutError, StoreFailed."""
        batch = await self.delivery.run(work, next_offset)
        async with asyncio.timeout(self.options.commit_timeout_seconds):
            await self._commit(batch, next_offset)
        self.delivery.committed()

    async def _commit(self, batch: Batch, next_offset: int) -> None:
        self.written.update(output.topic for output in batch.outputs)
        # a bookmark in each changelog with every commit, or the loss of one could not be told from a table at rest
        changes = {name: table.data.changes(batch) for name, table in self.tables.items()}
        changelogs, before = self.changelogs(), self.database.position
        bookmark = Bookmark(next_offset, before.lineage or new_lineage(), sorted(changes))
        rows = {changelogs[name]: changed for name, changed in changes.items()}
        marks = await self.producer.commit(batch.outputs, rows, bookmark, self.source, self.group)
        bookmarks = {**before.bookmarks, **{name: marks[changelogs[name]] for name in changes}}
        self.database.write(changes, Position(bookmark.source, bookmark.lineage, bookmarks))


def check_order(source: TopicPartition, found: int, expected: int) -> None:
    """aiokafka goes back to the beginning by itself when the topic was made anew meanwhile.

    Raises: OffsetOutOfRangeError.
    """
    if found < expected:
        raise OffsetOutOfRangeError(f"{source.topic}-{source.partition} went back from {expected} to {found}")
