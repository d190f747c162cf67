from hypothesis import given
from hypothesis import strategies as st

from afterword.consumers.subscriber import RecentIds


def test_an_id_is_known_until_so_many_others_came():
    ids = RecentIds(2)
    for event_id in ("a", "b"):
        ids.add(event_id)
    assert "a" in ids
    ids.add("c")
    assert "a" not in ids
    assert "b" in ids


def test_an_id_that_comes_again_is_recent_again():
    ids = RecentIds(2)
    for event_id in ("a", "b", "a", "c"):
        ids.add(event_id)
    assert "a" in ids
    assert "b" not in ids


@given(st.lists(st.integers(0, 20).map(str)), st.integers(1, 10))
def test_it_knows_exactly_the_last_distinct_ids(added, limit):
    ids = RecentIds(limit)
    for event_id in added:
        ids.add(event_id)
    last = list(dict.fromkeys(reversed(added)))[:limit]
    assert {i for i in map(str, range(21)) if i in ids} == set(last)
