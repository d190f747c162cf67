"""The composition root of the summarizer: the only place that knows all of its classes.

It is separate from `streams.app`, because its stores' clients take longer to import than the whole segmenter.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from opentelemetry.trace import Tracer

from afterword.schemas import EpisodeRedo
from afterword.streams.app import faust_app
from afterword.streams.dead_letters import DeadLetters
from afterword.streams.errors import AfterwordError
from afterword.streams.kafka.clients import IdempotentProducer, require_topics, running_producer
from afterword.streams.lanes import attach_agents
from afterword.streams.settings import Settings
from afterword.streams.steps import StepRunner
from afterword.streams.stores.bookkeeping import Budgets
from afterword.streams.stores.opening import open_stores
from afterword.streams.summarizer import agent as summarizer
from afterword.streams.summarizer.embedders import make_embedder
from afterword.streams.summarizer.reconciler import STAGE, Reconciler
from afterword.streams.summarizer.summarizer import Summarizer, make_summarizer
from afterword.streams.summarizer.summary import SummaryRules
from afterword.streams.summarizer.timers import FallbackTimer, RetentionSweep, redo_headers
from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.worker import worker_telemetry
from faust_eos.app import PARTITIONS, App, crash_with, run
from faust_eos.at_least_once import AtLeastOnce
from faust_eos.failures import Attempts
from faust_eos.health import HealthServer, Readiness
from faust_eos.options import allocate_sparingly

MakeSummarizer = Callable[[Settings, Budgets, Metrics, Tracer], Summarizer]
MOST_ASKED = 2
"""Maximum number of summaries for which one record asks an LLM: a message may be in one episode and the next."""


def summary_rules(settings: Settings) -> SummaryRules:
    return SummaryRules(
        rolling_max_tokens=settings.rolling.max_tokens,
        max_summary_length=settings.summarizer.max_summary_length or settings.episodes.preset.max_summary_length,
        zone=settings.summarizer.zone,
    )


def summarizer_app(settings: Settings, metrics: Metrics) -> App:
    """Make the Faust app, without agents. Its watchdog allows for all LLM calls that one record may need."""
    limit = MOST_ASKED * settings.llm.summary_seconds
    group = settings.kafka.summarizer_id
    return faust_app(settings, group, metrics.engine, role="summarizer", handling_seconds=limit)


async def run_summarizer(settings: Settings, make: MakeSummarizer = make_summarizer) -> None:
    """Run until SIGTERM, then drain. Raises: AfterwordError, KafkaError."""
    allocate_sparingly()
    kafka, readiness = settings.kafka, Readiness(PARTITIONS)
    dead_letters_topic = kafka.dead_letters(kafka.episodes_topic)
    await require_topics(
        kafka,
        kafka.episodes_topic,
        kafka.summaries_topic,
        kafka.deletions_topic,
        kafka.conversations_topic,
        *kafka.current_topics,
        dead_letters_topic,
    )
    async with AsyncExitStack() as closing:
        telemetry = await closing.enter_async_context(worker_telemetry("summarizer", settings, readiness))
        metrics, tracer = telemetry.metrics, telemetry.tracer
        stores = await closing.enter_async_context(open_stores(settings))
        if embedder := make_embedder(settings.embedder, settings.redaction):
            closing.push_async_callback(embedder.close)
        # open the stores first: their clients are slow to import, and a live worker has to answer
        index = stores.index
        summaries = make(settings, stores.budgets, metrics, tracer)
        closing.push_async_callback(summaries.close)
        await closing.enter_async_context(
            HealthServer(readiness, settings.health.host, settings.health.port, telemetry.views)
        )
        app = summarizer_app(settings, metrics)
        steps = StepRunner(readiness, metrics, tracer)
        outputs = summarizer.Outputs(kafka, metrics)
        reconciler = Reconciler(
            episodes=stores.episodes,
            messages=stores.messages,
            index=index,
            summarizer=summaries,
            embedder=embedder,
            publish=outputs.publish,
            keep=outputs.keep,
            steps=steps,
            rules=summary_rules(settings),
            retry=settings.retry,
            retention=settings.retention,
        )
        dead_letters = DeadLetters(STAGE, dead_letters_topic, metrics=metrics)
        attempts = Attempts(app.breaker, app.engine.agent_retries, stops=(AfterwordError,))
        handler = summarizer.RecordHandler(reconciler, dead_letters, attempts, tracer, kafka.summarizer_id)
        episodes = kafka.episodes_topic, AtLeastOnce(order=summarizer.lane_of, reject=handler.dead_letter)
        lanes = attach_agents(app, STAGE, {"summarizer": episodes}, handler.handle)
        metrics.in_flight.set_function(lambda: lanes.in_flight)
        closing.push_async_callback(lanes.cancel)
        await steps.retry_until_success("indexes", stores.prepare_database)
        await steps.retry_until_success("indexes", index.prepare)
        producer: IdempotentProducer | None = None

        async def send(redo: EpisodeRedo) -> None:
            nonlocal producer
            if producer is None:  # most summarizers never have a summary to replace, nor anything that expires
                producer = await closing.enter_async_context(running_producer(kafka))
            key, headers = redo.conversation_id.encode(), redo_headers(redo)
            await producer.send_and_wait(kafka.episodes_topic, redo.to_json(), key=key, headers=headers)

        sweep = RetentionSweep(settings.retention, episodes=stores.episodes, messages=stores.messages, send=send)
        timer = FallbackTimer(stores.episodes, summaries, send, settings.retry)
        running = [asyncio.create_task(sweep.run()), asyncio.create_task(timer.run())]
        for task in running:
            closing.callback(task.cancel)
        closing.callback(asyncio.create_task(crash_with(app, running)).cancel)
        await run(app, readiness)
