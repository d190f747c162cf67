"""Reranking: asks a server for the order of a search's best hits.

There is one call per search and no retry. If it fails, the search returns its hits in their original order.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Annotated, Any

import structlog
from pydantic import AliasChoices, BaseModel, Field, ValidationError

from afterword.streams.errors import (
    AnswerInvalid,
    ProviderError,
    ProviderMisconfigured,
    ProviderUnavailable,
)
from afterword.streams.settings import MOST_RERANKED, RerankerSettings

PAUSE_SECONDS = 5.0
"""A server that was unavailable, slow or misconfigured is not called again for this long, because each search would
wait."""

log = structlog.get_logger(__name__)

Mask = Callable[[str], str]
"""Turns a text into the form that the server may see."""


class _Relevance(BaseModel):
    """A document's place in the request, and its relevance."""

    index: int
    relevance_score: float = Field(allow_inf_nan=False)


class _Ranking(BaseModel):
    """A server's answer: `results`, or Voyage's `data`. Other fields are ignored."""

    results: Annotated[Sequence[_Relevance], Field(max_length=MOST_RERANKED)] = Field(
        validation_alias=AliasChoices("results", "data")
    )


def places_in(answer: Mapping[str, Any], count: int) -> list[int]:
    """Read the indices of `count` documents from an answer, most relevant first. Raises: AnswerInvalid."""
    try:
        results = _Ranking.model_validate(answer).results
    except ValidationError:  # the original error quotes the answer
        raise AnswerInvalid(problem="the response was not a ranking") from None
    places = [result.index for result in sorted(results, key=lambda result: -result.relevance_score)]
    if not places or len(set(places)) < len(places) or not all(0 <= place < count for place in places):
        raise AnswerInvalid(problem="it named no document, the same one twice, or an unknown one")
    return places


class Reranking:
    """Asks a server for the order of a search's best hits. It connects with the first question."""

    def __init__(
        self,
        settings: RerankerSettings,
        mask: Mask = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` returns seconds from any starting point. Raises: ConfigurationError."""
        # imported here because httpx takes a tenth of a second, and most searches are not reranked
        from afterword.streams.http import HttpClient

        self._settings = settings
        self._http = HttpClient(settings, "reranker", settings.base_url or "")
        self._mask = mask
        self._clock = clock
        self._paused_until = -inf

    async def order(self, query: str, documents: Sequence[Callable[[Mask], str]]) -> list[int]:
        """Return the places of the documents, best first. Some may be missing. The list is empty if the server fails.

        Failures are logged. Documents are built and masked only if the server is asked.
        """
        if len(documents) < 2:
            return []
        if self._clock() < self._paused_until:
            return []
        mask = self._mask
        # in a thread, because it is CPU-bound
        question, texts = await asyncio.to_thread(lambda: (mask(query), [document(mask) for document in documents]))
        try:
            async with asyncio.timeout(seconds := self._settings.timeout_seconds):
                order = await self.ask(question, texts)
        except (ProviderError, TimeoutError) as found:
            late = ProviderUnavailable(problem=f"it did not answer in {seconds:g} s")
            error = found if isinstance(found, ProviderError) else late
            if isinstance(error, ProviderUnavailable | ProviderMisconfigured):
                self._paused_until = self._clock() + PAUSE_SECONDS
            problem = error.problem or error.error_type
            log.warning("reranking_failed", stage="recall", error_type=error.error_type, problem=problem)
            return []
        return order

    async def ask(self, query: str, texts: Sequence[str]) -> list[int]:
        """Return the indices of the texts, most relevant first. Some may be missing, but none is repeated.

        Raises: ProviderError.
        """
        named = {"model": self._settings.model} if self._settings.model else {}
        body = {**named, "query": query, "documents": texts, "top_n": len(texts)}
        return places_in(await self._http.post("/rerank", body), len(texts))

    async def check(self) -> str:
        """Rank two short texts, and return a description of the server. Raises: ProviderError."""
        await self.ask("Which color has the sky?", ["The sky is blue.", "Two and two are four."])
        return " ".join(part for part in (self._http.address, self._settings.model) if part)

    async def close(self) -> None:
        await self._http.close()
