"""A broker that asks who is there, and an endpoint that gives out tokens."""

import base64
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

import pytest
import pytest_asyncio
from aiohttp import BasicAuth, web

from afterword.embedded import EmbeddedStack
from afterword.embedded.access import Access, Listener
from streams.settings import Settings
from tests.certificates import Authority, Signed

USER, PASSWORD = "alice", "wonder%land+7"
CLIENT_ID, CLIENT_SECRET = "afterword:client", "s%cret+7"
SECURE, MUTUAL = "SECURE", "MUTUAL"
MODULES = {
    "scram-sha-256": "scram.ScramLoginModule required;",
    "scram-sha-512": "scram.ScramLoginModule required;",
    "plain": f'plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
    "oauthbearer": "oauthbearer.OAuthBearerLoginModule required;",
}

MakeSettings = Callable[..., Settings]


@dataclass(frozen=True)
class SecureStack:
    """`authority` signed what the brokers show; `stranger` did not."""

    stack: EmbeddedStack
    authority: Authority
    stranger: Authority
    client: Signed

    def servers(self, listener: str) -> str:
        return self.stack.kafka.servers_of(listener)


@pytest_asyncio.fixture(scope="package")
async def secure_stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SecureStack]:
    """One listener for passwords and tokens, one for certificates."""
    directory = tmp_path_factory.mktemp("secure")
    authority, stranger = Authority(directory), Authority(directory, "stranger")
    server, client = authority.sign("server"), authority.sign("client", password="key's password")
    access = Access((_with_sasl(server), _with_certificates(server, authority)), {USER: PASSWORD})
    async with EmbeddedStack(directory / "stack", access=access) as stack:
        yield SecureStack(stack, authority, stranger, client)


def _with_sasl(server: Signed) -> Listener:
    modules = {
        f"{mechanism}.sasl.jaas.config": f"org.apache.kafka.common.security.{module}"
        for mechanism, module in MODULES.items()
    }
    enabled = {"sasl.enabled.mechanisms": ",".join(name.upper() for name in MODULES)}
    return Listener(SECURE, "SASL_SSL", {**_shown(server), **enabled, **modules})


def _with_certificates(server: Signed, authority: Authority) -> Listener:
    asked = {
        "ssl.client.auth": "required",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.file),
    }
    return Listener(MUTUAL, "SSL", {**_shown(server), **asked})


def _shown(server: Signed) -> dict[str, str]:
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(server.both)}


@pytest.fixture(scope="package")
def stack(secure_stack: SecureStack) -> EmbeddedStack:
    """Instead of the shared one: this takes the place of two."""
    return secure_stack.stack


@pytest.fixture
def secured(secure_stack: SecureStack, make_settings: MakeSettings) -> MakeSettings:
    """Settings that reach the listener for passwords with SCRAM; overrides as in `make_settings`, None: not set."""

    def with_password(**overrides: Any) -> Settings:
        scram = {
            "bootstrap_servers": secure_stack.servers(SECURE),
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "username": USER,
            "password": PASSWORD,
            "ssl_ca_file": secure_stack.authority.file,
        }
        kafka = {name: value for name, value in {**scram, **overrides.pop("kafka", {})}.items() if value is not None}
        return make_settings(kafka=kafka, **overrides)

    return with_password


@dataclass
class TokenEndpoint:
    """Gives each client that knows the secret a token without a signature, as Kafka's defaults take for tests."""

    url: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)
    life_seconds: float = 300
    subject: str = "afterword"
    answer: Callable[[], web.Response] | None = None

    async def give(self, request: web.Request) -> web.Response:
        auth = BasicAuth.decode(request.headers["authorization"])
        form = dict(await request.post())
        self.asked.append({name: str(value) for name, value in form.items()})
        if self.answer:
            return self.answer()
        if (unquote_plus(auth.login), unquote_plus(auth.password)) != (CLIENT_ID, CLIENT_SECRET):
            return web.json_response({"error": "invalid_client", "error_description": auth.password}, status=401)
        return web.json_response({"access_token": self._token(), "expires_in": self.life_seconds})

    def _token(self) -> str:
        now = time.time()
        claims = {"sub": self.subject, "iat": now - 1, "exp": now + self.life_seconds}
        return f"{_part({'alg': 'none'})}.{_part(claims)}."


def _part(claims: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")


@asynccontextmanager
async def serving(handler: Any, method: str, path: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server on this machine; its URL."""
    app = web.Application()
    app.router.add_route(method, path, handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest_asyncio.fixture
async def tokens() -> AsyncIterator[TokenEndpoint]:
    endpoint = TokenEndpoint()
    async with serving(endpoint.give, "POST", "/token") as url:
        endpoint.url = f"{url}/token"
        yield endpoint
