"""A limit of an LLM's tokens per hour."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from afterword.schemas import Quality, Usage
from afterword.streams.errors import AnswerInvalid, BudgetExhausted, ProviderUnavailable, StoreUnavailable
from afterword.streams.settings import Budget
from afterword.streams.stores.bookkeeping import budget_key
from afterword.streams.summarizer.summarizer import Summarizer, TokenBudget, estimate
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from tests.doubles.provider import ScriptedProvider
from tests.doubles.stores import MemoryBudgets
from tests.samples import NOON, a_closed_episode, some_calls

HOUR = budget_key(NOON)
AMOUNT = estimate(SummaryRequest(a_closed_episode(), "", 800))


def a_request(ordinal: int = 1, tenant_id: str | None = "t1") -> SummaryRequest:
    return SummaryRequest(a_closed_episode(ordinal, tenant_id=tenant_id), "", 800)


def costing(tokens: int) -> Summary:
    usage = Usage(prompt_tokens=tokens - 1, completion_tokens=1)
    return Summary("T", "S.", "L.", "R.", quality=Quality(source="llm"), model="m", calls=some_calls(usage))


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> Any:
        return self.now


def budgeted_by(
    provider: ScriptedProvider, budgets: MemoryBudgets, budget: Budget, clock: Callable[[], datetime]
) -> Summarizer:
    return Summarizer(provider, budget=TokenBudget(budget, budgets, clock))


async def is_refused(provider: Summarizer, request: SummaryRequest) -> bool:
    try:
        await provider.summarize_without_fallback(request)
    except BudgetExhausted:
        return True
    return False


async def test_real_usage_is_counted() -> None:
    budgets = MemoryBudgets()
    llm = ScriptedProvider([costing(5000), costing(70)])
    budgeted = budgeted_by(llm, budgets, Budget(tokens_per_hour=10_000, tenant_tokens_per_hour=9_000), lambda: NOON)
    for _ in range(2):
        await budgeted.summarize_without_fallback(a_request())
    assert budgets.counters == {HOUR: 5070, f"{HOUR}/t1": 5070}


async def test_missing_usage_counts_as_estimated() -> None:
    budgets, llm = MemoryBudgets(), ScriptedProvider([costing(300)] * 5)
    budget = TokenBudget(Budget(tokens_per_hour=2 * AMOUNT - 500), budgets, lambda: NOON)
    budgeted = Summarizer(llm, budget=budget, is_metered=lambda: False)
    assert [await is_refused(budgeted, a_request()) for _ in range(5)] == [False, False, True, True, True]
    assert budgets.counters == {HOUR: 2 * AMOUNT}
    budgets = MemoryBudgets()
    budget = TokenBudget(Budget(tokens_per_hour=AMOUNT), budgets, lambda: NOON)
    away = Summarizer(ScriptedProvider([ProviderUnavailable(problem="x")]), budget=budget, is_metered=lambda: False)
    with pytest.raises(ProviderUnavailable):
        await away.summarize_without_fallback(a_request())
    assert budgets.counters == {HOUR: 0}


async def test_exhausted_budget_pauses_asking_until_the_next_hour() -> None:
    clock, llm = Clock(), ScriptedProvider([costing(1000), costing(1000)])
    budgeted = budgeted_by(llm, MemoryBudgets(), Budget(tokens_per_hour=1000), clock)
    assert [await is_refused(budgeted, a_request(n)) for n in (1, 2)] == [False, True]
    assert len(llm.requests) == 1
    clock.now += timedelta(hours=1)
    assert not await is_refused(budgeted, a_request(2))


async def test_exhausted_tenant_leaves_others_their_budget() -> None:
    budgets, llm = MemoryBudgets(), ScriptedProvider([costing(1000)] * 3)
    budgeted = budgeted_by(llm, budgets, Budget(tokens_per_hour=10**6, tenant_tokens_per_hour=1000), lambda: NOON)
    tenants = ("a", "a", "b", None, None)
    assert [await is_refused(budgeted, a_request(1, t)) for t in tenants] == [False, True, False, False, True]
    assert budgets.counters[HOUR] == 3000


async def test_global_exhaustion_is_not_charged_to_a_tenant() -> None:
    budgets = MemoryBudgets()
    budgeted = budgeted_by(
        ScriptedProvider(), budgets, Budget(tokens_per_hour=1, tenant_tokens_per_hour=10**6), Clock()
    )
    await budgets.take(HOUR, 1, 1)
    assert await is_refused(budgeted, a_request())
    assert budgets.counters[f"{HOUR}/t1"] == 0


async def test_running_calls_count_by_their_estimate() -> None:
    llm = ScriptedProvider(delay_seconds=0.01)
    budgeted = budgeted_by(llm, MemoryBudgets(), Budget(tokens_per_hour=3 * AMOUNT), lambda: NOON)
    refused = await asyncio.gather(*(is_refused(budgeted, a_request()) for _ in range(20)))
    assert refused.count(False) == 3


async def test_failed_call_costs_its_usage() -> None:
    budgets = MemoryBudgets()
    used = Usage(prompt_tokens=300, completion_tokens=30)
    llm = ScriptedProvider([ProviderUnavailable(problem="x"), AnswerInvalid(problem="x", calls=some_calls(used))])
    budgeted = budgeted_by(llm, budgets, Budget(tokens_per_hour=10_000), lambda: NOON)
    for error, spent in ((ProviderUnavailable, 0), (AnswerInvalid, 330)):
        with pytest.raises(error):
            await budgeted.summarize_without_fallback(a_request())
        assert budgets.counters == {HOUR: spent}


async def test_cancelled_call_keeps_its_estimate() -> None:
    budgets = MemoryBudgets()
    budgeted = budgeted_by(ScriptedProvider(delay_seconds=60), budgets, Budget(tokens_per_hour=10_000), lambda: NOON)
    call = asyncio.create_task(budgeted.summarize_without_fallback(a_request()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])
    assert budgets.counters == {HOUR: AMOUNT}


def test_longer_request_is_estimated_higher() -> None:
    request = a_request()
    longer = replace(request, previous_rolling="The user asked for one more thing. " * 50)
    more = replace(request, episode=request.episode.model_copy(update={"token_count": 5000}))
    assert estimate(request) < estimate(longer) < estimate(more)


class Away(MemoryBudgets):
    """Its counters are away for one kind of call."""

    def __init__(self, call: str) -> None:
        super().__init__()
        setattr(self, call, self._fail)

    async def _fail(self, *_: Any) -> Any:
        raise StoreUnavailable(store="mongodb", problem="x")


@pytest.mark.parametrize("call", ["take", "correct"])
async def test_unreachable_counters_limit_and_lose_nothing(call: str) -> None:
    budget = Budget(tokens_per_hour=1 if call == "take" else 10_000)
    with capture_logs() as logs:
        summary = await budgeted_by(ScriptedProvider(), Away(call), budget, Clock()).summarize_without_fallback(
            a_request()
        )
    assert summary.quality.source == "llm"
    assert [(entry["stage"], entry["error_type"]) for entry in logs] == [("budget", "store_unavailable")]
