"""Ingest turns records of other applications' topics into `messages`, in the transaction that commits their offsets.

A record that cannot be mapped becomes a dead letter of its own topic. While a schema registry is unavailable, or a bulk
source has to wait for the segmenter, the agent takes no records, so nothing is rejected for that reason.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from aiokafka.errors import KafkaError

from afterword.schemas import InvalidRecord
from afterword.schemas.dead_letters import INGEST as STAGE
from afterword.schemas.records import KafkaRecord, check_original
from afterword.streams.app import Worker, faust_app
from afterword.streams.dead_letters import DeadLetters
from afterword.streams.errors import AfterwordError, ConfigurationError
from afterword.streams.ingest.registry import RegistryUnavailable, SchemaRegistry, open_registry
from afterword.streams.ingest.sources import (
    INCOMPLETE_DELETION,
    NEEDS_REGISTRY,
    Source,
    map_items,
    match_topics,
    require_registry,
    require_sources,
)
from afterword.streams.kafka.clients import admin_client, require_topics
from afterword.streams.kafka.log_reader import Log, TopicStalled
from afterword.streams.settings import Kafka, Settings
from afterword.streams.tasks import apart
from faust_eos.app import PARTITIONS, App
from faust_eos.batch import Batch, Batches, failing_batch
from faust_eos.transaction import Output, size_of

if TYPE_CHECKING:
    from afterword.streams.redactor import RecordRedaction

log = structlog.get_logger(__name__)

REGISTRY = "registry"
"""Readiness condition: the schema registry answers."""
WAIT_SECONDS = 0.5
"""Pause before the registry is asked again; short, so that a partition is released soon."""
PIECE = 100
"""Number of records that are mapped without a pause."""
ALL_FAIL = 100
"""If this many of a source's records fail and none succeeds, the mapping is to blame, not the records."""
TOPICS_SECONDS = 60.0
"""Interval at which new topics that match a pattern are looked for."""
MAPPED, SKIPPED, REJECTED = OUTCOMES = ("mapped", "skipped", "rejected")
LOOK_SECONDS = 0.2
"""Interval at which the groups' lag is read. Records that were let through need this time to be committed and to show
as lag."""
LONGEST_LOOK_SECONDS = 10.0
"""Time for one look; if it takes longer, the groups count as behind."""
COUNT_SECONDS = 5.0
"""While the lag is too large, the unread records are counted this often."""
EPISODE_MESSAGES = 10
"""An episode of lag counts for this many messages, the default trigger."""


