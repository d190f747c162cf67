"""Compares a candidate prompt or model with the stored summaries, through the summarizer's path but without storing."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from opentelemetry.trace import NoOpTracer
from pydantic import ValidationError

from afterword.operating.redo import as_archived, today_of
from afterword.streams.errors import AfterwordError, ConfigurationError, ProviderError
from afterword.streams.settings import Budget, QualitySettings, Settings, SummarizerSettings
from afterword.streams.stores.episodes import EpisodeStore, StoredEpisode, all_episodes, living
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.opening import open_stores
from afterword.streams.summarizer.checking import source_of, texts_of
from afterword.streams.summarizer.conversations import Conversations, Scope
from afterword.streams.summarizer.current import of_stored
from afterword.streams.summarizer.fallbacks import TRANSIENT
from afterword.streams.summarizer.providers import Maker, maker_of
from afterword.streams.summarizer.quality.assess import Assessment, assess
from afterword.streams.summarizer.summarizer import Summarizer, instructions, make_summarizer, usage_of
from afterword.streams.summarizer.summary import Summary, SummaryRequest, SummaryRules
from afterword.streams.summarizer_app import summary_rules
from afterword.streams.tasks import gather_or_cancel
from afterword.streams.telemetry import Metrics
from afterword.streams.text.tokens import count_tokens
from afterword.version import running_version

SEED = 0
TOLERANCE = 0.02
"""A candidate is worse if more than this share of summaries is additionally refused, or if average grounding drops by
more. An LLM never answers exactly the same twice, so one of fifty summaries may fail."""


class NothingToCompare(AfterwordError):
    """there is no stored LLM summary whose messages are still in the archive"""


@dataclass(frozen=True)
class TrialSummary:
    """A summary and the quality gate's verdict."""

    model: str
    prompt_version: str | None
    title: str
    short_summary: str
    long_summary: str
    prompt_tokens: int
    answer_tokens: int
    grounding: float
    unsupported: tuple[str, ...]
    refused: str | None
    """Why the gate refuses it, or why there is none; None if it is good."""


@dataclass(frozen=True)
class Trial:
    """One episode, summarized by both."""

    episode_id: str
    stored: TrialSummary
    candidate: TrialSummary


@dataclass(frozen=True)
class Measures:
    """One side of the comparison, over all episodes."""

    model: str
    prompt_version: str | None
    summaries: int
    refused: int
    grounding: float
    """Mean grounding, 0 to 1."""
    unsupported: float
    """Mean number of names, numbers and dates per summary that are not in the source."""
    long_tokens: float
    """Mean number of tokens in the long summary."""
    short_tokens: float
    prompt_tokens: float
    """Mean number of prompt tokens per summary."""
    answer_tokens: float


@dataclass(frozen=True)
class Comparison:
    trials: Sequence[Trial]
    """The trials, worst first."""
    stored: Measures
    candidate: Measures
    not_archived: int = 0
    """Number of sampled episodes whose messages are no longer in the archive."""

    @property
    def is_worse(self) -> bool:
        more_refused = (self.candidate.refused - self.stored.refused) / len(self.trials)
        return more_refused > TOLERANCE or self.stored.grounding - self.candidate.grounding > TOLERANCE


def measures(summaries: Sequence[TrialSummary], maker: Maker) -> Measures:
    """Compute the means over the summaries. Failed ones have no text or grounding to include."""
    there = [made for made in summaries if made.long_summary]
    asked = [made for made in summaries if made.prompt_tokens]
    return Measures(
        *maker,
        summaries=len(summaries),
        refused=sum(made.refused is not None for made in summaries),
        grounding=_mean(made.grounding for made in there),
        unsupported=_mean(len(made.unsupported) for made in there),
        long_tokens=_mean(count_tokens(made.long_summary) for made in there),
        short_tokens=_mean(count_tokens(made.short_summary) for made in there),
        prompt_tokens=_mean(made.prompt_tokens for made in asked),
        answer_tokens=_mean(made.answer_tokens for made in asked),
    )


def _mean(numbers: Any) -> float:
    found = [float(number) for number in numbers]
    return fmean(found) if found else 0.0


async def sample(episodes: EpisodeStore, size: int) -> list[StoredEpisode]:
    """Choose summaries written by an LLM at random, but the same ones each time. Raises: StoreUnavailable."""
    names = [
        stored.summary.episode_id
        async for stored in all_episodes(episodes)
        if isinstance(stored, StoredEpisode) and stored.summary.quality.source == "llm"
    ]
    chosen = Random(SEED).sample(names, min(size, len(names)))  # noqa: S311 – a sample needs no secret
    found = living((await episodes.lookup(chosen)).values())
    return [found[name] for name in chosen if name in found]


