"""The composition root of the summarizer: the only place that knows all of its classes.

Apart from `streams.app`, because the clients of its stores take longer to import than all of the segmenter.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack

from afterword.streams.app import faust_app
from afterword.streams.kafka import require_topics
from afterword.streams.runtime.health import HealthServer, Readiness
from afterword.streams.runtime.worker import PARTITIONS, run
from afterword.streams.settings import Settings
from afterword.streams.stores.budgets import Budgets
from afterword.streams.stores.opening import open_stores
from afterword.streams.stores.replies import ReplyCache
from afterword.streams.summarizer import agent as summarizer
from afterword.streams.summarizer.embedders import make_embedder, query_embedder
from afterword.streams.summarizer.long_input.plan import rounds
from afterword.streams.summarizer.observer import Observer
from afterword.streams.summarizer.pipeline import Pipeline, now
from afterword.streams.summarizer.prompt import FIELDS, PLAIN
from afterword.streams.summarizer.providers.checked import ATTEMPTS
from afterword.streams.summarizer.providers.fallback import WithFallback
from afterword.streams.summarizer.providers.stack import make_summarizer_provider
from afterword.streams.summarizer.retries import RetryHold
from afterword.streams.summarizer.rolling import SummaryRules
from afterword.streams.summarizer.steps import StepRunner
from afterword.streams.summarizer.tracing import Tracing
from afterword.streams.telemetry import worker_telemetry

MakeProvider = Callable[[Settings, Budgets, ReplyCache, Observer], WithFallback]
"""Whoever writes the summaries."""


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


def summary_rules(settings: Settings) -> SummaryRules:
    rolling = settings.rolling
    return SummaryRules(
        rolling_max_tokens=rolling.max_tokens,
        min_new_episodes=rolling.min_new_episodes,
        min_tokens=rolling.min_tokens,
        max_summary_length=settings.summarizer.max_summary_length or settings.episodes.preset.max_summary_length,
    )


async def run_summarizer(settings: Settings, make_provider: MakeProvider = make_summarizer_provider) -> None:
    """Run until SIGTERM, then drain. Raises: AfterwordError, KafkaError."""
    kafka, health = settings.kafka, Readiness(PARTITIONS)
    dead_letters = kafka.dead_letters(kafka.episodes_topic)
    await require_topics(kafka, kafka.episodes_topic, kafka.summaries_topic, kafka.retry_topic, dead_letters)
    async with AsyncExitStack() as closing:
        telemetry = await closing.enter_async_context(worker_telemetry("summarizer", settings, health))
        metrics, tracer = telemetry.metrics, telemetry.tracer
        observer = Tracing(metrics, tracer)
        stores = await closing.enter_async_context(open_stores(settings))
        if embedder := make_embedder(settings.embedder):
            closing.push_async_callback(embedder.close)
        views = {**telemetry.views, **stores.index_views(query_embedder(embedder))}
        server = await closing.enter_async_context(
            HealthServer(health, settings.health.host, settings.health.port, views)
        )
        stores.announce_index(settings.health.host, server.port)
        longest = longest_summary_seconds(settings)
        app = faust_app(settings, kafka.summarizer_id, metrics.engine, handling_seconds=longest)
        steps = StepRunner(health, metrics, tracer)
        outputs = summarizer.Outputs(app, kafka, metrics)
        provider = make_provider(settings, stores.budgets, stores.replies, observer)
        closing.push_async_callback(provider.close)
        pipeline = Pipeline(
            episodes=stores.episodes,
            messages=stores.messages,
            index=stores.index,
            provider=provider,
            llm=provider.without_fallback,
            embedder=embedder,
            publish=outputs.publish,
            steps=steps,
            rules=summary_rules(settings),
        )
        group = kafka.summarizer_id
        handler = summarizer.RecordHandler(pipeline, outputs, steps, settings.retry, metrics, tracer, group)
        hold = RetryHold(provider, settings.retry, now).hold
        lanes = summarizer.attach(app, kafka, handler, hold)
        metrics.in_flight.set_function(lambda: lanes.in_flight)
        closing.push_async_callback(lanes.drain, 0)
        await steps.retry_until_success("indexes", stores.prepare_database)
        await run(app, health)
