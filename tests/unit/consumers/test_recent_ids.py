import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.consumers.subscriber import RecentIds
from afterword.schemas import InvalidRecord, decode_input
from afterword.schemas.records import CONTENT_TYPE, STRUCTURED_JSON


@given(st.lists(st.integers(0, 20).map(str)), st.integers(1, 10))
def test_recent_ids_are_exactly_the_last_distinct_ones(added, limit):
    ids = RecentIds(limit)
    for event_id in added:
        ids.add(event_id)
    last = list(dict.fromkeys(reversed(added)))[:limit]
    assert {i for i in map(str, range(21)) if i in ids} == set(last)


def test_nesting_that_cannot_be_rewritten_is_refused():
    value = b'{"type":"message.created","data":{"metadata":' + b'{"a":' * 400 + b"1" + b"}" * 402
    with pytest.raises(InvalidRecord, match="nested too deeply"):
        decode_input(b"c", value, [(CONTENT_TYPE, STRUCTURED_JSON.encode())], 0)
