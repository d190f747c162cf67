import os
import tempfile

from hypothesis import given
from hypothesis import strategies as st

from afterword.line_source import CHUNK_BYTES, is_regular, read_lines


async def lines_of(data: bytes, chunk_bytes: int = CHUNK_BYTES) -> list[bytes]:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        assert is_regular(file)
        return [line async for line in read_lines(file, chunk_bytes)]


async def test_the_last_line_may_lack_its_end():
    assert await lines_of(b"a\n\nb") == [b"a", b"", b"b"]
    assert await lines_of(b"a\n") == [b"a"]
    assert await lines_of(b"") == []


@given(data=st.text("ab\n", max_size=60).map(str.encode), chunk_bytes=st.integers(1, 7))
async def test_lines_do_not_depend_on_how_they_arrive(data, chunk_bytes):
    assert b"\n".join(await lines_of(data, chunk_bytes)) == data.removesuffix(b"\n")


async def test_a_line_of_a_pipe_comes_before_the_next_is_written():
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as file, os.fdopen(writing, "wb", buffering=0) as pipe:
        assert not is_regular(file)
        lines = read_lines(file)
        pipe.write(b"first\nsec")
        assert await anext(lines) == b"first"
        pipe.write(b"ond\n")
        assert await anext(lines) == b"second"
        pipe.close()
        assert [line async for line in lines] == []
