import asyncio
from datetime import timedelta

from afterword.streams.stores.bookkeeping import Budgets
from tests.samples import NOON

NEXT_HOUR = NOON + timedelta(hours=1)


async def has_exactly(budgets: Budgets, key: str, tokens: int) -> bool:
    return not await budgets.take(key, 0, tokens, NOON) and await budgets.take(key, 0, tokens + 1, NOON)


async def test_what_is_taken_adds_up_until_the_limit_is_reached(budgets: Budgets) -> None:
    assert [await budgets.take("k", 40, 100, NOON) for _ in range(4)] == [True, True, True, False]
    assert await has_exactly(budgets, "k", 120)


async def test_a_correction_is_added_and_may_make_room_again(budgets: Budgets) -> None:
    await budgets.take("k", 100, 100, NOON)
    await budgets.correct("k", -30, NOON)
    assert await has_exactly(budgets, "k", 70)
    assert await budgets.take("k", 10, 100, NOON)
    await budgets.correct("k", 5, NOON)
    assert await has_exactly(budgets, "k", 85)


async def test_counters_are_apart(budgets: Budgets) -> None:
    await budgets.take("one", 100, 100, NOON)
    assert await budgets.take("two", 1, 100, NOON)
    await budgets.correct("three", 5, NOON)
    assert await budgets.take("three", 1, 5, NOON)


async def test_however_many_take_at_once_the_limit_is_passed_by_less_than_one_amount(budgets: Budgets) -> None:
    taken = await asyncio.gather(*(budgets.take("k", 30, 100, NOON) for _ in range(20)))
    assert sum(taken) == 4
    assert await has_exactly(budgets, "k", 120)


async def test_a_counter_starts_anew_in_each_hour(budgets: Budgets) -> None:
    await budgets.take("k", 100, 100, NOON)
    assert await budgets.take("k", 40, 100, NEXT_HOUR)
    await budgets.correct("k", -30, NOON)
    assert not await budgets.take("k", 0, 40, NEXT_HOUR)


async def test_a_worker_whose_clock_is_behind_does_not_reset_a_counter(budgets: Budgets) -> None:
    await budgets.take("k", 100, 100, NEXT_HOUR)
    assert not await budgets.take("k", 1, 100, NOON)
