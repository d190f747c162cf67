"""The order in which a partition's records are handed over."""

import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from faust_eos.window import Progress, Window, reach

MOST, WIDTH = 4, 40


class Partition:
    """A log, a window over it, and an agent that finishes what it was given in any order."""

    def __init__(
        self,
        keys: list[int | None],
        most: int = MOST,
        width: int = WIDTH,
        most_bytes: int = sys.maxsize,
        waiting: int = 0,
    ) -> None:
        self.log, self.most_bytes, self.waiting = keys, most_bytes, waiting
        self.window: Window[int] = Window(most, width, most_bytes, lambda offset: offset % 5, waiting)
        self.window.learn(Progress(0))
        self.begun: list[int] = []
        self.running: set[int] = set()
        self.in_memory = 0

    def take(self, records: list[tuple[int, int]]) -> None:
        for offset, record in records:
            assert offset == record
            assert offset not in self.begun, "handed over twice"
            self.begun.append(offset)
            self.running.add(offset)

    def read(self) -> bool:
        """Read one record, again or for the first time. Return whether there was one."""
        window = self.window
        if window.room > 0 and (missed := window.to_read_again()) is not None:
            for offset in range(missed, min(missed + window.room, window.next)):
                if window.room > 0:
                    self.take(window.add_again(offset, offset))
            return True
        if window.room > 0 and not window.is_full and window.next < len(self.log):
            offset = window.next
            self.take(window.add(offset, self.log[offset], offset))
            return True
        return False

    def finish(self, offset: int) -> None:
        self.running.remove(offset)
        self.take(self.window.finish(offset))

    def work_off(self, chooser: Any, finished: Iterable[int] = ()) -> None:
        """Handle all records. All the while, the progress covers `finished`, even offsets that are not read yet."""
        while self.read() or self.running:
            assert all(map(self.window.progress().covers, finished))
            assert len(self.running) <= MOST
            assert len(self.window._kept) + len(self.running) <= MOST + self.waiting
            assert sum(offset % 5 for offset in (*self.window._kept, *self.running)) < self.most_bytes + 4
            if self.running and chooser(2):
                self.finish(sorted(self.running)[chooser(len(self.running))])


keys = st.lists(st.sampled_from([1, 2, 3, None]), max_size=60)


@given(keys, st.integers(1, 40), st.integers(0, 12), st.randoms(use_true_random=False))
def test_every_record_is_handed_over_once_in_key_order(
    log: list[int | None], most_bytes: int, waiting: int, chance: Any
) -> None:
    partition = Partition(log, most_bytes=most_bytes, waiting=waiting)
    partition.work_off(chance.randrange)
    assert sorted(partition.begun) == list(range(len(log)))
    of_key = defaultdict(list)
    for offset in partition.begun:
        of_key[log[offset]].append(offset)
    assert all(offsets == sorted(offsets) for key, offsets in of_key.items() if key is not None)
    assert partition.window.progress() == Progress(len(log))


@given(keys, st.integers(1, 12), st.integers(0, 150), st.randoms(use_true_random=False))
def test_commit_of_later_records_leaves_earlier_ones_to_others(
    log: list[int | None], width: int, steps: int, chance: Any
) -> None:
    first, finished, committed, last = Partition(log, width=width), list[int](), set[int](), Progress(0)
    for _ in range(steps):
        if first.running and chance.randrange(2):
            finished.append(sorted(first.running)[chance.randrange(len(first.running))])
            first.finish(finished[-1])
        elif finished and not chance.randrange(3):
            number = chance.randrange(len(finished) + 1)
            progress = first.window.progress(without=set(finished[number:]))
            committed |= set(finished[:number])
            del finished[:number]
            assert {offset for offset in range(len(log)) if progress.covers(offset)} == committed
            assert progress.offset >= last.offset
            assert all(offset <= progress.offset + width for offset in progress.beyond)
            first.window.committed(progress)
            last = progress
        elif not first.read() and not first.running:
            break
    second = Partition(log)
    second.window.learn(last)
    second.work_off(chance.randrange, committed)
    assert sorted(second.begun) == sorted(set(range(len(log))) - committed)


def test_key_with_five_hundred_records_blocks_no_other() -> None:
    """The next record of the long key is read again when its turn comes."""
    log: list[int | None] = [0] * 500 + list(range(1, 51))
    partition = Partition(log, most=8, width=10_000)
    while partition.read():
        for offset in sorted(partition.running - {0}):
            partition.finish(offset)
    assert partition.begun == [0, *range(500, 550)]
    assert partition.window.progress().covers(549)
    assert len(partition.window._kept) <= 8
    while partition.running:
        partition.finish(min(partition.running))
        while partition.read():
            pass
    assert partition.begun[51:] == list(range(1, 500))


