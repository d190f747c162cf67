"""The topics that Afterword needs. Missing ones are created; existing ones are compared but never changed."""

import asyncio
import time
import tomllib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any, Literal

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    KafkaError,
    NotCoordinatorForGroupError,
    TopicAlreadyExistsError,
    for_code,
)

from afterword.streams.errors import BrokerUnavailable, StoreUnavailable, TopicMissing
from afterword.streams.ingest.sources import Source, load_sources, source_topics
from afterword.streams.kafka.clients import admin_client, broker_errors, require_topics
from afterword.streams.segmenter.state import TABLES
from afterword.streams.settings import DAY_MS, Settings
from faust_eos.kafka import committed_offsets, least_partitions

POLL_SECONDS = 0.05
AWAIT_SECONDS = 1.0
"""Pause between two attempts while waiting for Kafka."""
AWAIT_REQUEST_SECONDS = 5.0
"""Time limit for each of these attempts."""
LARGE_RECORD_BYTES = 2 * 1024 * 1024
"""An episode, a row of state or a dead letter may be larger than the record it came from, which may have the broker's
default limit of 1 MiB."""

DEAD_LETTER_DAYS = 30
"""Retention of the dead letters of sources."""
TOMBSTONE_DAYS = 1
"""How long a changelog keeps a tombstone. The engine needs more than the 12 hours that state may be stale."""
TABLE: dict[str, Any] = tomllib.loads((files(__package__) / "topics.toml").read_text(encoding="utf-8"))

UNBOUNDED = (-1, 2**63 - 1)
"""Kafka's values for "no limit"."""

Status = Literal["created", "ok", "different", "missing"]


