"""Redoes summaries with the current prompt and model: it marks them as due, and the summarizers replace them.

The summarizers' timer, which also replaces fallbacks, requests what is due, a few at a time and within the budgets. A
trial compares a candidate prompt or model with the stored summaries first, through the summarizer's path but without
storing.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Final

from opentelemetry.trace import NoOpTracer
from pydantic import ValidationError

from afterword.schemas import Usage
from afterword.schemas.base import message_key
from afterword.schemas.summaries import OK, Calls, total
from afterword.streams.errors import (
    AfterwordError,
    BudgetExhausted,
    ConfigurationError,
    ProviderError,
    ProviderUnavailable,
)
from afterword.streams.installed import running_version
from afterword.streams.settings import Budget, Settings, SummarizerSettings, variable
from afterword.streams.stores.episodes import EpisodeStore, StoredEpisode, all_episodes, living
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.opening import open_stores
from afterword.streams.summarizer.agent import summary_rules
from afterword.streams.summarizer.conversations import Conversations, Scope
from afterword.streams.summarizer.providers import Maker, maker_of
from afterword.streams.summarizer.reconciler import current, episode_of
from afterword.streams.summarizer.summarizer import (
    Summarizer,
    instructions,
    make_summarizer,
    source_of,
)
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from afterword.streams.summarizer.timers import RedoCounts, mark_as_due, was_refused
from afterword.streams.tasks import gather_or_cancel
from afterword.streams.telemetry.metrics import Metrics
from afterword_text.gate import assess
from afterword_text.tokens import count_tokens


def today_of(settings: Settings) -> Maker:
    """Return the current prompt and model. Raises: ConfigurationError if there is no LLM."""
    if settings.llm.provider == "extractive":
        raise ConfigurationError(setting=variable(("llm", "provider")), problem="extractive: there is no LLM to ask")
    return maker_of(settings)


async def redo(
    settings: Settings, since: datetime | None, conversation_id: str | None, limit: int | None, *, refused: bool = False
) -> RedoCounts:
    """Have up to `limit` summaries redone; 0 only counts them. Those whose messages have expired are left out.

    Raises: ConfigurationError, StoreUnavailable.
    """
    today, archived_since = today_of(settings), settings.retention.messages_before(datetime.now(UTC))
    since = max(filter(None, (since, archived_since)), default=None)
    async with open_stores(settings) as stores:
        is_wanted = was_refused if refused else None
        return await mark_as_due(stores.episodes, today, since, conversation_id, limit, is_wanted)


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
    usage: Usage
    short_summary: str = ""
    long_summary: str = ""
    grounding: float = 0.0
    unsupported: int = 0
    """Count of names, numbers and dates that are not in the messages."""
    refused: str | None = None
    """Why the gate refuses it, or why there is none; None if it is good."""


MEASURES: Final[Mapping[str, Callable[[TrialSummary], float | None]]] = {
    "refused": lambda made: made.refused is not None,
    "grounding": lambda made: made.grounding if made.long_summary else None,
    "unsupported": lambda made: made.unsupported if made.long_summary else None,
    "tokens of long summaries": lambda made: count_tokens(made.long_summary) or None,
    "tokens of short summaries": lambda made: count_tokens(made.short_summary) or None,
    "tokens of prompts": lambda made: made.usage.prompt_tokens or None,
    "tokens of answers": lambda made: made.usage.completion_tokens if made.usage.prompt_tokens else None,
}
"""What is compared: each is a mean over the summaries for which it is not None."""


@dataclass(frozen=True)
class Trial:
    """One episode, summarized by both."""

    episode_id: str
    stored: TrialSummary
    candidate: TrialSummary


@dataclass(frozen=True)
class Comparison:
    trials: Sequence[Trial]
    """The trials, worst first."""
    left_out: int = 0
    """Number of chosen episodes whose messages are no longer in the archive."""

    @cached_property
    def measures(self) -> dict[str, tuple[float, float]]:
        """The means of the stored summaries and of the candidate's, by the names in MEASURES."""
        stored, candidate = [trial.stored for trial in self.trials], [trial.candidate for trial in self.trials]
        return {name: (_mean(measure, stored), _mean(measure, candidate)) for name, measure in MEASURES.items()}

    @property
    def is_worse(self) -> bool:
        refused, grounding = self.measures["refused"], self.measures["grounding"]
        return refused[1] - refused[0] > TOLERANCE or grounding[0] - grounding[1] > TOLERANCE


