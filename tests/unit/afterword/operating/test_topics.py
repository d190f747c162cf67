"""Required topics, and which differences count."""

from dataclasses import replace

import pytest

from afterword.operating.topics import Topic, compare_topic, wanted_topics
from afterword.streams.settings import DAY_MS, Settings
from faust_eos.options import Options
from tests.rows import with_rows

MEBIBYTE = 1024 * 1024


@pytest.fixture
def settings() -> Settings:
    return Settings(kafka={"partitions": 6, "replication_factor": 3, "min_insync_replicas": 2})  # type: ignore[arg-type]  # pydantic takes a dict


@pytest.fixture
def wanted(settings: Settings) -> dict[str, Topic]:
    return {topic.name: topic for topic in wanted_topics(settings)}


@pytest.fixture
def episodes(wanted: dict[str, Topic]) -> Topic:
    return wanted["episode.closed"]


def as_wanted(topic: Topic) -> Topic:
    in_effect = {"retention.ms": "604800000", **topic.created_with}
    return Topic(topic.name, topic.partitions, topic.replication_factor, in_effect)


def test_only_changelogs_and_current_state_topics_are_compacted(wanted: dict[str, Topic]) -> None:
    compacted = {name for name, topic in wanted.items() if topic.configs["cleanup.policy"] == "compact"}
    assert compacted == {name for name in wanted if name.endswith("-changelog") or name.startswith("afterword.")}


def test_derived_topics_accept_two_mebibyte_records(wanted: dict[str, Topic]) -> None:
    roomy = {name for name, topic in wanted.items() if topic.configs.get("max.message.bytes") == str(2 * MEBIBYTE)}
    assert roomy == set(wanted) - {"messages", "summary.created", "summary.deleted", "conversation.updated"}


def test_changelogs_have_as_many_partitions_as_existing_messages(settings: Settings) -> None:
    wanted = {topic.name: topic.partitions for topic in wanted_topics(settings, message_partitions=12)}
    assert wanted["afterword-segmenter-messages-changelog"] == 12
    assert wanted["episode.closed"] == 6


def test_partition_counts_matter_and_configs_of_others_not(wanted: dict[str, Topic]) -> None:
    messages = wanted["messages"]
    assert compare_topic(messages, as_wanted(messages)).status == "ok"
    report = compare_topic(messages, replace(as_wanted(messages), partitions=4))
    assert (report.status, report.detail) == ("different", "partitions is 4, should be 6")


def test_every_difference_is_named(episodes: Topic) -> None:
    configs = {**episodes.configs, "cleanup.policy": "compact", "max.message.bytes": "1000"}
    report = compare_topic(episodes, replace(as_wanted(episodes), configs=configs, replication_factor=1))
    assert (report.status, report.fine) == ("different", False)
    assert report.detail.split("; ") == [
        "cleanup.policy is compact, should be delete",
        "max.message.bytes is 1000, should be 2097152",
        "replication factor is 1, should be 3",
    ]


def test_every_topic_but_messages_has_a_lifetime(wanted: dict[str, Topic]) -> None:
    days = {
        name: {config: milliseconds / DAY_MS for config, milliseconds in topic.lifetime.items()}
        for name, topic in wanted.items()
    }
    week, month = ({"retention.ms": number, "segment.ms": 1} for number in (7, 30))
    changelog = {"max.compaction.lag.ms": 1, "delete.retention.ms": 1}
    current = {"max.compaction.lag.ms": 1, "delete.retention.ms": 30}
    assert days == {
        "messages": {},
        "episode.closed": week,
        "conversation.updated": month,
        "summary.created": month,
        "summary.deleted": month,
        "messages.dlq": month,
        "episode.closed.dlq": month,
        "summary.created.webhooks.dlq": month,
        "afterword-segmenter-conversations-changelog": changelog,
        "afterword-segmenter-messages-changelog": changelog,
        "afterword.episodes": current,
        "afterword.conversations": current,
    }


def test_changelog_tombstones_outlive_recoverable_state(wanted: dict[str, Topic]) -> None:
    changelog = wanted["afterword-segmenter-messages-changelog"]
    assert changelog.lifetime["delete.retention.ms"] > Options.stale_seconds * 1000


@with_rows
def test_topic_keeping_erased_data_too_long_causes_warning(
    wanted: dict[str, Topic], topic: str, name: str, value: str, is_long: bool
) -> None:
    found = as_wanted(wanted[topic])
    report = compare_topic(wanted[topic], replace(found, configs={**found.configs, name: value}))
    assert report.fine
    assert (f"{name} is {value}, should be at most" in report.warning) == is_long
    assert bool(report.warning) == is_long
