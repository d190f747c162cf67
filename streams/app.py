"""The composition root: the only place that knows every class."""

from streams.runtime import App, Options
from streams.runtime.health import Health, HealthServer
from streams.runtime.worker import PARTITIONS, run
from streams.segmenter import agent as segmenter
from streams.settings import Settings

HEARTBEATS_IN_SESSION = 6


def engine_options(settings: Settings) -> Options:
    engine = settings.engine
    return Options(
        max_batch=engine.max_batch,
        linger_ms=engine.linger_ms,
        transaction_timeout_seconds=engine.transaction_timeout_seconds,
        commit_timeout_seconds=engine.commit_timeout_seconds,
        drain_seconds=settings.drain_seconds,
        revoke_drain_seconds=min(settings.drain_seconds, settings.kafka.rebalance_timeout_seconds / 2),
        agent_retries=engine.agent_retries,
        tick_seconds=engine.tick_seconds,
        max_in_flight=settings.max_in_flight,
        commit_interval_seconds=engine.commit_interval_seconds,
    )


def faust_app(settings: Settings, app_id: str) -> App:
    """A Faust app on the engine, without agents yet."""
    kafka = settings.kafka
    return App(
        app_id,
        brokers=kafka.bootstrap_servers,
        engine=engine_options(settings),
        datadir=settings.state_dir,
        broker_session_timeout=kafka.session_timeout_seconds,
        broker_heartbeat_interval=kafka.session_timeout_seconds / HEARTBEATS_IN_SESSION,
        broker_rebalance_timeout=kafka.rebalance_timeout_seconds,
        broker_request_timeout=kafka.request_timeout_seconds,
        consumer_group_instance_id=kafka.group_instance_id,
    )


def segmenter_app(settings: Settings) -> App:
    app = faust_app(settings, settings.kafka.segmenter_id)
    segmenter.attach(app, settings)
    return app


async def run_segmenter(settings: Settings) -> None:
    """Until SIGTERM, then drains. Raises: AfterwordError, KafkaError."""
    health = Health(PARTITIONS)
    async with HealthServer(health, settings.health.host, settings.health.port):
        await run(segmenter_app(settings), health)
