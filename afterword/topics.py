"""The topics that Afterword needs: made where they are missing, compared where they exist, never changed."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, UnknownTopicOrPartitionError, for_code

from afterword.streams.errors import StoreUnavailable
from afterword.streams.kafka import admin_client
from afterword.streams.settings import Settings
from afterword.topic_specs import FoundTopic, Topic, TopicReport, compare, wanted_topics

__all__ = ["TopicReport", "check_topics", "ensure_topics"]

POLL_SECONDS = 0.05
CONFIGS_SECONDS = 20.0


async def ensure_topics(settings: Settings) -> list[TopicReport]:
    """Creates what is missing and compares the rest; on return the new ones can be used.

    Differences and refusals are reported, not raised. Raises: BrokerUnavailable, StoreUnavailable.
    """
    async with _admin(settings) as admin:
        before = await _existing(admin)
        seconds = settings.kafka.request_timeout_seconds
        # the input first: its changelogs need as many partitions as it then really has
        await _create_missing(admin, wanted_topics(settings)[:1], seconds)
        wanted = _wanted(settings, await _existing(admin))
        refused = await _create_missing(admin, wanted, seconds)
        # in one look: of several brokers, the one that is asked next may not have heard of a new topic yet
        existing = await _until_visible(admin, {topic.name for topic in wanted} - set(refused), seconds)
        reports = await _compare_all(admin, wanted, existing)
    return [_outcome(report, report.name in before, refused.get(report.name)) for report in reports]


async def check_topics(settings: Settings) -> list[TopicReport]:
    """Compares and creates nothing. Raises: BrokerUnavailable, StoreUnavailable."""
    async with _admin(settings) as admin:
        existing = await _existing(admin)
        return await _compare_all(admin, _wanted(settings, existing), existing)


def _wanted(settings: Settings, existing: Mapping[str, FoundTopic]) -> list[Topic]:
    messages = existing.get(settings.kafka.messages_topic)
    return wanted_topics(settings, messages.partitions if messages else None)


def _outcome(report: TopicReport, existed: bool, refusal: str | None) -> TopicReport:
    if refusal is not None:
        return TopicReport(report.name, "failed", refusal)
    if report.status == "ok" and not existed:
        return TopicReport(report.name, "created")
    return report


@asynccontextmanager
async def _admin(settings: Settings) -> AsyncIterator[AIOKafkaAdminClient]:
    try:
        async with admin_client(settings.kafka) as admin:
            yield admin
    except (KafkaError, TimeoutError) as error:
        raise StoreUnavailable(store="Kafka", problem=str(error) or type(error).__name__) from error


async def _existing(admin: AIOKafkaAdminClient) -> dict[str, FoundTopic]:
    # all of them: asking for one by name would make it, on a broker that creates topics by itself
    return {topic["topic"]: _found(topic) for topic in await admin.describe_topics()}


def _found(metadata: Mapping[str, Any]) -> FoundTopic:
    partitions = metadata["partitions"]
    replicas = min((len(partition["replicas"]) for partition in partitions), default=0)
    return FoundTopic(metadata["topic"], len(partitions), replicas)


async def _create_missing(admin: AIOKafkaAdminClient, topics: Sequence[Topic], seconds: float) -> dict[str, str]:
    """Returns when the new ones are there; for each that was refused, why."""
    existing = await _existing(admin)
    missing = [topic for topic in topics if topic.name not in existing]
    refused = await _create(admin, missing) if missing else {}
    await _until_visible(admin, {topic.name for topic in missing} - set(refused), seconds)
    return refused


async def _create(admin: AIOKafkaAdminClient, topics: Sequence[Topic]) -> dict[str, str]:
    """Why, for each topic that was refused; one that somebody else made in the meantime was not."""
    new = [NewTopic(t.name, t.partitions, t.replication_factor, topic_configs=dict(t.configs)) for t in topics]
    response = await admin.create_topics(new)
    return {
        name: message or for_code(code).description
        for name, code, message in response.topic_errors
        if code not in (0, TopicAlreadyExistsError.errno)
    }


async def _until_visible(admin: AIOKafkaAdminClient, names: set[str], seconds: float) -> dict[str, FoundTopic]:
    """Created means that the controller knows; the brokers hear of it a moment later."""
    deadline = time.monotonic() + seconds
    while missing := names - set(existing := await _existing(admin)):
        if time.monotonic() > deadline:
            raise StoreUnavailable(store="Kafka", problem=f"it does not show new topics: {', '.join(sorted(missing))}")
        await asyncio.sleep(POLL_SECONDS)
    return existing


async def _compare_all(
    admin: AIOKafkaAdminClient, wanted: Sequence[Topic], existing: Mapping[str, FoundTopic]
) -> list[TopicReport]:
    configs = await _topic_configs(admin, [topic.name for topic in wanted if topic.name in existing])
    return [
        compare(topic, FoundTopic(found.name, found.partitions, found.replication_factor, configs[topic.name]))
        if (found := existing.get(topic.name))
        else TopicReport(topic.name, "missing")
        for topic in wanted
    ]


async def _topic_configs(admin: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Of topics that exist; the broker that is asked may hear of a new one last. Raises: StoreUnavailable."""
    deadline = time.monotonic() + CONFIGS_SECONDS
    found: dict[str, dict[str, str]] = {}
    while missing := [name for name in names if name not in found]:
        if time.monotonic() > deadline:
            raise StoreUnavailable(store="Kafka", problem=f"it does not show the settings of {', '.join(missing)}")
        responses = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in missing])
        for code, message, _kind, name, entries in [
            resource for response in responses for resource in response.resources
        ]:
            if code == 0:
                found[name] = {entry[0]: entry[1] for entry in entries}
            elif code != UnknownTopicOrPartitionError.errno:
                raise StoreUnavailable(store="Kafka", problem=f"{name}: {message or for_code(code).description}")
        if len(found) < len(names):
            await asyncio.sleep(POLL_SECONDS)
    return found
