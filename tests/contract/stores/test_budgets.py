import asyncio
from datetime import UTC, datetime, timedelta

from afterword.streams.stores.budgets import Budgets, budget_key

NOW = datetime(2026, 3, 1, 12, 59, tzinfo=UTC)
LATER = NOW + timedelta(days=1)


async def test_what_is_taken_adds_up_until_the_limit_is_reached(budgets: Budgets) -> None:
    assert [await budgets.take("k", 40, 100, LATER) for _ in range(4)] == [True, True, True, False]
    assert await budgets.correct("k", 0) == 120


async def test_a_correction_is_added_and_may_make_room_again(budgets: Budgets) -> None:
    await budgets.take("k", 100, 100, LATER)
    assert await budgets.correct("k", -30) == 70
    assert await budgets.take("k", 10, 100, LATER)
    assert await budgets.correct("k", 5) == 85


async def test_counters_are_apart(budgets: Budgets) -> None:
    await budgets.take("one", 100, 100, LATER)
    assert await budgets.take("two", 1, 100, LATER)
    assert await budgets.correct("three", 5) == 0


async def test_however_many_take_at_once_the_limit_is_passed_by_less_than_one_amount(budgets: Budgets) -> None:
    taken = await asyncio.gather(*(budgets.take("k", 30, 100, LATER) for _ in range(20)))
    assert sum(taken) == 4
    assert await budgets.correct("k", 0) == 120


def test_every_hour_and_every_tenant_has_a_counter() -> None:
    keys = {
        budget_key(NOW),
        budget_key(NOW + timedelta(minutes=1)),
        budget_key(NOW, "a", of_tenant=True),
        budget_key(NOW, "a/b", of_tenant=True),
        budget_key(NOW, None, of_tenant=True),
    }
    assert keys == {"2026-03-01T12", "2026-03-01T13", "2026-03-01T12/a", "2026-03-01T12/a%2Fb", "2026-03-01T12/"}
