"""Tokens of an identity provider, signed by keys that an issuer publishes, and a client that logs in there."""

import asyncio
import base64
import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import jwt
import orjson
import pytest
import pytest_asyncio
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from fastapi import FastAPI, Request
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from afterword.serving import tokens
from afterword.serving.server import make_app
from afterword.serving.tokens import FRESH_SECONDS, RETRY_SECONDS, IssuerKeys, TokenHolders
from afterword.streams.http import MOST_RESPONSE_BYTES
from afterword.streams.settings import Serve
from afterword.streams.tls import verifying_context
from tests.endpoints import serving as serving_route
from tests.unit.afterword.serving.served import serving

ISSUER, AUDIENCE = "https://issuer.example", "afterword"
DAY = 86_400  # tokens are signed when the tests are collected, and a run may take long
PATH = "/v1/conversations"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


def described(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, key_id: str, algorithm: str) -> dict[str, Any]:
    made = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**made, "kid": key_id, "use": "sig", "alg": algorithm}


class Issuer:
    """An issuer that publishes its keys."""

    def __init__(self) -> None:
        self.keys = [described(RSA_KEY, "rsa", "RS256"), described(EC_KEY, "ec", "ES256")]
        self.asked = 0
        self.away = False
        self.silent = False
        self.url = ""

    async def publish(self, _: web.Request) -> web.Response:
        self.asked += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.away:
            raise web.HTTPServiceUnavailable
        return web.json_response({"keys": self.keys})


@pytest_asyncio.fixture
async def issuer() -> AsyncIterator[Issuer]:
    found = Issuer()
    async with serving_route(found.publish, "GET", "/keys") as url:
        found.url = f"{url}/keys"
        yield found


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def settings(issuer: Issuer, **fields: Any) -> Serve:
    given = {"auth": "jwt", "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_jwks_url": issuer.url}
    return Serve.model_validate({**given, **fields})


def holders(issuer: Issuer, clock: Clock, **fields: Any) -> TokenHolders:
    return TokenHolders(settings(issuer, **fields), IssuerKeys(issuer.url, verifying_context(None, "none"), clock))


def claims(**changed: Any) -> dict[str, Any]:
    given = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + DAY, "sub": "u1", "tenant_id": "t1", "scope": "read"}
    return {name: value for name, value in {**given, **changed}.items() if value is not None}


def signed(key: Any = RSA_KEY, key_id: str | None = "rsa", algorithm: str = "RS256", **changed: Any) -> str:
    headers = {"kid": key_id} if key_id else {}
    return jwt.encode(claims(**changed), key, algorithm, headers=headers)


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(value)).decode().rstrip("=")


def confused() -> Iterator[str]:
    """Return tokens signed with the public key as if it were a shared secret."""
    public = RSA_KEY.public_key()
    forms = serialization.PublicFormat.SubjectPublicKeyInfo, serialization.PublicFormat.PKCS1
    for form in forms:
        secret = public.public_bytes(serialization.Encoding.PEM, form)
        text = f"{encoded({'alg': 'HS256', 'typ': 'JWT', 'kid': 'rsa'})}.{encoded(claims())}"
        signature = hmac.new(secret, text.encode(), hashlib.sha256).digest()
        yield f"{text}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def own_key() -> str:
    """Return a token that contains the key it is signed with."""
    headers = {"kid": "rsa", "jwk": described(OTHER_KEY, "rsa", "RS256")}
    return jwt.encode(claims(), OTHER_KEY, "RS256", headers=headers)


BAD = {
    "none": f"{encoded({'alg': 'none', 'typ': 'JWT', 'kid': 'rsa'})}.{encoded(claims())}.",
    "None": f"{encoded({'alg': 'NONE', 'kid': 'rsa'})}.{encoded(claims())}.",
    "confused, SPKI": next(confused()),
    "confused, PKCS1": list(confused())[1],
    "signed by another key": signed(OTHER_KEY),
    "brings its own key": own_key(),
    "names an unknown key": signed(OTHER_KEY, "other"),
    "names no key": signed(key_id=None),
    "names the key of another kind": signed(RSA_KEY, "ec"),
    "another signature than the key is for": signed(algorithm="RS512"),
    "expired": signed(exp=time.time() - 1),
    "never expires": signed(exp=None),
    "not valid yet": signed(nbf=time.time() + DAY),
    "another issuer": signed(iss="https://evil.example"),
    "no issuer": signed(iss=None),
    "another audience": signed(aud="other"),
    "no audience": signed(aud=None),
    "no tenant": signed(tenant_id=None),
    "tenant is no text": signed(tenant_id={"$ne": None}),
    "empty tenant": signed(tenant_id=""),
    "no user": signed(sub=None),
    "user is too long": signed(sub="u" * 257),
    "changed": signed()[:-6] + "AAAAAA",
    "no token": "a.b.c",
    "no algorithm": f"{encoded({'typ': 'JWT', 'kid': 'rsa'})}.{encoded(claims())}.AAAA",
    "algorithm is no text": f"{encoded({'alg': ['RS256'], 'kid': 'rsa'})}.{encoded(claims())}.AAAA",
    "key id is no text": f"{encoded({'alg': 'RS256', 'kid': {'$ne': 1}})}.{encoded(claims())}.AAAA",
}


