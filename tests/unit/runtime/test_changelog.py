"""The record that ends each transaction in a changelog."""

from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.runtime.changelog import (
    BOOKMARK_KEY,
    Bookmark,
    changelog_key,
    decode_bookmark,
    new_lineage,
    row_key,
)


@given(st.integers(0, 2**62))
def test_a_bookmark_comes_back_as_it_was(source: int) -> None:
    bookmark = Bookmark(source, new_lineage(), ["rows"])
    assert decode_bookmark(bookmark.encode()) == bookmark


def test_no_two_changelogs_have_the_same_lineage() -> None:
    assert new_lineage() != new_lineage()


def test_the_reserved_key_stays_what_existing_changelogs_have() -> None:
    assert BOOKMARK_KEY == b"\0eos.bookmark"


@given(st.binary(max_size=4) | st.builds(BOOKMARK_KEY.__add__, st.binary(max_size=3)))
def test_no_row_however_its_key_was_chosen_can_pass_for_a_bookmark(key: bytes) -> None:
    assert changelog_key(key) != BOOKMARK_KEY
    assert row_key(changelog_key(key)) == key


def test_a_bookmark_of_an_earlier_version_names_no_tables() -> None:
    assert decode_bookmark(b'{"source":7,"lineage":"a"}') == Bookmark(7, "a", [])
