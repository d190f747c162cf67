"""Delivers events to HTTP endpoints, in order per conversation, until each is accepted or becomes a dead letter."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import stamina
import structlog

from afterword.consumers.subscriber import decode_revision
from afterword.schemas import InvalidRecord, SummaryCreated, SummaryDeleted
from afterword.schemas.dead_letters import UNFORESEEN, WEBHOOKS
from afterword.schemas.records import FOR_ENDPOINT, KafkaRecord, header
from afterword.schemas.summaries import SUMMARY_CREATED, SUMMARY_DELETED
from afterword.streams.app import Worker, attach_agents, faust_app, send
from afterword.streams.dead_letters import DeadLetters
from afterword.streams.errors import AfterwordError, ConfigurationError, StoreUnavailable
from afterword.streams.kafka.clients import require_topics
from afterword.streams.settings import Settings, variable
from afterword.streams.stores.episodes import EpisodeStore, Lookup, is_outdated
from afterword.streams.telemetry.metrics import Metrics
from afterword.streams.webhooks.endpoint import GONE, DeliveryFailed, Endpoint, EndpointGone, webhook_body, webhook_id
from faust_eos.app import PARTITIONS, App
from faust_eos.at_least_once import AtLeastOnce, mark_working
from faust_eos.errors import place_of
from faust_eos.failures import Attempts
from faust_eos.options import wall_clock_ms

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 5.0, 600.0
"""Wait before the first retry of an event, which doubles with each retry up to the longest wait."""
STORE_SECONDS = 1.0
"""Wait before an unavailable store is asked again."""
DELIVERED, DEAD_LETTER, OUTDATED = "delivered", "dead_letter", "outdated"

log = structlog.get_logger()
IN_FLIGHT = 256
"""Events in hand per endpoint and partition of a topic, including waiting ones."""


@dataclass(eq=False)
class Deliveries:
    """Delivers records to one endpoint."""

    endpoint: Endpoint
    undelivered_topic: str
    attempts: Attempts
    """Limits retries when our own code fails on a record."""
    retry_seconds: float
    lookup: Lookup
    metrics: Metrics
    since: datetime | None = None
    """Records from before this time are not sent."""
    first_wait_seconds: float = FIRST_WAIT_SECONDS

    def __post_init__(self) -> None:
        self.name = self.endpoint.name
        for outcome in (DELIVERED, DEAD_LETTER, OUTDATED, GONE):
            self.metrics.webhooks.labels(self.name, outcome)

    async def deliver(self, event: Any) -> None:
        """Acknowledge the record once the endpoint has accepted it, or its dead letter is sent."""
        record = event.value
        where = f"{record.topic}-{record.partition}"
        error = await self.attempts.alone(record.key, where, lambda: self._settle(event, record))
        if error is not None:
            self.give_up(record, UNFORESEEN, place_of(error), self.attempts.most)
        event.ack()

    def give_up(self, record: KafkaRecord, error_type: str, problem: str, attempts: int = 1) -> None:
        """Write the record unchanged, with the endpoint's name, so that a replay goes only to this endpoint.

        The dead letter is committed together with the offset.
        """
        dead_letters = DeadLetters(WEBHOOKS, self.undelivered_topic, metrics=self.metrics)
        letter = dead_letters.of(record, error_type, f"{self.name}: {problem}", wall_clock_ms(), attempts)
        others = [(name, said) for name, said in letter.headers if name != FOR_ENDPOINT]
        send(replace(letter, headers=[*others, (FOR_ENDPOINT, self.name.encode())]))
        self.metrics.webhooks.labels(self.name, DEAD_LETTER).inc()

    async def _settle(self, event: Any, record: KafkaRecord) -> None:
        """Return once the endpoint has accepted the record, its dead letter is sent, or it is not for this endpoint."""
        if header(record.headers, FOR_ENDPOINT) not in (None, self.name):
            return
        if self.since is not None and record.timestamp < self.since.timestamp() * 1000:
            return
        try:
            if (revision := decode_revision(record)) is not None:
                await self._until_taken(event, revision)
        except InvalidRecord as error:
            self.give_up(record, error.error_type, error.detail)
        except EndpointGone:
            # wait until the worker stops or loses the partition, so that neither this event nor a later one is
            # committed
            await asyncio.Event().wait()
        except DeliveryFailed as error:
            self.give_up(record, error.error_type, str(error), error.tries)

    async def _until_taken(self, event: Any, revision: SummaryCreated | SummaryDeleted) -> None:
        """Try with growing waits. Raises: EndpointGone; DeliveryFailed once the time is over."""
        async for attempt in stamina.retry_context(
            on=wait_after,
            attempts=None,
            timeout=self.retry_seconds,
            wait_initial=self.first_wait_seconds,
            wait_max=LONGEST_WAIT_SECONDS,
            wait_jitter=min(1.0, self.first_wait_seconds),
        ):
            with attempt:
                try:
                    async with self.endpoint.turn():
                        with mark_working(event):
                            outcome = OUTDATED
                            if not await self._is_outdated(revision):
                                await self.endpoint.post(webhook_id(revision.event_id), webhook_body(revision))
                                outcome = DELIVERED
                    self.metrics.webhooks.labels(self.name, outcome).inc()
                except DeliveryFailed as error:
                    error.tries = attempt.num
                    self.metrics.webhooks.labels(self.name, error.kind).inc()
                    raise

    async def _is_outdated(self, event: SummaryCreated | SummaryDeleted) -> bool:
        """Return whether a summary was deleted or replaced since, so that its text may contain deleted words.

        A later event announces the change. This waits while the store is unavailable.
        """
        if isinstance(event, SummaryDeleted):
            return False
        while True:
            try:
                stored = (await self.lookup([event.episode_id])).get(event.episode_id)
            except StoreUnavailable as error:
                log.warning("webhook_waits", stage=WEBHOOKS, endpoint=self.name, error_type=error.error_type)
                await asyncio.sleep(STORE_SECONDS)
            else:
                return is_outdated(event, stored)


def wait_after(error: Exception) -> bool | float:
    """Return whether another try follows, or after how many seconds if the endpoint says so."""
    if isinstance(error, EndpointGone) or not isinstance(error, DeliveryFailed):
        return False
    return error.retry_after or True


async def start(worker: Worker) -> dict[str, App]:
    """Make an app for each endpoint, with its own consumer group. Raises: AfterwordError, KafkaError."""
    settings, kafka = worker.settings, worker.settings.kafka
    if not settings.webhooks.endpoints:
        raise ConfigurationError(setting=variable(("webhooks", "endpoints")), problem="there is no endpoint")
    await require_topics(kafka, kafka.summaries_topic, kafka.deletions_topic, kafka.undelivered_topic)
    stores = worker.stores
    return {
        f"{PARTITIONS}:{name}": await endpoint_app(name, settings, stores.episodes, worker.metrics, worker.closing)
        for name in settings.webhooks.endpoints
    }


async def endpoint_app(
    name: str, settings: Settings, episodes: EpisodeStore, metrics: Metrics, closing: AsyncExitStack
) -> App:
    """Make an endpoint's app. No watchdog limits the handling, because an event may wait there as long as it takes."""
    kafka, webhooks, given = settings.kafka, settings.webhooks, settings.webhooks.endpoints[name]
    group, engine = f"{kafka.group_of(WEBHOOKS)}-{name}", metrics.engine_of(f"{WEBHOOKS}:{name}")
    app = faust_app(settings, group, engine, role=WEBHOOKS, handling_seconds=float("inf"), max_in_flight=IN_FLIGHT)
    endpoint = await closing.enter_async_context(Endpoint(name, given, webhooks))
    attempts = Attempts(app.breaker, app.engine.agent_retries, stops=(AfterwordError,))
    handler = Deliveries(
        endpoint, kafka.undelivered_topic, attempts, webhooks.retry_seconds, episodes.lookup, metrics, given.since
    )
    topics = {SUMMARY_CREATED: kafka.summaries_topic, SUMMARY_DELETED: kafka.deletions_topic}
    schema = AtLeastOnce(order=lambda record: (record.key,))
    sources = {f"{name} {kind}": (topic, schema) for kind, topic in topics.items()}
    # both topics share the lanes, so that a deletion waits for a summary that is being delivered. A record counts as
    # idle before its turn comes and between two tries
    lanes = attach_agents(app, WEBHOOKS, sources, handler.deliver, are_idle=True)
    closing.push_async_callback(lanes.cancel)
    return app
