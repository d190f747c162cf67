"""The protocol of the search index: which texts of an episode it holds, what a query asks, how a search ranks."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from afterword.schemas import SummaryCreated
from afterword.schemas.base import Time
from afterword.schemas.messages import Role

Dense = Sequence[float]
Embed = Callable[[str], Awaitable[Dense | None]]
"""Makes the vector of a query's text; None to search by words alone."""

MOST_HITS = 100
MOST_QUERY_CHARACTERS = 2000
"""Characters of a query that are searched for: its words are stemmed in each language that it may be in."""

SUMMARY = "summary"
TEXT = "text"
DENSE = "dense"
"""Names of the vectors; each ranks the episodes, and weighted reciprocal rank fusion makes one ranking of them.

Score of an episode, the sum over the rankings of 1 / ((rank + 1) / weight + K − 1), ranks from 0: Cormack, Clarke and
Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods" (2009), with weights as in
Qdrant's documentation of hybrid queries.
"""

K = 1
WEIGHTS = {TEXT: 6.0, SUMMARY: 1.0, DENSE: 0.3}
"""The best of 21 on one half of the questions of `make quality`, which prints both halves; K was chosen on all of them.

The dense vector must not hurt. The summary is for words that are in no message, which only an LLM writes.
"""
DEPTH = 50
"""Episodes of each ranking that are fused."""

PAYLOAD_FIELDS = {
    *("event_id", "episode_id", "conversation_id", "user_id", "agent_id", "tenant_id", "message_ids"),
    *("revision", "ordinal", "short_summary", "started_at", "ended_at", "closed_at", "created_at"),
}
DELETED = "deleted"
"""Marks the point that stays of a deleted episode in Qdrant: without vectors, texts and owner; no search finds it."""

Item = TypeVar("Item")


class Query(BaseModel):
    """A search in the episodes of one user and tenant."""

    model_config = ConfigDict(frozen=True)

    text: str
    user_id: str
    tenant_id: str | None
    """None: only episodes without a tenant; never all."""
    k: int = Field(5, ge=1, le=MOST_HITS)
    agent_id: str | None = None
    conversation_id: str | None = None
    started_after: Time | None = None
    """Only episodes whose first message was sent at this time or later."""
    ended_before: Time | None = None
    """Only episodes whose last message was sent before this time."""
    explain: bool = False
    """Hits have `scores`, which takes one more request to the index."""

    def within(self, begin: datetime, end: datetime) -> "Query":
        """The same query, of episodes that were at this time alone."""
        after, before = self.started_after or begin, self.ended_before or end
        return self.model_copy(update={"started_after": max(after, begin), "ended_before": min(before, end)})

    def allows(self, summary: SummaryCreated) -> bool:
        """Tell whether an episode has the owner, and passes the filters, of this query."""
        return (
            (summary.user_id, summary.tenant_id) == (self.user_id, self.tenant_id)
            and self.agent_id in (None, summary.agent_id)
            and self.conversation_id in (None, summary.conversation_id)
            and (self.started_after is None or summary.started_at >= self.started_after)
            and (self.ended_before is None or summary.ended_at < self.ended_before)
        )


class RankingScores(BaseModel):
    """Scores of an episode in each ranking, which compare within it only; null: the ranking does not have it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    text: float | None = None
    """BM25 of the query's words in the messages."""
    summary: float | None = None
    """BM25 of the query's words in the summary."""
    dense: float | None = None
    """Cosine of the vectors of query and summary."""
    passages: float | None = None
    """BM25 of the query's words in the best passage of a few messages; among the candidates of the second stage."""


class Match(BaseModel):
    """A message that matches a query."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    message_id: str
    role: Role
    sent_at: Time
    content: str
    """Its text as the archive has it now; of a long one, the sentences around the words of the query."""
    score: float
    """Weight of the query's words that it has; comparable within one hit only."""


class Recalled(BaseModel):
    """A hit of a search."""

    model_config = ConfigDict(frozen=True)

    score: float
    """The score of the fused ranks: comparable within one search only."""
    episode_id: str
    event_id: str
    revision: int
    conversation_id: str
    agent_id: str | None
    ordinal: int
    title: str = ""
    """Title of the episode, which is not in the index: `Memory.recall` takes it from the stored episode."""
    short_summary: str
    message_ids: tuple[str, ...]
    started_at: Time
    ended_at: Time
    source: Literal["llm", "fallback"]
    """The summary's `quality.source`."""
    matches: tuple[Match, ...] = ()
    """What was said: the messages of the best passage that have words of the query, best first."""
    scores: RankingScores | None = None
    """Scores of the rankings that `score` was fused from; null unless they were asked for."""


class EpisodeIndex(Protocol):
    """Writes may be repeated, and a lower revision never replaces a higher one. All methods raise StoreUnavailable."""

    async def put(self, summary: SummaryCreated, raw_text: str, dense: Dense | None = None) -> None:
        """Index an episode by its summary and its messages' text; `dense` is the vector of `summary_text`."""
        ...

    async def remove(self, episode_id: str, revision: int) -> None:
        """Take an episode out of the index; a revision up to this one does not bring it back.

        Unless the index has nothing at all yet, and not the dimension of the embedder's vectors.
        """
        ...

    async def search(self, query: Query, dense: Dense | None = None) -> list[Recalled]:
        """The best `k` episodes, best first. Without `dense` every hit shares a word with the query.

        `dense`: the query's vector, made by the model that made the episodes' vectors.
        """
        ...

    async def revisions(self, episode_ids: Sequence[str]) -> dict[str, int]:
        """The indexed revision of those of the ids that are indexed."""
        ...

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


def summary_text(summary: SummaryCreated) -> str:
    """The text that is indexed of a summary."""
    return f"{summary.title}\n{summary.short_summary}\n{summary.long_summary}"


def raw_text(contents: Iterable[str]) -> str:
    """The text that is indexed of an episode's core messages, whether from the event or from the archive."""
    return "\n".join(contents)


def collection_name(collection: str, embedder_model: str | None) -> str:
    """`episodes`, or `episodes-nomic-embed-text` with a dense vector of that model."""
    return f"{collection}-{re.sub(r'[^A-Za-z0-9_.]+', '-', embedder_model)}" if embedder_model else collection


def payload(summary: SummaryCreated) -> dict[str, Any]:
    """All ids, times as RFC 3339, and the fields of `Recalled`: what is stored beside the vectors."""
    return {
        **summary.model_dump(mode="json", include=PAYLOAD_FIELDS),
        "quality": {"source": summary.quality.source},
    }


def recalled(payload: Mapping[str, Any], score: float, scores: RankingScores | None = None) -> Recalled:
    """The hit of what `payload` made."""
    return Recalled(**{**payload, "score": score, "scores": scores, "source": payload["quality"]["source"]})


def fused(rankings: Mapping[str, Sequence[Item]]) -> list[tuple[Item, float]]:
    """Best first, with scores. `rankings`: items, best first, by the name of their vector. Ties keep the first seen."""
    scores: dict[Item, float] = {}
    for name, ranking in rankings.items():
        for rank, item in enumerate(ranking):
            scores[item] = scores.get(item, 0.0) + 1 / ((rank + 1) / WEIGHTS[name] + K - 1)
    return sorted(scores.items(), key=lambda found: -found[1])
