"""Records of a file: one at a time, whatever is between them, and within bounds."""

import io
import itertools
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.importing import records
from afterword.importing.records import TOO_DEEP, TOO_LARGE, Malformed, is_lines, json_records, line_records

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


class Endless(io.RawIOBase):
    """A file that repeats what it is made of, for ever or to a size."""

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


def read(data: bytes) -> list[object]:
    return list(json_records(io.BytesIO(data)))


@given(st.lists(json_values, max_size=5), st.sampled_from([None, 1]))
def test_the_elements_of_an_array_are_its_records(values, indent):
    assert read(json.dumps(values, indent=indent).encode()) == values


@given(st.lists(st.dictionaries(st.text(max_size=5), json_values, max_size=3), min_size=1, max_size=5))
def test_values_that_follow_each_other_are_records_too(values):
    assert read("\n".join(json.dumps(value, indent=1) for value in values).encode()) == values


@given(st.lists(json_values, max_size=5), st.integers(0, 200), st.sampled_from([b"", b"x", b"\xff"]))
def test_what_is_cut_off_or_damaged_gives_the_records_before_it_and_one_that_is_malformed(values, cut, damage):
    data = b"[" + b" , ".join(json.dumps(value).encode() for value in values) + b"]"
    ends = itertools.accumulate((len(json.dumps(value)) + 3 for value in values), initial=0)
    whole = sum(end < cut for end in list(ends)[1:])
    found = read(data[:cut] + damage)
    assert found[:whole] == values[:whole]
    assert len(found) <= whole + 2
    assert cut >= len(data) or isinstance(found[-1], Malformed)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_malformed(data):
    read(data)
    list(line_records(io.BytesIO(data)))


def test_what_is_malformed_is_said_without_the_content():
    assert "secret" not in str(read(b'[{"a": secret}]')) + str(list(line_records(io.BytesIO(b'{"a": secret'))))


def test_a_number_of_any_length_stops_nobody_else_or_ends_the_file_by_name():
    assert read(b"[1, 9223372036854775808, 1e999, 2]") == [1, 2**63, float("inf"), 2]
    assert isinstance(read(b"[1, " + b"9" * 5000 + b", 2]")[-1], Malformed)


def test_a_record_that_is_nested_too_deeply_is_passed_over():
    assert read(b"[1, " + b"[" * 100_000 + b"]" * 100_000 + b", 2]") == [1, TOO_DEEP, 2]
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    assert read(b"[1, " + deep + b", 2]") == [1, TOO_DEEP, 2]


def test_a_record_at_the_deepest_level_is_read():
    def nested(levels: int) -> bytes:
        return b"[" * levels + b"]" * levels

    assert not isinstance(read(b"[" + nested(records.MAX_DEPTH - 1) + b"]")[0], Malformed)


@pytest.fixture
def smaller(monkeypatch):
    monkeypatch.setattr(records, "MAX_WEIGHT", 2**20)
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 2**20)
    monkeypatch.setattr(records, "PLAIN_LINE_BYTES", 2**18)


@pytest.mark.parametrize("repeated", [b"{},", b'"",', b'{"a": "%s"},' % (b"x" * 1000)])
def test_a_record_that_is_too_large_is_passed_over(smaller, repeated):
    file = Endless(b'[1, {"a": [', repeated, 4 * 2**20, b"0]}, 2]")
    assert list(json_records(file)) == [1, TOO_LARGE, 2]


def test_a_text_that_does_not_end_ends_the_file_within_bounds(smaller):
    file = Endless(b'[1, "', b"x", 2**34)
    assert list(json_records(file)) == [1, TOO_LARGE]


def test_a_long_text_is_read_in_few_pieces_as_the_parser_looks_through_it_again_with_each():
    class Counted(io.BytesIO):
        reads = 0

        def read(self, size=-1):
            self.reads += 1
            return super().read(size)

    data = Counted(b'["' + b"x" * 2**25 + b'"]')
    assert sum(1 for _ in json_records(data)) == 1
    assert data.reads < 60


def test_memory_does_not_grow_with_the_number_of_records():
    record = json.dumps({"text": "x" * 1000, "list": [1] * 100}).encode() + b","
    peaks = []
    for size in (2**21, 2**23):
        tracemalloc.start()
        number = sum(1 for _ in json_records(Endless(b"[", record, size, b"0]")))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert number > size // len(record) // 2
    assert peaks[1] < peaks[0] * 1.2


@given(st.lists(json_values | st.just("blank"), max_size=5))
def test_each_line_is_a_record_and_blank_ones_count(values):
    data = b"\n".join(b" " if v == "blank" else json.dumps(v).encode() for v in values)
    expected = [None if v == "blank" else v for v in values]
    found = list(line_records(io.BytesIO(data + b"\n" if values else b"")))
    assert [v for v, e in zip(found, expected, strict=True) if not _is_wide(e)] == [
        e for e in expected if not _is_wide(e)
    ]


def _is_wide(value) -> bool:
    """Has an integer of more than 64 bits, which the parser of lines takes for a float."""
    return any(len(digits) > 18 for digits in "".join(c if c.isdigit() else " " for c in json.dumps(value)).split())


def test_a_bad_line_and_one_that_is_too_long_do_not_stop_the_others(smaller):
    long = b'"' + b"x" * 2**21 + b'"'
    found = list(line_records(io.BytesIO(b"\n".join([b"1", b"{", long, b'"' + b"y" * 2**19 + b'"', b"2"]))))
    assert [type(one) for one in found] == [int, Malformed, Malformed, str, int]


def test_a_long_line_is_read_within_the_bounds(smaller):
    found = list(line_records(io.BytesIO(b"[" + b"{}," * 100_000 + b"0]\n" + b'{"a"' + b" " * 2**19 + b": 1} 2\n[3]")))
    assert [found[0], type(found[1]), found[2]] == [TOO_LARGE, Malformed, [3]]


@pytest.mark.parametrize(
    ("name", "data", "lines"),
    [
        ("a.jsonl", b"{bad\n{}", True),
        ("a.NDJSON", b"[]", True),
        ("a.json", b'{"a": 1}\n{"a": 2}', True),
        ("a.json", b'{"a": 1}', True),
        ("a.json", b'{\n"a": 1}', False),
        ("a.json", b'[{"a": 1}]', False),
        ("a", b"", False),
    ],
)
def test_lines_are_told_from_a_document(name, data, lines):
    assert is_lines(name, io.BytesIO(data)) is lines
