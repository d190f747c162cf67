"""An LLM that may use so many tokens an hour."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from afterword.schemas import Usage
from afterword.streams.errors import BudgetExhausted, ProviderError, StoreUnavailable
from afterword.streams.settings import Budget
from afterword.streams.stores.budgets import KEPT, Budgets, key_of
from afterword.streams.summarizer.observer import Observer
from afterword.streams.summarizer.providers.base import Provider, Summary, SummaryRequest
from afterword.streams.tokens import count_tokens

STAGE = "budget"
PROMPT_TOKENS = 600
"""What the instructions take, about."""
ANSWER_TOKENS = 800
"""What an answer takes, about; its rolling summary comes on top."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Counter:
    """`budget`: as the metrics call it."""

    key: str
    hour: datetime
    limit: int
    budget: str
    whose: str


class Budgeted:
    """A Provider that is asked only while there is something left of the hour's budgets.

    An estimate is taken from the counters before the LLM is asked, and corrected afterwards, so that calls under way
    count. A call that was broken off leaves its estimate. While the counters cannot be reached nothing is limited: a
    budget is no reason to stop, and without the database no more is summarised than may be in hand.
    """

    def __init__(
        self,
        provider: Provider,
        budgets: Budgets,
        budget: Budget,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        observer: Observer = Observer(),  # noqa: B008 – does nothing, keeps nothing
    ) -> None:
        self.name = provider.name
        self._provider = provider
        self._budgets = budgets
        self._budget = budget
        self._clock = clock
        self._observer = observer

    async def summarize(self, request: SummaryRequest) -> Summary:
        """Raises: ProviderError, of which BudgetExhausted means that the LLM was not asked."""
        amount = estimate(request)
        taken = await self._take(request.episode.tenant_id, amount)
        try:
            summary = await self._provider.summarize(request)
        except ProviderError as error:
            await self._correct(taken, tokens(vars(error).get("usage", Usage())) - amount)
            raise
        await self._correct(taken, tokens(summary.usage) - amount)
        return summary

    async def check(self) -> None:
        await self._provider.check()

    async def close(self) -> None:
        await self._provider.close()

    async def _take(self, tenant_id: str | None, amount: int) -> list[Counter]:
        """The counters that the amount was taken from. Raises: BudgetExhausted."""
        now, taken = self._clock(), list[Counter]()
        try:
            for counter in self._counters(now, tenant_id):
                if not await self._budgets.take(counter.key, amount, counter.limit, now + KEPT):
                    await self._correct(taken, -amount)
                    self._observer.used(counter.budget, counter.hour, counter.limit, counter.limit)
                    self._observer.exhausted(counter.budget)
                    raise BudgetExhausted(whose=counter.whose, limit=counter.limit)
                taken.append(counter)
        except StoreUnavailable as error:
            log.warning("tokens not counted", stage=STAGE, error_type=error.error_type)
        return taken

    async def _correct(self, counters: list[Counter], amount: int) -> None:
        try:
            for counter in counters:
                await self._budgets.correct(counter.key, amount)
                used = await self._budgets.used(counter.key)
                self._observer.used(counter.budget, counter.hour, used, counter.limit)
        except StoreUnavailable as error:
            log.warning("tokens not counted", stage=STAGE, error_type=error.error_type)

    def _counters(self, hour: datetime, tenant_id: str | None) -> list[Counter]:
        """A tenant's own comes first: whoever has used that up takes nothing of the others' either."""
        limits = (
            (key_of(hour, tenant_id, of_tenant=True), self._budget.tenant_tokens_per_hour, "tenant", "a tenant"),
            (key_of(hour), self._budget.tokens_per_hour, "all", "all tenants"),
        )
        return [Counter(key, hour, limit, *named) for key, limit, *named in limits if limit is not None]


def tokens(usage: Usage) -> int:
    return usage.prompt_tokens + usage.completion_tokens


def estimate(request: SummaryRequest) -> int:
    """Tokens that a summary costs when the first answer can be used, about."""
    episode = request.episode
    read = episode.token_count + sum(count_tokens(message.content) for message in episode.overlap)
    before = count_tokens(request.previous_rolling)
    return PROMPT_TOKENS + read + before + ANSWER_TOKENS + min(before + ANSWER_TOKENS, request.rolling_tokens)
