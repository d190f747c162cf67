from hypothesis import given
from hypothesis import strategies as st

from afterword.consumers.subscriber import RecentIds


@given(st.lists(st.integers(0, 20).map(str)), st.integers(1, 10))
def test_recent_ids_are_exactly_the_last_distinct_ones(added, limit):
    ids = RecentIds(limit)
    for event_id in added:
        ids.add(event_id)
    last = list(dict.fromkeys(reversed(added)))[:limit]
    assert {i for i in map(str, range(21)) if i in ids} == set(last)
