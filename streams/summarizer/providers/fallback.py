"""What happens when the LLM gives no usable answer: a summary all the same, marked as what it is."""

from dataclasses import replace

import structlog

from afterword.schemas import Quality, Usage
from afterword.streams.errors import BudgetExhausted, ProviderError, ProviderMisconfigured, ProviderUnavailable
from afterword.streams.settings import Budget, Summarizer
from afterword.streams.summarizer.providers.base import Provider, Summary, SummaryRequest
from afterword.streams.summarizer.providers.extractive import REASON as EXTRACTIVE

log = structlog.get_logger()


def is_replaceable(quality: Quality) -> bool:
    """Whether an LLM should have written the summary and did not; without one configured nothing is replaced."""
    return quality.source == "fallback" and quality.reason != EXTRACTIVE


def waited_for(summarizer: Summarizer, budget: Budget) -> tuple[type[ProviderError], ...]:
    """The errors on which an episode waits: a wrong configuration always, the others as set."""
    kinds: list[type[ProviderError]] = [ProviderMisconfigured]
    if summarizer.on_llm_outage == "wait":
        kinds.append(ProviderUnavailable)
    if budget.on_exhausted == "wait":
        kinds.append(BudgetExhausted)
    return tuple(kinds)


class WithFallback:
    """A Provider that fails only where waiting is right; elsewhere another one stands in."""

    def __init__(
        self, provider: Provider, fallback: Provider, waits: tuple[type[ProviderError], ...] = (ProviderMisconfigured,)
    ) -> None:
        self.name = provider.name
        self.without_fallback = provider
        self._provider = provider
        self._fallback = fallback
        self._waits = waits

    async def summarize(self, request: SummaryRequest) -> Summary:
        """Raises: those ProviderErrors on which the episode must wait."""
        try:
            return await self._provider.summarize(request)
        except self._waits:
            raise
        except ProviderError as error:
            return await self._fall_back(request, error)

    async def check(self) -> None:
        await self._provider.check()

    async def close(self) -> None:
        await self._provider.close()
        await self._fallback.close()

    async def _fall_back(self, request: SummaryRequest, error: ProviderError) -> Summary:
        log.warning(
            "summary falls back",
            stage="summarize",
            error_type=error.error_type,
            problem=str(error),
            episode_id=request.episode.episode_id,
        )
        summary = await self._fallback.summarize(request)
        quality = summary.quality.model_copy(update={"source": "fallback", "reason": error.error_type})
        return replace(summary, quality=quality, usage=vars(error).get("usage", Usage()))
