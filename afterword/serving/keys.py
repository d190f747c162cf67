"""Keys: 256 random bits, of which the database has the digest only."""

import hashlib
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime

from afterword.context import ANYONE
from afterword.schemas.base import utc_milliseconds
from afterword.serving.principal import Principal
from afterword.serving.problems import Unauthenticated
from afterword.streams.stores.bookkeeping import ApiKey, ApiKeys

PREFIX = "afw_"
"""Marks a key for scanners of leaked secrets."""
KEY_BYTES = 32
CACHED_SECONDS = 2.0
"""A revoked key is refused after this time at the latest."""
MOST_CACHED = 1000


def new_key(scopes: tuple[str, ...], tenant_id: str | None, user_id: str | None) -> tuple[str, ApiKey]:
    """Make a key, and what is stored of it."""
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    now = utc_milliseconds(datetime.now(UTC))
    return key, ApiKey(key_digest(key), secrets.token_hex(4), scopes, tenant_id, user_id, now)


def key_digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class KeyHolders:
    """An Authenticator. It looks every key up by its digest, so that a wrong one differs in nothing from an unknown."""

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
        principal = holder(found)
        self._known[digest] = self._clock() + CACHED_SECONDS, principal
        return principal


def holder(key: ApiKey) -> Principal:
    """The principal of a key."""
    user_id = ANYONE if key.user_id is None else key.user_id
    return Principal(key.key_id, frozenset(key.scopes), key.tenant_id, user_id)
