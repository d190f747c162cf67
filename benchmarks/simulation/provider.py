"""The LLM: how long it takes, how much a minute it allows, and what a caller does that it refuses."""

from dataclasses import dataclass, field

import numpy as np

from benchmarks.simulation.arrivals import Random

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 9.0
"""As streams/summarizer/providers/retrying.py does it with a budget of 180 seconds."""
NORMAL_99 = 2.3263478740408408
"""Of a standard normal distribution, the quantile 0.99."""


@dataclass(frozen=True)
class Lognormal:
    """A latency in seconds with this median and this quantile 0.99; constant where they are equal."""

    median: float
    p99: float

    @property
    def sigma(self) -> float:
        return float(np.log(self.p99 / self.median) / NORMAL_99)

    @property
    def mean(self) -> float:
        return float(self.median * np.exp(self.sigma**2 / 2))

    def draw(self, conversation: int, chance: Random) -> float:  # noqa: ARG002 – of every conversation alike
        return float(self.median * np.exp(self.sigma * chance.standard_normal()))


@dataclass(frozen=True)
class Uneven:
    """Between `low` and `high` seconds; of every `one_in`-th conversation always `slow` seconds."""

    low: float
    high: float
    slow: float
    one_in: int

    def draw(self, conversation: int, chance: Random) -> float:
        return self.slow if conversation % self.one_in == 0 else float(chance.uniform(self.low, self.high))


@dataclass
class Bucket:
    """So much a minute, refilled steadily, no more than `burst` at once; infinity limits nothing."""

    per_minute: float
    burst: float
    _level: float = field(init=False)
    _seen: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._level = self.burst

    def wait(self, now: float, amount: float) -> float:
        """Seconds until the amount is there; zero: take it. `now` never goes back."""
        if self.per_minute == float("inf"):
            return 0.0
        self._level = min(self.burst, self._level + (now - self._seen) * self.per_minute / 60)
        self._seen = now
        return max(0.0, (min(amount, self.burst) - self._level) * 60 / self.per_minute)

    def take(self, amount: float) -> None:
        if self.per_minute != float("inf"):
            self._level -= min(amount, self.burst)


@dataclass(frozen=True)
class Limits:
    """Of the provider, for this worker's share of the calls."""

    requests: Bucket
    tokens: Bucket

    def refused(self, now: float, tokens: float) -> float:
        """Seconds that a 429 asks to wait; zero, and it counts, when the call is let through."""
        wait = max(self.requests.wait(now, 1), self.tokens.wait(now, tokens))
        if wait == 0:
            self.requests.take(1)
            self.tokens.take(tokens)
        return wait


def limits(requests_per_minute: float, tokens_per_minute: float, burst_seconds: float = 10.0) -> Limits:
    """`burst_seconds`: of the minute's allowance, what may be used at once."""
    share = burst_seconds / 60
    return Limits(
        Bucket(requests_per_minute, max(1.0, requests_per_minute * share)),
        Bucket(tokens_per_minute, max(1.0, tokens_per_minute * share)),
    )


def pause(attempt: int, asked: float, chance: Random) -> float:
    """Before the attempt after number `attempt` (0, 1 …): what was asked for, or doubling, both with jitter."""
    if asked > 0:
        return asked + chance.uniform(0, LONGEST_WAIT_SECONDS)
    return float(min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2**attempt + chance.uniform(0, FIRST_WAIT_SECONDS)))
