import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streams.errors import StateUnreadable
from streams.segmenter.keys import Key, body_key, id_digest, parse_key, prefix, seen_key

IDS = st.text(min_size=1, max_size=256)
SEQS = st.integers(0, 2**64 - 1)


@given(IDS, SEQS)
@example("c\0m", 0)
def test_the_key_of_a_body_names_its_conversation_and_number(conversation, seq):
    assert parse_key(body_key(prefix(conversation), seq)) == Key(conversation, "body", seq, None)


@given(IDS, IDS)
def test_the_key_of_an_id_names_its_conversation_and_digest(conversation, message_id):
    digest = id_digest(message_id)
    assert parse_key(seen_key(prefix(conversation), digest)) == Key(conversation, "seen", None, digest)


@given(IDS, SEQS, SEQS)
def test_bodies_are_ordered_as_the_messages_are(conversation, one, other):
    keys = [body_key(prefix(conversation), seq) for seq in (one, other)]
    assert (keys[0] < keys[1]) == (one < other)


@given(st.lists(IDS, unique=True, min_size=2, max_size=2))
def test_no_conversations_rows_begin_like_anothers(conversations):
    one, other = map(prefix, conversations)
    assert not one.startswith(other)


def test_the_longest_id_fits():
    longest = "𝔘" * 256
    assert parse_key(body_key(prefix(longest), 7)).conversation_id == longest


@pytest.mark.parametrize("key", [b"", b"\0\1c", b"\0\1cm", b"\0\1cx12345678", b"\0\1ci12345678", b"\0\1cm123456789"])
def test_a_key_of_another_form_is_refused(key):
    with pytest.raises(StateUnreadable, match="key of another form"):
        parse_key(key)
