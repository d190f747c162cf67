"""The measure of a pause is right, and the load of the fault harness is what it says."""

import random

from tests.e2e.faults.load import Conversations
from tests.e2e.faults.stalls import Stalls


def test_a_partition_with_lag_and_without_progress_stalls() -> None:
    stalls = Stalls()
    for second in range(6):
        stalls.see({0: 5}, {0: 9}, float(second))
    assert stalls.longest == 5.0


def test_no_lag_is_no_stall() -> None:
    stalls = Stalls()
    for second in range(6):
        stalls.see({0: 9}, {0: 9}, float(second))
    assert stalls.longest == 0.0


def test_one_partition_is_not_hidden_by_another() -> None:
    stalls = Stalls()
    for second in range(6):
        stalls.see({0: second, 1: 5}, {0: 9, 1: 9}, float(second))
    assert stalls.longest == 5.0


def test_what_was_not_seen_counts_as_unchanged() -> None:
    stalls = Stalls()
    stalls.see({0: 5}, {0: 9}, 0.0)
    stalls.see({0: 5}, {0: 9}, 60.0)
    stalls.see({0: 9}, {0: 9}, 61.0)
    assert stalls.longest == stalls.lap() == 60.0
    assert stalls.lap() == 0.0


def test_the_same_seed_gives_the_same_load() -> None:
    one, other = (Conversations(random.Random(7)) for _ in range(2))
    assert [one.next() for _ in range(500)] == [other.next() for _ in range(500)]
    assert list(one.close()) == list(other.close())
