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
from jwt import PyJWK

from afterword.reading.context import ANYONE
from afterword.serving.principal import SCOPES, Principal
from afterword.serving.problems import Unauthenticated
from afterword.streams.errors import StoreUnavailable
from afterword.streams.settings import Serve

ALGORITHMS = {
    "RSA": frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    "EC": frozenset({"ES256", "ES384", "ES512"}),
    "OKP": frozenset({"EdDSA"}),
}
"""Signature algorithms by kind of key. All are asymmetric, so that a public key is never used as a shared secret."""
REQUIRED = ["exp", "iss", "aud"]
LEEWAY_SECONDS = 30
"""Tolerance for tokens from the future, because the issuer's clock may be ahead. Expiry is exact."""
FRESH_SECONDS = 300.0
"""The issuer's keys are read again once they are older than this."""
RETRY_SECONDS = 10.0
"""Minimum time between two reads, however many tokens name unknown keys."""
TIMEOUT_SECONDS = 5.0
MOST_BYTES = 1_000_000
MOST_ID_CHARACTERS = 256

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
        self._keys: Mapping[str | None, Mapping[str, Any]] = {}
        self._read_at = self._tried_at = float("-inf")
        self._reading = asyncio.Lock()

    async def find(self, key_id: str | None) -> Mapping[str, Any] | None:
        """Return a key as described by the issuer. Raises: IssuerUnavailable, if keys were never read."""
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
            content = bytearray()
            async with (
                asyncio.timeout(TIMEOUT_SECONDS),
                httpx.AsyncClient(verify=self._tls, timeout=TIMEOUT_SECONDS, trust_env=False) as client,
                client.stream("GET", self._url) as answer,
            ):
                answer.raise_for_status()
                async for chunk in answer.aiter_bytes():
                    content += chunk
                    if len(content) > MOST_BYTES:
                        raise ValueError("too large")
            self._keys = keys_in(bytes(content))
            self._read_at = self._clock()
        except (httpx.HTTPError, ValueError, TimeoutError) as error:
            log.warning("issuer_keys_not_read", stage="serve", error_type=type(error).__name__)


def keys_in(content: bytes) -> dict[str | None, Mapping[str, Any]]:
    """Return the asymmetric signing keys in a JWK set (RFC 7517). Raises: ValueError."""
    found = orjson.loads(content)
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list):
        raise ValueError("not a JWK set")
    usable = [key for key in keys if isinstance(key, dict) and str(key.get("kty")) in ALGORITHMS]
    named = [key for key in usable if isinstance(key.get("kid"), str | None)]
    return {key.get("kid"): key for key in named if key.get("use") in (None, "sig")}


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
            described = await self._keys.find(header.get("kid"))
            algorithm: Any = header.get("alg")
            if described is None or algorithm not in ALGORITHMS[described["kty"]]:
                raise Unauthenticated
            if described.get("alg") not in (None, algorithm):
                raise Unauthenticated
            claims: dict[str, Any] = jwt.decode(
                token,
                PyJWK.from_dict(dict(described), algorithm),
                algorithms=[algorithm],
                audience=self._settings.jwt_audience,
                issuer=self._settings.jwt_issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": REQUIRED},
            )
            if claims["exp"] <= time.time():
                raise Unauthenticated
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise Unauthenticated from error
        return holder_of(claims, self._settings)


def holder_of(claims: Mapping[str, Any], settings: Serve) -> Principal:
    """Return the principal of verified claims. Raises: Unauthenticated if a required claim is missing."""
    user_id = _named(claims, settings.jwt_user_claim) if settings.jwt_user_claim else ANYONE
    tenant_id = _named(claims, settings.jwt_tenant_claim) if settings.jwt_tenant_claim else None
    given = claims.get(settings.jwt_scope_claim, "")
    scopes = given.split() if isinstance(given, str) else given if isinstance(given, list) else []
    named = orjson.dumps([tenant_id, claims.get("sub")], default=str)
    key_id = "jwt-" + hashlib.sha256(named).hexdigest()[:12]
    return Principal(key_id, SCOPES & {scope for scope in scopes if isinstance(scope, str)}, tenant_id, user_id)


def _named(claims: Mapping[str, Any], name: str) -> str:
    found = claims.get(name)
    if not isinstance(found, str) or not 0 < len(found) <= MOST_ID_CHARACTERS:
        raise Unauthenticated
    return found
