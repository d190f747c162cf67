"""Records of a file are read one at a time, with anything between them, within bounds."""

import io
import itertools
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from afterword.writing.importing import formats
from afterword.writing.importing.formats import TOO_DEEP, TOO_LARGE, UNREADABLE, Rejected
from tests.unit.afterword.writing.importing.histories import json_values


class Endless(io.RawIOBase):
    """A file that repeats its content endlessly or up to a size."""

    def __init__(self, start: bytes, repeated: bytes, size: int, end: bytes = b"") -> None:
        chunk = repeated * (65536 // len(repeated))
        pieces = itertools.chain([start], itertools.repeat(chunk, size // len(chunk)), [end])
        self._pieces = iter(pieces)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        part, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


def read(data: bytes, is_lines: bool = False) -> list[object]:
    return [record for _, record in formats.records(io.BufferedReader(io.BytesIO(data)), is_lines)]


def read_file(file: io.RawIOBase) -> Iterator[object]:
    return (record for _, record in formats.records(io.BufferedReader(file)))


@given(st.lists(json_values, max_size=5), st.sampled_from([None, 1]))
def test_array_elements_are_records(values, indent):
    assert read(json.dumps(values, indent=indent).encode()) == values


@given(st.lists(st.dictionaries(st.text(max_size=5), json_values, min_size=1, max_size=3), min_size=1, max_size=5))
def test_consecutive_values_are_records(values):
    assert read("\n".join(json.dumps(value, indent=1) for value in values).encode()) == values


@example([10], 2, b"")
@example([10], 2, b"x")
@given(st.lists(json_values, max_size=5), st.integers(0, 200), st.sampled_from([b"", b"x", b"\xff"]))
def test_damage_keeps_the_records_before_it(values, cut, damage):
    data = b"[" + b" , ".join(json.dumps(value).encode() for value in values) + b"]"
    found = read(data[:cut] + damage)
    whole = [value for value in found if not isinstance(value, Rejected)]
    assert whole == values[: len(whole)]
    assert cut >= len(data) or cut == 0 or isinstance(found[-1], Rejected)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_read_or_malformed(data, is_lines):
    read(data, is_lines)


@given(st.lists(json_values, max_size=4), st.integers(1, 9))
def test_records_do_not_depend_on_chunk_boundaries(values, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "CHUNK_BYTES", size)
        assert read(json.dumps([-1.5e-300, *values], indent=1).encode()) == [-1.5e-300, *values]


def test_malformed_input_is_described_without_its_content():
    assert "secret" not in str(read(b'[{"a": secret}]')) + str(read(b'{"a": secret', is_lines=True))


NESTED = b'{"a":%s1%s' % (b'{"a":' * 500, b"}" * 501)


@pytest.mark.parametrize(
    "bad",
    [
        b'{"a": secret}',
        b'["\\x"]',
        b"[" * 200_000 + b"]" * 200_000,
        b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
        NESTED,
        b"{\xff}",
    ],
)
def test_array_is_read_up_to_invalid_json(bad):
    assert read(b"[1, " + bad + b", 2]") == [1, UNREADABLE]


@pytest.mark.parametrize("is_lines", [False, True])
def test_value_of_500_levels_is_read(is_lines):
    [nested] = read(b'{"a":' * 500 + b"1" + b"}" * 500, is_lines)
    assert isinstance(nested, dict)


@pytest.mark.parametrize("bad", [b'{"a": "\xff"}', b"[" + b"9" * 5000 + b"]"])
def test_invalid_utf8_or_a_huge_integer_costs_one_record(bad):
    one, two, three = read(b"[1, " + bad + b', "\xed\xa0\xbd"]')
    assert (one, type(two), three) == (1, Rejected, "\ufffd")


PAIR = [{"a": "é"}, 2]
READ: list[tuple[str, bytes, bool, list[Any]]] = [
    ("line of 501 levels costs one record", NESTED + b"\n2", True, [TOO_DEEP, 2]),
    ("UTF-16, little end first", '\ufeff[{"a": "é"}, 2]'.encode("utf-16-le"), False, PAIR),
    ("UTF-16, big end first", '\ufeff[{"a": "é"}, 2]'.encode("utf-16-be"), False, PAIR),
    ("lines in UTF-16", '\ufeff{"a": "é"}\r\n2\r\n'.encode("utf-16-le"), True, PAIR),
    ("lines in UTF-16, big end first", '\ufeff{"a": "é"}\r\n2\r\n'.encode("utf-16-be"), True, PAIR),
    *((f"{between!r} before values", f"{between}[1]\n{between}[2]".encode(), False, [1, 2])
      for between in ("\ufeff", "\ufeff\ufeff", "\x1e", "\u00a0", "\f")),
    ("line break and tab in a text", b'[["a\n\tb"], 2]', False, [["a\n\tb"], 2]),
    ("numbers that JSON has not", b"[[NaN, 9223372036854775808, 1e999], 2]", False, [[None, 2**63, None], 2]),
    ("byte order mark and a blank line", b'\xef\xbb\xbf\n{"a": 1}', True, [{"a": 1}]),
]  # fmt: skip


@pytest.mark.parametrize(("data", "is_lines", "values"), [row[1:] for row in READ], ids=[row[0] for row in READ])
def test_almost_valid_json_is_read(data: bytes, is_lines: bool, values: list[object]) -> None:
    assert read(data, is_lines) == values


@pytest.fixture
def smaller(monkeypatch):
    monkeypatch.setattr(formats, "MOST_CHARACTERS", 2**20)


def test_unterminated_text_ends_the_file_within_bounds(smaller):
    assert list(read_file(Endless(b'[{}, "', b"x", 2**34))) == [{}, UNREADABLE]


def test_long_text_is_scanned_few_times():
    class Counted(io.BytesIO):
        reads = 0

        def readinto(self, buffer):
            self.reads += 1
            return super().readinto(buffer)

    data = Counted(b'["' + b"x" * 2**25 + b'"]')
    assert sum(1 for _ in read_file(data)) == 1
    assert data.reads < 60


def test_memory_does_not_grow_with_the_records():
    record = json.dumps({"text": "x" * 1000, "list": [1] * 100}).encode() + b","
    peaks = []
    for size in (2**21, 2**23):
        tracemalloc.start()
        number = sum(1 for _ in read_file(Endless(b"[", record, size, b"0]")))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert number > size // len(record) // 2
    assert peaks[1] < peaks[0] * 1.2


@given(st.lists(json_values | st.just("blank"), max_size=5))
def test_each_line_is_a_record_and_blank_ones_count(values):
    data = b"\n".join(b" " if v == "blank" else json.dumps(v).encode() for v in values)
    file = io.BufferedReader(io.BytesIO(data + b"\n" if values else b""))
    assert [*formats.records(file, is_lines=True)] == [(n, v) for n, v in enumerate(values, 1) if v != "blank"]


def test_bad_or_overlong_line_does_not_stop_others(smaller):
    long = b'"' + b"x" * 2**21 + b'"'
    found = read(b"\n".join([b"1", b"{", long, b'"' + b"y" * 2**19 + b'"', b"2"]), True)
    assert [found[0], type(found[1]), found[2], type(found[3]), found[4]] == [1, Rejected, TOO_LARGE, str, 2]


@pytest.mark.parametrize(
    ("data", "is_lines"),
    [
        (b'{"a": 1}\n{bad\n{"a": 2}', True),
        (b'[{"a": 1}]\n{bad\n{"a": 2}', False),
        (b'\xef\xbb\xbf{"a": 1}\n{bad\n{"a": 2}', True),
    ],
)
def test_first_line_tells_lines_from_a_document(data, is_lines):
    found = read(data)
    assert len(found) == (3 if is_lines else 2)
    assert found[0] == {"a": 1}