def _mean(measure: Callable[[TrialSummary], float | None], summaries: Sequence[TrialSummary]) -> float:
    return fmean([value for summary in summaries if (value := measure(summary)) is not None] or [0.0])


async def sample(episodes: EpisodeStore, size: int) -> list[StoredEpisode]:
    """Choose summaries written by an LLM at random, but the same ones each time. Raises: StoreUnavailable."""
    names = [
        stored.summary.episode_id
        async for stored in all_episodes(episodes)
        if isinstance(stored, StoredEpisode) and stored.summary.quality.source == "llm"
    ]
    chosen = Random(SEED).sample(names, min(size, len(names)))  # noqa: S311 – this is sampling, not cryptography
    found = living((await episodes.lookup(chosen)).values())
    return [found[name] for name in chosen if name in found]


async def summarize_again(
    settings: Settings,
    episodes: EpisodeStore,
    messages: MessageArchive,
    summarizer: Summarizer,
    chosen: Sequence[StoredEpisode],
    progress: Callable[[int], None],
) -> Comparison:
    """Summarize the episodes with the candidate's settings, and judge the stored and the new texts by the same gate.

    Raises: NothingToCompare, StoreUnavailable; ProviderError if the LLM does not answer at all.
    """
    conversations = Conversations(episodes, summary_rules(settings))
    everything_asked = instructions(settings)
    slots = asyncio.Semaphore(settings.llm.max_concurrency)
    trials: list[Trial] = []

    async def judged(request: SummaryRequest, made: Summary) -> TrialSummary:
        source, least = source_of(request, everything_asked), settings.quality.min_grounding
        assessment = await asyncio.to_thread(assess, source, made, least)
        verdict = (
            assessment.grounding,
            len(assessment.unsupported),
            assessment.problems[0].reason if assessment.problems else None,
        )
        return TrialSummary(made.model, made.usage, made.short_summary, made.long_summary, *verdict)

    async def candidate(request: SummaryRequest) -> TrialSummary:
        try:
            return await judged(request, await summarizer.summarize_without_fallback(request))
        except (ProviderUnavailable, BudgetExhausted):
            raise
        except ProviderError as error:
            return TrialSummary(maker_of(settings).model, total(request.calls), refused=error.error_type)

    async def add(stored: StoredEpisode) -> None:
        async with slots:
            about, ids = stored.summary, (*stored.core_ids, *stored.overlap_ids)
            keys = {message_key(about.conversation_id, message_id, about.tenant_id): message_id for message_id in ids}
            states = {keys[key]: state for key, state in (await messages.states(list(keys))).items()}
            read = current(stored.core_ids, stored.overlap_ids, {}, states)
            if read.expired or not read.core:
                return
            history = await conversations.history(Scope.of(about), stored.ordinal)
            request = history.request(episode_of(stored, read))
            names = ("title", "short_summary", "long_summary", "quality", "model", "prompt_version")
            same = {name: getattr(about, name) for name in names}
            before = await judged(request, Summary(**same, calls=(Calls(about.model, OK, about.usage),)))
            trials.append(Trial(about.episode_id, before, await candidate(request)))
            progress(len(trials))

    await gather_or_cancel(*(add(stored) for stored in chosen))
    if not trials:
        raise NothingToCompare
    trials.sort(key=lambda t: (t.candidate.refused is None, t.candidate.grounding - t.stored.grounding))
    return Comparison(trials, left_out=len(chosen) - len(trials))


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
        return await summarize_again(candidate, stores.episodes, stores.messages, summarizer, chosen, progress)