@pytest.mark.parametrize("token", BAD.values(), ids=BAD.keys())
async def test_bad_token_is_refused(issuer: Issuer, token: str) -> None:
    async with serving(holders(issuer, Clock()), auth="keys") as served:
        answer = await served.client.get(PATH, headers={"Authorization": f"Bearer {token}"})
        assert (answer.status_code, answer.json()["error_type"]) == (401, "unauthenticated")


@pytest.mark.parametrize("token", [signed(), signed(EC_KEY, "ec", "ES256"), signed(aud=["other", AUDIENCE])])
async def test_valid_token_names_its_holder(issuer: Issuer, token: str) -> None:
    principal = await holders(issuer, Clock()).principal(token)
    assert (principal.tenant_id, principal.user_id, principal.scopes) == ("t1", "u1", {"read"})
    assert "u1" not in principal.key_id


async def test_claims_have_the_names_of_the_settings(issuer: Issuer) -> None:
    names = {"jwt_tenant_claim": "org", "jwt_user_claim": "uid", "jwt_scope_claim": "permissions"}
    token = signed(org="t2", uid="u2", permissions=["read", "write", "nonsense", 5])
    principal = await holders(issuer, Clock(), **names).principal(token)
    assert (principal.tenant_id, principal.user_id, principal.scopes) == ("t2", "u2", {"read", "write"})


async def test_issuers_keys_are_cached_until_another_is_named(issuer: Issuer) -> None:
    clock = Clock()
    found = holders(issuer, clock)
    for _ in range(3):
        await found.principal(signed())
    assert issuer.asked == 1
    issuer.keys = [described(OTHER_KEY, "next", "RS256")]
    clock.now = RETRY_SECONDS + 1
    await found.principal(signed(OTHER_KEY, "next"))
    async with serving(found, auth="keys") as served:
        for _ in range(5):  # an unknown key does not cause a request for each token
            await served.client.get(PATH, headers={"Authorization": f"Bearer {signed()}"})
    assert issuer.asked == 2


