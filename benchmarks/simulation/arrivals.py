"""When messages come, and of which conversations: a daily curve with bursts on it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]
Random = np.random.Generator

DAY_SECONDS = 86_400.0
STEP_SECONDS = 1.0


@dataclass(frozen=True)
class Load:
    """Messages a second over a day: a cosine with its peak at `peak_hour`, and bursts that multiply it."""

    mean_rate: float
    peak_to_mean: float = 1.0
    burst_factor: float = 1.0
    burst_seconds: float = 60.0
    burst_every_seconds: float = 3600.0
    peak_hour: float = 12.0

    @property
    def peak_rate(self) -> float:
        """At the top of the daily curve, between bursts."""
        return self.mean_rate * self.peak_to_mean

    def curve(self, seconds: Times) -> Times:
        """Without bursts; never below zero, so `peak_to_mean` is at most 2."""
        angle = 2 * np.pi * (seconds / DAY_SECONDS - self.peak_hour / 24)
        return np.asarray(self.mean_rate * (1 + (self.peak_to_mean - 1) * np.cos(angle)))


def burst_starts(load: Load, begin: float, end: float, chance: Random) -> Times:
    """A Poisson process of `1 / burst_every_seconds`."""
    count = chance.poisson((end - begin) / load.burst_every_seconds)
    return np.sort(chance.uniform(begin, end, count))


def arrivals(load: Load, begin: float, end: float, chance: Random) -> Times:
    """Sorted moments in [begin, end), a Poisson process whose rate is that of each second.

    Seconds since midnight. Bursts do not add up: two at a time are one.
    """
    steps = np.arange(begin, end, STEP_SECONDS)
    widths = np.minimum(STEP_SECONDS, end - steps)
    rates = load.curve(steps)
    for start in burst_starts(load, begin, end, chance):
        struck = (steps >= start) & (steps < start + load.burst_seconds)
        rates = np.where(struck, load.curve(steps) * load.burst_factor, rates)
    counts = chance.poisson(rates * widths)
    moments = np.repeat(steps, counts) + chance.random(counts.sum()) * np.repeat(widths, counts)
    return np.sort(moments)


def conversations(count: int, at_a_time: int, messages_each: int, chance: Random) -> Numbers:
    """Of which conversation each of `count` messages is: any of those `at_a_time`, until it has had its messages."""
    seats = chance.integers(0, max(1, at_a_time), count)
    order = np.argsort(seats, kind="stable")
    ranks = np.empty(count, dtype=np.int64)
    starts = np.searchsorted(seats[order], np.arange(max(1, at_a_time)))
    ranks[order] = np.arange(count) - starts[seats[order]]
    return np.asarray(seats + max(1, at_a_time) * (ranks // messages_each))
