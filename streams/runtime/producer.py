"""Faust's producer: inside an exactly-once agent a send joins the batch, elsewhere it goes out as usual."""

import asyncio
from collections.abc import Mapping
from typing import Any

from aiokafka.errors import ProducerClosed
from faust.exceptions import NotReady
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import TP, RecordMetadata

from afterword.streams.runtime.batch import Batch, Headers, Output, current_batch
from afterword.streams.runtime.logger import LIFE_CYCLE

UNKNOWN_OFFSET = -1
"""Of a record in a batch: it has none before the commit."""


class Producer(driver.Producer):
    """Sends are never lost silently: what joins a batch is committed with it or not at all."""

    logger = LIFE_CYCLE

    def _settings_extra(self) -> dict[str, Any]:
        return {"acks": "all", "enable_idempotence": True}

    def _settings_auth(self) -> Mapping[str, Any]:
        security: Mapping[str, Any] = self.app.security
        return security

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp: float | None,
        headers: Any,
        *,
        transactional_id: str | None = None,  # noqa: ARG002 – the signature is Faust's
    ) -> Any:
        batch = current_batch()
        if batch is None:
            return await self._send_now(topic, key, value, partition, timestamp, headers)
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        future.set_result(_join(batch, topic, key, value, partition, timestamp, headers))
        return future

    async def _send_now(self, *record: Any) -> Any:
        """Raises: KafkaError, also when the worker is stopping: what is not done by then, the next owner does."""
        try:
            return await super().send(*record)
        except NotReady as error:
            raise ProducerClosed from error

    def send_soon(self, fut: Any) -> None:
        batch = current_batch()
        if batch is None:
            super().send_soon(fut)
            return
        sent = fut.message
        topic = sent.channel.get_topic_name()
        fut.set_result(_join(batch, topic, sent.key, sent.value, sent.partition, sent.timestamp, sent.headers))


def _join(
    batch: Batch,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    partition: int | None,
    timestamp: float | None,
    headers: Any,
) -> RecordMetadata:
    timestamp_ms = int(timestamp * 1000) if timestamp else None
    batch.send(Output(topic, key, value, partition, timestamp_ms, _as_list(headers)))
    return RecordMetadata(topic, UNKNOWN_OFFSET, TP(topic, UNKNOWN_OFFSET), UNKNOWN_OFFSET)


def _as_list(headers: Any) -> Headers:
    return list(headers.items()) if hasattr(headers, "items") else list(headers or ())
