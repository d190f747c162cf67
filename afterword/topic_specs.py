"""Which topics Afterword needs, and what counts as different; no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from afterword.streams.segmenter.tables import TABLES
from afterword.streams.settings import Settings

LARGE_RECORD_BYTES = 2 * 1024 * 1024
"""An episode, a row of state or a dead letter may be somewhat larger than the record that it came from, and that may
have the broker's default limit of a mebibyte."""

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


def wanted_topics(settings: Settings, message_partitions: int | None = None) -> list[Topic]:
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
        topic(kafka.retry_topic, large),
        topic(kafka.dead_letters(kafka.messages_topic), large),
        topic(kafka.dead_letters(kafka.episodes_topic), large),
        *(
            topic(kafka.changelog(table), compacted, message_partitions or kafka.partitions, any_count=False)
            for table in TABLES
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


def _configs(settings: Settings, cleanup: str) -> dict[str, str]:
    return {
        "cleanup.policy": cleanup,
        "compression.type": "producer",
        "min.insync.replicas": str(settings.kafka.min_insync_replicas),
    }
