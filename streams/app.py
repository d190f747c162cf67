"""The composition root: the only place that knows every class."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from consumers.kafka import require_topics
from streams.connection import security
from streams.runtime import App, Observer, Options
from streams.runtime.health import Handler, Health, HealthServer
from streams.runtime.worker import PARTITIONS, run
from streams.segmenter import agent as segmenter
from streams.segmenter.counting import counting
from streams.settings import Settings
from streams.stores import local_index, mongo
from streams.stores.mongo_budgets import MongoBudgets
from streams.stores.mongo_episodes import MongoEpisodes
from streams.stores.mongo_messages import MongoMessages
from streams.stores.mongo_replies import MongoReplies
from streams.stores.qdrant import QdrantIndex, open_index
from streams.summarizer import agent as summarizer
from streams.summarizer.counting import Counting
from streams.summarizer.embedders import make_embedder
from streams.summarizer.gate import Gate
from streams.summarizer.handling import Handling
from streams.summarizer.long_input.plan import rounds
from streams.summarizer.patience import Patience
from streams.summarizer.pipeline import Pipeline, now
from streams.summarizer.prompt import FIELDS, PLAIN
from streams.summarizer.providers.checked import ATTEMPTS
from streams.summarizer.providers.stack import make_summarizer_provider
from streams.summarizer.searching import Searcher
from streams.summarizer.so_far import Rules
from streams.summarizer.tracing import Tracing
from streams.telemetry import WorkerTelemetry

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
        watchdog_seconds=engine.watchdog_seconds,
        handling_seconds=longest_summary_seconds(settings),
    )


def longest_summary_seconds(settings: Settings) -> float:
    """How long a summarizer may be busy without finishing any episode, its LLM being silent in every call."""
    llm = settings.llm
    if llm.provider == "extractive":
        return 0.0
    calls = questions(settings) * (llm.json_attempts + rounds(llm.max_concurrency)) + 1
    return ATTEMPTS * (llm.retry_budget_seconds + calls * llm.timeout_seconds)


def questions(settings: Settings) -> int:
    """That one summary takes."""
    if settings.summarizer.preset == PLAIN:
        return len(FIELDS)
    return 2 if settings.llm.title_model else 1


def summary_rules(settings: Settings) -> Rules:
    rolling = settings.rolling
    return Rules(
        rolling_max_tokens=rolling.max_tokens,
        min_new_episodes=rolling.min_new_episodes,
        min_tokens=rolling.min_tokens,
        max_summary_length=settings.summarizer.max_summary_length or settings.episodes.preset.max_summary_length,
    )


def faust_app(settings: Settings, app_id: str, observer: Observer | None = None) -> App:
    """A Faust app on the engine, without agents yet. Raises: ConfigurationError."""
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
        security=security(kafka),
        observer=observer,
    )


def segmenter_app(settings: Settings, telemetry: WorkerTelemetry | None = None) -> App:
    if telemetry is None:
        app = faust_app(settings, settings.kafka.segmenter_id)
        segmenter.attach(app, settings)
    else:
        app = faust_app(settings, settings.kafka.segmenter_id, telemetry.engine)
        segmenter.attach(app, settings, counting(telemetry.metrics), telemetry.tracer)
    return app


async def run_segmenter(settings: Settings) -> None:
    """Until SIGTERM, then drains. Raises: AfterwordError, KafkaError."""
    kafka, health = settings.kafka, Health(PARTITIONS)
    changelogs = [kafka.changelog(table) for table in segmenter.TABLES]
    dead_letters = kafka.dead_letters(kafka.messages_topic)
    await require_topics(kafka, kafka.messages_topic, kafka.episodes_topic, dead_letters, *changelogs)
    telemetry = segmenter_telemetry(settings, health)
    async with HealthServer(health, settings.health.host, settings.health.port, telemetry.views):
        try:
            await run(segmenter_app(settings, telemetry), health)
        finally:
            await telemetry.close()


def segmenter_telemetry(settings: Settings, health: Health) -> WorkerTelemetry:
    return WorkerTelemetry(
        "segmenter", settings, health, apart=PARTITIONS, idle_seconds=settings.episodes.idle_seconds, traced=True
    )


async def run_summarizer(settings: Settings) -> None:
    """Until SIGTERM, then drains. Raises: AfterwordError, KafkaError."""
    kafka, health = settings.kafka, Health(PARTITIONS)
    dead_letters = kafka.dead_letters(kafka.episodes_topic)
    await require_topics(kafka, kafka.episodes_topic, kafka.summaries_topic, kafka.retry_topic, dead_letters)
    telemetry = WorkerTelemetry("summarizer", settings, health, apart=PARTITIONS, traced=True)
    observer = summarizer_observer(telemetry, kafka.summarizer_id)
    async with AsyncExitStack() as closing:
        closing.push_async_callback(telemetry.close)
        database = mongo.connect(settings.mongo)
        closing.push_async_callback(mongo.close, database)
        index = open_index(settings.qdrant, settings.embedder)
        closing.push_async_callback(index.close)
        embedder = make_embedder(settings.embedder)
        if embedder:
            closing.push_async_callback(embedder.close)
        await closing.enter_async_context(
            health_server(settings, health, index, Searcher(index, embedder), telemetry.views)
        )
        app = faust_app(settings, settings.kafka.summarizer_id, telemetry.engine)
        patience = Patience(Waiting(health), observer=observer)
        outputs = summarizer.Outputs(app, settings.kafka, observer)
        provider = make_summarizer_provider(settings, MongoBudgets(database), MongoReplies(database), observer)
        closing.push_async_callback(provider.close)
        pipeline = Pipeline(
            episodes=MongoEpisodes(database),
            messages=MongoMessages(database),
            index=index,
            provider=provider,
            llm=provider.without_fallback,
            embedder=embedder,
            publish=outputs.publish,
            patience=patience,
            rules=summary_rules(settings),
        )
        handling = Handling(app, pipeline, outputs, patience, settings.retry, observer)
        gate = Gate(provider, settings.retry, now)
        lanes = summarizer.attach(app, kafka, handling, gate.hold)
        telemetry.metrics.in_flight.set_function(lambda: lanes.in_flight)
        closing.push_async_callback(lanes.drain, 0)
        await patience.until_done("indexes", lambda: mongo.ensure_indexes(database))
        await run(app, health)


def summarizer_observer(telemetry: WorkerTelemetry, group: str) -> Counting:
    if telemetry.tracer is None:
        return Counting(telemetry.metrics)
    return Tracing(telemetry.metrics, telemetry.tracer, group)


class Waiting:
    """Turns readiness false while work waits at some stage."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def waiting(self, stage: str, error_type: str) -> None:
        self._health.not_ready(stage, error_type)

    def recovered(self, stage: str) -> None:
        self._health.ready(stage)


@asynccontextmanager
async def health_server(
    settings: Settings, health: Health, index: QdrantIndex, search: Searcher, views: Mapping[str, Handler]
) -> AsyncIterator[HealthServer]:
    """With an index in a directory, which nobody else can open meanwhile, it shows that too."""
    path, token = settings.qdrant.path, local_index.new_token()
    of_index = local_index.views(index, search, token) if path else {}
    all_views = {**views, **of_index}
    async with HealthServer(health, settings.health.host, settings.health.port, all_views) as server:
        if path:
            local_index.announce(path, settings.health.host, server.port, token)
        yield server
