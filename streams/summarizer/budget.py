"""The budget of tokens that an LLM may use in an hour."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

import structlog

from afterword.schemas import Usage
from afterword.streams.errors import BudgetExhausted, StoreUnavailable
from afterword.streams.settings import Budget
from afterword.streams.stores.bookkeeping import COUNTER_RETENTION, Budgets, budget_key
from afterword.streams.summarizer.summary import SummaryRequest
from afterword.streams.telemetry import Metrics
from afterword.streams.text.tokens import count_tokens

STAGE = "budget"
PROMPT_TOKENS = 600
"""Approximate tokens of the instructions."""
ANSWER_TOKENS = 800
"""Approximate tokens of an answer, without its rolling summary."""

log = structlog.get_logger()


class Counter(NamedTuple):
    """The counter of one hour, for all tenants or for one."""

    key: str
    limit: int
    budget: str
    """Label in the metrics: `tenant` or `all`."""
    whose: str
    """The same in words."""


class Estimate(NamedTuple):
    """Tokens that were taken from the counters for a summary under way."""

    counters: tuple[Counter, ...]
    amount: int


class TokenBudget:
    """The hour's budgets, which all workers share.

    An estimate is taken before the LLM is asked, so that summaries under way count, and is corrected afterwards. A
    cancelled summary leaves its estimate. While the counters cannot be reached nothing is limited: a budget is no
    reason to stop, and without the database only the episodes in hand are summarized.
    """

    def __init__(
        self,
        budget: Budget,
        budgets: Budgets,
        metrics: Metrics,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._budget = budget
        self._budgets = budgets
        self._metrics = metrics
        self._clock = clock

    async def take(self, request: SummaryRequest) -> Estimate:
        """Take a summary's estimate. Raises: BudgetExhausted if nothing is left."""
        if not self._budget.limited:
            return Estimate((), 0)
        amount, tenant_id = estimate(request), request.episode.tenant_id
        now, taken = self._clock(), list[Counter]()
        try:
            for counter in self._counters(now, tenant_id):
                if not await self._budgets.take(counter.key, amount, counter.limit, now + COUNTER_RETENTION):
                    await self._correct(taken, -amount)
                    self._metrics.budget_refusals.labels(counter.budget).inc()
                    raise BudgetExhausted(whose=counter.whose, limit=counter.limit)
                taken.append(counter)
        except StoreUnavailable as error:
            _not_counted(error)
        return Estimate(tuple(taken), amount)

    async def settle(self, taken: Estimate, usage: Usage) -> None:
        """Correct the counters to what was really used."""
        await self._correct(taken.counters, usage.prompt_tokens + usage.completion_tokens - taken.amount)

    async def _correct(self, counters: tuple[Counter, ...] | list[Counter], amount: int) -> None:
        try:
            for counter in counters:
                await self._budgets.correct(counter.key, amount)
        except StoreUnavailable as error:
            _not_counted(error)

    def _counters(self, hour: datetime, tenant_id: str | None) -> list[Counter]:
        """Return the counters, the tenant's first.

        A tenant that has used up its own budget then takes nothing from the common one.
        """
        limits = (
            (budget_key(hour, tenant_id, of_tenant=True), self._budget.tenant_tokens_per_hour, "tenant", "a tenant"),
            (budget_key(hour), self._budget.tokens_per_hour, "all", "all tenants"),
        )
        return [Counter(key, limit, *named) for key, limit, *named in limits if limit is not None]


def estimate(request: SummaryRequest) -> int:
    """Estimate the tokens of a summary whose first answer is usable."""
    episode = request.episode
    read = episode.token_count + sum(count_tokens(message.content) for message in episode.overlap)
    before = count_tokens(request.previous_rolling)
    return PROMPT_TOKENS + read + before + ANSWER_TOKENS + min(before + ANSWER_TOKENS, request.rolling_tokens)


def _not_counted(error: StoreUnavailable) -> None:
    log.warning("tokens_not_counted", stage=STAGE, error_type=error.error_type)
