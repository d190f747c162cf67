"""Who makes a request, what they may see, and how they are authenticated."""

import hashlib
import math
import secrets
import time
from collections.abc import Callable, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NoReturn, Protocol, get_args

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from afterword.reading.context import ANYONE, Anyone, Owner
from afterword.schemas.base import utc_milliseconds
from afterword.serving.problems import NotPermitted, RequestInvalid, TooManyRequests, Unauthenticated
from afterword.serving.requests import services_of
from afterword.streams.errors import StoreUnavailable
from afterword.streams.stores.bookkeeping import ApiKey, ApiKeys

Permission = Literal["read", "write", "erase", "admin"]
SCOPES: frozenset[str] = frozenset(get_args(Permission))
BEARER = HTTPBearer(
    auto_error=False, description="A key of `afterword keys create`, or a token of the identity provider."
)
PREFIX = "afw_"
"""Lets secret scanners recognize a leaked key."""
KEY_BYTES = 32
CACHED_SECONDS = 2.0
"""A revoked key is refused within this time."""
MOST_CACHED = 1000
MOST_REMEMBERED = 10_000


@dataclass(frozen=True)
class Principal:
    """The holder of a key or a token.

    It belongs to one tenant, or to all tenants on a server without authentication.
    """

    key_id: str
    """The key's name in logs; not a secret."""
    scopes: Set[str]
    tenant_id: str | Anyone | None = ANYONE
    """None for data without a tenant."""
    user_id: str | Anyone = ANYONE

    @property
    def owner(self) -> Owner:
        """The owner whose conversations and episodes the principal may see."""
        return Owner(self.user_id, self.tenant_id)

    def asserted(self, user_id: str | None, tenant_id: str | None) -> Owner:
        """Return the owner to read for, possibly narrowed by the request, but never wider than the key's.

        Raises: NotPermitted if the request names an owner other than the key's.
        """
        return Owner(
            self.user_id if user_id is None else self.user(user_id),
            self.tenant_id if tenant_id is None else self.tenant(tenant_id),
        )

    def may(self, scope: Permission) -> bool:
        return scope in self.scopes or "admin" in self.scopes

    def user(self, asked: str | None) -> str:
        """Return the user to act for.

        Raises: NotPermitted if the key belongs to another user, RequestInvalid if no user is named.
        """
        if isinstance(self.user_id, Anyone):
            if not asked:
                raise RequestInvalid(problems=[("user_id", "must name a user")])
            return asked
        if asked not in (None, self.user_id):
            raise NotPermitted(problem="the key belongs to another user")
        return self.user_id

    def tenant(self, asked: str | None) -> str | None:
        """Return the tenant to act for. Raises: NotPermitted if the key belongs to another tenant."""
        if isinstance(self.tenant_id, Anyone):
            return asked
        if asked not in (None, self.tenant_id):
            raise NotPermitted(problem="the key belongs to another tenant")
        return self.tenant_id


class Authenticator(Protocol):
    """Maps a bearer token to its principal."""

    async def principal(self, token: str | None) -> Principal:
        """Return the token's principal. Raises: Unauthenticated, StoreUnavailable."""
        ...


class Nobody:
    """No authentication: anyone who can reach the loopback address may do everything."""

    async def principal(self, token: str | None) -> Principal:  # noqa: ARG002 – required by the protocol
        return Principal("local", SCOPES)


async def admit(request: Request, read_token: Callable[[], str | None], *scopes: Permission) -> Principal:
    """Return the principal of a token that has one of the scopes, and enforce the rate limits.

    `read_token` is called again while a stream is open, and returns None once the visitor has signed out.

    Raises: Unauthenticated, NotPermitted, TooManyRequests, StoreUnavailable.
    """
    services = services_of(request)
    token = read_token()
    address = f"address {request.client.host if request.client else ''}"
    principal = await services.rates.authenticated(services.authenticator, token, address)
    request.state.read_token, request.state.key_id = read_token, principal.key_id
    if connection := getattr(request.state, "connection", None):
        connection.stranger = None
    await services.rates.take(f"key {principal.key_id}")
    if not any(map(principal.may, scopes)):
        raise NotPermitted(problem=f"the key lacks the scope {' or '.join(scopes)}")
    return principal


