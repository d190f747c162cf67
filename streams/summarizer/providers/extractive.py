"""The provider that needs no network and no model, and that stands in for those that do."""

import asyncio

from afterword.schemas import Quality, Usage
from afterword.streams.summarizer.extractive import summarize
from afterword.streams.summarizer.extractive.ranking import MAX_MESSAGE_CHARACTERS
from afterword.streams.summarizer.providers.base import Summary, SummaryRequest

REASON = "extractive_provider"
"""A summary without an LLM is always marked, also where none was wanted."""


class ExtractiveProvider:
    """Never fails; the same request always gives the same summary."""

    name = "extractive"

    async def summarize(self, request: SummaryRequest) -> Summary:
        # in a thread: a very long message takes some hundred milliseconds, in which other lanes want to go on
        texts = await asyncio.to_thread(
            summarize, request.episode, request.previous_rolling, request.rolling_tokens, request.max_summary_length
        )
        truncated = any(len(message.content) > MAX_MESSAGE_CHARACTERS for message in request.episode.messages)
        return Summary(
            title=texts.title,
            short_summary=texts.short_summary,
            long_summary=texts.long_summary,
            rolling_summary=texts.rolling_summary,
            quality=Quality(source="fallback", reason=REASON, truncated=truncated),
            model=self.name,
            usage=Usage(),
        )

    async def check(self) -> None:
        """There is nothing that could be missing."""

    async def close(self) -> None:
        """There is nothing to let go of."""
