"""Reranking: a server is asked for the order of a search's best hits.

One call a search, and no second one. Where it fails, the search answers all the same, in the order it had before.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

from afterword.recalling.matches import READ_CHARACTERS, excerpt
from afterword.streams.errors import (
    ConfigurationError,
    ProviderError,
    ProviderMisconfigured,
    ProviderUnavailable,
)
from afterword.streams.settings import MOST_RERANKED, Redaction, RerankerSettings, Settings, variable
from afterword.streams.text.search_words import Word

if TYPE_CHECKING:  # an agent with the extra `memory` has no metrics
    from afterword.streams.telemetry import Metrics

PAUSE_SECONDS = 5.0
"""Time for which a server that was away, slow or misconfigured is not asked again: each search waited for it."""
LONGEST_PAUSE_SECONDS = 60.0
DOCUMENT_CHARACTERS = 2000
"""Most characters that are shown of an episode: messages, then summary."""
MARGIN_CHARACTERS = 4000
"""Characters at the end of a message that was cut when it was read. The server is not shown them, because redaction
would miss half an address."""

log = structlog.get_logger(__name__)

Mask = Callable[[str], str]
MakeMask = Callable[[], Mask]
"""Makes what a server is shown of the texts of one search: the same value has the same placeholder in all of them."""


class Document(NamedTuple):
    """An episode that a server is to rank: the messages that match, each up to READ_CHARACTERS, and its summary."""

    messages: Sequence[str]
    summary: str


class Reranker(Protocol):
    """Ranks texts; may be asked by several searches at a time."""

    async def order(self, query: str, texts: Sequence[str]) -> list[int]:
        """Ask once for the places of the texts, best first; some may be missing, none is there twice.

        Raises: ProviderError.
        """
        ...

    async def close(self) -> None: ...


class Reranking:
    """Asks for the order of a search's best hits."""

    candidates = MOST_RERANKED
    """Episodes that the server is shown."""

    def __init__(
        self,
        reranker: Reranker,
        settings: RerankerSettings,
        make_mask: MakeMask | None = None,
        metrics: "Metrics | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make_mask`: None shows texts as they are. `clock`: seconds, comparable with each other only."""
        self._reranker = reranker
        self._settings = settings
        self._make_mask = make_mask
        self._metrics = metrics
        self._clock = clock
        self._paused_until = -inf

    async def order(self, query: str, documents: Sequence[Document], words: Sequence[Word]) -> list[int]:
        """Return the places of the documents, best first; some may be missing, and all are if the server fails.

        A failure is logged and counted. `words`: those of the query, which decide what is shown of a long message.
        """
        if len(documents) < 2:
            return []
        if self._clock() < self._paused_until:
            self._count("paused")
            return []
        # in a thread, because it computes
        question, texts = await asyncio.to_thread(self._question, query, documents, words)
        began = self._clock()
        try:
            order = await self._in_time(question, texts)
        except ProviderError as error:
            self._pause_after(error)
            self._count(error.error_type, self._clock() - began)
            problem = error.problem or error.error_type
            log.warning("reranking_failed", stage="recall", error_type=error.error_type, problem=problem)
            return []
        self._count("ok", self._clock() - began)
        return order

    async def close(self) -> None:
        await self._reranker.close()

    def _question(self, query: str, documents: Sequence[Document], words: Sequence[Word]) -> tuple[str, list[str]]:
        mask = self._make_mask() if self._make_mask else str
        texts = []
        for document in documents:
            shown = [excerpt(_without_margin(message, mask), words) for message in document.messages]
            texts.append("\n".join([*shown, mask(document.summary)])[:DOCUMENT_CHARACTERS])
        return mask(query), texts

    async def _in_time(self, query: str, texts: Sequence[str]) -> list[int]:
        seconds = self._settings.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._reranker.order(query, texts)
        except TimeoutError:
            raise ProviderUnavailable(problem=f"it did not answer in {seconds:g} s") from None

    def _pause_after(self, error: ProviderError) -> None:
        if isinstance(error, ProviderUnavailable | ProviderMisconfigured):
            asked = error.retry_after if isinstance(error, ProviderUnavailable) else 0.0
            self._paused_until = self._clock() + min(max(asked, PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)

    def _count(self, outcome: str, seconds: float | None = None) -> None:
        if self._metrics is not None:
            self._metrics.rerankings.labels(outcome).inc()
            if seconds is not None:
                self._metrics.reranking_seconds.observe(seconds)


def _without_margin(message: str, mask: Mask) -> str:
    masked = mask(message)
    return masked[:-MARGIN_CHARACTERS] if len(message) >= READ_CHARACTERS else masked


def open_reranking(settings: Settings, metrics: "Metrics | None" = None) -> Reranking | None:
    """Make the reranking of these settings; None without a server. It connects with its first question.

    Raises: ConfigurationError.
    """
    if settings.reranker.base_url is None:
        return None
    from afterword.recalling.endpoint import RerankServer  # imported here because its client is slow to load

    return Reranking(RerankServer(settings.reranker), settings.reranker, mask_of(settings.redaction), metrics)


def mask_of(redaction: Redaction) -> MakeMask | None:
    """Make the masks of a deployment that redacts: numbered placeholders, or those that the stores have; else None.

    Raises: ConfigurationError.
    """
    if redaction.where == "off":
        return None
    try:
        # imported here because the extra `memory` has none of its libraries
        from afterword.streams.summarizer.masking import Masking

        redactor = redaction.redactor()
    except ModuleNotFoundError:
        problem = "redaction of what a reranker is shown needs: pip install '.[worker]' in a checkout"
        raise ConfigurationError(setting=variable(("redaction", "where")), problem=problem) from None
    if redaction.where == "everywhere":
        return lambda: redactor.redacted
    return lambda: Masking(redactor).masked
