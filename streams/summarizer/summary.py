"""A summary, and the request that it answers."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Any, Self, TypeVar

from afterword.schemas import EpisodeClosed, EpisodeMessage, Fact, Quality, Usage
from afterword.schemas.summaries import Calls, total
from afterword.streams.summarizer.retrying import Deadline
from afterword_text.messages import PersonalFact
from afterword_text.texts import FIELDS, MAX_SUMMARY_LENGTH, Texts

SHORT_SENTENCES = 2
"""Maximum number of sentences of the short summary."""
DECIMALS = 4
"""Digits of a grounding after the point."""
QUICKLY_READ_CHARACTERS = 2_000
"""Texts of this length are read in a few milliseconds."""
EXTRACTIVE = "extractive_provider"
"""`quality.reason` if no LLM is configured: a summary without an LLM is always marked."""

T = TypeVar("T")


@dataclass(frozen=True)
class SummaryRules:
    """The longest texts of a summary, and how its times are shown."""

    rolling_max_tokens: int
    """Tokens that complete a row of the rolling summary."""
    max_summary_length: int = MAX_SUMMARY_LENGTH
    """Characters of the long summary."""
    zone: tzinfo = UTC
    """Time zone in which the messages' days count."""

    @property
    def row_tokens(self) -> int:
        """At most 1.25 × `rolling_max_tokens`: a text that cannot exceed the limit would never complete its row."""
        return self.rolling_max_tokens * 5 // 4


@dataclass(frozen=True)
class SummaryRequest:
    """Everything that a provider may read."""

    episode: EpisodeClosed
    previous_rolling: str
    """Rolling summary before this episode; empty for the first episode of a conversation."""
    rolling_tokens: int
    """Maximum number of tokens of the new rolling summary."""
    problem: str | None = None
    """What was wrong with the previous summary, in words for an LLM."""
    max_summary_length: int = MAX_SUMMARY_LENGTH
    """Maximum number of characters of the long summary."""
    wants_rolling: bool = True
    """False if the rolling summary stays as it is this time, so that the LLM need not be asked for it."""
    deadline: Deadline = field(default_factory=Deadline, compare=False, repr=False)
    """Time for everything that is asked because of this request."""
    calls: list[Calls] = field(default_factory=list, compare=False, repr=False)
    """All calls so far that were made because of this request; more are added."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the texts of a JSON answer."""
        return FIELDS if self.wants_rolling else FIELDS[:3]

    async def read(self, call: Callable[[], T]) -> T:
        """Call something that reads these texts: in a thread if they are long, so that other lanes continue."""
        messages = (*self.episode.overlap, *self.episode.messages)
        characters = len(self.previous_rolling) + sum(len(message.content) for message in messages)
        return call() if characters <= QUICKLY_READ_CHARACTERS else await asyncio.to_thread(call)


@dataclass(frozen=True, kw_only=True)
class Summary(Texts):
    """Texts, how they were made, and the facts of the same messages."""

    quality: Quality
    model: str
    prompt_version: str | None = None
    """Version of the prompt; None if no LLM was asked."""
    calls: tuple[Calls, ...] = ()
    """Every call that was made for it, including unusable answers."""
    facts: tuple[Fact, ...] = ()
    """What the messages say about people."""

    @property
    def usage(self) -> Usage:
        return total(self.calls)

    @classmethod
    def of(cls, texts: Texts, stated: Iterable[PersonalFact] = (), **made: Any) -> Self:
        """Return a summary with these texts and facts."""
        facts = tuple(Fact(**fact._asdict()) for fact in stated)
        return cls(texts.title, texts.short_summary, texts.long_summary, texts.rolling_summary, facts=facts, **made)


def is_replaceable(quality: Quality) -> bool:
    """Return whether a fallback stands in for an LLM; if none is configured, there is nothing to replace it with."""
    return quality.source == "fallback" and quality.reason != EXTRACTIVE


def in_zone(episode: EpisodeClosed, zone: tzinfo) -> EpisodeClosed:
    """Convert the times of an episode's messages to the zone in which its summary counts days.

    They remain the same instants.
    """
    if zone is UTC:
        return episode

    def shown(message: EpisodeMessage) -> EpisodeMessage:
        try:
            return message.model_copy(update={"sent_at": message.sent_at.astimezone(zone)})
        except OverflowError:  # on the first or last day that Python can represent
            return message

    messages, overlap = tuple(map(shown, episode.messages)), tuple(map(shown, episode.overlap))
    return episode.model_copy(update={"messages": messages, "overlap": overlap})