@dataclass(frozen=True)
class TrialRun:
    """Summarizes stored episodes with a candidate, as the summarizer would, and judges both texts by the same gate."""

    episodes: EpisodeStore
    messages: MessageArchive
    summarizer: Summarizer
    maker: Maker
    """The candidate."""
    rules: SummaryRules
    quality: QualitySettings
    instructions: str
    """Everything that the candidate's prompts contain."""
    at_a_time: int

    async def run(self, chosen: Sequence[StoredEpisode], progress: Callable[[int], None]) -> Comparison:
        """Run the trials.

        Raises: NothingToCompare, StoreUnavailable; ProviderError if the LLM does not answer at all.
        """
        trials: list[Trial] = []
        slots = asyncio.Semaphore(self.at_a_time)

        async def add(stored: StoredEpisode) -> None:
            async with slots:
                if (request := await self._request(stored)) is not None:
                    trials.append(await self._try(stored, request))
                    progress(len(trials))

        await gather_or_cancel(*(add(stored) for stored in chosen))
        if not trials:
            raise NothingToCompare
        trials.sort(key=lambda t: (t.candidate.refused is None, t.candidate.grounding - t.stored.grounding))
        before, after = [trial.stored for trial in trials], [trial.candidate for trial in trials]
        makers = {Maker(made.model, made.prompt_version) for made in before}
        stored = measures(before, makers.pop() if len(makers) == 1 else Maker("several", None))
        return Comparison(trials, stored, measures(after, self.maker), len(chosen) - len(trials))

    async def _request(self, stored: StoredEpisode) -> SummaryRequest | None:
        """Build the request that a summarizer would make now; None if the messages are not in the archive."""
        read = await as_archived(self.messages, stored)
        if read is None:
            return None
        history = await Conversations(self.episodes, self.rules).history(Scope.of(stored.summary), stored.ordinal)
        return history.request(of_stored(stored, read), wants_rolling=False)

    async def _try(self, stored: StoredEpisode, request: SummaryRequest) -> Trial:
        names = ("title", "short_summary", "long_summary", "quality", "model", "usage", "prompt_version")
        same = {name: getattr(stored.summary, name) for name in names}
        before = Summary(**same, rolling_summary=request.previous_rolling)
        try:
            made = await self._judged(request, await self.summarizer.summarize_without_fallback(request))
        except TRANSIENT:
            raise
        except ProviderError as error:
            used = usage_of(error)
            tokens = used.prompt_tokens, used.completion_tokens
            made = TrialSummary(*self.maker, "", "", "", *tokens, 0.0, (), error.error_type)
        return Trial(stored.summary.episode_id, await self._judged(request, before), made)

    async def _judged(self, request: SummaryRequest, made: Summary) -> TrialSummary:
        source, texts = source_of(request, self.instructions), texts_of(request, made)
        found: Assessment = await asyncio.to_thread(assess, source, texts, self.quality)
        return TrialSummary(
            made.model,
            made.prompt_version,
            made.title,
            made.short_summary,
            made.long_summary,
            made.usage.prompt_tokens,
            made.usage.completion_tokens,
            found.grounding,
            tuple(found.unsupported),
            found.problems[0].reason if found.problems else None,
        )


def candidate_settings(settings: Settings, prompt: Path | None, model: str | None) -> Settings:
    """Return the candidate's settings, which use none of the budgets.

    Raises: ConfigurationError for an unusable prompt, or if there is no LLM.
    """
    today_of(settings)  # raises if there is no LLM
    llm = settings.llm.model_copy(update={"model": model} if model else {})
    summarizer = settings.summarizer
    if prompt is not None:
        try:
            summarizer = SummarizerSettings.model_validate(dict(summarizer) | {"prompt_file": prompt})
        except ValidationError as error:
            problem = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ConfigurationError(setting="the prompt", problem=problem) from None
    return settings.model_copy(update={"llm": llm, "summarizer": summarizer, "budget": Budget()})


async def compare(
    settings: Settings,
    prompt: Path | None,
    model: str | None,
    size: int,
    progress: Callable[[int], None] = lambda _: None,
) -> Comparison:
    """Summarize `size` stored episodes with the given prompt file and model, by default the current ones.

    Raises: ConfigurationError, NothingToCompare, StoreUnavailable, ProviderError.
    """
    candidate = candidate_settings(settings, prompt, model)
    async with AsyncExitStack() as closing:
        stores = await closing.enter_async_context(open_stores(candidate))
        metrics = Metrics("prompt try", running_version())
        summarizer = make_summarizer(candidate, stores.budgets, metrics, NoOpTracer())
        closing.push_async_callback(summarizer.close)
        chosen = await sample(stores.episodes, size)
        run = TrialRun(
            stores.episodes,
            stores.messages,
            summarizer,
            maker_of(candidate),
            summary_rules(candidate),
            candidate.quality,
            instructions(candidate),
            candidate.llm.max_concurrency,
        )
        return await run.run(chosen, progress)
