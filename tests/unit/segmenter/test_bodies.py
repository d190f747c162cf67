import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.errors import StateUnreadable
from afterword.streams.segmenter.state import CONTINUATIONS, SEALS, Body, decode_body, digest_of, encode_body

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
