"""The composition root of the segmenter, and the Faust app that segmenter and summarizer share."""

from functools import partial
from typing import Any

from opentelemetry.trace import Tracer

from afterword.streams.kafka.clients import client_id, require_topics, security
from afterword.streams.kafka.fetching import BoundedConsumer
from afterword.streams.settings import HEARTBEAT_SECONDS, REBALANCE_SECONDS, Llm, Settings
from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.worker import worker_telemetry
from faust_eos.app import PARTITIONS, App, run
from faust_eos.health import HealthServer, Readiness
from faust_eos.metrics import EngineMetrics
from faust_eos.options import Options, allocate_sparingly

LEAST_IN_FLIGHT = 16
"""Minimum of `max_in_flight`, in episodes per partition."""
IN_FLIGHT_WITHOUT_LLM = 64


def engine_options(settings: Settings, **others: Any) -> Options:
    """Translate settings into engine options; `others` are further options, and may replace `max_in_flight`."""
    return Options(
        drain_seconds=settings.drain_seconds,
        revoke_drain_seconds=min(settings.drain_seconds, settings.kafka.revoke_seconds),
        tidy_after_ms=settings.episodes.forget_after_ms,
        **{"max_in_flight": in_flight(settings.llm)} | others,
    )


def in_flight(llm: Llm) -> int:
    """Return the maximum number of episodes in flight per partition.

    It is somewhat more than the LLM's concurrent calls, so that none of them waits for a read, but not much more,
    because each episode takes memory. Without an LLM no episode waits long, and many at a time share their reads.
    """
    if llm.provider == "extractive":
        return IN_FLIGHT_WITHOUT_LLM
    return max(2 * llm.max_concurrency, LEAST_IN_FLIGHT)


def faust_app(
    settings: Settings,
    app_id: str,
    metrics: EngineMetrics | None = None,
    *,
    role: str = "worker",
    **options: Any,
) -> App:
    """Make a Faust app on the engine, without agents.

    `role` is part of its clients' names. `options` are further fields of `Options`. Raises: ConfigurationError.
    """
    kafka = settings.kafka
    return App(
        app_id,
        brokers=kafka.bootstrap_servers,
        engine=engine_options(settings, **options),
        datadir=settings.state_dir,
        broker_client_id=client_id(kafka, role),
        broker_session_timeout=kafka.session_timeout_seconds,
        broker_heartbeat_interval=HEARTBEAT_SECONDS,
        broker_rebalance_timeout=REBALANCE_SECONDS,
        broker_request_timeout=kafka.request_timeout_seconds,
        consumer_group_instance_id=kafka.group_instance_id,
        security=security(kafka),
        metrics=metrics,
        consumer_class=partial(BoundedConsumer, client_rack=kafka.client_rack),
    )


def segmenter_app(settings: Settings, metrics: Metrics, tracer: Tracer) -> App:
    from afterword.streams.segmenter.agent import attach_segmenter  # imported here because other workers do not need it

    app = faust_app(settings, settings.kafka.segmenter_id, metrics.engine, role="segmenter")
    attach_segmenter(app, settings, metrics, tracer)
    return app


async def run_segmenter(settings: Settings) -> None:
    """Run until SIGTERM, then drain. Raises: AfterwordError, KafkaError."""
    from afterword.streams.segmenter.state import TABLES

    allocate_sparingly()
    kafka, readiness = settings.kafka, Readiness(PARTITIONS)
    changelogs = [kafka.changelog(table) for table in TABLES]
    dead_letters = kafka.dead_letters(kafka.messages_topic)
    await require_topics(kafka, kafka.messages_topic, kafka.episodes_topic, dead_letters, *changelogs)
    async with (
        worker_telemetry("segmenter", settings, readiness, settings.episodes.idle_seconds) as telemetry,
        HealthServer(readiness, settings.health.host, settings.health.port, telemetry.views),
    ):
        await run(segmenter_app(settings, telemetry.metrics, telemetry.tracer), readiness)
