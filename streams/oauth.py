"""Access tokens for SASL OAUTHBEARER: the client-credentials grant (RFC 6749, 4.4)."""

import asyncio
import re
import ssl
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote_plus

import httpx
import orjson
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError
from pydantic import SecretStr

from afterword.streams.errors import AfterwordError

RENEWED_AFTER = 0.8
"""Of a token's life; Kafka's own clients do the same (sasl.login.refresh.window.factor)."""
UNSTATED_LIFE_SECONDS = 60.0
"""For endpoints that do not say how long a token is good for."""
TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
"""RFC 6750, 2.1."""
ERRORS = {
    *("invalid_request", "invalid_client", "invalid_grant", "invalid_scope"),
    *("unauthorized_client", "unsupported_grant_type"),
}
"""RFC 6749, 5.2. What else an endpoint says may quote what it was sent."""


class TokenUnavailable(AfterwordError, KafkaError):  # type: ignore[misc]  # aiokafka is not typed
    """no token from {address}: {problem}"""

    # a KafkaError, so that clients take it for a connection that failed, and try again


class ClientCredentials(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka is not typed
    """One token for all clients that are given this provider, until shortly before it expires."""

    def __init__(
        self,
        endpoint: str,
        client_id: str,
        client_secret: SecretStr,
        *,
        scope: str | None,
        tls: ssl.SSLContext,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = httpx.URL(endpoint)
        self._client_id = client_id
        self._client_secret = client_secret
        self._form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
        self._tls = tls
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._token = ""
        self._renew_at = self._expires_at = clock()
        self._fetching = asyncio.Lock()

    async def token(self) -> str:
        """Raises: TokenUnavailable."""
        async with self._fetching:
            if self._clock() >= self._renew_at:
                await self._renew()
        return self._token

    async def _renew(self) -> None:
        asked_at = self._clock()
        try:
            self._token, life_seconds = read_token(await self._ask())
        except _Refused as error:
            if asked_at >= self._expires_at:
                raise TokenUnavailable(address=self._url.netloc.decode().rpartition("@")[2], problem=error) from None
            return  # the old one is good for a while yet
        self._renew_at = asked_at + RENEWED_AFTER * life_seconds
        self._expires_at = asked_at + life_seconds

    async def _ask(self) -> httpx.Response:
        # RFC 6749, 2.3.1: encoded as in a form before they become a user and a password
        auth = (quote_plus(self._client_id), quote_plus(self._client_secret.get_secret_value()))
        try:
            async with (
                asyncio.timeout(self._timeout_seconds),
                httpx.AsyncClient(verify=self._tls, timeout=self._timeout_seconds) as client,
            ):
                return await client.post(self._url, data=self._form, auth=auth)
        except TimeoutError:
            raise _Refused("it did not answer in time") from None
        except httpx.HTTPError as error:
            raise _Refused(type(error).__name__) from None


class _Refused(Exception):
    """Why there is no token."""


def read_token(response: httpx.Response) -> tuple[str, float]:
    """The token and its life in seconds. Raises: _Refused."""
    body = _json_object(response)
    if not response.is_success:
        error = body.get("error")
        raise _Refused(f"it answers with {response.status_code}" + (f" {error}" if error in ERRORS else ""))
    token, life_seconds = body.get("access_token"), body.get("expires_in", UNSTATED_LIFE_SECONDS)
    if not isinstance(token, str) or not TOKEN.fullmatch(token):
        raise _Refused("its answer holds no token")
    try:
        return token, float(life_seconds)
    except (TypeError, ValueError):
        return token, UNSTATED_LIFE_SECONDS


def _json_object(response: httpx.Response) -> dict[str, Any]:
    try:
        body = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return {}
    return body if isinstance(body, dict) else {}
