import asyncio
from datetime import UTC, datetime, timedelta

from afterword.streams.stores.bookkeeping import Budgets, budget_key

LATER = datetime.now(UTC) + timedelta(days=1)  # a server deletes a counter that has expired, by its own clock


async def has_exactly(budgets: Budgets, key: str, tokens: int) -> bool:
    return not await budgets.take(key, 0, tokens, LATER) and await budgets.take(key, 0, tokens + 1, LATER)


async def test_budget_adds_up_until_its_limit(budgets: Budgets) -> None:
    assert [await budgets.take("k", 40, 100, LATER) for _ in range(4)] == [True, True, True, False]
    assert await has_exactly(budgets, "k", 120)


async def test_correction_is_added_and_may_free_budget(budgets: Budgets) -> None:
    await budgets.take("k", 100, 100, LATER)
    await budgets.correct("k", -30)
    assert await has_exactly(budgets, "k", 70)
    assert await budgets.take("k", 10, 100, LATER)
    await budgets.correct("k", 5)
    assert await has_exactly(budgets, "k", 85)


async def test_counters_are_separate(budgets: Budgets) -> None:
    await budgets.take("one", 100, 100, LATER)
    assert await budgets.take("two", 1, 100, LATER)
    await budgets.correct("three", 5)
    assert await budgets.take("three", 1, 5, LATER)


async def test_concurrent_takers_exceed_the_limit_by_one_amount(budgets: Budgets) -> None:
    taken = await asyncio.gather(*(budgets.take("k", 30, 100, LATER) for _ in range(20)))
    assert sum(taken) == 4
    assert await has_exactly(budgets, "k", 120)


def test_every_hour_and_every_tenant_has_a_counter() -> None:
    now = datetime(2026, 3, 1, 12, 59, tzinfo=UTC)
    keys = {
        budget_key(now),
        budget_key(now + timedelta(minutes=1)),
        budget_key(now, "a", of_tenant=True),
        budget_key(now, "a/b", of_tenant=True),
        budget_key(now, None, of_tenant=True),
    }
    assert keys == {"2026-03-01T12", "2026-03-01T13", "2026-03-01T12/a", "2026-03-01T12/a%2Fb", "2026-03-01T12/"}
