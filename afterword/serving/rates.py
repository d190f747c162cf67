"""Limit of requests by key, in the memory of this process."""

import math
import time

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from afterword.serving.problems import TooManyRequests


class Rates:
    """Requests of the last minute, by name. `per_minute`: the most of one name; 0: any number."""

    def __init__(self, per_minute: int) -> None:
        self._limit = RateLimitItemPerMinute(per_minute) if per_minute else None
        self._counters = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def take(self, name: str) -> None:
        """Count a request. Raises: TooManyRequests."""
        if self._limit is None or await self._counters.hit(self._limit, name):
            return
        until = (await self._counters.get_window_stats(self._limit, name)).reset_time
        seconds = max(1, math.ceil(until - time.time()))
        raise TooManyRequests(limit=self._limit.amount, retry_after=seconds)
