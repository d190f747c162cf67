"""Reads of many tasks in one query."""

import asyncio
import gc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.errors import StoreUnavailable
from afterword.streams.tasks import MOST_KEYS, Coalesced
from distributions.engine.tests.simulation.virtual_time import run_in_virtual_time

KEYS = st.lists(st.sampled_from("abcd"), max_size=4)


class Store:
    """Answers a second later with what it had when it was asked."""

    def __init__(self) -> None:
        self.has = {"a": 1, "b": 2}
        self.asked: list[list[str]] = []
        self.error: StoreUnavailable | None = None

    async def read(self, keys: Sequence[str]) -> dict[str, int]:
        self.asked.append(list(keys))
        found, error = {key: self.has[key] for key in keys if key in self.has}, self.error
        await asyncio.sleep(1)
        if error:
            raise error
        return found


def test_those_who_ask_while_a_query_is_away_share_the_next_one() -> None:
    async def scenario() -> None:
        store = Store()
        read = Coalesced(store.read)
        first = asyncio.create_task(read(["a"]))
        await asyncio.sleep(0.5)
        others = [asyncio.create_task(read(keys)) for keys in (["a", "b"], ["c"], ["b"])]
        await asyncio.sleep(0)
        store.has["c"] = 3  # written after they have asked, and before their query begins
        assert await first == {"a": 1}
        assert await asyncio.gather(*others) == [{"a": 1, "b": 2}, {"c": 3}, {"b": 2}]
        assert store.asked == [["a"], ["a", "b", "c"]]
        assert await read([]) == {}

    run_in_virtual_time(scenario())


def test_an_error_is_raised_to_the_callers_of_its_query_only() -> None:
    async def scenario() -> None:
        store = Store()
        read = Coalesced(store.read)
        store.error = StoreUnavailable(store="s", problem="away")
        first = asyncio.create_task(read(["a"]))
        await asyncio.sleep(0.5)
        second = asyncio.create_task(read(["b"]))
        store.error = None
        with pytest.raises(StoreUnavailable):
            await first
        assert await second == {"b": 2}

    run_in_virtual_time(scenario())


def test_a_caller_that_is_cancelled_takes_nobody_with_it() -> None:
    async def scenario() -> None:
        store = Store()
        read = Coalesced(store.read)
        callers = [asyncio.create_task(read([key])) for key in "abc"]
        await asyncio.sleep(0.5)
        callers[0].cancel()
        callers[1].cancel()
        assert await callers[2] == {}
        assert store.asked == [["a"], ["c"]]

    run_in_virtual_time(scenario())


def test_an_error_that_nobody_waits_for_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        store = Store()
        store.error = StoreUnavailable(store="s", problem="away")
        caller = asyncio.create_task(Coalesced(store.read)(["a"]))
        await asyncio.sleep(0.5)
        caller.cancel()
        await asyncio.sleep(1)

    run_in_virtual_time(scenario())
    gc.collect()
    assert caplog.messages == []


def test_a_query_has_a_bounded_number_of_keys() -> None:
    async def scenario() -> None:
        store = Store()
        read = Coalesced(store.read)
        await asyncio.gather(*[read([f"{n}-{i}" for i in range(MOST_KEYS // 2)]) for n in range(5)])
        assert [len(keys) for keys in store.asked] == [500, 1000, 1000]

    run_in_virtual_time(scenario())


@given(st.lists(st.tuples(KEYS, st.integers(0, 40)), max_size=12))
def test_everybody_gets_what_was_there_when_they_asked(asked: list[tuple[list[str], int]]) -> None:
    async def scenario() -> None:
        store = Store()
        read = Coalesced(store.read)

        async def caller(keys: list[str], tenths: int) -> None:
            await asyncio.sleep(tenths / 10)
            store.has["d"] = tenths
            found = await read(keys)
            assert set(found) == set(keys) & store.has.keys()
            assert found.get("d", tenths) >= tenths

        await asyncio.gather(*[caller(keys, tenths) for keys, tenths in asked])

    run_in_virtual_time(scenario())
