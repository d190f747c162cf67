"""Third stage of a search: a server for reranking, or an LLM, puts the best episodes in order by what they say.

One call a search, and no second one. Where it fails the search answers all the same, in the order of the second stage.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

from afterword.recalling.passages import WINDOW
from afterword.schemas.ids import message_key
from afterword.streams.errors import (
    AnswerInvalid,
    ConfigurationError,
    ProviderError,
    ProviderMisconfigured,
    ProviderUnavailable,
)
from afterword.streams.settings import Redaction, variable
from afterword.streams.stores.index import Query, Recalled
from afterword.streams.stores.messages import MessageArchive

if TYPE_CHECKING:  # an agent with the extra `memory` has no metrics
    from afterword.streams.telemetry import Metrics

STAGE = "recall"
PAUSE_SECONDS = 5.0
"""Time for which a reranker that was away, slow or misconfigured is not asked again: each search waited for it."""
LONGEST_PAUSE_SECONDS = 60.0
MARGIN_CHARACTERS = 4000
"""Characters of a message that are read beyond those that may be shown, and not shown: of an e-mail address that is
cut in two, redaction finds no half."""
PAUSED = "paused"

log = structlog.get_logger(__name__)


class RankedDocument(NamedTuple):
    """Text of an episode, as a reranker is shown it."""

    text: str
    ended_at: datetime


class RankingQuestion(NamedTuple):
    """Query and documents that a reranker is to put in order."""

    query: str
    documents: Sequence[RankedDocument]
    tenant_id: str | None = None


class Reranker(Protocol):
    """Puts documents in order; may be asked by several searches at a time."""

    candidates: int
    """Most documents of a question."""
    timeout_seconds: float
    """Time in which it must have answered."""

    async def order(self, question: RankingQuestion) -> list[int]:
        """Ask once for the places of the documents, the best first; not all need be there, none is there twice.

        Raises: ProviderError.
        """
        ...

    async def check(self) -> str:
        """Look whether it can be reached and answers; say what it is. Raises: ProviderError."""
        ...

    async def close(self) -> None: ...


Keep = Callable[[Sequence[Recalled], Sequence[Recalled]], Sequence[Recalled]]
"""Returns the second order of the hits, with what must stay of the first one."""
Mask = Callable[[str], str]
MakeMask = Callable[[], Mask]
"""Makes what a reranker is shown of the texts of one search: the same value has the same placeholder in all of them."""


class ThirdStage:
    """Shows a reranker the best hits, and puts them in its order."""

    def __init__(
        self,
        reranker: Reranker,
        archive: MessageArchive,
        document_characters: int,
        make_mask: MakeMask | None = None,
        metrics: "Metrics | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make_mask`: None shows texts as they are. `clock`: seconds, comparable with each other only."""
        self._reranker = reranker
        self._archive = archive
        self._document_characters = document_characters
        self._make_mask = make_mask
        self._metrics = metrics
        self._clock = clock
        self._paused_until = -inf

    @property
    def candidates(self) -> int:
        return self._reranker.candidates

    async def close(self) -> None:
        await self._reranker.close()

    async def reordered(self, query: Query, hits: Sequence[Recalled], keep: Keep) -> list[Recalled]:
        """The hits, of which the first `candidates` are in the reranker's order; those that it does not name follow.

        `hits`: episodes as they are stored, and that may be shown. `keep`: puts that order right, as a reranker is told
        neither times nor what has changed. Scores stay with their places: they fall from hit to hit.
        Raises: StoreUnavailable.
        """
        best = hits[: self.candidates]
        if len(best) < 2:
            return list(hits)
        if self._clock() < self._paused_until:
            self._count(PAUSED)
            return list(hits)
        question = await self._question(query, best)
        order = await self._order(question)
        if not order:
            return list(hits)
        named = set(order)
        places = [*order, *(place for place in range(len(best)) if place not in named)]
        kept = keep(best, [best[place] for place in places])
        scored = [hit.model_copy(update={"score": before.score}) for hit, before in zip(kept, best, strict=True)]
        return [*scored, *hits[len(best) :]]

    async def _question(self, query: Query, hits: Sequence[Recalled]) -> RankingQuestion:
        """Read the messages anew: none that was deleted since the second stage is shown."""
        passages = [_passage(hit) for hit in hits]
        keys = [
            [message_key(hit.conversation_id, message_id, query.tenant_id) for message_id in passage]
            for hit, passage in zip(hits, passages, strict=True)
        ]
        most, every = self._document_characters + MARGIN_CHARACTERS, list(chain.from_iterable(keys))
        texts = await self._archive.contents(every, most) if every else {}
        if self._make_mask is None:
            return _made(query, hits, keys, texts, self._document_characters, str)
        # in a thread: to look for what is redacted computes
        mask = self._make_mask()
        return await asyncio.to_thread(_made, query, hits, keys, texts, self._document_characters, mask)

    async def _order(self, question: RankingQuestion) -> list[int]:
        """Ask for the order; none where the reranker fails, which is logged and counted."""
        began = self._clock()
        try:
            order = await _in_time(self._reranker.order(question), self._reranker.timeout_seconds)
        except ProviderError as error:
            self._pause_after(error)
            self._count(error.error_type, self._clock() - began)
            problem = error.problem or error.error_type
            log.warning("reranking_failed", stage=STAGE, error_type=error.error_type, problem=problem)
            return []
        self._count("ok", self._clock() - began)
        return order

    def _pause_after(self, error: ProviderError) -> None:
        if isinstance(error, ProviderUnavailable | ProviderMisconfigured):
            asked = error.retry_after if isinstance(error, ProviderUnavailable) else 0.0
            self._paused_until = self._clock() + min(max(asked, PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)

    def _count(self, outcome: str, seconds: float | None = None) -> None:
        if self._metrics is not None:
            self._metrics.rerankings.labels(outcome).inc()
            if seconds is not None:
                self._metrics.reranking_seconds.observe(seconds)


async def _in_time(order: Awaitable[list[int]], seconds: float) -> list[int]:
    """Raises: ProviderError; ProviderUnavailable when the time is up."""
    try:
        async with asyncio.timeout(seconds):
            return await order
    except TimeoutError:
        raise ProviderUnavailable(problem=f"it did not answer in {seconds:g} s") from None


def _passage(hit: Recalled) -> Sequence[str]:
    """Ids of the messages of the best passage, those without a word of the query included."""
    if not hit.matching_ids or hit.matching_ids[0] not in hit.message_ids:
        return ()
    first = hit.message_ids.index(hit.matching_ids[0])
    return hit.message_ids[first : first + WINDOW]


def _made(
    query: Query,
    hits: Sequence[Recalled],
    keys: Sequence[Sequence[str]],
    texts: Mapping[str, str],
    characters: int,
    mask: Mask,
) -> RankingQuestion:
    documents = [
        RankedDocument(_document([texts[key] for key in each if key in texts], hit, characters, mask), hit.ended_at)
        for hit, each in zip(hits, keys, strict=True)
    ]
    return RankingQuestion(mask(query.text), documents, query.tenant_id)


def _document(passage: Sequence[str], hit: Recalled, characters: int, mask: Mask) -> str:
    """The passage and, where there is room, the summary."""
    shown = [_without_margin(mask(text), cut=len(text) >= characters + MARGIN_CHARACTERS) for text in passage]
    return "\n".join([*shown, mask(hit.short_summary)])[:characters]


def _without_margin(text: str, *, cut: bool) -> str:
    return text[:-MARGIN_CHARACTERS] if cut else text


def mask_of(redaction: Redaction) -> MakeMask | None:
    """Make the masks of a deployment that redacts: numbered placeholders, or those that the stores have; else None.

    Raises: ConfigurationError.
    """
    if redaction.where == "off":
        return None
    try:
        from afterword.streams.summarizer.masking import Masking  # here: the extra `memory` has none of its libraries

        redactor = redaction.redactor()
    except ModuleNotFoundError:
        problem = "redaction of what a reranker is shown needs: pip install 'afterword[worker]'"
        raise ConfigurationError(setting=variable(("redaction", "where")), problem=problem) from None
    if redaction.where == "everywhere":
        return lambda: redactor.redacted
    return lambda: Masking(redactor).masked


def checked_places(places: Sequence[int], count: int) -> list[int]:
    """The places as they are. Raises: AnswerInvalid for none at all, and for one that is not, or twice, there."""
    if not places:
        raise AnswerInvalid(problem="it named no document")
    if len(set(places)) < len(places) or not all(0 <= place < count for place in places):
        raise AnswerInvalid(problem="it named a document that was not there, or one twice")
    return list(places)
