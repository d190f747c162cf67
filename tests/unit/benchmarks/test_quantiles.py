import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.quantiles import milliseconds, quantile


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.07, 7), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_of_a_hundred_values_a_quantile_is_the_value_of_that_rank(share: float, expected: int) -> None:
    assert quantile(list(range(100, 0, -1)), share) == expected


@given(st.lists(st.integers(), min_size=1), st.integers(0, 100))
def test_a_quantile_is_the_least_value_that_so_many_do_not_exceed(values: list[int], percent: int) -> None:
    found = quantile(values, percent / 100)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= percent * len(values)
    assert sum(value < found for value in values) * 100 < max(percent * len(values), 1)


def test_nothing_has_no_quantile() -> None:
    assert math.isnan(quantile([], 0.5))


def test_seconds_are_told_as_milliseconds() -> None:
    assert milliseconds(1.2345) == "1,234 ms"
