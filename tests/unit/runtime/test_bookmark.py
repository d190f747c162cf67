"""The record that ends each transaction in a changelog."""

from hypothesis import given
from hypothesis import strategies as st

from streams.runtime.bookmark import KEY, Bookmark, decode, new_lineage


@given(st.integers(0, 2**62))
def test_a_bookmark_comes_back_as_it_was(source: int) -> None:
    bookmark = Bookmark(source, new_lineage())
    assert decode(bookmark.encode()) == bookmark


def test_no_two_changelogs_have_the_same_lineage() -> None:
    assert new_lineage() != new_lineage()


def test_the_reserved_key_stays_what_existing_changelogs_have() -> None:
    assert KEY == b"\0eos.bookmark"