@dataclass(frozen=True)
class Topic:
    """A topic that exists, with its effective configuration, or one that is wanted."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)
    any_count: bool = False
    """Whether it may have any number of partitions if it exists."""
    lifetime: Mapping[str, int] = field(default_factory=dict)
    """Limits in milliseconds, by configuration, after which erased data is gone. A higher value causes a warning."""

    @property
    def created_with(self) -> dict[str, str]:
        """Return the configuration of a new topic."""
        return {**self.configs, **{name: str(value) for name, value in self.lifetime.items()}}


@dataclass(frozen=True)
class TopicReport:
    """The outcome for one topic. `detail` says what differs, or why it could not be created.

    `warning` describes something that works but should be changed.
    """

    name: str
    status: Status
    detail: str = ""
    warning: str = ""

    @property
    def fine(self) -> bool:
        return self.status in ("created", "ok")


def wanted_topics(
    settings: Settings, message_partitions: int | None = None, sources: Sequence[str] = ()
) -> list[Topic]:
    """List every topic, from the settings alone.

    `message_partitions` is the input topic's number of partitions, if it exists; the changelogs need the same number.
    `sources` are the topics that ingest reads, each of which has a dead-letter queue.
    """
    kafka = settings.kafka
    log = {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "min.insync.replicas": str(kafka.min_insync_replicas),
    }
    large = {**log, "max.message.bytes": str(LARGE_RECORD_BYTES)}
    configs = {"log": log, "large": large, "compacted": {**large, "cleanup.policy": "compact"}}

    def topic(name: str, kind: str, days: int | None, count: int | None = None) -> Topic:
        # no record of an open segment is removed, and a topic is compacted however little of it is dirty
        kept = {"max.compaction.lag.ms": DAY_MS} if kind == "compacted" else {"segment.ms": DAY_MS}
        limit = "delete.retention.ms" if kind == "compacted" else "retention.ms"
        lifetime = {**kept, limit: days * DAY_MS} if days else {}
        any_count = days is not None and count is None
        return Topic(name, count or kafka.partitions, kafka.replication_factor, configs[kind], any_count, lifetime)

    count = message_partitions or kafka.partitions
    return [
        *(topic(row["topic"].format(kafka), row["kind"], row.get("days")) for row in TABLE["channels"]),
        *(topic(kafka.dead_letters(source), "large", DEAD_LETTER_DAYS) for source in sources),
        *(topic(kafka.changelog(table), "compacted", TOMBSTONE_DAYS, count) for table in TABLES),
    ]


def compare_topic(wanted: Topic, existing: Topic) -> TopicReport:
    """Compare a topic with the wanted one. The status is `ok` or `different`."""
    pairs = {name: (value, existing.configs.get(name, "none")) for name, value in wanted.configs.items()}
    pairs["replication factor"] = (str(wanted.replication_factor), str(existing.replication_factor))
    if not wanted.any_count:
        pairs["partitions"] = (str(wanted.partitions), str(existing.partitions))
    differing = [f"{name} is {is_}, should be {should}" for name, (should, is_) in pairs.items() if is_ != should]
    status: Status = "different" if differing else "ok"
    long = [
        f"{name} is {value}, should be at most {most}"
        for name, most in wanted.lifetime.items()
        if (value := existing.configs.get(name)) is not None and (int(value) in UNBOUNDED or int(value) > most)
    ]
    warning = f"{'; '.join(long)}: until then it keeps what was erased" if long else ""
    return TopicReport(wanted.name, status, "; ".join(differing), warning)


async def ensure_topics(settings: Settings) -> list[TopicReport]:
    """Create missing topics and compare the others. New topics can be used on return.

    Differences and refusals are reported, not raised. Raises: BrokerUnavailable, StoreUnavailable.
    """
    async with _admin(settings) as admin:
        before = await _existing(admin)
        seconds = settings.kafka.request_timeout_seconds
        existing, refused = await _create_missing(admin, before, _wanted(settings, before), seconds)
        reports = await _compare_all(admin, settings, before)
    return [
        replace(report, status="created")
        if report.status == "missing" and report.name in existing
        else replace(report, detail=refused.get(report.name, report.detail))
        for report in reports
    ]


async def create_sources(settings: Settings, sources: Sequence[Source]) -> None:
    """Create missing topics named by sources, for a private Kafka on one's own machine.

    Raises: BrokerUnavailable, StoreUnavailable.
    """
    names = sorted({topic for source in sources for topic in source.named})
    if names:
        kafka = settings.kafka
        wanted = [Topic(name, kafka.partitions, kafka.replication_factor, {}) for name in names]
        async with _admin(settings) as admin:
            await _create_missing(admin, await _existing(admin), wanted, kafka.request_timeout_seconds)


async def check_topics(settings: Settings) -> list[TopicReport]:
    """Compare the topics without creating any. Raises: BrokerUnavailable, StoreUnavailable."""
    async with _admin(settings) as admin:
        return await _compare_all(admin, settings, await _existing(admin))


async def await_topics(settings: Settings, seconds: float, tell: Callable[[str], None]) -> int:
    """Wait until Kafka accepts our credentials and has every topic. Returns the number of topics.

    It calls `tell` once for each kind of problem, with a description. If the time runs out, it raises the last
    problem: BrokerUnavailable or TopicMissing.
    """
    kafka, until, told = settings.kafka, time.monotonic() + seconds, ""
    names = [topic.name for topic in _wanted(settings, {})]
    request_ms = int(min(AWAIT_REQUEST_SECONDS, kafka.request_timeout_seconds) * 1000)
    while True:
        try:
            with broker_errors(kafka.bootstrap_servers):
                await require_topics(kafka, *names, request_timeout_ms=request_ms)
        except (BrokerUnavailable, TopicMissing) as error:
            if time.monotonic() + AWAIT_SECONDS > until:
                raise
            if (kind := type(error).__name__) != told:
                told = kind
                tell(str(error))
        else:
            return len(names)
        await asyncio.sleep(AWAIT_SECONDS)


async def read_with(admin: AIOKafkaAdminClient, group: str, topic: str) -> int | None:
    """Return how many partitions the topic had when the group read it; None if that is unknown or we may not ask."""
    try:
        offsets = await committed_offsets(admin, group)
    except (GroupAuthorizationFailedError, GroupCoordinatorNotAvailableError, NotCoordinatorForGroupError):
        return None
    return least_partitions(committed.metadata for source, committed in offsets.items() if source.topic == topic)


def _wanted(settings: Settings, existing: Mapping[str, Topic]) -> list[Topic]:
    messages = existing.get(settings.kafka.messages_topic)
    sources = source_topics(load_sources(settings), existing, settings.kafka.own_topics)
    return wanted_topics(settings, messages.partitions if messages else None, sources)


@asynccontextmanager
async def _admin(settings: Settings) -> AsyncIterator[AIOKafkaAdminClient]:
    try:
        async with admin_client(settings.kafka) as admin:
            yield admin
    except (KafkaError, TimeoutError) as error:
        raise StoreUnavailable(store="Kafka", problem=str(error) or type(error).__name__) from error


async def _existing(admin: AIOKafkaAdminClient) -> dict[str, Topic]:
    topics = {}
    # all topics, because a request for one by name would create it on a broker with auto.create.topics.enable
    for topic in await admin.describe_topics():
        replicas = [len(partition["replicas"]) for partition in topic["partitions"]]
        topics[topic["topic"]] = Topic(topic["topic"], len(replicas), min(replicas, default=0))
    return topics


async def _create_missing(
    admin: AIOKafkaAdminClient, existing: dict[str, Topic], topics: Sequence[Topic], seconds: float
) -> tuple[dict[str, Topic], dict[str, str]]:
    """Create missing topics; some may have been created by others meanwhile.

    Waits until one answer shows all of them, because another broker may not know a new topic yet. Returns the existing
    topics, and the reason for each refusal.
    """
    missing = [topic for topic in topics if topic.name not in existing]
    if not missing:
        return existing, {}
    new = [NewTopic(t.name, t.partitions, t.replication_factor, topic_configs=t.created_with) for t in missing]
    response = await admin.create_topics(new)
    refused = {
        name: message or for_code(code).description
        for name, code, message in response.topic_errors
        if code not in (0, TopicAlreadyExistsError.errno)
    }
    deadline, names = time.monotonic() + seconds, {topic.name for topic in topics} - set(refused)
    while unseen := names - set(existing := await _existing(admin)):
        if time.monotonic() > deadline:
            problem = f"new topics are still not visible: {', '.join(sorted(unseen))}"
            raise StoreUnavailable(store="Kafka", problem=problem)
        await asyncio.sleep(POLL_SECONDS)
    return existing, refused


async def _compare_all(
    admin: AIOKafkaAdminClient, settings: Settings, existing: Mapping[str, Topic]
) -> list[TopicReport]:
    """Compare all topics, and the partitions of the messages topic with those that its readers have read."""
    wanted, kafka = _wanted(settings, existing), settings.kafka
    configs = await _topic_configs(admin, [topic.name for topic in wanted if topic.name in existing])
    reports = {
        topic.name: compare_topic(topic, replace(existing[topic.name], configs=configs[topic.name]))
        if topic.name in existing
        else TopicReport(topic.name, "missing")
        for topic in wanted
    }
    if messages := existing.get(kafka.messages_topic):
        for group in (kafka.group_of("segmenter"), kafka.group_of("archiver")):
            before = await read_with(admin, group, messages.name)
            if before is not None and before < messages.partitions:
                report = reports[messages.name]
                detail = (
                    f"it has {messages.partitions} partitions, but {group} has read it with {before} and reads no "
                    "further; see docs/how-to/scale.md"
                )
                detail = "; ".join(filter(None, (report.detail, detail)))
                reports[messages.name] = replace(report, status="different", detail=detail)
    return list(reports.values())


async def read_configs(settings: Settings, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Read the effective configuration of topics, skipping those that do not exist.

    Raises: BrokerUnavailable, StoreUnavailable.
    """
    async with _admin(settings) as admin:
        existing = await _existing(admin)
        return await _topic_configs(admin, [name for name in names if name in existing])


async def _topic_configs(admin: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    responses = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
    configs: dict[str, dict[str, str]] = {}
    for code, message, _kind, name, entries in [resource for response in responses for resource in response.resources]:
        if code != 0:
            raise StoreUnavailable(store="Kafka", problem=f"{name}: {message or for_code(code).description}")
        configs[name] = {entry[0]: entry[1] for entry in entries}
    return configs
