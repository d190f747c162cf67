"""A batch's own view of a table, against a dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.segmenter.rows import BufferedRows

KEYS = st.sampled_from([b"a", b"b", b"c"])
STEPS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=2))))


class Table(dict):
    """Counts what reaches it."""

    def __init__(self, *args):
        super().__init__(*args)
        self.gets = self.changes = 0

    def get(self, key, default=None):
        self.gets += 1
        return super().get(key, default)

    def __setitem__(self, key, value):
        self.changes += 1
        super().__setitem__(key, value)

    def __delitem__(self, key):
        self.changes += 1
        super().__delitem__(key)


@given(st.dictionaries(KEYS, st.binary(max_size=2)), STEPS)
def test_it_behaves_like_the_table_and_leaves_it_alone_until_it_is_flushed(rows, steps):
    table, expected = Table(rows), dict(rows)
    buffered = BufferedRows(table)
    for key, value in steps:
        assert buffered.get(key) == expected.get(key)
        if value is not None:
            buffered[key] = expected[key] = value
        elif key in expected:
            del buffered[key], expected[key]
    assert table == rows
    buffered.flush()
    assert table == expected


def test_each_key_is_read_once_and_changed_once():
    table = Table({b"a": b"1"})
    buffered = BufferedRows(table)
    for _ in range(5):
        buffered.get(b"a")
        buffered.get(b"missing")
    for n in range(5):
        buffered[b"a"] = bytes([n])
    buffered.flush()
    assert (table.gets, table.changes) == (2, 1)


def test_a_row_that_came_and_went_never_reaches_the_table():
    table = Table()
    buffered = BufferedRows(table)
    buffered[b"a"] = b"1"
    del buffered[b"a"]
    buffered.flush()
    assert table.changes == 0
