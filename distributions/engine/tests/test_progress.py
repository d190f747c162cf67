"""The finished offsets of a partition, as encoded in the metadata of the group's commit."""

from hypothesis import given
from hypothesis import strategies as st

from faust_eos.window import Progress, reach

MOST_CHARACTERS = 4096
"""Kafka's default for `offset.metadata.max.bytes`."""

offsets = st.integers(0, 2**62)
some = st.frozensets(st.integers(1, reach(MOST_CHARACTERS)), max_size=200)


def progress_at(offset: int, distances: frozenset[int]) -> Progress:
    return Progress(offset, frozenset(offset + distance for distance in distances))


@given(offsets, some)
def test_written_progress_is_read_back(offset: int, distances: frozenset[int]) -> None:
    progress = progress_at(offset, distances)
    assert Progress.read(offset, progress.metadata()) == progress


@given(offsets, st.integers(20, MOST_CHARACTERS), st.data())
def test_offsets_in_reach_fit_into_the_metadata(offset: int, characters: int, data: st.DataObject) -> None:
    last = reach(characters)
    distances = data.draw(st.frozensets(st.integers(1, max(1, last)), max_size=50)) | {last}
    assert len(progress_at(offset, frozenset(distances)).metadata()) <= characters


def test_offsets_in_reach_fit_and_the_next_does_not() -> None:
    everything = frozenset(range(1, reach(MOST_CHARACTERS) + 1))
    assert len(progress_at(7, everything).metadata()) <= MOST_CHARACTERS
    assert len(progress_at(7, frozenset({reach(MOST_CHARACTERS) + 8})).metadata()) > MOST_CHARACTERS


def test_commit_with_nothing_beyond_has_no_metadata() -> None:
    assert Progress(12).metadata() == ""
    assert Progress.read(12, "") == Progress(12)


@given(offsets, st.text(max_size=60) | some.map(lambda found: progress_at(5, found).metadata()))
def test_foreign_or_outdated_metadata_counts_as_empty(offset: int, metadata: str) -> None:
    if offset != 5:
        assert Progress.read(offset, metadata) == Progress(offset)


@given(offsets, some.filter(bool), st.data())
def test_metadata_with_one_changed_character_counts_as_empty(
    offset: int, distances: frozenset[int], data: st.DataObject
) -> None:
    metadata = progress_at(offset, distances).metadata()
    at = data.draw(st.integers(0, len(metadata) - 1))
    other = data.draw(st.characters(codec="utf-8").filter(lambda found: found != metadata[at]))
    assert Progress.read(offset, metadata[:at] + other + metadata[at + 1 :]) == Progress(offset)


@given(offsets, some.filter(bool), st.data())
def test_truncated_metadata_counts_as_empty(offset: int, distances: frozenset[int], data: st.DataObject) -> None:
    metadata = progress_at(offset, distances).metadata()
    assert Progress.read(offset, metadata[: data.draw(st.integers(1, len(metadata) - 1))]) == Progress(offset)


@given(offsets, some)
def test_progress_covers_the_finished_offsets(offset: int, distances: frozenset[int]) -> None:
    progress = progress_at(offset, distances)
    assert not progress.covers(offset)
    assert all(progress.covers(offset + distance) for distance in distances)
    assert offset == 0 or progress.covers(offset - 1)
