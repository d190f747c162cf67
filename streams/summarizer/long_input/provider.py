"""Summaries of episodes that are longer than what an LLM reads at a time: of their parts, and of those together."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import Protocol

from afterword.schemas import EpisodeMessage, Usage
from afterword.streams.errors import ProviderError
from afterword.streams.summarizer.long_input.plan import Plan, Planner
from afterword.streams.summarizer.providers.base import Provider, Summary, SummaryRequest
from afterword.streams.summarizer.providers.endpoint import total

FEW_TOKENS = 4000
"""Of an episode: planning takes less than handing it to a thread."""
COMBINED_AT_LEAST = 2
"""Summaries of parts that one call combines: the parts become fewer each time."""


class Roomy(Provider, Protocol):
    """A provider that knows how much it can be given."""

    def room(self, request: SummaryRequest) -> int:
        """Tokens, by our tokenizer, that the request may still grow by; negative: as many as it has too many."""
        ...


class LongInput:
    """A Provider for episodes of any length; what fits is passed on as it is.

    Parts are summarised side by side, then their summaries are summarised like an episode, if need be again in parts.
    """

    def __init__(self, provider: Roomy, tool_output_characters: int) -> None:
        self.name = provider.name
        self._provider = provider
        self._planner = Planner(provider.room, tool_output_characters)
        self._turn = asyncio.Lock()

    async def summarize(self, request: SummaryRequest) -> Summary:
        """Raises: ProviderError, with the `usage` of the parts that were summarised."""
        plan = await self._plan(request)
        if len(plan.parts) == 1:
            return _marked(await self._provider.summarize(plan.parts[0]), plan.truncated)
        # one at a time: its parts use all the calls there are, and of many none would ever get to its end
        async with self._turn:
            return _marked(await self._in_parts(request, plan.parts), plan.truncated)

    async def check(self) -> None:
        await self._provider.check()

    async def close(self) -> None:
        await self._provider.close()

    async def _plan(self, request: SummaryRequest, at_least: int = 1) -> Plan:
        if request.episode.token_count <= FEW_TOKENS:
            return self._planner.plan(request, at_least)
        # in a thread: to count the tokens of a huge episode takes some hundred milliseconds
        return await asyncio.to_thread(self._planner.plan, request, at_least)

    async def _in_parts(self, request: SummaryRequest, parts: Sequence[SummaryRequest]) -> Summary:
        summaries = await self._each(parts)
        used = reduce(total, (summary.usage for summary in summaries))
        with counting(used):
            summary = await self._combined(combining(request, parts, summaries), len(parts))
        return replace(summary, usage=total(used, summary.usage))

    async def _combined(self, request: SummaryRequest, parts: int) -> Summary:
        plan = await self._plan(request, COMBINED_AT_LEAST)
        if len(plan.parts) == 1:
            return await self._provider.summarize(plan.parts[0])
        if len(plan.parts) >= parts:
            raise ProviderError(problem="llm.context_tokens has no room for what is asked")
        return await self._in_parts(request, plan.parts)

    async def _each(self, requests: Sequence[SummaryRequest]) -> list[Summary]:
        tasks = [asyncio.ensure_future(self._provider.summarize(request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        except ProviderError as error:
            with counting(reduce(total, map(_usage, tasks), Usage())):
                raise error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def combining(request: SummaryRequest, parts: Sequence[SummaryRequest], summaries: Sequence[Summary]) -> SummaryRequest:
    """A request in which the parts' summaries take the place of the messages."""
    messages = tuple(
        EpisodeMessage(
            id=f"part-{number}",
            role="assistant",
            content=f"Summary of part {number} of {len(parts)}: {summary.long_summary}",
            sent_at=part.episode.ended_at,
            user_id=request.episode.user_id,
        )
        for number, (part, summary) in enumerate(zip(parts, summaries, strict=True), 1)
    )
    return replace(request, episode=request.episode.model_copy(update={"messages": messages}))


@contextmanager
def counting(used: Usage) -> Iterator[None]:
    """An error that leaves here tells these tokens, too."""
    try:
        yield
    except ProviderError as error:
        vars(error)["usage"] = total(used, vars(error).get("usage", Usage()))
        raise


def _marked(summary: Summary, truncated: bool) -> Summary:
    if not truncated:
        return summary
    return replace(summary, quality=summary.quality.model_copy(update={"truncated": True}))


def _usage(task: asyncio.Future[Summary]) -> Usage:
    succeeded = task.done() and not task.cancelled() and task.exception() is None
    return task.result().usage if succeeded else Usage()
