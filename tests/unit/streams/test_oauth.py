"""Tokens are requested once and renewed in time, and errors contain no secret."""

import ssl
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from socket import gethostname

import pytest
import pytest_asyncio
from aiohttp import web
from aiokafka.errors import KafkaError

from afterword.streams.errors import ConfigurationError
from afterword.streams.kafka.clients import (
    NoToken,
    RenewedTokens,
    TokenUnavailable,
    client_id,
    client_options,
    security,
    token_file,
    token_request,
)
from afterword.streams.settings import Kafka
from tests.endpoints import CLIENT_ID, CLIENT_SECRET, TokenEndpoint, serving


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest_asyncio.fixture
async def endpoint() -> AsyncIterator[TokenEndpoint]:
    made = TokenEndpoint()
    async with serving(made.give, "POST", "/token") as url:
        made.url = f"{url}/token"
        yield made


@pytest.fixture
def clock() -> Clock:
    return Clock()


def provider(endpoint: TokenEndpoint, clock: Clock, secret: str = CLIENT_SECRET) -> RenewedTokens:
    kafka = Kafka.model_validate(
        {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "oauth_token_endpoint": endpoint.url,
            "oauth_client_id": CLIENT_ID,
            "oauth_client_secret": secret,
        }
    )
    return RenewedTokens("the endpoint", token_request(kafka, ssl.create_default_context()), clock)


async def test_token_is_kept_until_shortly_before_it_expires(endpoint: TokenEndpoint, clock: Clock) -> None:
    tokens = provider(endpoint, clock)
    first = await tokens.token()
    clock.now += 0.79 * endpoint.life_seconds
    assert await tokens.token() == first
    clock.now += 0.02 * endpoint.life_seconds
    assert await tokens.token() != first
    assert len(endpoint.asked) == 2


async def test_old_token_serves_until_it_expires(endpoint: TokenEndpoint, clock: Clock) -> None:
    tokens = provider(endpoint, clock)
    first = await tokens.token()
    endpoint.answer = lambda: web.Response(status=503)
    clock.now += 0.9 * endpoint.life_seconds
    assert await tokens.token() == first
    clock.now += 0.2 * endpoint.life_seconds
    with pytest.raises(TokenUnavailable, match="503"):
        await tokens.token()
    endpoint.answer = None
    assert await tokens.token() != first


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (web.json_response({"error": "invalid_scope", "error_description": "canary"}, status=400), "400 invalid_scope"),
        (web.json_response({"error": "canary"}, status=400), "it answers with 400"),
        (web.json_response(["canary"], status=500), "it answers with 500"),
        (web.Response(text="canary"), "its answer holds no token"),
        (web.json_response({"access_token": "canary\x01auth=x"}), "its answer holds no token"),
        (web.json_response({"access_token": 7}), "its answer holds no token"),
        (web.Response(status=302, headers={"location": "/canary"}), "it answers with 302"),
    ],
    ids=str,
)
async def test_endpoint_without_a_token_is_an_error_without_contents(
    endpoint: TokenEndpoint, clock: Clock, answer: web.Response, said: str
) -> None:
    endpoint.answer = lambda: answer
    with pytest.raises(TokenUnavailable, match=said) as caught:
        await provider(endpoint, clock).token()
    assert isinstance(caught.value, KafkaError)  # otherwise aiokafka would not treat it as a failed connection
    assert "canary" not in str(caught.value)


async def test_unknown_client_is_told_so(endpoint: TokenEndpoint, clock: Clock) -> None:
    with pytest.raises(TokenUnavailable, match="401 invalid_client") as caught:
        await provider(endpoint, clock, secret="canary").token()
    assert "canary" not in str(caught.value)


async def test_absent_endpoint_is_an_error(clock: Clock, endpoint: TokenEndpoint) -> None:
    endpoint.url = "http://127.0.0.1:9/token"
    with pytest.raises(TokenUnavailable, match=r"no token from the endpoint: ConnectError"):
        await provider(endpoint, clock).token()


async def test_token_of_unknown_life_is_short_lived(endpoint: TokenEndpoint, clock: Clock) -> None:
    endpoint.answer = lambda: web.json_response({"access_token": "t", "expires_in": "soon"})
    tokens = provider(endpoint, clock)
    await tokens.token()
    clock.now += 50
    await tokens.token()
    assert len(endpoint.asked) == 2


async def test_token_file_is_read_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    tokens = RenewedTokens("the file", token_file(file))
    with pytest.raises(TokenUnavailable, match="No such file"):
        await tokens.token()
    for token in ("a.b.c", "d.e.f"):
        file.write_text(f"{token}\n")
        assert await tokens.token() == token
    for wrong in ("", "two tokens", "café"):
        file.write_text(wrong, encoding="latin-1")
        with pytest.raises(KafkaError) as caught:
            await tokens.token()
        assert "two" not in str(caught.value)


async def test_signed_token_is_used_for_most_of_its_life(clock: Clock) -> None:
    signed: list[float] = []

    async def sign() -> tuple[str, float]:
        signed.append(clock.now)
        return f"token{len(signed)}", 900

    tokens = RenewedTokens("AWS", sign, clock)
    assert [await tokens.token(), await tokens.token()] == ["token1"] * 2
    clock.now += 0.81 * 900
    assert await tokens.token() == "token2"

    async def fail() -> tuple[str, float]:
        raise NoToken("NoCredentialsError")

    with pytest.raises(KafkaError, match="NoCredentialsError"):
        await RenewedTokens("AWS", fail).token()


async def test_token_file_replaces_an_endpoint(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a.b.c")
    given = {"sasl_mechanism": "OAUTHBEARER", "oauth_token_file": tmp_path / "token"}
    arguments = security(Kafka.model_validate({"security_protocol": "SASL_PLAINTEXT", **given}))
    assert arguments["sasl_mechanism"] == "OAUTHBEARER"
    assert await arguments["sasl_oauth_token_provider"].token() == "a.b.c"


def test_missing_signer_is_named_with_its_installation() -> None:
    settings = {"security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM", "aws_region": "eu-central-1"}
    if find_spec("aws_msk_iam_sasl_signer"):
        assert isinstance(security(Kafka.model_validate(settings))["sasl_oauth_token_provider"], RenewedTokens)
        return
    with pytest.raises(ConfigurationError, match=r"\[aws\]"):
        security(Kafka.model_validate(settings))


def test_clients_are_named_by_role_and_instance() -> None:
    assert client_id(Kafka(group_instance_id="seg-1"), "segmenter") == "afterword-segmenter-seg-1"
    assert client_options(Kafka(group_instance_id="seg-1"))["client_id"] == "afterword-client-seg-1"
    assert client_id(Kafka(), "archiver") == f"afterword-archiver-{gethostname()}"
