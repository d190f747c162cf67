"""The official MCP client finds the issuer, logs in there, and uses the memory with the issuer's token."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from fastapi import FastAPI, Request
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from afterword.serving.server import make_app
from tests.unit.afterword.serving.served import serving
from tests.unit.afterword.serving.test_tokens import ISSUER, Clock, Issuer, holders, issuer, settings, signed

__all__ = ["issuer"]
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
