"""Handing a batch to the agent, and learning whether it was done."""

import asyncio
from collections.abc import Sequence
from typing import Any

import structlog
from aiokafka import TopicPartition
from faust.types.tuples import TP

from afterword.streams.runtime.batch import Batch, Tick
from afterword.streams.runtime.database import Database
from afterword.streams.runtime.errors import AgentFailed, NoAgent
from afterword.streams.runtime.lag import Work
from afterword.streams.runtime.messages import BatchMessage, NotTaken

log = structlog.get_logger()

NOT_TAKEN_WAIT_SECONDS = 0.1


class Delivery:
    """Runs the agent on one batch at a time. What failed is tried again on the same records: nothing was sent."""

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
        """The agent is at a batch, or its batch is being committed."""
        return self._current is not None and self._current.tracked

    @property
    def busy(self) -> bool:
        """A batch is on its way to the agent, or with it, or being committed."""
        return self._current is not None

    def stop(self) -> None:
        """From now on a failure is not tried again."""
        self._stopping = True

    def abandon(self) -> None:
        """What the agent still writes goes nowhere."""
        if self._current is not None:
            self._current.batch.abandon()

    def committed(self) -> None:
        self._current = self._in_hand_ms = None

    @property
    def work(self) -> Work:
        """What it is at."""
        return Work(self._database.position.source, self._in_hand_ms, self._last_ms)

    async def run(self, work: Sequence[Any] | Tick, next_offset: int) -> Batch:
        """The batch as the agent left it. Raises: AgentFailed when it failed too often, NoAgent."""
        failures = 0
        if not isinstance(work, Tick):
            self._in_hand_ms, self._last_ms = work[0].timestamp, work[-1].timestamp
        while True:
            try:
                return await self._deliver(work, next_offset)
            except AgentFailed as error:
                if self._stopping:
                    raise
                if isinstance(error.cause, NotTaken):  # a rebalance is on its way, and will cancel us
                    await asyncio.sleep(NOT_TAKEN_WAIT_SECONDS)
                    continue
                failures += 1
                await self._failed(error, failures)

    async def _failed(self, error: AgentFailed, failures: int) -> None:
        name = type(error.cause).__name__
        log.error("agent failed", partition=self._where, stage="agent", error_type=name, attempt=failures)
        if failures > self._options.agent_retries:
            raise error
        self._current = None  # between two runs nothing is begun: a stop need not wait
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
