"""Rows of the segmenter's tables: their keys, and what is read from them is what was written."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from afterword.schemas.messages import Move
from afterword.streams.errors import StateUnreadable
from afterword.streams.segmenter.state import (
    CONTINUATIONS,
    MAX_DEADLINE_MS,
    SEALS,
    Body,
    Scope,
    State,
    Totals,
    body_key,
    deadline_of,
    decode_body,
    decode_state,
    digest_of,
    encode_body,
    encode_state,
    id_digest,
    parse_key,
    parse_scope,
    prefix,
    record_key,
    scope_key,
    seen_key,
)

IDS = st.text(min_size=1, max_size=256)
SCOPES = st.builds(Scope, IDS, st.one_of(st.none(), st.text(max_size=256)))
SEQS = st.integers(0, 2**64 - 1)


@given(SCOPES, SEQS)
@example(Scope("c\0m"), 0)
@example(Scope("c", ""), 0)
def test_body_key_names_its_scope_and_number(scope, seq):
    assert parse_key(body_key(prefix(scope), seq)) == (scope, seq)


@given(SCOPES, IDS)
def test_id_key_names_its_scope(scope, message_id):
    assert parse_key(seen_key(prefix(scope), id_digest(message_id))) == (scope, None)


@given(SCOPES)
def test_scope_key_names_its_conversation_and_agent(scope):
    assert parse_scope(scope_key(scope)) == scope


@given(IDS)
def test_conversation_scope_has_its_records_key(conversation):
    assert scope_key(Scope(conversation)) == record_key(conversation)


@given(SCOPES, SEQS, SEQS)
def test_bodies_are_ordered_like_their_messages(scope, one, other):
    keys = [body_key(prefix(scope), seq) for seq in (one, other)]
    assert (keys[0] < keys[1]) == (one < other)


@given(st.lists(SCOPES, unique=True, min_size=2, max_size=2))
@example([Scope("a", "b"), Scope("a/b")])
@example([Scope("a"), Scope("a", "")])
def test_no_scopes_rows_share_a_prefix_with_another(scopes):
    one, other = map(prefix, scopes)
    assert not one.startswith(other)


def test_longest_ids_fit():
    longest = Scope("𝔘" * 256, "𝔘" * 256)
    assert parse_key(body_key(prefix(longest), 7)) == (longest, 7)


@pytest.mark.parametrize("key", [b"", b"\0\1c", b"\0\1cm", b"\0\1cx12345678", b"\0\1ci12345678", b"\0\1cm123456789"])
def test_malformed_key_is_refused(key):
    with pytest.raises(StateUnreadable, match="key of the wrong form"):
        parse_key(key)


BODIES = st.builds(
    Body,
    digest=st.binary(min_size=16, max_size=16),
    json=st.binary(min_size=2, max_size=400),
    tokens=st.integers(0, 2**32 - 1),
    offset=st.integers(0, 2**63 - 1),
    sealed_before=st.sampled_from(SEALS),
    sealed_after=st.sampled_from(SEALS),
    is_continuation=st.sampled_from(CONTINUATIONS),
    trace=st.just(b"") | st.binary(min_size=25, max_size=25),
)


@given(BODIES)
def test_body_row_is_read_as_written(body):
    row = encode_body(body)
    assert decode_body(row) == body
    assert digest_of(row) == body.digest


@given(BODIES)
def test_stripped_row_has_its_digest_without_a_body(body):
    stripped = digest_of(encode_body(body))
    assert digest_of(stripped) == body.digest
    assert decode_body(stripped) is None


def test_stored_field_names_never_change():
    assert SEALS[:3] == (None, "topic_shift", "max_size")
    assert CONTINUATIONS == (None, False, True)


def test_row_of_another_version_is_refused():
    row = bytearray(encode_body(Body(bytes(16), b"{}", 1, 2)))
    row[16] = 2
    with pytest.raises(StateUnreadable, match="a message's row is of version 2, which only a later release can read"):
        decode_body(bytes(row))


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
