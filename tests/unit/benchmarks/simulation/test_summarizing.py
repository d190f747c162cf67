"""One summarizer's queue: against the closed form, and what must hold whatever comes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation.provider import Limits, Lognormal, Uneven, limits
from benchmarks.simulation.summarizing import Work, Worker, summarize

FREE = float("inf")


class Exponential:
    def draw(self, conversation: int, chance: np.random.Generator) -> float:
        return float(chance.exponential(1.0))


def worker(**changed: object) -> Worker:
    plain = {"slots": 8, "in_flight": 10**9, "core_seconds": 0.0, "store_seconds": 0.0, "llm": Lognormal(1.0, 1.0)}
    return Worker(**{**plain, **changed})  # type: ignore[arg-type]  # each test knows its names


def work(came: list[float], conversation: list[int], partitions: int = 1, tokens: int = 100) -> Work:
    whose = np.array(conversation, dtype=np.int64)
    return Work(np.array(came, dtype=np.float64), whose % partitions, whose, np.full(len(came), tokens))


def unlimited() -> Limits:
    return limits(FREE, FREE)


def erlang_c(servers: int, load: float) -> float:
    """The probability to wait in M/M/c; `load` in erlangs."""
    terms = [load**n / math.factorial(n) for n in range(servers)]
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(terms) + last)


@pytest.mark.parametrize(("slots", "load"), [(1, 0.6), (4, 3.0), (8, 6.4)])
def test_calls_wait_for_a_slot_as_in_m_m_c(slots: int, load: float) -> None:
    """Mean wait C(c, a) / (c · μ − λ), by Erlang; here μ = 1."""
    chance = np.random.default_rng(1)
    came = np.cumsum(chance.exponential(1 / load, 60_000))
    given = Work(came, np.zeros(len(came), np.int64), np.arange(len(came)), np.ones(len(came), np.int64))
    done = summarize(given, worker(slots=slots, llm=Exponential()), unlimited(), chance)
    assert np.mean(done.called - came) == pytest.approx(erlang_c(slots, load) / (slots - load), rel=0.1)
    assert done.slot_seconds / done.done.max() == pytest.approx(load, rel=0.03)


@settings(deadline=None)
@given(
    gaps=st.lists(st.tuples(st.floats(0, 2), st.integers(0, 6)), max_size=80),
    slots=st.integers(1, 4),
    in_flight=st.integers(1, 8),
    seed=st.integers(0, 5),
    errors=st.sampled_from([0.0, 0.3]),
    a_minute=st.sampled_from([FREE, 30.0]),
)
def test_every_episode_is_done_once_in_the_order_of_its_conversation(
    gaps: list[tuple[float, int]], slots: int, in_flight: int, seed: int, errors: float, a_minute: float
) -> None:
    given = work(np.cumsum([gap for gap, _ in gaps]).tolist(), [whose for _, whose in gaps], partitions=2)
    hands = worker(slots=slots, in_flight=in_flight, core_seconds=0.01, store_seconds=0.02, error_chance=errors)
    done = summarize(given, hands, limits(a_minute, FREE), np.random.default_rng(seed))
    assert not np.any(np.isnan(done.done))
    assert np.all(done.done >= given.came)
    for whose in set(given.conversation.tolist()):
        mine = given.conversation == whose
        assert np.all(np.diff(done.done[mine]) >= 0)
        called, answered = done.called[mine], done.answered[mine]
        kept = ~np.isnan(called)
        assert np.all(called[kept][1:] >= answered[kept][:-1])
    assert busiest(done.called, done.answered) <= slots


def busiest(called: np.ndarray, answered: np.ndarray) -> int:
    """Calls at a time, at most."""
    moments = [(moment, -1) for moment in answered if not np.isnan(moment)]
    moments += [(moment, 1) for moment in called if not np.isnan(moment)]
    return int(max(np.cumsum([step for _, step in sorted(moments)]), default=0))


def test_a_slow_conversation_delays_no_other() -> None:
    slow_and_quick = Uneven(1.0, 1.0, slow=100.0, one_in=1000)
    given = work([0.0] * 12, [1000, 1000, *range(1, 11)])
    done = summarize(given, worker(slots=4, llm=slow_and_quick), unlimited(), np.random.default_rng(1)).done
    assert done[:2].tolist() == [100.0, 200.0]
    assert max(done[2:]) == pytest.approx(4.0)


def test_no_more_episodes_of_a_partition_are_in_hand_than_allowed() -> None:
    given = work([0.0] * 6, [0, 2, 4, 1, 3, 5], partitions=2)
    done = summarize(given, worker(in_flight=1), unlimited(), np.random.default_rng(1)).done
    assert done.tolist() == [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]


def test_the_core_is_one_and_the_stores_are_many() -> None:
    given = work([0.0] * 4, [1, 2, 3, 4])
    quick = Lognormal(1e-9, 1e-9)
    core = summarize(given, worker(core_seconds=1.0, llm=quick), unlimited(), np.random.default_rng(1)).done
    stores = summarize(given, worker(store_seconds=1.0, llm=quick), unlimited(), np.random.default_rng(1)).done
    assert max(core) == pytest.approx(4.0)
    assert max(stores) == pytest.approx(1.0)


def test_calls_beyond_the_limit_are_made_later_and_in_the_end_not_at_all() -> None:
    given = work([0.0] * 50, list(range(50)))
    tight = limits(requests_per_minute=6, tokens_per_minute=FREE)
    done = summarize(given, worker(slots=50), tight, np.random.default_rng(1))
    assert 0 < done.fell_back.sum() < 50
    assert np.isnan(done.called[done.fell_back]).all()
    assert done.calls > 50


def test_slots_are_busy_while_work_is_queued() -> None:
    given = work([0.0] * 80, list(range(80)))
    done = summarize(given, worker(slots=8), unlimited(), np.random.default_rng(1))
    assert done.busy_share(8) == pytest.approx(1.0)
    assert done.slot_seconds == pytest.approx(80.0)
