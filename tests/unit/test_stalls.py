"""The measure of a pause is right, and the load of the fault harness is what it says."""

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator

import pytest

from tests.e2e.faults.load import Conversations
from tests.e2e.faults.loops import Times, blame
from tests.e2e.faults.stalls import Announcements, Group, Look, LookingEnded, Stalls, Watched, measured


def test_a_partition_with_lag_and_without_progress_stalls() -> None:
    stalls = Stalls()
    for second in range(6):
        stalls.see({0: 5}, {0: 9}, float(second))
    assert stalls.longest == 5.0


def test_no_lag_is_no_stall() -> None:
    stalls = Stalls()
    for second in range(6):
        stalls.see({0: 9}, {0: 9}, float(second))
    assert stalls.longest == 0.0


def test_one_partition_is_not_hidden_by_another() -> None:
    stalls = Stalls()
    for second in range(6):
        stalls.see({0: second, 1: 5}, {0: 9, 1: 9}, float(second))
    assert stalls.longest == 5.0


def test_what_was_not_seen_counts_as_unchanged() -> None:
    stalls = Stalls()
    stalls.see({0: 5}, {0: 9}, 0.0)
    stalls.see({0: 5}, {0: 9}, 60.0)
    stalls.see({0: 9}, {0: 9}, 61.0)
    assert stalls.longest == stalls.lap() == 60.0
    assert stalls.lap() == 0.0


@pytest.mark.parametrize("kind", ["group", "announcements"])
async def test_a_broker_that_accepts_and_says_nothing_is_left_after_seconds_not_after_a_minute(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        watched: Watched = Group(address, "g", "t", 1) if kind == "group" else Announcements(address, "t", ["f"])
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30), watched.opened():
                pass
    assert time.monotonic() - began < 20


class Broken(Group):
    """A client of Kafka that fails in a way of its own."""

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Look]:
        raise KeyError("unforeseen")
        yield


async def test_looking_that_has_ended_is_told_as_such_not_as_a_broker_that_is_silent() -> None:
    async def look() -> None:
        async with measured(Broken("nowhere:1", "g", "t", 1)):
            await asyncio.sleep(0.01)

    with pytest.raises(LookingEnded) as told:
        await look()
    assert isinstance(told.value.__cause__, KeyError)


def test_the_same_seed_gives_the_same_load() -> None:
    one, other = (Conversations(random.Random(7)) for _ in range(2))
    assert [one.next() for _ in range(500)] == [other.next() for _ in range(500)]
    assert list(one.close()) == list(other.close())


def test_a_loop_that_is_blocked_on_an_idle_machine_is_blamed_whatever_it_does() -> None:
    asleep = {"1": Times(ran=0.0, waited=0.0)}
    at_work = {"1": Times(ran=2.0, waited=0.0)}
    assert blame(2.0, 1, {"1": Times()}, asleep) == blame(2.0, 1, {"1": Times()}, at_work) == 2.0


def test_a_worker_that_waited_for_a_processor_is_not_blamed() -> None:
    assert blame(2.0, 1, {"1": Times(5.0, 5.0)}, {"1": Times(5.1, 6.9)}) == pytest.approx(0.1)


def test_threads_that_hand_each_other_the_lock_while_each_waits_for_a_processor_are_blamed_for_the_rest() -> None:
    after = {"1": Times(0.2, 1.0), "2": Times(0.1, 0.7)}
    assert blame(2.0, 1, {}, after) == pytest.approx(0.3)


def test_a_loop_blocked_by_its_own_work_is_blamed_on_a_busy_machine_too() -> None:
    assert blame(4.0, 1, {}, {"1": Times(1.5, 2.5), "2": Times(0.0, 4.0)}) == pytest.approx(1.5)