def test_waiting_records_in_memory_are_not_read_again() -> None:
    partition = Partition([1, 1, 1, 2, 2, 2, 3, 3, 3], most=3, waiting=6)
    while partition.read():
        pass
    assert partition.begun == [0, 3, 6]
    while partition.running:
        partition.finish(min(partition.running))
        assert partition.window.to_read_again() is None
    assert sorted(partition.begun) == list(range(7)), "the last two are not read yet"


def test_nothing_is_handed_over_that_a_commit_cannot_name() -> None:
    partition = Partition([None] * 20, most=100, width=8)
    while partition.read():
        pass
    assert partition.begun == list(range(9))
    for offset in range(1, 9):
        partition.finish(offset)
    assert not partition.read()
    partition.finish(0)
    assert partition.read()


@given(st.integers(0, 30))
def test_records_finished_by_another_owner_are_not_repeated(committed: int) -> None:
    partition = Partition([0] * 10 + [1] * 10 + [None] * 10)
    while partition.read():
        pass
    begun = set(partition.begun)
    others = Progress(committed, frozenset({committed + 1}))
    partition.window.learn(others)
    partition.work_off(lambda number: number - 1)
    assert not [offset for offset in set(partition.begun) - begun if others.covers(offset)]


@given(keys, st.lists(st.integers(0, 80), max_size=5), st.integers(1, 8), st.randoms(use_true_random=False))
def test_records_finished_between_fetch_and_take_are_neither_done(
    log: list[int | None], others: list[int], fetched: int, chance: Any
) -> None:
    """While fetched records are held back, another owner finishes everything before an offset and some after it."""
    partition, learned, committed = Partition(log), Progress(0), 0
    window = partition.window
    while window.next < len(log) or partition.running or others:
        batch = range(window.next, min(window.next + fetched, len(log)))
        if others and chance.randrange(2):
            offset = others.pop()
            learned = Progress(max(learned.offset, offset), learned.beyond | {offset + 2})
            window.learn(learned)
        begun = len(partition.begun)
        for offset in batch:
            if window.room > 0 and not window.is_full and offset <= window.next:
                partition.take(window.add(offset, log[offset], offset))
        assert not [offset for offset in partition.begun[begun:] if learned.covers(offset)]
        for offset in sorted(partition.running):
            partition.finish(offset)
        while window.room > 0 and window.to_read_again() is not None:
            partition.read()
        assert window.progress().offset >= committed, "the group goes back"
        assert all(map(window.progress().covers, learned.beyond))
        committed = window.progress().offset


def test_records_finished_by_an_earlier_owner_stay_finished() -> None:
    partition = Partition([1, 2, 3])
    partition.window.learn(Progress(0, frozenset({1, 2})))
    partition.read()
    partition.finish(0)
    assert partition.window.progress() == Progress(3)
    while partition.read():
        pass
    assert partition.begun == [0]


def test_commit_never_goes_behind_an_earlier_owners_progress() -> None:
    window: Window[int] = Window(MOST, WIDTH)
    window.learn(Progress(1, frozenset({2, 3})))
    assert window.add(1, "a", 1) == [(1, 1)]
    window.finish(1)
    committed = window.progress()
    assert committed == Progress(4)
    window.committed(committed)
    assert window.progress() == committed
    assert [window.add(offset, "a", offset) for offset in (2, 3)] == [[], []]
    assert window.add(4, "a", 4) == [(4, 4)]


def test_expired_record_lets_its_successor_go_on() -> None:
    partition = Partition([0] * 6, most=2)
    while partition.read():
        pass
    partition.finish(0)
    partition.finish(1)
    assert list(partition.window.missed_before(2)) == []
    for offset in partition.window.missed_before(4):
        partition.take(partition.window.lose(offset))
    assert partition.window.to_read_again() == 4
    assert partition.window.lowest == 4


def test_large_waiting_records_do_not_block_a_missed_record() -> None:
    """Records 4 and 5 wait for room in memory; 8 and 9, which come later, fill it while 4 has to be read again."""
    partition = Partition([0] * 12, most_bytes=7)
    window = partition.window
    for offset in range(8):
        partition.take(window.add(offset, 0, offset))
    for finished, following in ((0, 8), (1, 9)):
        partition.finish(finished)
        partition.take(window.add(following, 0, following))
    partition.work_off(lambda number: number - 1)
    assert partition.begun == list(range(12))


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
