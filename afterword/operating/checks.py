"""Checks everything that Afterword needs: servers, topics, the LLM, and with `smoke` the whole path."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal
from uuid import uuid4

import orjson
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TransactionalIdAuthorizationFailed
from opentelemetry.trace import NoOpTracer

from afterword.consumers.subscriber import watching
from afterword.operating.topics import check_topics
from afterword.schemas import SummaryCreated
from afterword.streams.errors import AfterwordError
from afterword.streams.ingest.sources import load_sources, match_topics, require_registry
from afterword.streams.kafka.clients import admin_client, client_options
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.settings import Settings, keys_in_clear
from afterword.streams.stores.opening import open_stores
from afterword.streams.summarizer.providers import LlmProvider, make_provider
from afterword.streams.telemetry.metrics import Metrics
from afterword.streams.webhooks.endpoint import unreachable
from afterword.writing.produce import produce
from faust_eos.options import Options

OFFSET_METADATA = "offset.metadata.max.bytes"
TURNS = (
    ("user", "Is the smoke test of this deployment through yet?"),
    ("assistant", "Not yet: this conversation has to be summarized first."),
    ("user", "Then I wait for its summary."),
)


class Advice(str):
    """A finding about something that works but should be changed."""

    __slots__ = ()


Check = Callable[[], Awaitable[str]]
"""Returns what was found, or `Advice`. Raises: AfterwordError or KafkaError, which says what is wrong."""


@dataclass(frozen=True)
class Result:
    name: str
    word: Literal["OK", "WARN", "FAIL"]
    detail: str
    error: AfterwordError | None = None
    """The error behind `detail`, if it is one of ours."""


class CheckFailed(AfterwordError):
    """{problem}"""


async def check_all(settings: Settings) -> list[Result]:
    """Run all checks, including the stores' own, concurrently. Each ends within the timeouts in the settings."""
    ours = {
        "kafka": check_kafka,
        "topics": check_wanted_topics,
        "commits": check_commits,
        "llm": check_llm,
        "reranker": check_reranker,
        "webhooks": check_webhooks,
        "sources": check_sources,
        "keys": check_keys,
    }
    async with open_stores(settings) as stores:
        checks = {name: partial(check, settings) for name, check in ours.items()} | dict(stores.checks)
        return await asyncio.gather(*[_result(name, check) for name, check in checks.items()])


async def check_keys(settings: Settings) -> str:
    """Check that no API key is sent unencrypted to another machine."""
    in_clear = [f"{setting} is sent unencrypted to {address}" for setting, address in keys_in_clear(settings)]
    return Advice("; ".join(in_clear)) if in_clear else "none is sent unencrypted"


async def _result(name: str, check: Check) -> Result:
    try:
        outcome = await check()
    except AfterwordError as error:
        return Result(name, "FAIL", str(error), error)
    except KafkaError as error:
        return Result(name, "FAIL", str(error) or type(error).__name__)
    return Result(name, "WARN" if isinstance(outcome, Advice) else "OK", outcome)


async def check_kafka(settings: Settings) -> str:
    """Check that every broker accepts the metadata of the engine's commits. One that we may not ask is not checked."""
    async with admin_client(settings.kafka) as admin:
        brokers = (await admin.describe_cluster())["brokers"]
        names = [str(broker["node_id"]) for broker in brokers]
        asked = [ConfigResource(ConfigResourceType.BROKER, name, {OFFSET_METADATA: None}) for name in names]
        answers = await admin.describe_configs(asked)
    limits = [int(entry[1]) for answer in answers for *_, entries in answer.resources for entry in entries]
    least, needed = min(limits, default=None), Options().offset_metadata_bytes
    if least is not None and least < needed:
        raise CheckFailed(problem=f"{OFFSET_METADATA} of the brokers is {least}, should be at least {needed}")
    return f"{settings.kafka.bootstrap_servers}, brokers: {len(brokers)}"


async def check_wanted_topics(settings: Settings) -> str:
    reports = await check_topics(settings)
    wrong = [f"{report.name} is {report.status} {report.detail}".strip() for report in reports if not report.fine]
    if wrong:
        raise CheckFailed(problem="; ".join(wrong) + "; see: afterword topics create")
    warnings = [f"{report.name}: {report.warning}" for report in reports if report.warning]
    return Advice("; ".join(warnings)) if warnings else f"{len(reports)} as configured"


