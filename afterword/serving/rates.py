"""Limits by key, in the memory of this process: requests a minute, and open event streams."""

import hashlib
import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from afterword.serving.problems import TooManyRequests, TooManyStreams

STREAMS_OF_A_KEY = 500
"""Most event streams of a key that are open at a time, in one process."""


MOST_REMEMBERED = 10_000


class Rates:
    """Requests of the last minute, by name. `per_minute`: the most of one name; 0: any number."""

    def __init__(self, per_minute: int) -> None:
        self._limit = RateLimitItemPerMinute(per_minute) if per_minute else None
        self._counters = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._valid: set[bytes] = set()
        """Digests of tokens that were valid when they were last seen: these are no guesses."""

    def knows(self, token: str | None) -> bool:
        return _digest(token) in self._valid

    def remember(self, token: str | None) -> None:
        if len(self._valid) >= MOST_REMEMBERED:
            self._valid.clear()
        self._valid.add(_digest(token))

    def forget(self, token: str | None) -> None:
        self._valid.discard(_digest(token))

    async def take(self, name: str) -> None:
        """Count a request. Raises: TooManyRequests."""
        if self._limit is None or await self._counters.hit(self._limit, name):
            return
        await self._refuse(self._limit, name)

    async def _refuse(self, limit: RateLimitItemPerMinute, name: str) -> NoReturn:
        until = (await self._counters.get_window_stats(limit, name)).reset_time
        raise TooManyRequests(limit=limit.amount, retry_after=max(1, math.ceil(until - time.time())))

    async def require_room(self, name: str) -> None:
        """Check that another request would be within the limit. Raises: TooManyRequests."""
        if self._limit is not None and not await self._counters.test(self._limit, name):
            await self._refuse(self._limit, name)


def _digest(token: str | None) -> bytes:
    return hashlib.sha256((token or "").encode(errors="surrogatepass")).digest()


class Streams:
    """Open event streams, by name. `most`: of one name; 0: any number."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    def require_room(self, name: str) -> None:
        """Raises: TooManyStreams."""
        if 0 < self._most <= self._open[name]:
            raise TooManyStreams(limit=self._most)

    @contextmanager
    def counted(self, name: str) -> Iterator[None]:
        """Count a stream for as long as it is open."""
        self._open[name] += 1
        try:
            yield
        finally:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]
