"""Authentication by a broker, and the errors of rejected clients."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from afterword import Producer, SummarySubscriber
from afterword.streams.errors import BrokerRefuses, TopicMissing
from afterword.streams.kafka.clients import admin_client, running_consumer, running_producer, security
from afterword.streams.settings import Kafka, Settings
from tests.endpoints import CLIENT_ID, CLIENT_SECRET, TokenEndpoint
from tests.integration.security.conftest import MUTUAL, PASSWORD, SecureStack

MakeSettings = Callable[..., Settings]


async def brokers_seen(kafka: Kafka) -> int:
    async with admin_client(kafka) as admin:
        return len((await admin.describe_cluster())["brokers"])


async def refusal_of(kafka: Kafka) -> str:
    with pytest.raises(BrokerRefuses) as refused:
        await brokers_seen(kafka)
    text = str(refused.value)
    assert "\n" not in text
    return text


def with_token(tokens: TokenEndpoint, **overrides: Any) -> dict[str, Any]:
    return {
        "sasl_mechanism": "OAUTHBEARER",
        "username": None,
        "password": None,
        "oauth_token_endpoint": tokens.url,
        "oauth_client_id": CLIENT_ID,
        "oauth_client_secret": CLIENT_SECRET,
        **overrides,
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_right_password_is_accepted(secured: MakeSettings, mechanism: str) -> None:
    assert await brokers_seen(secured(kafka={"sasl_mechanism": mechanism}).kafka) == 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("wrong", [{"password": "guessed-canary"}, {"username": "mallory"}])
async def test_wrong_credentials_are_refused_in_one_line_without_password(
    secured: MakeSettings, mechanism: str, wrong: dict[str, str]
) -> None:
    text = await refusal_of(secured(kafka={"sasl_mechanism": mechanism, **wrong}).kafka)
    assert "authentication fails" in text
    assert "guessed-canary" not in text
    assert PASSWORD not in text


async def test_token_of_the_endpoint_serves_many_clients(secured: MakeSettings, tokens: TokenEndpoint) -> None:
    kafka = secured(kafka=with_token(tokens, oauth_scope="kafka")).kafka
    assert await brokers_seen(kafka) == 1
    assert tokens.asked == [{"grant_type": "client_credentials", "scope": "kafka"}]


async def test_token_from_a_file_is_accepted(secured: MakeSettings, tokens: TokenEndpoint, tmp_path: Path) -> None:
    provider = security(secured(kafka=with_token(tokens)).kafka)["sasl_oauth_token_provider"]
    (tmp_path / "token").write_text(await provider.token())
    given = dict.fromkeys(("username", "password", "oauth_token_endpoint", "oauth_client_id", "oauth_client_secret"))
    kafka = secured(kafka={**given, "sasl_mechanism": "OAUTHBEARER", "oauth_token_file": tmp_path / "token"}).kafka
    assert await brokers_seen(kafka) == 1


@pytest.mark.nightly
async def test_token_the_broker_rejects_is_refused(secured: MakeSettings, tokens: TokenEndpoint) -> None:
    tokens.life_seconds = -3600
    assert "authentication fails" in await refusal_of(secured(kafka=with_token(tokens)).kafka)


@pytest.mark.nightly
async def test_broker_with_an_untrusted_certificate_is_not_trusted(
    secured: MakeSettings, secure_stack: SecureStack
) -> None:
    text = await refusal_of(secured(kafka={"ssl_ca_file": secure_stack.stranger.file}).kafka)
    assert "certificate is not trusted" in text
    assert "certificate is not trusted" in await refusal_of(secured(kafka={"ssl_ca_file": None}).kafka)


@pytest.mark.nightly
async def test_broker_under_another_name_than_its_certificate_is_refused(
    secured: MakeSettings, secure_stack: SecureStack
) -> None:
    servers = secure_stack.servers("SECURE").replace("127.0.0.1", "localhost")
    assert "certificate is not trusted" in await refusal_of(secured(kafka={"bootstrap_servers": servers}).kafka)


@pytest.mark.nightly
async def test_client_certificate_is_presented_to_brokers_that_ask(
    make_settings: MakeSettings, secure_stack: SecureStack
) -> None:
    mutual = {
        "bootstrap_servers": secure_stack.servers(MUTUAL),
        "security_protocol": "SSL",
        "ssl_ca_file": secure_stack.authority.file,
    }
    ours = {
        "ssl_cert_file": secure_stack.client.certificate,
        "ssl_key_file": secure_stack.client.key,
        "ssl_key_password": "key's password",
    }
    assert await brokers_seen(make_settings(kafka=mutual | ours).kafka) == 1
    assert await refusal_of(make_settings(kafka=mutual).kafka)


@pytest.mark.nightly
async def test_producers_consumers_and_subscribers_authenticate_too(secured: MakeSettings) -> None:
    settings = secured(kafka={"messages_topic": "no-such-topic", "prefix": "no-such-"})
    with pytest.raises(TopicMissing):
        async with running_consumer(settings.kafka, "no-such-topic"):
            pass
    async with running_producer(settings.kafka):
        pass
    with pytest.raises(TopicMissing):
        await Producer.from_settings(settings).__aenter__()
    with pytest.raises(TopicMissing):
        await SummarySubscriber.from_settings(settings, group_id="g").__aenter__()
