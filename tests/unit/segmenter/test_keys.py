import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from afterword.streams.errors import StateUnreadable
from afterword.streams.segmenter.state import (
    Scope,
    body_key,
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
