"""When messages come, and of which conversations."""

import numpy as np
import pytest

from benchmarks.simulation.arrivals import DAY_SECONDS, Load, arrivals, conversations

FLAT = Load(10.0, burst_every_seconds=float("inf"))


def chance(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_same_seed_gives_the_same_moments_and_another_one_others() -> None:
    one, same, other = (arrivals(FLAT, 0, 100, chance(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_moments_are_sorted_and_within_the_window() -> None:
    moments = arrivals(FLAT, 5, 9.5, chance())
    assert np.all(np.diff(moments) >= 0)
    assert moments.min() >= 5
    assert moments.max() < 9.5


def test_gaps_are_those_of_a_poisson_process() -> None:
    gaps = np.diff(arrivals(FLAT, 0, 10_000, chance()))
    assert gaps.mean() == pytest.approx(0.1, rel=0.02)
    assert gaps.std() == pytest.approx(0.1, rel=0.02)


def test_a_day_has_its_mean_and_its_peak_hour_has_the_peak() -> None:
    day = arrivals(Load(2.0, peak_to_mean=1.8, burst_every_seconds=float("inf")), 0, DAY_SECONDS, chance())
    noon = np.sum((day > 41_400) & (day < 45_000)) / 3600
    assert len(day) / DAY_SECONDS == pytest.approx(2.0, rel=0.02)
    assert noon == pytest.approx(3.6, rel=0.05)


def test_bursts_bring_more_for_as_long_as_they_last() -> None:
    often = Load(10.0, burst_factor=5.0, burst_seconds=20, burst_every_seconds=200)
    seconds = np.bincount(arrivals(often, 0, 20_000, chance()).astype(int))
    assert np.mean(seconds > 30) == pytest.approx(0.1, abs=0.03)  # 1 − e^(−20/200): two at a time are one


def test_each_conversation_has_its_messages_and_then_another_takes_its_seat() -> None:
    whose = conversations(5_000, at_a_time=10, messages_each=40, chance=chance())
    _, sizes = np.unique(whose, return_counts=True)
    assert np.sum(sizes != 40) <= 10
    assert sizes.sum() == 5_000
    assert len(set(whose[:200])) <= 20
