"""Circuit breaker: distinguishes records that fail from a worker on which everything fails."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

FAILURES = 20
"""Records of different keys that fail one after the other."""
WINDOW_SECONDS = 600.0


class Breaker:
    """Counts records that failed alone, since the last record of this worker that succeeded.

    One for all partitions of a worker: where other records are handled, the failing ones are to blame. `clock`: seconds
    of a monotonic clock.
    """

    def __init__(
        self,
        failures: int = FAILURES,
        window_seconds: float = WINDOW_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._failures = failures
        self._window = window_seconds
        self._clock = clock
        self._failed: dict[bytes | None, float] = {}
        """Time of the last failed record of each key."""
        self._decided = asyncio.Event()

    @property
    def is_counting(self) -> bool:
        """A record failed, and none has succeeded since."""
        return bool(self._failed)

    @property
    def is_open(self) -> bool:
        """Records of so many keys failed that no record is to blame."""
        return len(self._failed) >= self._failures

    @property
    def failures(self) -> int:
        """Keys whose records failed."""
        return len(self._failed)

    def failed(self, key: bytes | None) -> None:
        now = self._clock()
        self._failed[key] = now
        self._failed = {key: at for key, at in self._failed.items() if now - at <= self._window}
        if self.is_open:
            self._decide()

    def succeeded(self) -> None:
        if self._failed:
            self._failed.clear()
            self._decide()

    async def decided(self, within_seconds: float) -> None:
        """Wait for the next success, or for the breaker to open."""
        decided = self._decided
        if self.is_counting and not self.is_open:
            with suppress(TimeoutError):
                await asyncio.wait_for(decided.wait(), within_seconds)

    def _decide(self) -> None:
        self._decided.set()
        self._decided = asyncio.Event()
