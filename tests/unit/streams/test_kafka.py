"""Clients of Kafka and their settings: security, tokens, the engine's options, reading of logs."""

import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from socket import gethostname
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from afterword.streams.app import engine_options, faust_app
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
from afterword.streams.kafka.log_reader import batches
from afterword.streams.settings import HEARTBEAT_SECONDS, REBALANCE_SECONDS, Kafka, Settings
from faust_eos.at_least_once import LAST_COMMIT_SECONDS
from tests.certificates import Authority
from tests.endpoints import CLIENT_ID, CLIENT_SECRET, TokenEndpoint, serving

SCRAM = {"sasl_mechanism": "SCRAM-SHA-512", "username": "alice", "password": "canary"}
TOKEN = {
    "sasl_mechanism": "OAUTHBEARER",
    "oauth_token_endpoint": "https://id.example/token",
    "oauth_client_id": "afterword",
    "oauth_client_secret": "canary",
}
IMPOSSIBLE: list[tuple[dict[str, str], str]] = [
    (SCRAM, "sasl_mechanism has no use with security_protocol PLAINTEXT"),
    ({"password": "canary"}, "password has no use with security_protocol PLAINTEXT"),
    ({"security_protocol": "SSL", "username": "alice"}, "username has no use with security_protocol SSL"),
    ({"ssl_ca_file": "ca.pem"}, "ssl_ca_file has no use with security_protocol PLAINTEXT"),
    (
        {"security_protocol": "SASL_PLAINTEXT", **SCRAM, "ssl_key_password": "canary"},
        "ssl_key_password has no use with",
    ),
    ({"security_protocol": "SASL_SSL"}, "security_protocol SASL_SSL needs sasl_mechanism"),
    ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "username": "a"}, "PLAIN needs password"),
    ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "OAUTHBEARER needs oauth_token_endpoint"),
    (
        {"security_protocol": "SASL_SSL", **TOKEN, "username": "a"},
        "username has no use with sasl_mechanism OAUTHBEARER",
    ),
    (
        {"security_protocol": "SASL_SSL", **SCRAM, "oauth_scope": "s"},
        "oauth_scope has no use with sasl_mechanism SCRAM",
    ),
    ({"security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM"}, "AWS_MSK_IAM needs aws_region"),
    ({"security_protocol": "SASL_SSL", **SCRAM, "aws_region": "r"}, "aws_region has no use with sasl_mechanism SCRAM"),
    ({"security_protocol": "SASL_SSL", **TOKEN, "oauth_token_file": "t"}, "oauth_token_endpoint has no use with"),
    ({"security_protocol": "SSL", "ssl_key_file": "key.pem"}, "ssl_key_file needs ssl_cert_file"),
    ({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}, "Input should be 'PLAIN'"),
    ({"security_protocol": "TLS"}, "Input should be 'PLAINTEXT'"),
    ({"security_protocol": "SASL_SSL", **SCRAM, "password": ""}, "at least 1"),
    ({"security_protocol": "SASL_SSL", **TOKEN, "oauth_token_endpoint": "https://a:canary@id/"}, "pattern"),
    ({"security_protocol": "SASL_SSL", **TOKEN, "oauth_token_endpoint": "ftp://id/"}, "pattern"),
]


@pytest.mark.parametrize(("given", "said"), IMPOSSIBLE, ids=[said for _, said in IMPOSSIBLE])
def test_impossible_combination_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Kafka.model_validate(given)
    [error] = caught.value.errors(include_input=False, include_url=False)
    assert said in error["msg"]
    assert "canary" not in error["msg"]


def test_password_becomes_arguments_with_certificate_checks(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    kafka = Kafka.model_validate({"security_protocol": "SASL_SSL", **SCRAM, "ssl_ca_file": authority.file})
    arguments = security(kafka)
    context = arguments.pop("ssl_context")
    assert arguments == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "canary",
    }
    assert context.check_hostname
    assert context.verify_mode.name == "CERT_REQUIRED"


def test_client_secret_becomes_a_token_provider() -> None:
    assert security(Kafka()) == {"security_protocol": "PLAINTEXT"}
    arguments = security(Kafka.model_validate({"security_protocol": "SASL_PLAINTEXT", **TOKEN}))
    assert isinstance(arguments.pop("sasl_oauth_token_provider"), RenewedTokens)
    assert arguments == {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}


