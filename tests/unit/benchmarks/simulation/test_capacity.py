"""The formulas."""

import pytest

from benchmarks.simulation.bottlenecks import ceilings, decade
from benchmarks.simulation.capacity import messages_per_episode, need
from benchmarks.simulation.parameters import Parameters, changed

P = Parameters()
LOADS = tuple(10.0**exponent for exponent in range(4, 10))


def test_a_worked_example() -> None:
    """The one of docs/scaling.md."""
    p = changed(P, {"peak_to_mean": 2, "messages_per_conversation": 40, "trigger": 10, "shift_chance": 0.1})
    found = need(10e6, p)
    assert found.messages == pytest.approx(10e6 / 86_400 * 2)
    assert messages_per_episode(p) == pytest.approx(40 / (4 * 1.9))
    assert found.episodes == pytest.approx(found.messages / messages_per_episode(p))
    assert found.changelog_bytes_per_day == pytest.approx(10e6 * p.changelog_bytes_per_message)


@pytest.mark.parametrize(("messages", "shifts", "expected"), [(10, 0.0, 10), (40, 0.0, 10), (12, 0.0, 6), (10, 1.0, 1)])
def test_messages_of_an_episode(messages: int, shifts: float, expected: float) -> None:
    p = changed(P, {"messages_per_conversation": messages, "shift_chance": shifts})
    assert messages_per_episode(p) == pytest.approx(expected)


@pytest.mark.parametrize("load", LOADS)
def test_no_role_has_more_workers_than_partitions(load: float) -> None:
    found = need(load, P)
    assert max(found.segmenters, found.summarizers) <= found.partitions
    assert found.summarizers * found.slots_per_summarizer >= found.slots


def test_what_is_stored_grows_as_the_load_does() -> None:
    small, large = need(1e6, P), need(1e8, P)
    for name in ("state_bytes", "mongo_bytes", "qdrant_bytes", "kafka_bytes", "cost_per_day", "tokens_per_day"):
        assert getattr(large, name) == pytest.approx(100 * getattr(small, name))


def test_a_smaller_window_of_ids_means_less_state() -> None:
    large, small = need(1e8, P), need(1e8, changed(P, {"dedupe_window": 10}))
    assert small.state_bytes < large.state_bytes / 3
    assert small.recovery_seconds < large.recovery_seconds / 3


def test_every_ceiling_is_in_one_decade_and_the_lowest_comes_first() -> None:
    found = [end for load in (1e0, 1e1, 1e2, 1e3, *LOADS, 1e10, 1e11) for end in decade(load, P).ends]
    assert found == ceilings(P)
    assert [end.messages_per_day for end in found] == sorted(end.messages_per_day for end in found)


def test_at_a_ceiling_what_it_names_is_used_up() -> None:
    ceiling = next(end for end in ceilings(P) if end.what == "the provider's requests a minute")
    assert need(ceiling.messages_per_day, P).requests_per_minute == pytest.approx(P.requests_per_minute)
