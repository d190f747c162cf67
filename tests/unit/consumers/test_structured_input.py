"""Records that one consumer rejects, and that must not stop any."""

import pytest

from afterword.schemas import InvalidRecord, decode_input
from afterword.schemas.records import CONTENT_TYPE, STRUCTURED_JSON


def test_nesting_that_cannot_be_rewritten_is_refused():
    value = b'{"type":"message.created","data":{"metadata":' + b'{"a":' * 400 + b"1" + b"}" * 402
    with pytest.raises(InvalidRecord, match="nested too deeply"):
        decode_input(b"c", value, [(CONTENT_TYPE, STRUCTURED_JSON.encode())], 0)
