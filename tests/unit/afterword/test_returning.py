"""Where the records of new partitions belong: the partition that had their keys before; and their way there."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete
from hypothesis import given
from hypothesis import strategies as st

from afterword.returning import CannotReturn, Mover, homes
from afterword.schemas import ConversationDeleted, MessageCreated, decode_input
from afterword.streams.runtime.layouts import Layout
from afterword.streams.segmenter.partitions import standard_partition
from tests.samples import a_message


def layouts(found: int, *recorded: int) -> dict[str, Layout]:
    return {f"group-{n}": Layout(frozenset({number} if number else ()), found) for n, number in enumerate(recorded)}


@given(st.binary(min_size=1), st.integers(1, 40), st.integers(2, 6))
def test_a_key_goes_where_it_was_before(key: bytes, before: int, times: int) -> None:
    after = before * times
    new = standard_partition(key, after)
    assert homes(layouts(after, before)).get(new, new) == standard_partition(key, before)


def test_each_new_partition_has_one_old_one() -> None:
    assert homes(layouts(6, 2, 2)) == {2: 0, 3: 1, 4: 0, 5: 1}


def test_a_group_that_has_read_nothing_says_nothing() -> None:
    assert homes(layouts(4, 2, 0)) == {2: 0, 3: 1}


@pytest.mark.parametrize(
    ("found", "recorded", "problem"),
    [
        (4, (4, 4), "no more than the commits of group-0"),
        (4, (0, 0), "no more than the commits of group-0"),
        (2, (4,), "no more than the commits of group-0"),
        (5, (2, 2), "was read with 2: that is no multiple"),
        (8, (2, 4), "was read with 2, 4: that is no multiple"),
    ],
)
def test_where_keys_cannot_be_followed_nothing_is_moved(found: int, recorded: tuple[int, ...], problem: str) -> None:
    with pytest.raises(CannotReturn, match=problem):
        homes(layouts(found, *recorded))


class Killed(Exception):
    """The process is gone."""


@dataclass(frozen=True)
class Moved:
    """A record, as far as it moves."""

    key: bytes
    value: bytes
    offset: int
    headers: Sequence[tuple[str, bytes]]
    timestamp: int = 0


@dataclass
class Partitions:
    """A new partition and its old one, which is number 0; `answered`: deletions before the one that kills."""

    new: list[Moved]
    answered: int
    old: list[Moved] = field(default_factory=list)

    async def ends(self, topic: str) -> dict[TopicPartition, int]:
        return {TopicPartition(topic, 1): max((record.offset for record in self.new), default=-1) + 1}

    async def records_of(self, _: TopicPartition, end: int) -> AsyncIterator[Moved]:
        for record in [record for record in self.new if record.offset < end]:
            yield record

    async def send(
        self, _: str, value: bytes, *, key: bytes, headers: Any, partition: int, timestamp_ms: int
    ) -> "asyncio.Future[None]":
        assert partition == 0
        self.old.append(Moved(key, value, len(self.old), headers, timestamp_ms))
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sent.set_result(None)
        return sent

    async def delete_records(self, before: dict[TopicPartition, RecordsToDelete]) -> None:
        self.answered -= 1
        if self.answered == -1:
            raise Killed
        [bound] = before.values()
        self.new = [record for record in self.new if record.offset >= bound.before_offset]

    async def bring_back(self) -> None:
        servers: Any = self
        await Mover("messages", servers, servers, servers, lambda *_: None).run({1: 0}, follow=False)


def records_of(kinds: str) -> list[Moved]:
    """Build the records of a conversation: `m` is a message, `d` the deletion of all before it."""
    types = {"m": "message.created", "d": "conversation.deleted"}
    gone = ConversationDeleted(conversation_id="c1")
    events = [a_message(f"m{offset}") if kind == "m" else gone for offset, kind in enumerate(kinds)]
    headers = [[("ce_type", types[kind].encode())] for kind in kinds]
    return [Moved(b"c1", event.to_json(), offset, headers[offset]) for offset, event in enumerate(events)]


def living(records: Sequence[Moved]) -> list[str]:
    """Ids of the messages that are there after the records: an id is taken once, also if its message was deleted."""
    there: dict[str, bool] = {}
    for record in records:
        event = decode_input(record.key, record.value, record.headers, record.timestamp)
        if isinstance(event, ConversationDeleted):
            there = dict.fromkeys(there, False)
        elif isinstance(event, MessageCreated):
            there.setdefault(event.id, True)
    return [name for name, is_living in there.items() if is_living]


@given(st.text("mmd", min_size=1, max_size=8), st.integers(0, 3))
def test_what_is_moved_twice_after_a_kill_deletes_nothing_that_came_later(kinds: str, answered: int) -> None:
    partitions = Partitions(records_of(kinds), answered)

    async def killed_once() -> None:
        with suppress(Killed):
            await partitions.bring_back()
        await partitions.bring_back()

    asyncio.run(killed_once())
    assert not partitions.new
    assert living(partitions.old) == living(records_of(kinds))
