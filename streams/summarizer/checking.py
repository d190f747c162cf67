"""Checks an LLM's summary against its source before it is used."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

import structlog

from afterword.schemas import EpisodeMessage
from afterword.streams.settings import QualitySettings
from afterword.streams.summarizer.quality import (
    LONG_SENTENCES,
    SHORT_SENTENCES,
    Problem,
    SourceTexts,
    assess,
)
from afterword.streams.summarizer.summary import Summary, SummaryRequest, Texts
from afterword.streams.telemetry import Metrics
from afterword.streams.text.sentences import first_sentences

STAGE = "check"
DECIMALS = 4

log = structlog.get_logger()


class SummaryCheck:
    """Measures an LLM's summaries, and finds the faults for which they are refused."""

    def __init__(self, quality: QualitySettings, metrics: Metrics, instructions: str = "") -> None:
        """`instructions` are all instructions that prompts contain, which a summary must not repeat."""
        self._quality = quality
        self._metrics = metrics
        self._instructions = instructions

    async def check(self, request: SummaryRequest, made: Summary) -> tuple[Summary, Sequence[Problem]]:
        """Return the summary with its measures, and the faults for which it is refused, worst first."""
        summary = replace(  # a long text is cut instead of refused
            made,
            short_summary=first_sentences(made.short_summary, SHORT_SENTENCES),
            long_summary=first_sentences(made.long_summary, LONG_SENTENCES[1]),
        )
        source, texts = source_of(request, self._instructions), texts_of(request, summary)
        # in a thread, so that other lanes continue: the first call loads models, and a huge source takes time
        found = await asyncio.to_thread(assess, source, texts, self._quality)
        measured = {"grounding": round(found.grounding, DECIMALS), "unsupported": found.unsupported}
        summary = replace(summary, quality=summary.quality.model_copy(update=measured))
        if not found.problems or not self._quality.enabled:
            return summary, ()
        worst = found.problems[0].reason
        self._metrics.quality_rejections.labels(worst).inc()
        about = {"grounding": measured["grounding"], "episode_id": request.episode.episode_id}
        log.warning("summary_refused", stage=STAGE, error_type=worst, **about)
        return summary, found.problems


def source_of(request: SummaryRequest, instructions: str) -> SourceTexts:
    """Collect everything that the provider was shown. The previous rolling summary was checked when it was made."""
    messages = request.episode.messages
    authors = dict.fromkeys(message.author for message in messages if message.author)
    roles = dict.fromkeys(message.role for message in messages)
    return SourceTexts(
        episode=_contents(messages),
        context="\n".join((request.previous_rolling, _contents(request.episode.overlap), *authors)),
        by_speaker=tuple(_contents(m for m in messages if m.role == role) for role in roles),
        carried=request.previous_rolling,
        instructions=instructions,
        sent_at=tuple(message.sent_at for message in (*request.episode.overlap, *messages)),
    )


def texts_of(request: SummaryRequest, summary: Summary) -> Texts:
    rolling = summary.rolling_summary if request.wants_rolling else ""
    return Texts(summary.title, summary.short_summary, summary.long_summary, rolling)


def _contents(messages: Iterable[EpisodeMessage]) -> str:
    return "\n".join(message.content for message in messages)
