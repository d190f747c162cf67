"""The archiver as a process: its connections, its health, and its end."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

import structlog
from aiokafka import AIOKafkaConsumer

from afterword.consumers.archiver import CONDITIONS, MONGODB, PARTITIONS, STAGE, Archiver, Counts
from afterword.consumers.archiver_observer import Rebalances, Telling
from afterword.streams.errors import StoreUnavailable
from afterword.streams.kafka import running_consumer
from afterword.streams.runtime.health import HealthServer, Readiness
from afterword.streams.runtime.lag import Lags, Standing, regularly
from afterword.streams.runtime.options import wall_clock_ms
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.messages import ArchivedMessage, MessageWriter
from afterword.streams.stores.opening import Stores, open_stores
from afterword.streams.telemetry import Metrics, WorkerTelemetry

log = structlog.get_logger(__name__)

CONTACT_SECONDS = 2.0
NEVER_MILLISECONDS = 2**31 - 1
"""24 days: the longest that Kafka's own clients can be told."""


async def run_archiver(settings: Settings, stop: asyncio.Event | None = None) -> None:
    """Runs until SIGTERM or SIGINT, or until `stop` is set; then finishes the write under way.

    Raises: BrokerUnavailable, TopicMissing, OSError (health port).
    """
    stop = stop or stop_signal()
    health = Readiness(*CONDITIONS)
    kafka = settings.kafka
    telemetry = WorkerTelemetry("archiver", settings, health, apart=PARTITIONS)
    listener = Rebalances(telemetry.metrics.engine)
    async with (
        aclosing(telemetry),
        HealthServer(health, settings.health.host, settings.health.port, telemetry.views),
        connected_archive(settings, health) as archive,
        running_consumer(kafka, kafka.messages_topic, listener=listener, **group_options(kafka)) as consumer,
    ):
        telling = Telling(telemetry.metrics, telemetry.tracer, kafka.messages_topic, kafka.archiver_id)
        archiver = Archiver(consumer, archive, health, telling)
        telemetry.metrics.before_reading.append(counting(archiver.counts, telemetry.metrics))
        standing = asyncio.create_task(tell(consumer, archiver, telemetry))
        try:
            await until_stopped(archiver, stop, settings.drain_seconds)
        finally:
            standing.cancel()
        log.info("archiver_stopped", **vars(archiver.counts))


def counting(counts: Counts, metrics: Metrics) -> Callable[[], None]:
    """Adds what has been counted since it was called last."""
    told: Counter[str] = Counter()

    def count() -> None:
        for outcome, total in vars(counts).items():
            metrics.archived.labels(outcome).inc(total - told[outcome])
            told[outcome] = total

    return count


async def tell(consumer: AIOKafkaConsumer, archiver: Archiver, telemetry: WorkerTelemetry) -> None:
    """Of its partitions, regularly."""
    lags = Lags(consumer, archiver.work, wall_clock_ms)
    async for found in regularly(lags):
        standings = [Standing(source.topic, source.partition, True, *lag) for source, lag in found.items()]
        telemetry.metrics.engine.show(standings)


def group_options(kafka: Kafka) -> dict[str, object]:
    """How the archiver takes part in its consumer group."""
    return {
        "group_id": kafka.archiver_id,
        "group_instance_id": kafka.group_instance_id,
        "auto_offset_reset": "earliest",
        "session_timeout_ms": int(kafka.session_timeout_seconds * 1000),
        "heartbeat_interval_ms": int(kafka.session_timeout_seconds * 1000 / 3),
        "rebalance_timeout_ms": int(kafka.rebalance_timeout_seconds * 1000),
        # it polls nothing while it waits for MongoDB, and no other member could do better with its partitions
        "max_poll_interval_ms": NEVER_MILLISECONDS,
    }


class PreparedArchive:
    """A MessageWriter that prepares the database with the first write, so that both are retried until it answers."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._prepared = False

    async def put_many(self, messages: Sequence[ArchivedMessage]) -> None:
        if not self._prepared:
            await self._stores.prepare_database()
            self._prepared = True
        await self._stores.messages.put_many(messages)


@asynccontextmanager
async def connected_archive(settings: Settings, health: Readiness) -> AsyncIterator[MessageWriter]:
    """The archive, whether it can be reached or not: the archiver retries its writes."""
    async with open_stores(settings) as stores:
        contact = asyncio.create_task(first_contact(stores, health))
        try:
            yield PreparedArchive(stores)
        finally:
            contact.cancel()


async def first_contact(stores: Stores, health: Readiness) -> None:
    """Readiness until there is something to write; from then on the writes tell."""
    while True:
        try:
            await stores.ping_database()
        except StoreUnavailable as error:
            health.not_ready(MONGODB, error.error_type)
            await asyncio.sleep(CONTACT_SECONDS)
        else:
            health.ready(MONGODB)
            return


def stop_signal() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def until_stopped(archiver: Archiver, stop: asyncio.Event, drain_seconds: float) -> None:
    """After the stop the archiver has `drain_seconds` for the write under way; what is not written is not committed."""
    running = asyncio.create_task(archiver.run(stop))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    with suppress(TimeoutError):
        await asyncio.wait_for(running, drain_seconds)
        return
    log.warning("drain_timed_out", stage=STAGE, error_type="drain_timed_out", drain_seconds=drain_seconds)
