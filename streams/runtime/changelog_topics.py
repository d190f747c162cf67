"""Changelogs as topics: whether their partitions and their configuration can hold the state."""

from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code

from afterword.streams.runtime.errors import ChangelogDeletes, ChangelogMismatch
from afterword.streams.runtime.options import Clients

log = structlog.get_logger()

POLICY, RETENTION = "cleanup.policy", "delete.retention.ms"
CONFIGS: dict[str, Any] = {POLICY: None, RETENTION: None}


async def check_changelogs(clients: Clients, changelogs: Sequence[str], topic: str, stale_seconds: float) -> str:
    """Check partition counts and configuration of the changelogs of a source topic.

    Returns the id of the source topic, empty from a broker that has none.
    The admin client answers this: a consumer's metadata lacks topics that it has not read.

    Raises: ChangelogMismatch, ChangelogDeletes, KafkaError.
    """
    resources = [ConfigResource(ConfigResourceType.TOPIC, changelog, CONFIGS) for changelog in changelogs]
    admin = clients.admin()
    await admin.start()
    try:
        described = await admin.describe_topics([topic, *changelogs])
        responses = await admin.describe_configs(resources) if resources else []
        ids: dict[str, str] = await admin.topic_ids([topic])
    finally:
        await admin.close()
    check_counts(changelogs, topic, {found["topic"]: len(found["partitions"]) for found in described})
    for code, _, _, changelog, entries in [found for response in responses for found in response.resources]:
        if code == 0:
            check_configs(changelog, {entry[0]: entry[1] for entry in entries}, stale_seconds)
        else:  # a user of Kafka who may not ask is no reason to stop
            name = for_code(code).__name__
            log.warning("changelog_not_checked", topic=changelog, stage="recover", error_type=name)
    return ids.get(topic, "")


def check_counts(changelogs: Sequence[str], topic: str, counts: Mapping[str, int]) -> None:
    """Compare partition counts: a row must be in the partition of its records' number, or state is lost silently.

    Raises: ChangelogMismatch.
    """
    for changelog in changelogs:
        if counts[changelog] != counts[topic]:
            raise ChangelogMismatch(changelog=changelog, found=counts[changelog], topic=topic, expected=counts[topic])


def check_configs(changelog: str, configs: Mapping[str, str | None], stale_seconds: float) -> None:
    """Refuse a changelog from which records are deleted by age or size, and warn of tombstones that go too early.

    Raises: ChangelogDeletes.
    """
    policy, retention_ms = configs.get(POLICY) or "", int(configs.get(RETENTION) or 0)
    if policy != "compact":
        raise ChangelogDeletes(changelog=changelog, policy=policy)
    if retention_ms <= stale_seconds * 1000:
        log.warning(
            "changelog_retention_too_short",
            topic=changelog,
            stage="recover",
            error_type="changelog_retention_too_short",
            delete_retention_ms=retention_ms,
            should_exceed_ms=int(stale_seconds * 1000),
        )
