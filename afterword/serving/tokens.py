"""Verifies an identity provider's tokens (JWT): signature, issuer, audience and time, before any claim is used."""

import asyncio
import hashlib
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import jwt
import orjson
import structlog
from jwt import PyJWK, PyJWKSet
from pydantic import TypeAdapter, ValidationError

from afterword.schemas.base import ANYONE, Id
from afterword.serving.problems import Unauthenticated
from afterword.serving.requests import SCOPES, Principal
from afterword.streams.errors import ProviderError, StoreUnavailable
from afterword.streams.http import bounded
from afterword.streams.settings import Serve

REQUIRED = ["exp", "iss", "aud"]
LEEWAY_SECONDS = 30
"""Tolerance for tokens from the future, because the issuer's clock may be ahead. Expiry is exact."""
FRESH_SECONDS = 300.0
"""The issuer's keys are read again once they are older than this."""
RETRY_SECONDS = 10.0
"""Minimum time between two reads, however many tokens name unknown keys."""
TIMEOUT_SECONDS = 5.0
ID = TypeAdapter(Id)
NO_ANSWER = (httpx.HTTPError, TimeoutError, ProviderError)
NO_KEYS = (jwt.PyJWTError, LookupError, TypeError, ValueError)

log = structlog.get_logger(__name__)


class IssuerUnavailable(StoreUnavailable):
    """the keys of the token issuer cannot be read: {problem}"""


class IssuerKeys:
    """The issuer's public keys by id.

    They are fetched again when they are old or a token names an unknown key, and kept while the issuer is unreachable.
    """

    def __init__(self, url: str, tls: ssl.SSLContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._tls = tls
        self._clock = clock
        self._keys: Mapping[str | None, PyJWK] = {}
        self._read_at = self._tried_at = float("-inf")
        self._reading = asyncio.Lock()

    async def find(self, key_id: str | None) -> PyJWK | None:
        """Return a key by its id. A token may leave it out if there is only one key.

        Raises: IssuerUnavailable, if keys were never read.
        """
        is_old = self._clock() - self._read_at > FRESH_SECONDS
        # a known key never waits for another token's read
        if key_id not in self._keys or (is_old and not self._reading.locked()):
            async with self._reading:
                if self._clock() - self._tried_at > RETRY_SECONDS:
                    await self._read()
        if not self._keys:
            raise IssuerUnavailable(problem="it has not answered")
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    async def _read(self) -> None:
        self._tried_at = self._clock()
        try:
            async with httpx.AsyncClient(verify=self._tls, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
                answer, content = await bounded(client, TIMEOUT_SECONDS, "GET", self._url)
            answer.raise_for_status()
            # PyJWK raises unexpected errors if the algorithm is "none" or not a string
            listed = orjson.loads(content)["keys"]
            described = [key for key in listed if isinstance(key, dict) and key.get("alg") != "none"]
            usable = PyJWKSet([key for key in described if isinstance(key.get("alg"), str | None)])
            self._keys = {
                key.key_id: key
                for key in usable
                # a symmetric key that is published here would let anyone sign tokens
                if key.key_type != "oct" and key.public_key_use in (None, "sig") and isinstance(key.key_id, str | None)
            }
            self._read_at = self._clock()
        except (*NO_ANSWER, *NO_KEYS) as error:
            log.warning("issuer_keys_not_read", stage="serve", error_type=type(error).__name__)


class TokenHolders:
    """Authenticates tokens. `settings` names the issuer, the audience and the JWKS address."""

    def __init__(self, settings: Serve, keys: IssuerKeys) -> None:
        self._settings = settings
        self._keys = keys

    async def principal(self, token: str | None) -> Principal:
        if not token:
            raise Unauthenticated
        try:
            header = jwt.get_unverified_header(token)
            key = await self._keys.find(header.get("kid"))
            if key is None:
                raise Unauthenticated
            claims: dict[str, Any] = jwt.decode(
                token,
                key,  # the key names its algorithm, and PyJWT refuses any other
                audience=self._settings.jwt_audience,
                issuer=self._settings.jwt_issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": REQUIRED},
            )
            if claims["exp"] <= time.time():
                raise Unauthenticated
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise Unauthenticated from error
        user_id = _named(claims, self._settings.jwt_user_claim) if self._settings.jwt_user_claim else ANYONE
        tenant_id = _named(claims, self._settings.jwt_tenant_claim) if self._settings.jwt_tenant_claim else None
        given = claims.get(self._settings.jwt_scope_claim, "")
        scopes = given.split() if isinstance(given, str) else given if isinstance(given, list) else []
        named = orjson.dumps([tenant_id, claims.get("sub")], default=str)
        key_id = "jwt-" + hashlib.sha256(named).hexdigest()[:12]
        return Principal(key_id, SCOPES & {scope for scope in scopes if isinstance(scope, str)}, tenant_id, user_id)


def _named(claims: Mapping[str, Any], name: str) -> str:
    try:
        return ID.validate_python(claims.get(name), strict=True)
    except ValidationError:
        raise Unauthenticated from None
