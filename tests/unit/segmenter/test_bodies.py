import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.errors import StateUnreadable
from afterword.streams.segmenter.state import SEALS, TRACE_BYTES, Body, decode_body, digest_of, encode_body

DIGESTS = st.binary(min_size=16, max_size=16)
BODIES = st.builds(
    Body,
    json=st.binary(min_size=2, max_size=400),
    tokens=st.integers(0, 2**32 - 1),
    offset=st.integers(0, 2**63 - 1),
    sealed_before=st.sampled_from(SEALS),
    sealed_after=st.sampled_from(SEALS),
    shifts=st.booleans(),
    continues=st.booleans(),
    topic_model=st.integers(0, 15),
    trace=st.just(b"") | st.binary(min_size=TRACE_BYTES, max_size=TRACE_BYTES),
)


@given(DIGESTS, BODIES)
def test_a_row_is_read_as_it_was_written(digest, body):
    row = encode_body(digest, body)
    assert decode_body(row) == body
    assert digest_of(row) == digest


@given(DIGESTS, BODIES)
def test_a_stripped_row_has_its_digest_and_no_body(digest, body):
    stripped = digest_of(encode_body(digest, body))
    assert digest_of(stripped) == digest
    assert decode_body(stripped) is None


def test_the_stored_names_of_seals_never_change():
    assert SEALS[:3] == (None, "topic_shift", "max_size")


def test_a_row_of_another_version_is_refused():
    row = bytearray(encode_body(bytes(16), Body(b"{}", 1, 2, None, None)))
    row[16] = 2
    with pytest.raises(StateUnreadable, match="a message's row is of version 2, which only a later release can read"):
        decode_body(bytes(row))
