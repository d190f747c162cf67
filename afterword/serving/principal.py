"""Who makes a request, what they may see, and how they are authenticated."""

import hashlib
import math
import secrets
import time
from collections.abc import Callable, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NoReturn, Protocol, get_args

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from afterword.reading.context import ANYONE, Anyone, Owner
from afterword.schemas.base import utc_milliseconds
from afterword.serving.problems import NotPermitted, RequestInvalid, TooManyRequests, Unauthenticated
from afterword.streams.stores.bookkeeping import ApiKey, ApiKeys

Permission = Literal["read", "write", "erase", "admin"]
SCOPES: frozenset[str] = frozenset(get_args(Permission))
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
        api_key = await self._keys.find(digest)
        if api_key is None:
            self._known.pop(digest, None)
            raise Unauthenticated
        if len(self._known) >= MOST_CACHED:
            self._known.clear()
        user_id = ANYONE if api_key.user_id is None else api_key.user_id
        principal = Principal(api_key.key_id, frozenset(api_key.scopes), api_key.tenant_id, user_id)
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