def test_encrypted_key_without_password_is_an_error(tmp_path: Path) -> None:
    signed = Authority(tmp_path).sign("client", password="canary")
    ours: dict[str, Any] = {"security_protocol": "SSL", "ssl_cert_file": signed.certificate, "ssl_key_file": signed.key}
    for password in (None, "wrong"):
        with pytest.raises(ConfigurationError, match=r"AFTERWORD_KAFKA__SSL_CERT_FILE: .* cannot be used with its key"):
            security(Kafka.model_validate({**ours, "ssl_key_password": password}))
    security(Kafka.model_validate({**ours, "ssl_key_password": "canary"}))


def test_file_without_certificates_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("canary")
    with pytest.raises(ConfigurationError, match=r"AFTERWORD_KAFKA__SSL_CA_FILE: .*: no certificates in PEM") as caught:
        security(Kafka(security_protocol="SSL", ssl_ca_file=file))
    assert "canary" not in str(caught.value)


def test_producers_and_subscribers_need_no_worker_dependencies() -> None:
    loaded = "import sys, afterword.streams.kafka.clients; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    heavy = {"faust", "httpx", "motor", "numpy", "opentelemetry", "prometheus_client", "qdrant_client", "rocksdict"}
    assert heavy.isdisjoint(done.stdout.split())


PARTITION = TopicPartition("t", 0)


class Consumer:
    """A consumer of one partition with ten records."""

    def __init__(self) -> None:
        self.at = 0

    async def getmany(self, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Any]]:
        found = [SimpleNamespace(offset=offset) for offset in range(self.at, 10)][:max_records]
        self.at += len(found)
        return {PARTITION: found} if found else {}

    async def position(self, _: TopicPartition) -> int:
        return self.at

    def seek(self, _: TopicPartition, offset: int) -> None:
        self.at = offset


async def test_records_that_arrive_meanwhile_wait_for_the_next_call() -> None:
    consumer: Any = Consumer()
    read = [
        [record.offset async for records in batches(consumer, {PARTITION: end}) for record in records]
        for end in (4, 4, 10)
    ]
    assert read == [list(range(4)), [], list(range(4, 10))]


def test_revocation_drains_half_the_groups_wait_at_most() -> None:
    options = engine_options(Settings(drain_seconds=90, kafka={"request_timeout_seconds": 300}))  # type: ignore[arg-type] – validated by pydantic
    assert (options.drain_seconds, options.revoke_drain_seconds) == (90, REBALANCE_SECONDS / 2)


@given(drain=st.floats(1, 600), session=st.floats(6, 60), request=st.floats(11, 120))
def test_revocation_ends_before_the_others_stop_waiting(drain: float, session: float, request: float) -> None:
    """Otherwise they consider the coordinator dead, and the group starts over while work is in progress."""
    kafka = {"session_timeout_seconds": session, "request_timeout_seconds": request}
    settings = Settings(drain_seconds=drain, kafka=kafka)  # type: ignore[arg-type]  # validated by pydantic
    drained = engine_options(settings).revoke_drain_seconds
    assert 0 < drained <= drain
    assert HEARTBEAT_SECONDS + drained < request
    assert drained <= REBALANCE_SECONDS / 2


def test_default_timeouts_leave_time_for_a_last_commit() -> None:
    settings = Settings()
    spent = HEARTBEAT_SECONDS + engine_options(settings).revoke_drain_seconds + LAST_COMMIT_SECONDS
    assert spent < settings.kafka.request_timeout_seconds


def test_request_timeout_below_the_heartbeat_is_a_wrong_setting() -> None:
    with pytest.raises(ValidationError, match=r"kafka\.request_timeout_seconds\n.*greater than or equal to 1"):
        Settings(kafka={"request_timeout_seconds": HEARTBEAT_SECONDS})  # type: ignore[arg-type]  # validated by pydantic


@pytest.mark.parametrize("session_seconds", [6, 45])
def test_long_and_short_sessions_notice_a_rebalance_alike(session_seconds: float) -> None:
    app = faust_app(Settings(kafka={"session_timeout_seconds": session_seconds}), "app")  # type: ignore[arg-type]  # validated by pydantic
    assert app.conf.broker_heartbeat_interval <= 0.3
    assert app.conf.broker_session_timeout == session_seconds


@pytest.mark.parametrize(("slots", "records"), [(1, 16), (8, 16), (20, 40), (128, 256)])
def test_records_in_flight_exceed_the_llms_concurrency(slots: int, records: int) -> None:
    llm = {"provider": "ollama", "model": "small", "max_concurrency": slots}
    assert engine_options(Settings(llm=llm)).max_in_flight == records


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