class BulkGate:
    """Says how many records of bulk sources may be read now.

    Nobody knows how many episodes a burst of records will close: perhaps none, perhaps one each. So bursts start with
    one record and grow by a quarter while the groups keep up, and are halved when they do not.
    """

    def __init__(self, log: Log, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        kafka = settings.kafka
        self._log = log
        self._most = settings.ingest.bulk_lag
        self._watched = (
            (kafka.group_of("segmenter"), kafka.messages_topic, 1),
            (kafka.group_of("summarizer"), kafka.episodes_topic, EPISODE_MESSAGES),
        )
        self._clock = clock
        self._burst = 0
        self._looks_at = 0.0
        """Time from which the next caller reads the lag again; infinite while somebody is reading it."""
        self._counted_at = -math.inf

    async def room(self) -> int:
        """Return how many records may be read; 0 while a group is behind, or Kafka does not answer."""
        if self._clock() < self._looks_at:
            return 0
        self._looks_at = math.inf  # reading the lag takes CPU time that live messages need
        try:
            async with asyncio.timeout(LONGEST_LOOK_SECONDS):
                behind = await self._behind(self._lag)
                if behind < self._most:
                    self._counted_at = self._clock()
                elif self._clock() - self._counted_at >= COUNT_SECONDS:
                    self._counted_at = self._clock()
                    behind = await self._behind(self._unread)
        except (KafkaError, TopicStalled, TimeoutError):
            return 0
        finally:
            self._looks_at = self._clock() + LOOK_SECONDS
        if behind >= self._most:
            self._burst //= 2
            return 0
        self._burst = min(self._most - behind, self._burst + self._burst // 4 + 1)
        return self._burst

    async def _behind(self, left: Callable[[str, str], Awaitable[int]]) -> int:
        return sum([await left(group, topic) * weight for group, topic, weight in self._watched])

    async def _lag(self, group: str, topic: str) -> int:
        """Return the lag without the transaction marker with which a partition usually ends."""
        lags = await self._log.lags(group, topic, await self._log.ends(topic))
        return sum(max(0, lag - 1) for lag in lags.values())

    async def _unread(self, group: str, topic: str) -> int:
        """Count unread records, up to `_most`. A lag that consists of aborted records must not hold back a source for
        ever.
        """
        count = 0
        async with aclosing(self._log.unread(group, topic, await self._log.ends(topic))) as records:
            async for _ in records:
                count += 1
                if count == self._most:
                    break
        return count


class MappingFails(AfterwordError):
    """source {number} cannot be mapped: all of its first {count} records failed, the last one because of {problem}.
    Look at them with: afterword source try --source {number}"""


class TopicsChanged(AfterwordError):
    """topic {topic} now matches a pattern of source {number}: the worker must restart to read it"""


async def start(worker: Worker) -> dict[str, App]:
    """Make the app that reads the sources' topics, with one agent per source, so that no source waits for another.

    Raises: AfterwordError, KafkaError.
    """
    settings, kafka, closing = worker.settings, worker.settings.kafka, worker.closing
    sources = require_sources(settings)
    require_registry(settings, sources)
    admin = await closing.enter_async_context(admin_client(kafka))
    topics = match_topics(sources, set(await admin.list_topics()), kafka.own_topics)
    if not topics:
        raise ConfigurationError(setting=str(settings.ingest.file), problem="no topic matches a pattern yet")
    await require_topics(kafka, kafka.messages_topic, *map(kafka.dead_letters, topics))
    registry = await closing.enter_async_context(open_registry(settings.registry))
    gate = BulkGate(Log(kafka, admin), settings)
    app = faust_app(settings, kafka.group_of("ingest"), worker.metrics.engine, role="ingest", sources_may_grow=True)
    for index, source in enumerate(sources):
        if names := [topic for topic, of_source in topics.items() if of_source == index]:
            ingester = Ingester(app, worker, source, index + 1, registry, gate)
            schema = Batches(reject=ingester.reject, stops=(AfterwordError,))
            app.agent(app.topic(*names, schema=schema), name=f"source {index + 1}")(ingester.run)
    closing.callback(asyncio.create_task(crash_on_new_topics(app, sources, topics, admin, kafka)).cancel)
    return {PARTITIONS: app}


@dataclass(eq=False)
class Ingester:
    """Maps the records of one source."""

    app: App
    worker: Worker
    source: Source
    number: int
    """The source's position in its file, from 1."""
    registry: SchemaRegistry
    gate: BulkGate

    def __post_init__(self) -> None:
        self._kafka = self.worker.settings.kafka
        self._redaction: RecordRedaction | None = self.worker.settings.redaction.of_records()
        self._good = self._bad = 0
        self._waiting: dict[tuple[str, int], int] = {}
        """The offset of the record of each partition that last waited for the registry."""
        ingested = self.worker.metrics.ingested
        self._counters = {outcome: ingested.labels(str(self.number), outcome) for outcome in OUTCOMES}

    async def run(self, stream: AsyncIterable[Any]) -> None:
        async for records in stream:
            with failing_batch() as batch:
                await self.handle(records, batch)

    async def handle(self, records: Sequence[KafkaRecord], batch: Batch) -> None:
        """Map the records that fit into one transaction, or none while the source has to wait."""
        room = await self.gate.room() if self.source.bulk else len(records)
        if not room:
            await asyncio.sleep(LOOK_SECONDS)
            batch.take_first(0)
            return
        done = written = 0
        for record in records[:room]:
            try:
                outputs = await self._outputs(record)
            except RegistryUnavailable as error:
                self._wait_for(record, error)
                if not done:
                    await asyncio.sleep(WAIT_SECONDS)
                break
            for output in outputs:
                batch.send(output)
                written += size_of(output)
            done += 1
            if done % PIECE == 0:
                await asyncio.sleep(0)
            if written >= batch.most_bytes:
                break
        batch.take_first(done)

    def _wait_for(self, record: KafkaRecord, error: RegistryUnavailable) -> None:
        self.worker.readiness.not_ready(REGISTRY, error.error_type)
        if self._waiting.get((record.topic, record.partition)) != record.offset:  # not at every attempt
            log.warning("ingest_paused", stage=STAGE, error_type=error.error_type, problem=str(error))
        self._waiting[record.topic, record.partition] = record.offset

    async def _outputs(self, record: KafkaRecord) -> list[Output]:
        """Return messages, or a dead letter. Raises: RegistryUnavailable, MappingFails, ConfigurationError."""
        try:
            check_original(record.headers)
            value, key = await self.registry.read(self.source, record)
            if self.source.format in NEEDS_REGISTRY:
                self.worker.readiness.ready(REGISTRY)
            made, invalid = await apart(len(record.value or b""), map_items, self.source, record, value, key)
        except InvalidRecord as error:
            made, invalid = [], error
        topic = self._kafka.messages_topic
        outputs = [Output(topic, event.conversation_id.encode(), event.value, headers=event.headers) for event in made]
        self._good += bool(made)
        if invalid is None:
            self._counters[MAPPED if made else SKIPPED].inc()
            return outputs
        self._bad += invalid.error_type != INCOMPLETE_DELETION
        if not self._good and self._bad >= ALL_FAIL:
            raise MappingFails(number=self.number, count=self._bad, problem=invalid.detail) from None
        now_ms = self.app.engine.clock()
        return [*outputs, self._dead_letters(record).of(record, invalid.error_type, invalid.detail, now_ms)]

    def reject(self, record: Any, error: Exception) -> Output:
        return self._dead_letters(record).of_failure(record, error, self.app.engine)

    def _dead_letters(self, record: KafkaRecord) -> DeadLetters:
        """Count a rejected record, and return the maker of dead letters of its topic."""
        self._counters[REJECTED].inc()
        topic = self._kafka.dead_letters(record.topic)
        return DeadLetters(STAGE, topic, self._redaction, self.worker.metrics)


async def crash_on_new_topics(
    app: App,
    sources: Sequence[Source],
    topics: dict[str, int],
    admin: Any,
    kafka: Kafka,
    seconds: float = TOPICS_SECONDS,
) -> None:
    """Stop the worker once a new topic matches a pattern; its supervisor restarts it, and it reads the topic."""
    while True:
        await asyncio.sleep(seconds)
        try:
            matched = match_topics(sources, set(await admin.list_topics()), kafka.own_topics)
        except KafkaError:
            continue
        except ConfigurationError as error:  # a topic was deleted, or now belongs to two sources
            await app.crash(error)
            return
        if new := sorted(matched.keys() - topics.keys()):
            await app.crash(TopicsChanged(topic=new[0], number=matched[new[0]] + 1))
            return
