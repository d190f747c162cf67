"""The checks on a broker that denies everything that is not allowed."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from afterword.embedded import EmbeddedStack
from afterword.operating.checks import CheckFailed, check_commits, check_kafka
from afterword.streams.kafka.clients import admin_client
from afterword.streams.settings import Settings, load_settings
from tests.deploy.acls import allow
from tests.secured_broker import Listener, SecuredStack, servers_of

pytestmark = pytest.mark.nightly

USER, PASSWORD = "memory", "a-password-of-the-test"
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
    "offset.metadata.max.bytes": "100",
}


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedStack]:
    async with SecuredStack(tmp_path / "stack", (SCRAM,), {USER: PASSWORD}, STRICT) as stack:
        yield stack


def as_user(broker: EmbeddedStack) -> Settings:
    login: dict[str, Any] = {
        "bootstrap_servers": servers_of(broker, "SCRAM"),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "username": USER,
        "password": PASSWORD,
    }
    return load_settings(kafka=login)


def on_transactions_of(app_id: str) -> dict[str, Any]:
    place = {"type": "transactionalId", "name": f"{app_id}-", "patternType": "prefix"}
    return {"resource": place, "operations": ["Describe", "Write"]}


async def problem(settings: Settings) -> str:
    with pytest.raises(CheckFailed) as failed:
        await check_commits(settings)
    return str(failed.value)


async def test_missing_rights_are_named(broker: EmbeddedStack) -> None:
    user, everybody = as_user(broker), load_settings(kafka={"bootstrap_servers": broker.bootstrap_servers})
    kafka = user.kafka
    async with admin_client(everybody.kafka) as admin:
        await allow(
            admin,
            USER,
            [on_transactions_of(kafka.group_of("segmenter")), on_transactions_of(kafka.group_of("archiver"))],
        )
        assert f"transactional ids with the prefix {kafka.group_of('summarizer')}- are not permitted" in await problem(
            user
        )
        await allow(admin, USER, [on_transactions_of(kafka.group_of("summarizer"))])
    assert await check_commits(user) == "transactions are permitted"
    assert await check_kafka(user)  # which may not ask for the brokers' configuration
    with pytest.raises(CheckFailed, match=r"offset\.metadata\.max\.bytes of the brokers is 100, .* at least 4096"):
        await check_kafka(everybody)