async def is_still_admitted(request: Request, principal: Principal) -> bool:
    """Return whether the token of a long-running request still has this principal.

    While the store is unavailable, assume that it does.
    """
    try:
        return await services_of(request).authenticator.principal(request.state.read_token()) == principal
    except Unauthenticated:
        return False
    except StoreUnavailable:
        return True


def requiring(*scopes: Permission) -> Any:
    """Build the dependency that admits principals with one of the scopes."""

    async def admitted(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]
    ) -> Principal:
        return await admit(request, lambda: given.credentials if given else None, *scopes)

    return Depends(admitted)


MayRead = Annotated[Principal, requiring("read")]
MayWrite = Annotated[Principal, requiring("write")]
MayErase = Annotated[Principal, requiring("erase")]
MayAdminister = Annotated[Principal, requiring("admin")]
MayReadOrWrite = Annotated[Principal, requiring("read", "write")]


def new_key(scopes: tuple[str, ...], tenant_id: str | None, user_id: str | None) -> tuple[str, ApiKey]:
    """Generate a key, and the record to store for it."""
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    now = utc_milliseconds(datetime.now(UTC))
    return key, ApiKey(key_digest(key), secrets.token_hex(4), scopes, tenant_id, user_id, now)


def key_digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class KeyHolders:
    """Authenticates API keys.

    Every key is looked up by its digest, so a wrong key is handled just like an unknown one.
    """

    def __init__(self, keys: ApiKeys, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._clock = clock
        self._known: dict[str, tuple[float, Principal]] = {}

    async def principal(self, token: str | None) -> Principal:
        if not token:
            raise Unauthenticated
        digest = key_digest(token)
        until, known = self._known.get(digest, (0.0, None))
        if known is not None and self._clock() < until:
            return known
        found = await self._keys.find(digest)
        if found is None:
            self._known.pop(digest, None)
            raise Unauthenticated
        if len(self._known) >= MOST_CACHED:
            self._known.clear()
        user_id = ANYONE if found.user_id is None else found.user_id
        principal = Principal(found.key_id, frozenset(found.scopes), found.tenant_id, user_id)
        self._known[digest] = self._clock() + CACHED_SECONDS, principal
        return principal


class Rates:
    """Rate limits by name. `per_minute` is the limit for each name; 0 means unlimited."""

    def __init__(self, per_minute: int) -> None:
        self._limit = RateLimitItemPerMinute(per_minute) if per_minute else None
        self._counters = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._valid: set[str] = set()
        """Digests of tokens that were valid when last seen, so they are not guesses."""

    async def authenticated(self, authenticator: Authenticator, token: str | None, address: str) -> Principal:
        """Return a token's principal. An address may send as many invalid tokens as a key may send requests.

        Raises: Unauthenticated, TooManyRequests, StoreUnavailable.
        """
        digest = key_digest(token or "")
        if self._limit and digest not in self._valid and not await self._counters.test(self._limit, address):
            await self._refuse(self._limit, address)
        try:
            principal = await authenticator.principal(token)
        except Unauthenticated:
            self._valid.discard(digest)
            await self.take(address)
            raise
        if len(self._valid) >= MOST_REMEMBERED:
            self._valid.clear()
        self._valid.add(digest)
        return principal

    async def take(self, name: str) -> None:
        """Count a request. Raises: TooManyRequests."""
        if self._limit and not await self._counters.hit(self._limit, name):
            await self._refuse(self._limit, name)

    async def _refuse(self, limit: RateLimitItemPerMinute, name: str) -> NoReturn:
        until = (await self._counters.get_window_stats(limit, name)).reset_time
        raise TooManyRequests(limit=limit.amount, retry_after=max(1, math.ceil(until - time.time())))
