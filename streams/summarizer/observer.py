"""Who is told how the summarizer fares; nobody, unless somebody asks to be."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the providers import this module
    from afterword.streams.summarizer.providers.endpoint import Reply

Answered = Callable[["Reply"], None]


def _nobody(_: "Reply") -> None: ...


class Observer:
    """Does nothing; override what is of interest. Nothing of it may raise, nor let through what it is told."""

    def question(self, _endpoint: str, _model: str | None) -> AbstractContextManager[Answered]:
        """Around one question to an LLM's server, with the wait for a turn. A reply is told to what it gives."""
        return nullcontext(_nobody)

    def took(self, seconds: float) -> None:
        """An HTTP request of an LLM, without the wait for a turn."""

    def retried(self, error_type: str) -> None:
        """A question is put again."""

    def refused(self, reason: str) -> None:
        """A summary of the LLM is not passed on."""

    def used(self, budget: str, hour: datetime, tokens: int, limit: int) -> None:
        """What the counter of a budget (`tenant`, one of them, or `all`) holds in that hour, and what it may."""

    def exhausted(self, budget: str) -> None:
        """The LLM is not asked, because nothing is left of this budget."""
