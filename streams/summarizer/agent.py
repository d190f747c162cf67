"""The summarizer as Faust agents: at least once, many conversations at a time, each in order."""

import asyncio
from collections.abc import AsyncIterable
from functools import partial
from typing import Any

import structlog
from aiokafka.errors import KafkaError
from faust.exceptions import ProducerSendError

from afterword.schemas import SummaryCreated
from afterword.schemas.headers import Headers, cloud_event
from afterword.schemas.summaries import SUMMARY_CREATED
from afterword.streams.runtime import App, AtLeastOnce
from afterword.streams.runtime.at_least_once import Hold
from afterword.streams.settings import Kafka
from afterword.streams.summarizer.handling import STAGE, Handling
from afterword.streams.summarizer.lanes import Lanes
from afterword.streams.summarizer.observer import Observer
from afterword.streams.summarizer.retries import PREFIX, Try, headers_of

CE_SOURCE = "afterword/summarizer"
RAW = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}
RETRIES_AT_A_TIME = 1
"""For each partition: new episodes have the LLM for themselves, nearly, and retries stay in their order."""

LaneKey = tuple[str, int, bytes | None]
"""Topic, partition and record key."""

log = structlog.get_logger()


class Outputs:
    """What the summarizer writes to Kafka; each returns after the broker's acknowledgement. Raises: KafkaError."""

    def __init__(self, app: App, kafka: Kafka, observer: Observer) -> None:
        self._observer = observer
        self._summaries = app.topic(kafka.summaries_topic, **RAW)
        self._retries = app.topic(kafka.retry_topic, **RAW)
        self._dead_letters = app.topic(kafka.dead_letters(kafka.episodes_topic), **RAW)

    async def publish(self, summary: SummaryCreated) -> None:
        headers = cloud_event(SUMMARY_CREATED, summary.event_id, CE_SOURCE, summary.created_at)
        headers += self._observer.headers()
        await _acknowledged(self._summaries, summary.conversation_id.encode(), summary.to_json(), headers)
        self._observer.published(summary)

    async def retry(self, record: Any, attempt: Try) -> None:
        original = [(name, value) for name, value in record.headers if not name.startswith(PREFIX)]
        await _acknowledged(self._retries, record.key, record.value, original + headers_of(attempt))

    async def bury(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        await _acknowledged(self._dead_letters, key, value, headers)


def attach(app: App, kafka: Kafka, handling: Handling, hold: Hold) -> Lanes[LaneKey]:
    """Gives the app its agents. The lanes are to be drained when the app has stopped.

    `hold`: what a record of `episode.retry` waits for.
    """
    crashes: set[asyncio.Task[None]] = set()

    def crash(_: LaneKey, error: BaseException) -> None:
        log.error("summarizer failed", stage=STAGE, error_type=type(error).__name__)
        crashes.add(asyncio.ensure_future(app.crash(error)))

    lanes = Lanes[LaneKey](crash)  # the engine bounds what is in hand for each partition
    retries = AtLeastOnce(max_in_flight=RETRIES_AT_A_TIME, hold=hold)

    @app.agent(app.topic(kafka.episodes_topic, schema=AtLeastOnce()), name="summarizer")  # type: ignore[untyped-decorator]
    async def summarize(stream: AsyncIterable[Any]) -> None:
        async for event in stream.noack().events():  # type: ignore[attr-defined]
            lanes.submit(lane_of(event.value), partial(handling.handle, event))

    @app.agent(app.topic(kafka.retry_topic, schema=retries), name="retries")  # type: ignore[untyped-decorator]
    async def mend(stream: AsyncIterable[Any]) -> None:
        async for event in stream.noack().events():  # type: ignore[attr-defined]
            lanes.submit(lane_of(event.value), partial(handling.mend, event))

    @app.on_partitions_revoked.connect  # type: ignore[untyped-decorator]
    async def give_up(*_: Any, **__: Any) -> None:
        # the engine has waited for what it could: the next owner does the rest
        await lanes.cancel(lambda _: True)

    return lanes


def lane_of(record: Any) -> LaneKey:
    return record.topic, record.partition, record.key


async def _acknowledged(topic: Any, key: bytes | None, value: bytes | None, headers: Headers) -> None:
    try:
        await (await topic.send(key=key, value=value, headers=headers))
    except ProducerSendError as error:
        raise KafkaError(str(error)) from error
