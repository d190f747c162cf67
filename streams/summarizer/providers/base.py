"""What every summary provider offers, and what it is given."""

from dataclasses import dataclass
from typing import Protocol

from afterword.schemas import EpisodeClosed, Quality, Usage

MAX_SUMMARY_LENGTH = 1000
"""Characters of the long summary, unless the settings say otherwise."""


@dataclass(frozen=True)
class SummaryRequest:
    """All that a provider may read."""

    episode: EpisodeClosed
    previous_rolling: str
    """The conversation so far, in words; empty for its first episode."""
    rolling_tokens: int
    """What the rolling summary may have at most."""
    problem: str | None = None
    """What was wrong with the summary that was made of it before, in words for an LLM."""
    fresh: bool = False
    """An answer that was given to the same question before will not do: it was refused."""
    max_summary_length: int = MAX_SUMMARY_LENGTH
    """Characters that the long summary may have."""
    wants_rolling: bool = True
    """False: the rolling summary stays as it is this time, so the LLM need not be asked for it."""


@dataclass(frozen=True)
class Summary:
    """Four texts that can be stored as they are: not empty, no control tokens, within their lengths."""

    title: str
    """At most 60 characters."""
    short_summary: str
    """1–2 sentences, at most 400 characters."""
    long_summary: str
    """3–8 sentences, at most the request's `max_summary_length`."""
    rolling_summary: str
    """The conversation so far, this episode included where `wants_rolling`; at most the request's `rolling_tokens`."""
    quality: Quality
    model: str
    usage: Usage
    """Tokens of every call that was made for it, the unusable answers included."""
    prompt_version: str | None = None
    """What the LLM was asked; None where none was."""


class Provider(Protocol):
    """Writes summaries; may be used for several episodes at a time."""

    name: str

    async def summarize(self, request: SummaryRequest) -> Summary:
        """Raises: ProviderError, of which ProviderMisconfigured means that a retry cannot help."""
        ...

    async def check(self) -> None:
        """Reachable and configured? Raises: ProviderError."""
        ...

    async def close(self) -> None:
        """Lets go of connections; the provider cannot be used afterwards."""
        ...
