import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from afterword.streams.errors import RowUnreadable, StateUnreadable
from afterword.streams.segmenter.shifts import ROW_BYTES
from afterword.streams.segmenter.state import MAX_DEADLINE_MS, State, deadline_of, decode_state, encode_state

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
    latest_record_ms=TIME,
    open_turns=COUNTER,
    pending_turns=COUNTER,
    open_text_bytes=COUNTER,
    pending_text_bytes=COUNTER,
    open_longest=COUNTER,
    pending_longest=COUNTER,
    since_ms=st.one_of(st.none(), TIME),
    overrides=st.sampled_from(["", '{"trigger":5}']),
    agents=st.one_of(st.none(), st.lists(st.text(max_size=256), max_size=3)),
    pending_bytes=COUNTER,
    latest_event_ms=TIME,
    taken_to=COUNTER,
    open_gone=st.one_of(st.just(0), COUNTER),
    pending_gone=st.one_of(st.just(0), COUNTER),
    deadline_ms=st.integers(0, MAX_DEADLINE_MS),
    silent_ms=st.one_of(st.just(0), st.integers(1, MAX_DEADLINE_MS)),
    unheard=st.one_of(st.just(0), COUNTER),
    topic=st.just(b"") | st.sampled_from(ROW_BYTES).flatmap(lambda size: st.binary(min_size=size, max_size=size)),
)
STATES = STATES.map(lambda state: state._replace(deadline_ms=0) if state.silent_ms else state)
"""Something is pending, or it is known since when nothing is."""
STATES = STATES.map(lambda state: state if state.topic else state._replace(unheard=0))
"""Only a topic model has something that it has not heard."""


@given(STATES)
def test_a_row_is_read_as_it_was_written(state):
    assert decode_state(encode_state(state)) == state


@given(STATES)
def test_a_row_is_small_whatever_it_counts(state):
    texts = [state.tenant_id or "", state.overrides, *(state.agents or [])]
    topic = 1 + len(state.topic) + len(f",{state.unheard}") if state.topic else 0
    assert len(encode_state(state)) <= 491 + 6 * len("".join(texts).encode()) + 3 * len(texts) + topic


@given(st.integers(1, MAX_DEADLINE_MS))
def test_the_deadline_is_the_start_of_the_row(deadline):
    row = encode_state(State(None, next_seq=1, deadline_ms=deadline))
    assert int.from_bytes(row[:8]) == deadline_of(row) == deadline


def test_a_conversation_without_pending_messages_has_no_deadline():
    assert deadline_of(encode_state(State(None))) is None


@given(st.lists(st.integers(0, MAX_DEADLINE_MS), min_size=2, max_size=2))
def test_rows_are_ordered_by_deadline(deadlines):
    rows = [encode_state(State(None, next_seq=1, deadline_ms=ms))[:8] for ms in deadlines]
    assert sorted(rows) == [ms.to_bytes(8) for ms in sorted(deadlines)]


def test_a_row_of_version_1_is_read_and_counts_what_it_did_not_count_from_there_on():
    row = (77).to_bytes(8) + b"\1" + b'["acme",9,0,3,5,7,30,400,50,2,1000,2000]'
    assert decode_state(row) == State(
        "acme", 9, 0, 3, 5, 7, 30, 400, 50, 2, 1000, 2000, pending_bytes=400, latest_event_ms=1000, deadline_ms=77
    )


@given(STATES)
def test_a_row_of_version_3_is_read_and_nothing_was_taken_before_it(state):
    state = state._replace(taken_to=0, open_gone=0, pending_gone=0, unheard=0, topic=b"")
    assume(not state.is_stub)
    row = encode_state(state)
    assert row.endswith(b",0]")
    assert decode_state(row[:8] + b"\3" + row[9:-3] + b"]") == state


def test_a_row_of_another_version_is_refused():
    row = bytearray(encode_state(State("acme")))
    row[8] = 9
    with pytest.raises(StateUnreadable, match="a conversation's row is of version 9"):
        decode_state(bytes(row))


@given(STATES.filter(lambda state: state.topic), st.integers(0, 255))
def test_a_row_whose_topic_has_another_length_is_damaged(state, length):
    row = bytearray(encode_state(state))
    assume(length != row[9])
    row[9] = length
    with pytest.raises(RowUnreadable):
        decode_state(bytes(row))
    assert deadline_of(bytes(row)) is None


def test_a_row_of_version_2_is_read_and_what_is_pending_has_at_least_the_bytes_of_its_text():
    fields = b'["acme",9,0,3,5,7,30,400,50,2,1000,2000,1,2,77,350,9,10,500,"",null]'
    state = State(
        "acme", 9, 0, 3, 5, 7, 30, 400, 50, 2, 1000, 2000, 1, 2, 77, 350, 9, 10, 500, "", None,
        pending_bytes=400, latest_event_ms=1000,
        deadline_ms=77,
    )  # fmt: skip
    assert decode_state((77).to_bytes(8) + b"\2" + fields) == state
