"""Checks of everything that Afterword needs: servers, topics, the LLM."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiokafka.errors import KafkaError
from opentelemetry.trace import NoOpTracer

from afterword.streams.errors import AfterwordError, StoreInUse
from afterword.streams.kafka import admin_client
from afterword.streams.settings import Settings, keys_in_clear, without_credentials
from afterword.streams.stores.opening import open_stores
from afterword.streams.summarizer.providers import make_provider
from afterword.streams.telemetry import Metrics
from afterword.topics import check_topics


class Advice(str):
    """Finding that works but should be changed."""

    __slots__ = ()


Check = Callable[[Settings], Awaitable[str]]
"""Returns what was found, or `Advice`. Raises: AfterwordError or KafkaError, which says what is wrong."""


@dataclass(frozen=True)
class Result:
    name: str
    ok: bool
    detail: str
    warning: bool = False
    """It works, and should be changed nevertheless."""

    @property
    def word(self) -> str:
        return "WARN" if self.warning else "OK" if self.ok else "FAIL"


class CheckFailed(AfterwordError):
    """{problem}"""


async def check_all(settings: Settings) -> list[Result]:
    """Run all checks concurrently; each ends within the timeouts in the settings."""
    return [*await asyncio.gather(*[_result(name, check, settings) for name, check in CHECKS.items()]), keys(settings)]


def keys(settings: Settings) -> Result:
    """Check that every API key is encrypted on its way to another machine."""
    found = [f"{setting} is sent unencrypted to {address}" for setting, address in keys_in_clear(settings)]
    return Result("keys", True, "; ".join(found) or "none is sent unencrypted", warning=bool(found))


async def _result(name: str, check: Check, settings: Settings) -> Result:
    try:
        found = await check(settings)
        return Result(name, True, found, warning=isinstance(found, Advice))
    except (AfterwordError, KafkaError) as error:
        return Result(name, False, str(error) or type(error).__name__)


async def check_kafka(settings: Settings) -> str:
    async with admin_client(settings.kafka) as admin:
        cluster = await admin.describe_cluster()
    return f"{settings.kafka.bootstrap_servers}, brokers: {len(cluster['brokers'])}"


async def check_wanted_topics(settings: Settings) -> str:
    reports = await check_topics(settings)
    wrong = [f"{report.name} is {report.status} {report.detail}".strip() for report in reports if not report.fine]
    if wrong:
        raise CheckFailed(problem="; ".join(wrong) + "; see: afterword topics create")
    warnings = [f"{report.name}: {report.warning}" for report in reports if report.warning]
    return Advice("; ".join(warnings)) if warnings else f"{len(reports)} as configured"


async def check_mongodb(settings: Settings) -> str:
    async with open_stores(settings) as stores:
        await stores.ping_database()
    return f"database {settings.mongo.database}"


async def check_qdrant(settings: Settings) -> str:
    """Check Qdrant; a directory that another process has open counts as available."""
    async with open_stores(settings) as stores:
        try:
            await stores.index.ping()
        except StoreInUse:
            return f"{settings.qdrant.path}, in use by a running worker"
    url = without_credentials(settings.qdrant.url) if settings.qdrant.url else "at its default address"
    return str(settings.qdrant.path or url)


async def check_llm(settings: Settings) -> str:
    provider = make_provider(settings, None, Metrics("check", ""), NoOpTracer())
    try:
        await provider.check()
    finally:
        await provider.close()
    return " ".join(part for part in (settings.llm.provider, settings.llm.model) if part)


CHECKS: dict[str, Check] = {
    "kafka": check_kafka,
    "topics": check_wanted_topics,
    "mongodb": check_mongodb,
    "qdrant": check_qdrant,
    "llm": check_llm,
}
