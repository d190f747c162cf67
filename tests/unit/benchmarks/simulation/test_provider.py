"""The LLM's latency, its limits, and the waits of those whom it refuses."""

import numpy as np
import pytest

from benchmarks.simulation.provider import Lognormal, limits, pause


def test_a_latency_has_the_quantiles_it_was_given() -> None:
    latency, chance = Lognormal(3.0, 12.0), np.random.default_rng(1)
    drawn = [latency.draw(0, chance) for _ in range(100_000)]
    assert np.median(drawn) == pytest.approx(3.0, rel=0.02)
    assert np.quantile(drawn, 0.99) == pytest.approx(12.0, rel=0.03)
    assert np.mean(drawn) == pytest.approx(latency.mean, rel=0.02)


def test_no_more_calls_go_through_in_a_minute_than_it_allows() -> None:
    allowed = limits(requests_per_minute=60, tokens_per_minute=float("inf"))
    moments = np.arange(0, 600, 0.1)
    let_through = sum(allowed.refused(now, 100) == 0 for now in moments.tolist())
    assert let_through == pytest.approx(600 + 10, abs=2)


def test_the_wait_that_it_asks_for_is_long_enough() -> None:
    allowed = limits(requests_per_minute=float("inf"), tokens_per_minute=600)
    assert allowed.refused(0.0, 100) == 0
    asked = allowed.refused(0.0, 50)
    assert asked == pytest.approx(5.0)
    assert allowed.refused(asked + 1e-6, 50) == 0


def test_a_call_larger_than_the_bucket_goes_through_when_the_bucket_is_full() -> None:
    allowed = limits(requests_per_minute=float("inf"), tokens_per_minute=60)
    assert allowed.refused(0.0, 5_000) == 0
    assert allowed.refused(0.0, 1) > 0


def test_waits_grow_and_are_at_least_what_was_asked_for() -> None:
    chance = np.random.default_rng(1)
    assert [0.5 * 2**n <= pause(n, 0.0, chance) <= 9.0 for n in range(5)] == [True] * 5
    assert pause(0, 30.0, chance) >= 30.0
