"""The rows of the segmenter's state: their format, bounds and size."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from afterword.schemas.messages import Move
from afterword.streams.errors import StateUnreadable
from afterword.streams.segmenter.processor import MAX_IDLE_SECONDS
from afterword.streams.segmenter.rules import MAX_PENDING_BYTES, MAX_PENDING_MESSAGES
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
from tests.rows import with_rows
from tests.unit.segmenter.chat import Chat, flush, limits, say

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


NOTHING_CLOSES = {"auto_summarize": False, "idle_seconds": MAX_IDLE_SECONDS}


def muted(max_pending: int = MAX_PENDING_MESSAGES) -> Chat:
    """Return a chat in which a producer has turned every trigger off."""
    chat = Chat(limits(max_episode_size=3), max_pending=max_pending)
    chat.process([say("first", metadata={"afterword": NOTHING_CLOSES})])
    return chat


class TestPending:
    def test_pending_messages_never_exceed_the_limit(self):
        chat = muted(max_pending=10)
        pending = []
        for n in range(50):
            chat.process([say(f"m{n}")])
            pending.append(decode_state(chat.conversations[b"c"]).pending_messages)
        assert max(pending) == 9  # the tenth sends the sealed ones off

    def test_pending_bytes_and_flush_output_are_bounded(self):
        chat = muted()
        largest = 0
        for n in range(40):
            chat.process([say(f"m{n}", "x" * 300_000)])
            largest = max(largest, sum(map(len, chat.messages.values())))
        assert largest < MAX_PENDING_BYTES + 1_000_000
        assert len(chat.process([flush()]).outgoing) <= 7

    def test_pending_bytes_include_fields_beside_the_text(self):
        chat = muted()
        for n in range(40):
            chat.process([say(f"m{n}", tools=["t" * 300_000])])
        assert sum(map(len, chat.messages.values())) < 2_000_000

    def test_endless_turns_hold_no_messages_back(self):
        chat = Chat(limits(trigger="long_conversation", max_episode_size=20), max_pending=100)
        found = chat.hear(*[say(f"m{n}", role="assistant") for n in range(1000)])
        assert sum(e.message_count for e in found) > 900

    def test_configured_episode_may_exceed_the_limit(self):
        chat = Chat(limits(max_episode_size=30, trigger=30), max_pending=10)
        (episode,) = chat.hear(*[say(f"m{n}") for n in range(30)])
        assert episode.message_count == 30


def test_lowered_window_applies_at_the_next_message():
    chat = Chat(limits(dedupe_window=500, trigger=5))
    chat.hear(*[say(f"m{n}") for n in range(500)])
    chat.limits = limits(dedupe_window=10, trigger=5)
    outcome = chat.process([say("m400"), say("m495")])
    assert (outcome.messages, outcome.duplicates) == (1, 1)
    row_and_id, emitted_at_once = 2, 5
    assert len(chat.messages) <= row_and_id * (10 + emitted_at_once)
    assert chat.process([say("m400")]).duplicates == 1


class TestOverrides:
    @with_rows
    def test_oversized_record_is_dead_lettered(self, given):
        outcome = Chat().process([say("a", metadata={"afterword": given})])
        assert outcome.dead_letters == {"invalid_override": 1}

    def test_largest_record_is_accepted(self):
        given = {"idle_seconds": MAX_IDLE_SECONDS, "max_episode_size": 1000}
        assert Chat().process([say("a", metadata={"afterword": given})]).messages == 1

    def test_deployments_own_values_do_not_limit_overrides(self):
        chat = Chat(limits(max_episode_size=5000, idle_seconds=1e9))
        assert chat.process([say("a", metadata={"afterword": {"trigger": 3}})]).messages == 1


RECORD_OVERHEAD_BYTES = 30
"""Overhead of a record in a changelog: lengths, deltas, a share of the batch's header."""
MESSAGE_BYTES = 300
LIMIT_BYTES = 1200
CONVERSATION = "0b6f0c0e-6e1f-5d7b-9a5c-3f1b6c1d2e4f"


class Changelog(dict):
    """A table that counts what its changelog takes."""

    bytes = 0

    def __setitem__(self, key, value):
        self.bytes += len(key) + len(value) + RECORD_OVERHEAD_BYTES
        super().__setitem__(key, value)

    def __delitem__(self, key):
        self.bytes += len(key) + RECORD_OVERHEAD_BYTES
        super().__delitem__(key)


def message_of_300_bytes(number: int):
    def of(content: str):
        return say(f"{number:036}", content, conversation_id=CONVERSATION, user_id="user-123")

    return of("x" * (MESSAGE_BYTES - len(of("").value)))


def per_message(episode_length: int, messages: int = 2000) -> float:
    """Return the bytes per message if each is a batch of its own, the worst case, measured once the window is full."""
    chat = Chat(limits(max_episode_size=episode_length, trigger=episode_length, overlap=2))
    chat.conversations, chat.messages = Changelog(), Changelog()
    measured_from = 0
    for number in range(messages):
        if number == messages // 2:
            measured_from = chat.conversations.bytes + chat.messages.bytes
        chat.process([message_of_300_bytes(number)])
    return (chat.conversations.bytes + chat.messages.bytes - measured_from) / (messages - messages // 2)


def test_changelog_takes_at_most_1200_bytes_a_message():
    costs = {length: per_message(length) for length in (5, 100, 500)}
    assert max(costs.values()) <= LIMIT_BYTES
    assert max(costs.values()) - min(costs.values()) < 0.02 * LIMIT_BYTES, costs


def test_message_writes_no_more_when_many_are_pending():
    chat = Chat()
    chat.conversations, chat.messages = Changelog(), Changelog()
    costs = []
    for number in range(900):
        before = chat.conversations.bytes + chat.messages.bytes
        chat.process([message_of_300_bytes(number)])
        costs.append(chat.conversations.bytes + chat.messages.bytes - before)
    more_digits = 30
    assert max(costs) - min(costs[1:]) <= more_digits
