"""No summary is passed on before it has been checked against its source."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

import structlog

from afterword.schemas import EpisodeMessage, Usage
from afterword.streams.errors import ProviderError, SummaryRefused
from afterword.streams.settings import Quality
from afterword.streams.summarizer.providers.base import Provider, Summary, SummaryRequest
from afterword.streams.summarizer.providers.endpoint import total
from afterword.streams.summarizer.quality import (
    LONG_SENTENCES,
    SHORT_SENTENCES,
    Assessment,
    Problem,
    QualityRules,
    Source,
    Texts,
    assess,
)
from afterword.streams.summarizer.sentences import first_sentences

STAGE = "check"
ATTEMPTS = 2
DECIMALS = 4

Count = Callable[[str], None]
"""Is told the reason of each refusal."""

log = structlog.get_logger()


def not_counted(_: str) -> None:
    """Where nobody counts."""


class Checked:
    """A Provider that measures every summary, and refuses an LLM's that fails: it may try once more, told why.

    What no LLM wrote is measured only: it is the last resort.
    """

    def __init__(
        self, provider: Provider, quality: Quality, count: Count = not_counted, instructions: str = ""
    ) -> None:
        """`instructions`: what the provider tells its model, of which no summary should repeat anything."""
        self.name = provider.name
        self._provider = provider
        self._enabled = quality.enabled
        self._rules = QualityRules(quality.min_grounding, quality.strict_figures)
        self._count = count
        self._instructions = instructions

    async def summarize(self, request: SummaryRequest) -> Summary:
        """Raises: ProviderError; its `usage` is that of all attempts."""
        used, asked = Usage(), request
        while True:
            summary, assessment = await self._attempt(asked, used)
            if not assessment.problems or not self._may_refuse(summary):
                return summary
            worst, was_kept, used = self._refused(request, assessment), summary.usage == used, summary.usage
            if asked is not request and (asked.fresh or not was_kept):
                raise SummaryRefused(reason=worst.reason, problem=worst.feedback, usage=used)
            told = "; ".join(problem.feedback for problem in assessment.problems)
            # a kept answer that is refused again must be asked for anew, or no later revision would ever get another
            asked = replace(request, problem=told, fresh=asked is not request)

    async def check(self) -> None:
        await self._provider.check()

    async def close(self) -> None:
        await self._provider.close()

    async def _attempt(self, request: SummaryRequest, used: Usage) -> tuple[Summary, Assessment]:
        """`used`: by the attempt before."""
        try:
            made = await self._provider.summarize(request)
        except ProviderError as error:
            vars(error)["usage"] = total(used, vars(error).get("usage", Usage()))
            raise
        summary = replace(trimmed(made), usage=total(used, made.usage))
        assessment = await self._assess(request, summary)
        measured = {"grounding": round(assessment.grounding, DECIMALS), "unsupported": assessment.unsupported}
        return replace(summary, quality=summary.quality.model_copy(update=measured)), assessment

    async def _assess(self, request: SummaryRequest, summary: Summary) -> Assessment:
        source, texts = source_of(request, self._instructions), texts_of(request, summary)
        # in a thread: the first one loads models, and a huge source takes its time, in which other lanes go on
        return await asyncio.to_thread(assess, source, texts, self._rules)

    def _may_refuse(self, summary: Summary) -> bool:
        return self._enabled and summary.quality.source == "llm"

    def _refused(self, request: SummaryRequest, assessment: Assessment) -> Problem:
        worst = assessment.problems[0]
        self._count(worst.reason)
        log.warning(
            "summary refused",
            stage=STAGE,
            error_type=worst.reason,
            grounding=round(assessment.grounding, DECIMALS),
            episode_id=request.episode.episode_id,
        )
        return worst


def trimmed(summary: Summary) -> Summary:
    """With at most so many sentences as its texts should have: to cut is better than to refuse."""
    if summary.quality.source != "llm":
        return summary
    return replace(
        summary,
        short_summary=first_sentences(summary.short_summary, SHORT_SENTENCES),
        long_summary=first_sentences(summary.long_summary, LONG_SENTENCES[1]),
    )


def source_of(request: SummaryRequest, instructions: str) -> Source:
    """All that the summary's writer was shown. What the rolling summary holds already was checked when it was made."""
    messages = request.episode.messages
    roles = dict.fromkeys(message.role for message in messages)
    return Source(
        episode=_contents(messages),
        context="\n".join((request.previous_rolling, _contents(request.episode.overlap))),
        by_speaker=tuple(_contents(m for m in messages if m.role == role) for role in roles),
        carried=request.previous_rolling,
        instructions=instructions,
    )


def texts_of(request: SummaryRequest, summary: Summary) -> Texts:
    rolling = summary.rolling_summary if request.wants_rolling else ""
    return Texts(summary.title, summary.short_summary, summary.long_summary, rolling)


def _contents(messages: Iterable[EpisodeMessage]) -> str:
    return "\n".join(message.content for message in messages)
