"""The KafkaUser has every permission that Afterword needs, and no other."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from afterword.embedded import EmbeddedStack
from afterword.operating.checks import smoke
from afterword.operating.topics import ensure_topics
from afterword.streams.errors import StoreUnavailable
from afterword.streams.kafka.clients import admin_client, running_producer
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.settings import Kafka, Settings, load_settings
from tests.deploy.acls import allow
from tests.deploy.helm import Helm
from tests.e2e.deployment import Deployment, environment_of
from tests.secured_broker import Listener, SecuredStack, servers_of

WAIT_SECONDS, POLL_SECONDS = 60.0, 0.5
USER, PASSWORD = "memory-afterword", "a-password-of-the-test"
SCRAM = Listener(
    "SCRAM",
    "SASL_PLAINTEXT",
    {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    },
)
STRICT = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",  # the broker itself and the test connect on the plain listener
}


@dataclass
class Guarded:
    stack: EmbeddedStack
    settings: Settings
    """Settings of the restricted user."""


@pytest_asyncio.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with SecuredStack(tmp_path / "stack", (SCRAM,), {USER: PASSWORD}, STRICT) as stack:
        login: dict[str, Any] = {
            "bootstrap_servers": servers_of(stack, "SCRAM"),
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-512",
            "username": USER,
            "password": PASSWORD,
            "partitions": 2,
        }
        yield Guarded(
            stack, load_settings(kafka=login, sqlite={"path": tmp_path / "afterword.sqlite"}, drain_seconds=10)
        )


@pytest.fixture
def rules(helm: Helm) -> list[dict[str, Any]]:
    made = helm.resources("--set", "strimzi.cluster=events,strimzi.user.enabled=true")
    [user] = [resource for resource in made if resource["kind"] == "KafkaUser"]
    found: list[dict[str, Any]] = user["spec"]["authorization"]["acls"]
    return found


async def test_kafka_users_rights_suffice_for_topics_workers_and_conversation(
    guarded: Guarded, rules: list[dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(StoreUnavailable):
        await ensure_topics_or_fail(guarded.settings)
    async with admin_client(Kafka(bootstrap_servers=guarded.stack.bootstrap_servers)) as admin:
        await allow(admin, USER, rules)
    await ensure_topics_or_fail(guarded.settings)
    deployment = Deployment(guarded.settings, tmp_path)
    try:
        for role in ALWAYS_RUN:
            deployment.start(role)
        assert (await smoke(guarded.settings, 120)).message_count == 3
        await replay_a_dead_letter(guarded.settings)
        assert {role: await deployment.stop(role) for role in ALWAYS_RUN} == dict.fromkeys(ALWAYS_RUN, 0)
    finally:
        await deployment.close()


async def replay_a_dead_letter(settings: Settings) -> None:
    """Replay a dead letter, which becomes a new one in a transaction of its own."""
    async with running_producer(settings.kafka) as producer:
        await producer.send_and_wait(settings.kafka.messages_topic, b"not JSON", key=b"c1")
    async with asyncio.timeout(WAIT_SECONDS):
        while "invalid_json" not in await command(settings, "dlq", "list", "--json"):  # noqa: ASYNC110 – of another process
            await asyncio.sleep(POLL_SECONDS)
    await command(settings, "dlq", "replay", "--type", "invalid_json", "--yes")


async def command(settings: Settings, *arguments: str) -> str:
    """Run an `afterword` command and return its output. Raises: AssertionError unless it exits with 0."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "afterword", *arguments, env=environment_of(settings), stdout=PIPE, stderr=PIPE
    )
    out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    return out.decode()


async def ensure_topics_or_fail(settings: Settings) -> None:
    reports = await ensure_topics(settings)
    if not all(report.fine for report in reports):
        raise StoreUnavailable(store="Kafka", problem=str(reports))