async def check_webhooks(settings: Settings) -> str:
    """Check that each endpoint's name resolves to an address that may be connected to. Nothing is sent."""
    webhooks = settings.webhooks
    wrong = [
        f"{name}: {problem}"
        for name, endpoint in webhooks.endpoints.items()
        if (problem := await unreachable(endpoint.host, webhooks.allowed_hosts))
    ]
    if wrong:
        raise CheckFailed(problem="; ".join(wrong))
    return ", ".join(webhooks.endpoints) or "no endpoints"


async def check_sources(settings: Settings) -> str:
    """Check that the sources' topics exist, and that the schema registry answers or is not needed."""
    from afterword.streams.ingest.registry import open_registry  # imported here because few deployments need fastavro

    sources, kafka = load_sources(settings), settings.kafka
    if not sources:
        return "none"
    require_registry(settings, sources)
    async with admin_client(kafka) as admin:
        topics = match_topics(sources, set(await admin.list_topics()), kafka.own_topics)
    if settings.registry.url is not None:
        async with open_registry(settings.registry) as registry:
            await registry.check()
    return ", ".join(topics) or Advice("no topic matches a pattern yet")


async def check_commits(settings: Settings) -> str:
    """Check that the workers may use transactions, with ids that no partition uses, so that nobody is fenced."""
    await check_kafka(settings)  # because the next imports take half a second, wasted if no broker answers
    from afterword.streams.app import engine_options
    from faust_eos.kafka import Clients
    from faust_eos.transaction import TransactionalProducer

    kafka, seconds = settings.kafka, settings.kafka.request_timeout_seconds
    roles = [*ALWAYS_RUN, "ingest"] if load_sources(settings) else ALWAYS_RUN
    for app_id in map(kafka.group_of, roles):
        producer = TransactionalProducer(f"{app_id}-check", Clients(client_options(kafka)), engine_options(settings))
        try:
            await producer.open(seconds)
        except TransactionalIdAuthorizationFailed:
            problem = (
                f"transactional ids with the prefix {app_id}- are not permitted: the user needs Describe and Write"
            )
            raise CheckFailed(problem=problem) from None
        except TimeoutError:
            raise CheckFailed(problem=f"no transactional producer could be opened in {seconds:g} s") from None
        finally:
            await producer.close()
    return "transactions are permitted"


async def check_llm(settings: Settings) -> str:
    provider = make_provider(settings, Metrics("check", ""), NoOpTracer())
    try:
        await provider.try_out()
    finally:
        await provider.close()
    refused = sorted(provider.client.left_out) if isinstance(provider, LlmProvider) else ()
    without = f"(refuses {', '.join(refused)}, which is left out)" if refused else ""
    return " ".join(part for part in (settings.llm.provider, settings.llm.model, without) if part)


async def check_reranker(settings: Settings) -> str:
    """Ask the reranking server, if one is configured, for the order of two short texts."""
    if settings.reranker.base_url is None:
        return "none"
    from afterword.reading.reranking import Reranking

    reranking = Reranking(settings.reranker)
    try:
        return await reranking.check()
    finally:
        await reranking.close()


class NoSummary(AfterwordError):
    """{seconds:g} seconds after it was sent, conversation {conversation_id} has no summary; is each role running?"""


async def smoke(settings: Settings, seconds: float) -> SummaryCreated:
    """Send a short conversation with a new id and return its summary. Both stay in the stores.

    Raises: NoSummary, BrokerUnavailable, TopicMissing.
    """
    conversation_id = f"afterword-smoke-{uuid4()}"
    who = {"conversation_id": conversation_id, "user_id": "afterword-smoke"}
    lines = [orjson.dumps({"id": str(n), **who, "role": role, "content": said}) for n, (role, said) in enumerate(TURNS)]
    async with watching(settings.kafka) as events:  # before anything is sent, so that no summary is missed
        try:
            async with asyncio.timeout(seconds):
                await produce(settings, lines, flush=True)
                async for event in events:
                    if isinstance(event, SummaryCreated) and event.conversation_id == conversation_id:
                        return event
        except TimeoutError:
            raise NoSummary(seconds=seconds, conversation_id=conversation_id) from None
    raise AssertionError("a topic has no end")
