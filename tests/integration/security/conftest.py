"""A broker that requires authentication, and an endpoint that issues tokens."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from afterword.embedded import EmbeddedStack
from afterword.streams.settings import Settings
from tests.certificates import Authority, Signed
from tests.endpoints import TokenEndpoint, serving
from tests.secured_broker import Listener, SecuredStack, servers_of

USER, PASSWORD = "alice", "wonder%land+7"
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
    """`authority` signed the brokers' certificates; `stranger` did not."""

    stack: EmbeddedStack
    authority: Authority
    stranger: Authority
    client: Signed

    def servers(self, listener: str) -> str:
        return servers_of(self.stack, listener)


@pytest_asyncio.fixture(scope="package")
async def secure_stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SecureStack]:
    """Run a broker with a listener for passwords and tokens, and one for certificates."""
    directory = tmp_path_factory.mktemp("secure")
    authority, stranger = Authority(directory), Authority(directory, "stranger")
    server, client = authority.sign("server"), authority.sign("client", password="key's password")
    listeners = _with_sasl(server), _with_certificates(server, authority)
    async with SecuredStack(directory / "stack", listeners, {USER: PASSWORD}, {}) as stack:
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
    """Replaces the shared stack with the secured one."""
    return secure_stack.stack


@pytest.fixture
def secured(secure_stack: SecureStack, make_settings: MakeSettings) -> MakeSettings:
    """Return settings for the listener with SCRAM. Overrides are as in `make_settings`; None removes a setting."""

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


@pytest_asyncio.fixture
async def tokens() -> AsyncIterator[TokenEndpoint]:
    endpoint = TokenEndpoint()
    async with serving(endpoint.give, "POST", "/token") as url:
        endpoint.url = f"{url}/token"
        yield endpoint
