from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas.assignments import Move
from afterword.streams.segmenter.state import MAX_DEADLINE_MS, State, Totals, deadline_of, decode_state, encode_state

COUNTER = st.integers(0, 2**53)
TIME = st.integers(-(2**63), 2**63 - 1)
TOTALS = st.builds(Totals, *[COUNTER] * len(Totals._fields))
STATES = st.builds(
    State,
    tenant_id=st.one_of(st.none(), st.text(max_size=256)),
    last_ordinal=COUNTER,
    agents=st.one_of(st.none(), st.lists(st.text(max_size=256), max_size=3)),
    overrides=st.sampled_from(["", '{"trigger":5}']),
    since_ms=st.one_of(st.none(), TIME),
    moves=st.lists(st.builds(Move, COUNTER, st.text(max_size=32), st.text(max_size=32)), max_size=3).map(tuple),
    next_seq=COUNTER,
    window_first=COUNTER,
    overlap_first=COUNTER,
    first_pending=COUNTER,
    open_first=COUNTER,
    last_sent_ms=TIME,
    latest_record_ms=TIME,
    latest_event_ms=TIME,
    taken_to=COUNTER,
    pending=TOTALS,
    open=TOTALS,
    deadline_ms=st.integers(0, MAX_DEADLINE_MS),
    silent_ms=st.one_of(st.just(0), st.integers(1, MAX_DEADLINE_MS)),
)
STATES = STATES.map(lambda state: state._replace(deadline_ms=0) if state.silent_ms else state)
"""Something is pending, or it is known since when nothing is."""


@given(STATES)
def test_state_row_is_read_as_written(state):
    assert decode_state(encode_state(state)) == state


@given(STATES)
def test_state_row_is_small_whatever_it_counts(state):
    users = [text for move in state.moves for text in (*move[1:], str(move.offset))]
    texts = [state.tenant_id or "", state.overrides, state.user or "", *(state.agents or []), *users]
    assert len(encode_state(state)) <= 490 + 6 * len("".join(texts).encode()) + 3 * len(texts)


@given(st.integers(1, MAX_DEADLINE_MS))
def test_deadline_is_the_start_of_the_row(deadline):
    row = encode_state(State(None, next_seq=1, deadline_ms=deadline))
    assert int.from_bytes(row[:8]) == deadline_of(row) == deadline


def test_conversation_without_pending_messages_has_no_deadline():
    assert deadline_of(encode_state(State(None))) is None


@given(STATES, st.integers(1, len(State._fields) - 3))
def test_trailing_default_fields_take_no_space(state, kept):
    short = State(*state[:kept])
    assert decode_state(encode_state(short)) == short
    assert len(encode_state(short)) <= len(encode_state(state))
