import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import StateUnreadable
from streams.segmenter.state import MAX_DEADLINE_MS, State, deadline_of, decode_state, encode_state

COUNTER = st.integers(0, 2**53)
TIME = st.integers(-(2**63), 2**63 - 1)
STATES = st.builds(
    State,
    tenant_id=st.one_of(st.none(), st.text(max_size=256)),
    next_seq=COUNTER,
    window_first=COUNTER,
    overlap_first=COUNTER,
    first_pending=COUNTER,
    open_first=COUNTER,
    open_tokens=COUNTER,
    open_bytes=COUNTER,
    pending_tokens=COUNTER,
    last_ordinal=COUNTER,
    last_sent_ms=TIME,
    last_record_ms=TIME,
    deadline_ms=st.integers(0, MAX_DEADLINE_MS),
)


@given(STATES)
def test_a_row_is_read_as_it_was_written(state):
    assert decode_state(encode_state(state)) == state


@given(STATES)
def test_a_row_is_small_whatever_it_counts(state):
    tenant = len((state.tenant_id or "").encode())
    assert len(encode_state(state)) <= 220 + 6 * tenant


@given(st.integers(1, MAX_DEADLINE_MS))
def test_the_deadline_is_read_without_the_rest(deadline):
    row = encode_state(State(None, deadline_ms=deadline))
    assert deadline_of(row[:8]) == deadline


def test_a_conversation_without_pending_messages_has_no_deadline():
    assert deadline_of(encode_state(State(None))) is None


@given(st.lists(st.integers(0, MAX_DEADLINE_MS), min_size=2, max_size=2))
def test_rows_are_ordered_by_deadline(deadlines):
    rows = [encode_state(State(None, deadline_ms=ms))[:8] for ms in deadlines]
    assert sorted(rows) == [ms.to_bytes(8) for ms in sorted(deadlines)]


def test_a_row_of_another_version_is_refused():
    row = bytearray(encode_state(State("acme")))
    row[8] = 2
    with pytest.raises(StateUnreadable, match="a conversation's row is not of version 1"):
        decode_state(bytes(row))
