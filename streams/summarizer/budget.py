"""The budget of tokens that an LLM may use in an hour."""

from collections.abc import Callable, Sequence
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


class Estimate(NamedTuple):
    """Tokens that were taken from counters for a summary under way."""

    keys: Sequence[str]
    """Keys of the counters."""
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
        amount, now, taken = estimate(request), self._clock(), list[str]()
        of_tenant = budget_key(now, request.episode.tenant_id, of_tenant=True)
        # the tenant's first: a tenant that has used up its own budget then takes nothing from the common one
        counters = (
            (of_tenant, self._budget.tenant_tokens_per_hour, "tenant", "a tenant"),
            (budget_key(now), self._budget.tokens_per_hour, "all", "all tenants"),
        )
        try:
            for key, limit, label, whose in counters:
                if limit is None:
                    continue
                if not await self._budgets.take(key, amount, limit, now + COUNTER_RETENTION):
                    await self._correct(taken, -amount)
                    self._metrics.budget_refusals.labels(label).inc()
                    raise BudgetExhausted(whose=whose, limit=limit)
                taken.append(key)
        except StoreUnavailable as error:
            _not_counted(error)
        return Estimate(taken, amount)

    async def settle(self, taken: Estimate, usage: Usage) -> None:
        """Correct the counters to what was really used."""
        await self._correct(taken.keys, usage.prompt_tokens + usage.completion_tokens - taken.amount)

    async def _correct(self, keys: Sequence[str], amount: int) -> None:
        try:
            for key in keys:
                await self._budgets.correct(key, amount)
        except StoreUnavailable as error:
            _not_counted(error)


def estimate(request: SummaryRequest) -> int:
    """Estimate the tokens of a summary whose first answer is usable."""
    episode = request.episode
    read = episode.token_count + sum(count_tokens(message.content) for message in episode.overlap)
    before = count_tokens(request.previous_rolling)
    return PROMPT_TOKENS + read + before + ANSWER_TOKENS + min(before + ANSWER_TOKENS, request.rolling_tokens)


def _not_counted(error: StoreUnavailable) -> None:
    log.warning("tokens_not_counted", stage=STAGE, error_type=error.error_type)
