"""The composition root of webhooks: each endpoint has an app of its own, with its own consumer group."""

from contextlib import AsyncExitStack

from afterword.streams.app import faust_app
from afterword.streams.errors import AfterwordError, ConfigurationError
from afterword.streams.kafka import require_topics
from afterword.streams.runtime import App
from afterword.streams.runtime.failures import Attempts
from afterword.streams.runtime.health import HealthServer, Readiness
from afterword.streams.runtime.worker import PARTITIONS, run_together
from afterword.streams.settings import Settings, variable
from afterword.streams.stores.episodes import EpisodeQueries
from afterword.streams.stores.opening import open_stores
from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.worker import worker_telemetry
from afterword.streams.webhooks.agent import Deliveries, Undelivered, attach_endpoint
from afterword.streams.webhooks.endpoint import Endpoint

ROLE = "webhooks"
IN_FLIGHT = 256
"""Events in hand per endpoint and partition of a topic, including waiting ones."""


async def run_webhooks(settings: Settings) -> None:
    """Run until SIGTERM, then drain. Raises: AfterwordError, KafkaError."""
    kafka, names = settings.kafka, list(settings.webhooks.endpoints)
    if not names:
        raise ConfigurationError(setting=variable(("webhooks", "endpoints")), problem="there is no endpoint")
    await require_topics(kafka, kafka.summaries_topic, kafka.deletions_topic, kafka.undelivered_topic)
    readiness = Readiness(*map(condition_of, names))
    async with AsyncExitStack() as closing:
        telemetry = await closing.enter_async_context(worker_telemetry(ROLE, settings, readiness))
        await closing.enter_async_context(
            HealthServer(readiness, settings.health.host, settings.health.port, telemetry.views)
        )
        stores = await closing.enter_async_context(open_stores(settings))
        apps = {
            condition_of(name): await endpoint_app(name, settings, stores.episodes, telemetry.metrics, closing)
            for name in names
        }
        await run_together(apps, readiness)


def condition_of(name: str) -> str:
    """Return the name of an endpoint's readiness condition, which is that its partitions are assigned."""
    return f"{PARTITIONS}:{name}"


async def endpoint_app(
    name: str, settings: Settings, episodes: EpisodeQueries, metrics: Metrics, closing: AsyncExitStack
) -> App:
    """Make an endpoint's app. No watchdog limits the handling, because an event may wait there as long as it takes."""
    kafka, webhooks = settings.kafka, settings.webhooks
    group, engine = kafka.webhooks_group(name), metrics.engine.of_group(f"{ROLE}:{name}")
    app = faust_app(settings, group, engine, role="webhooks", handling_seconds=float("inf"))
    given = webhooks.endpoints[name]
    endpoint = await closing.enter_async_context(Endpoint(name, given, webhooks))
    attempts = Attempts(app.breaker, settings.engine.agent_retries, stops=(AfterwordError,))
    undelivered = Undelivered(app, kafka, name, metrics)
    handler = Deliveries(endpoint, undelivered, attempts, webhooks, episodes.versions, metrics, given.since)
    lanes = attach_endpoint(app, kafka, given, IN_FLIGHT, handler)
    closing.push_async_callback(lanes.drain, 0)
    return app
