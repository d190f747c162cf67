"""The topics that Afterword needs: made where they are missing, compared where they exist, never changed."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from streams.errors import StoreUnavailable
from streams.settings import Settings

SEGMENTER_APP = "afterword-segmenter"
SEGMENTER_TABLES = ("conversations", "messages")
LARGE_RECORD_BYTES = 2 * 1024 * 1024
"""An episode, a row of state or a dead letter may be somewhat larger than the record that it came from, and that may
have the broker's default limit of a mebibyte."""
POLL_SECONDS = 0.05

Status = Literal["created", "ok", "different", "missing", "failed"]


@dataclass(frozen=True)
class Topic:
    """A topic as it should be; with `any_count` an existing one may have any number of partitions."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]
    any_count: bool = False


@dataclass(frozen=True)
class FoundTopic:
    """A topic as it is; `configs` holds all that are in effect."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TopicReport:
    """`detail` says what differs, or why it could not be made; empty otherwise."""

    name: str
    status: Status
    detail: str = ""

    @property
    def fine(self) -> bool:
        return self.status in ("created", "ok")


def changelog(app_id: str, table: str) -> str:
    """The compacted topic behind a table."""
    return f"{app_id}-{table}-changelog"


def wanted_topics(
    settings: Settings, message_partitions: int | None = None, segmenter_app: str = SEGMENTER_APP
) -> list[Topic]:
    """Every topic, from the settings alone.

    `message_partitions`: how many the input topic has, when it exists; its changelogs need as many.
    """
    kafka = settings.kafka
    log = _configs(settings, "delete")
    large = {**log, "max.message.bytes": str(LARGE_RECORD_BYTES)}
    compacted = {**large, "cleanup.policy": "compact"}

    def topic(name: str, configs: Mapping[str, str], count: int = kafka.partitions, any_count: bool = True) -> Topic:
        return Topic(name, count, kafka.replication_factor, configs, any_count)

    return [
        topic(kafka.messages_topic, log, any_count=False),
        topic(kafka.episodes_topic, large),
        topic(kafka.summaries_topic, log),
        topic(kafka.dead_letters(kafka.messages_topic), large),
        topic(kafka.dead_letters(kafka.episodes_topic), large),
        *(
            topic(changelog(segmenter_app, table), compacted, message_partitions or kafka.partitions, any_count=False)
            for table in SEGMENTER_TABLES
        ),
    ]


def compare(wanted: Topic, found: FoundTopic) -> TopicReport:
    """Status `ok` or `different`."""
    pairs = {name: (value, found.configs.get(name, "none")) for name, value in wanted.configs.items()}
    pairs["replication factor"] = (str(wanted.replication_factor), str(found.replication_factor))
    if not wanted.any_count:
        pairs["partitions"] = (str(wanted.partitions), str(found.partitions))
    differing = [f"{name} is {is_}, should be {should}" for name, (should, is_) in pairs.items() if is_ != should]
    return TopicReport(wanted.name, "different" if differing else "ok", "; ".join(differing))


async def ensure_topics(settings: Settings, segmenter_app: str = SEGMENTER_APP) -> list[TopicReport]:
    """Creates what is missing and compares the rest; on return the new ones can be used.

    Differences and refusals are reported, not raised. Raises: StoreUnavailable.
    """
    async with _admin(settings) as admin:
        before = await _existing(admin)
        seconds = settings.kafka.request_timeout_seconds
        # the input first: its changelogs need as many partitions as it then really has
        await _create_missing(admin, wanted_topics(settings)[:1], seconds)
        wanted = _wanted(settings, await _existing(admin), segmenter_app)
        refused = await _create_missing(admin, wanted, seconds)
        reports = await _compare_all(admin, wanted)
    return [_outcome(report, report.name in before, refused.get(report.name)) for report in reports]


async def check_topics(settings: Settings, segmenter_app: str = SEGMENTER_APP) -> list[TopicReport]:
    """Compares and creates nothing. Raises: StoreUnavailable."""
    async with _admin(settings) as admin:
        return await _compare_all(admin, _wanted(settings, await _existing(admin), segmenter_app))


def _configs(settings: Settings, cleanup: str) -> dict[str, str]:
    return {
        "cleanup.policy": cleanup,
        "compression.type": "producer",
        "min.insync.replicas": str(settings.kafka.min_insync_replicas),
    }


def _wanted(settings: Settings, existing: Mapping[str, FoundTopic], segmenter_app: str) -> list[Topic]:
    messages = existing.get(settings.kafka.messages_topic)
    return wanted_topics(settings, messages.partitions if messages else None, segmenter_app)


def _outcome(report: TopicReport, existed: bool, refusal: str | None) -> TopicReport:
    if refusal is not None:
        return TopicReport(report.name, "failed", refusal)
    if report.status == "ok" and not existed:
        return TopicReport(report.name, "created")
    return report


@asynccontextmanager
async def _admin(settings: Settings) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(
        bootstrap_servers=settings.kafka.bootstrap_servers,
        request_timeout_ms=int(settings.kafka.request_timeout_seconds * 1000),
    )
    try:
        await admin.start()
        yield admin
    except (KafkaError, TimeoutError) as error:
        raise StoreUnavailable(store="Kafka", problem=str(error) or type(error).__name__) from error
    finally:
        await admin.close()


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


async def _until_visible(admin: AIOKafkaAdminClient, names: set[str], seconds: float) -> None:
    """Created means that the controller knows; the brokers hear of it a moment later."""
    deadline = time.monotonic() + seconds
    while missing := names - set(await _existing(admin)):
        if time.monotonic() > deadline:
            raise StoreUnavailable(store="Kafka", problem=f"it does not show new topics: {', '.join(sorted(missing))}")
        await asyncio.sleep(POLL_SECONDS)


async def _compare_all(admin: AIOKafkaAdminClient, wanted: Sequence[Topic]) -> list[TopicReport]:
    existing = await _existing(admin)
    configs = await _topic_configs(admin, [topic.name for topic in wanted if topic.name in existing])
    return [
        compare(topic, FoundTopic(found.name, found.partitions, found.replication_factor, configs[topic.name]))
        if (found := existing.get(topic.name))
        else TopicReport(topic.name, "missing")
        for topic in wanted
    ]


async def _topic_configs(admin: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    if not names:
        return {}
    responses = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
    return {
        name: {entry[0]: entry[1] for entry in entries}
        for response in responses
        for _code, _message, _kind, name, entries in response.resources
    }