@pytest.mark.parametrize("outage", ["away", "silent"])
async def test_cached_keys_serve_while_the_issuer_is_down(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, outage: str
) -> None:
    clock = Clock()
    found = holders(issuer, clock)
    await found.principal(signed())
    monkeypatch.setattr(tokens, "TIMEOUT_SECONDS", 0.2)
    setattr(issuer, outage, True)
    clock.now = FRESH_SECONDS + 1
    assert (await found.principal(signed())).user_id == "u1"
    async with serving(holders(issuer, clock), auth="keys") as served:
        answer = await served.client.get(PATH, headers={"Authorization": f"Bearer {signed()}"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


async def test_oversized_key_set_replaces_no_known_keys(issuer: Issuer) -> None:
    clock = Clock()
    found = holders(issuer, clock)
    await found.principal(signed())
    issuer.keys = [{"kty": "RSA", "kid": "x" * MOST_RESPONSE_BYTES}]
    clock.now = FRESH_SECONDS + 1
    assert (await found.principal(signed())).user_id == "u1"
    assert issuer.asked == 2


async def test_malformed_key_hides_no_other(issuer: Issuer) -> None:
    known = issuer.keys[0]
    no_algorithms = [{**known, "kid": "b", "alg": name} for name in ("none", ["RS256"], {}, 5, "unknown")]
    issuer.keys = [{"kty": ["RSA"], "kid": "a"}, "no key", {**known, "kid": ["rsa"]}, *no_algorithms, *issuer.keys]
    assert (await holders(issuer, Clock()).principal(signed())).user_id == "u1"


async def test_one_request_waits_for_an_unresponsive_issuer(issuer: Issuer) -> None:
    clock = Clock()
    found = holders(issuer, clock)
    await found.principal(signed())
    issuer.silent = True
    clock.now = FRESH_SECONDS + 1
    waiting = asyncio.create_task(found.principal(signed()))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        assert (await found.principal(signed())).user_id == "u1"
    assert not waiting.done()
    waiting.cancel()


METADATA = "/.well-known/oauth-protected-resource"


async def test_mcp_clients_learn_where_to_log_in(issuer: Issuer) -> None:
    fields = settings(issuer).model_dump(exclude_unset=True)
    async with serving(holders(issuer, Clock()), **fields) as served:
        refused = await served.client.post("/mcp", json={}, headers={"authorization": "Bearer wrong"})
        named = f"http://127.0.0.1{METADATA}/mcp"
        assert (refused.status_code, refused.headers["www-authenticate"]) == (
            401,
            f'Bearer resource_metadata="{named}"',
        )
        elsewhere = await served.client.get(PATH)
        assert elsewhere.headers["www-authenticate"] == "Bearer"
        for path in (METADATA, f"{METADATA}/mcp"):
            found = await served.client.get(path, headers={"origin": "https://client.example"})
            assert found.json() == {
                "resource": "http://127.0.0.1/mcp",
                "authorization_servers": [ISSUER],
                "scopes_supported": ["read", "write"],
                "bearer_methods_supported": ["header"],
            }
            assert found.headers["access-control-allow-origin"] == "*"
            assert found.headers["cross-origin-resource-policy"] == "cross-origin"
        assert (await served.client.options(METADATA)).headers["access-control-allow-origin"] == "*"
        assert (await served.client.get(f"{METADATA}/other")).status_code == 404


async def test_metadata_names_the_configured_address(issuer: Issuer) -> None:
    fields = settings(issuer, mcp_url="https://memory.example/ai/mcp").model_dump(exclude_unset=True)
    async with serving(holders(issuer, Clock()), **fields) as served:
        refused = await served.client.post("/mcp", json={})
        assert f"https://memory.example{METADATA}/ai/mcp" in refused.headers["www-authenticate"]
        for path in ("", "/mcp", "/ai/mcp"):
            found = await served.client.get(METADATA + path)
            assert found.json()["resource"] == "https://memory.example/ai/mcp"


async def test_server_with_api_keys_offers_no_log_in() -> None:
    async with serving(auth="keys") as served:
        assert (await served.client.get(f"{METADATA}/mcp")).status_code == 404
        assert (await served.client.get(METADATA)).status_code == 404


SERVER = "http://127.0.0.1/mcp"


def an_issuer(asked: list[dict[str, list[str]]]) -> FastAPI:
    """Build an authorization server that registers any client and gives out tokens for the resource they name."""
    app = FastAPI()

    @app.get("/.well-known/oauth-authorization-server")
    async def describe() -> dict[str, Any]:
        paths = {name: f"{ISSUER}/{name.split('_')[0]}" for name in ("authorization_endpoint", "token_endpoint")}
        return {
            "issuer": ISSUER,
            "registration_endpoint": f"{ISSUER}/register",
            **paths,
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
        }

    @app.post("/register", status_code=201)
    async def register(request: Request) -> dict[str, Any]:
        return {**await request.json(), "client_id": "client-1"}

    @app.post("/token")
    async def give(request: Request) -> dict[str, Any]:
        form = parse_qs((await request.body()).decode())
        asked.append(form)
        return {"access_token": signed(aud=form["resource"]), "token_type": "Bearer", "expires_in": 300}

    return app


class Storage:
    """Keeps what the client learns."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


async def test_mcp_client_logs_in_and_lists_the_tools(issuer: Issuer) -> None:
    visited: list[dict[str, list[str]]] = []
    asked: list[dict[str, list[str]]] = []

    async def visit(url: str) -> None:
        visited.append(parse_qs(urlsplit(url).query))

    async def come_back() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code="code-1", state=visited[-1]["state"][0])

    callback: Any = ["http://127.0.0.1:9/callback"]
    auth = OAuthClientProvider(SERVER, OAuthClientMetadata(redirect_uris=callback), Storage(), visit, come_back)
    fields = settings(issuer).model_dump(exclude_unset=True) | {"jwt_audience": SERVER}
    authenticator = holders(issuer, Clock(), jwt_audience=SERVER)
    async with serving(authenticator, **fields) as served:
        mounts = {"all://issuer.example": httpx2.ASGITransport(an_issuer(asked))}
        transport = httpx2.ASGITransport(make_app(served.services))
        async with (
            httpx2.AsyncClient(transport=transport, mounts=mounts, auth=auth) as http,
            Client(streamable_http_client(SERVER, http_client=http)) as client,
        ):
            tools = [tool.name for tool in (await client.list_tools()).tools]
    assert "recall" in tools
    assert visited[0]["scope"] == ["read write"]
    assert visited[0]["resource"] == asked[0]["resource"] == [SERVER]
