"""One segmenter's queue: against the closed form, and what must hold whatever comes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation.segmenting import Batching, Pause, commit_times

NOTHING = Batching(message=0.0, transaction=0.0, commit=lambda: 0.0, linger=0.0, max_batch=1000)


def costs(**changed: object) -> Batching:
    return Batching(**{**vars(NOTHING), **changed})  # type: ignore[arg-type]  # each test knows its names


@pytest.mark.parametrize("busy", [0.3, 0.6, 0.8])
def test_one_message_at_a_time_waits_as_in_m_d_1(busy: float) -> None:
    """Mean wait ρ · D / (2 · (1 − ρ)), by Pollaczek and Khinchine."""
    chance = np.random.default_rng(1)
    came = np.cumsum(chance.exponential(1 / busy, 200_000))
    done = commit_times([came], costs(message=1.0, max_batch=1))[0]
    assert np.mean(done - came - 1.0) == pytest.approx(busy / (2 * (1 - busy)), rel=0.05)


@settings(deadline=None)
@given(
    gaps=st.lists(st.lists(st.floats(0, 3), max_size=60), min_size=1, max_size=4),
    max_batch=st.integers(1, 20),
    pauses=st.lists(st.tuples(st.floats(0.1, 20), st.floats(0.1, 20)), max_size=3),
)
def test_everything_is_committed_once_in_order_and_not_before_it_came(
    gaps: list[list[float]], max_batch: int, pauses: list[tuple[float, float]]
) -> None:
    arrived = [np.cumsum(some) for some in gaps]
    ends = np.cumsum([length for pair in pauses for length in pair]).tolist()
    away = [Pause(begin, end) for begin, end in zip(ends[::2], ends[1::2], strict=True)]
    done = commit_times(arrived, costs(message=0.01, commit=lambda: 0.05, linger=0.02, max_batch=max_batch), away)
    for came, committed in zip(arrived, done, strict=True):
        assert len(came) == len(committed)
        assert np.all(committed >= came + 0.06 - 1e-9)
        assert np.all(np.diff(committed) >= 0)
        assert not any(np.any((committed > p.begin + 1e-9) & (committed < p.end)) for p in away)


def test_a_batch_that_a_pause_meets_is_done_again_after_it() -> None:
    done = commit_times([np.array([1.0])], costs(commit=lambda: 1.0), [Pause(1.5, 10.0)])
    assert done[0].tolist() == [11.0]


def test_what_waits_goes_into_one_batch_as_far_as_it_may() -> None:
    came = np.zeros(25)
    done = commit_times([came], costs(commit=lambda: 1.0, max_batch=10))[0]
    assert np.unique(done, return_counts=True)[1].tolist() == [10, 10, 5]
    assert done[-1] == 3.0


def test_partitions_share_the_core_and_not_the_wait_for_the_broker() -> None:
    came = [np.zeros(10), np.zeros(10)]
    assert max(done[-1] for done in commit_times(came, costs(message=1.0))) == 20.0
    assert max(done[-1] for done in commit_times(came, costs(commit=lambda: 20.0))) == 20.0


def test_a_little_lag_lingers_for_a_larger_batch_and_a_lot_does_not() -> None:
    came = np.array([0.0, 0.5, 1.02])
    lingering = commit_times([came], costs(commit=lambda: 1.0, linger=0.1))[0]
    assert lingering.tolist() == [1.0, pytest.approx(2.1), pytest.approx(2.1)]
    behind = commit_times([np.zeros(3)], costs(commit=lambda: 1.0, linger=0.1, max_batch=1))[0]
    assert behind.tolist() == [1.0, 2.0, 3.0]
