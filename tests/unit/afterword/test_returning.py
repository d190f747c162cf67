"""Where the records of new partitions belong: the partition that had their keys before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.returning import CannotReturn, homes
from afterword.streams.runtime.layouts import Layout
from afterword.streams.segmenter.partitions import standard_partition


def layouts(found: int, *recorded: int) -> dict[str, Layout]:
    return {f"group-{n}": Layout(frozenset({number} if number else ()), found) for n, number in enumerate(recorded)}


@given(st.binary(min_size=1), st.integers(1, 40), st.integers(2, 6))
def test_a_key_goes_where_it_was_before(key: bytes, before: int, times: int) -> None:
    after = before * times
    new = standard_partition(key, after)
    assert homes(layouts(after, before)).get(new, new) == standard_partition(key, before)


def test_each_new_partition_has_one_old_one() -> None:
    assert homes(layouts(6, 2, 2)) == {2: 0, 3: 1, 4: 0, 5: 1}


def test_a_group_that_has_read_nothing_says_nothing() -> None:
    assert homes(layouts(4, 2, 0)) == {2: 0, 3: 1}


@pytest.mark.parametrize(
    ("found", "recorded", "problem"),
    [
        (4, (4, 4), "no more than the commits of group-0"),
        (4, (0, 0), "no more than the commits of group-0"),
        (2, (4,), "no more than the commits of group-0"),
        (5, (2, 2), "was read with 2: that is no multiple"),
        (8, (2, 4), "was read with 2, 4: that is no multiple"),
    ],
)
def test_where_keys_cannot_be_followed_nothing_is_moved(found: int, recorded: tuple[int, ...], problem: str) -> None:
    with pytest.raises(CannotReturn, match=problem):
        homes(layouts(found, *recorded))
