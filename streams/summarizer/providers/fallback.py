"""What happens when the LLM gives no usable answer: a summary all the same, marked as what it is."""

from dataclasses import replace

import structlog

from schemas import Quality, Usage
from streams.errors import ProviderError, ProviderMisconfigured
from streams.summarizer.providers.base import Provider, Summary, SummaryRequest

log = structlog.get_logger()


class WithFallback:
    """A Provider that fails only where an operator has to act; elsewhere another one stands in."""

    def __init__(self, provider: Provider, fallback: Provider) -> None:
        self.name = provider.name
        self._provider = provider
        self._fallback = fallback

    async def summarize(self, request: SummaryRequest) -> Summary:
        """Raises: ProviderMisconfigured, on which the episode must wait."""
        try:
            return await self._provider.summarize(request)
        except ProviderMisconfigured:
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
        quality = Quality(source="fallback", reason=error.error_type, truncated=summary.quality.truncated)
        return replace(summary, quality=quality, usage=vars(error).get("usage", Usage()))
