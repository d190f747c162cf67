"""The summarizer as a Faust agent: at least once, many conversations at a time, each in order."""

import asyncio
from collections.abc import AsyncIterable
from functools import partial
from typing import Any

import structlog
from aiokafka.errors import KafkaError
from faust.exceptions import ProducerSendError

from schemas import InvalidRecord, SummaryCreated, decode_episode
from schemas.headers import Headers, cloud_event
from schemas.summaries import SUMMARY_CREATED
from streams.errors import EpisodeConflict
from streams.runtime import App, AtLeastOnce
from streams.runtime.dead_letters import dead_letter
from streams.settings import Kafka
from streams.summarizer.lanes import Lanes
from streams.summarizer.patience import Patience
from streams.summarizer.pipeline import Pipeline

STAGE = "summarizer"
CE_SOURCE = "afterword/summarizer"
RAW = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}

LaneKey = tuple[int, bytes | None]
"""Partition and record key."""

log = structlog.get_logger()


class Outputs:
    """What the summarizer writes to Kafka; each returns after the broker's acknowledgement. Raises: KafkaError."""

    def __init__(self, app: App, kafka: Kafka) -> None:
        self._summaries = app.topic(kafka.summaries_topic, **RAW)
        self._dead_letters = app.topic(kafka.dead_letters(kafka.episodes_topic), **RAW)

    async def publish(self, summary: SummaryCreated) -> None:
        headers = cloud_event(SUMMARY_CREATED, summary.event_id, CE_SOURCE, summary.created_at)
        await _acknowledged(self._summaries, summary.conversation_id.encode(), summary.to_json(), headers)

    async def bury(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        await _acknowledged(self._dead_letters, key, value, headers)


class Handling:
    """One record of `episode.closed` to its end; whatever is not foreseen here stops the worker."""

    def __init__(self, app: App, pipeline: Pipeline, outputs: Outputs, patience: Patience) -> None:
        self._app = app
        self._pipeline = pipeline
        self._outputs = outputs
        self._patience = patience

    async def handle(self, event: Any) -> None:
        """Acknowledges the record when its summary is announced, or when it is a dead letter."""
        record = event.value
        try:
            await self._pipeline.process(decode_episode(record.key, record.value))
        except InvalidRecord as error:
            await self._bury(record, error.error_type, error.detail)
        except EpisodeConflict as error:
            await self._bury(record, error.error_type, str(error))
        event.ack()

    async def _bury(self, record: Any, error_type: str, problem: str) -> None:
        where = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        log.warning("record refused", stage=STAGE, error_type=error_type, problem=problem, **where)
        letter = dead_letter(
            record,
            stage=STAGE,
            error_type=error_type,
            message=problem,
            attempts=1,
            now_ms=self._app.engine.clock(),
        )
        await self._patience.until_done("dead_letter", lambda: self._outputs.bury(*letter))


def attach(app: App, kafka: Kafka, handling: Handling) -> Lanes[LaneKey]:
    """Gives the app its agent. The lanes are to be drained when the app has stopped."""
    crashes: set[asyncio.Task[None]] = set()

    def crash(_: LaneKey, error: BaseException) -> None:
        log.error("summarizer failed", stage=STAGE, error_type=type(error).__name__)
        crashes.add(asyncio.ensure_future(app.crash(error)))

    lanes = Lanes[LaneKey](crash)  # the engine bounds what is in hand for each partition

    @app.agent(app.topic(kafka.episodes_topic, schema=AtLeastOnce()), name="summarizer")  # type: ignore[untyped-decorator]
    async def summarize(stream: AsyncIterable[Any]) -> None:
        async for event in stream.noack().events():  # type: ignore[attr-defined]
            record = event.value
            lanes.submit((record.partition, record.key), partial(handling.handle, event))

    @app.on_partitions_revoked.connect  # type: ignore[untyped-decorator]
    async def give_up(*_: Any, **__: Any) -> None:
        # the engine has waited for what it could: the next owner does the rest
        await lanes.cancel(lambda _: True)

    return lanes


async def _acknowledged(topic: Any, key: bytes | None, value: bytes | None, headers: Headers) -> None:
    try:
        await (await topic.send(key=key, value=value, headers=headers))
    except ProducerSendError as error:
        raise KafkaError(str(error)) from error
