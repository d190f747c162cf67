"""One summarizer and its segmenters, together."""

import pytest

from benchmarks.simulation.capacity import need
from benchmarks.simulation.cell import simulate
from benchmarks.simulation.parameters import Parameters, changed

P = Parameters()


def test_the_same_seed_gives_the_same_numbers() -> None:
    one = need(1e5, P)
    assert simulate(one, P, seed=3) == simulate(one, P, seed=3)
    assert simulate(one, P, seed=3) != simulate(one, P, seed=4)


def test_the_slots_are_used_as_the_formulas_say() -> None:
    calm = changed(P, {"burst_factor": 1, "llm_p99_seconds": 3})
    plan = need(3e5, calm)
    freely, _ = simulate(plan, calm)
    assert freely.slots_used * plan.slots_per_summarizer == pytest.approx(plan.slots * calm.slot_share, rel=0.2)


def test_without_limits_nothing_falls_back_and_with_tight_ones_much_does() -> None:
    tight = changed(P, {"requests_per_minute": 5, "error_chance": 0})
    freely, limited = simulate(need(1e5, tight), tight)
    assert freely.fell_back == 0
    assert limited.fell_back > 0.5


def test_a_restart_shows_in_the_tail_and_not_in_the_middle() -> None:
    calm = changed(P, {"restart_seconds": 60, "burst_factor": 1})
    freely, _ = simulate(need(1e6, calm), calm)
    assert freely.closing_p50 < 0.1
    assert freely.closing_p99 > 10
