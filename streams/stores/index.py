"""What every index of episodes offers, and which texts of an episode it holds."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from afterword.schemas import SummaryCreated
from afterword.schemas.base import Time

Dense = Sequence[float]


MOST_HITS = 100


class Query(BaseModel):
    """What is searched for, and in whose episodes: without both tenant and user there is no search at all."""

    model_config = ConfigDict(frozen=True)

    text: str
    user_id: str
    tenant_id: str | None
    """None: only episodes without a tenant; never all."""
    k: int = Field(5, ge=1, le=MOST_HITS)
    agent_id: str | None = None
    conversation_id: str | None = None


class Recalled(BaseModel):
    """An episode that was found."""

    model_config = ConfigDict(frozen=True)

    score: float
    """Of the fused ranks: comparable within one search only."""
    episode_id: str
    event_id: str
    revision: int
    conversation_id: str
    agent_id: str | None
    ordinal: int
    short_summary: str
    message_ids: tuple[str, ...]
    started_at: Time
    ended_at: Time
    source: Literal["llm", "fallback"]
    """Its `quality.source`."""


class EpisodeIndex(Protocol):
    """Writing an episode again changes nothing, and a lower revision never replaces a higher one.

    Methods that reach a server raise StoreUnavailable.
    """

    async def put(self, summary: SummaryCreated, raw_text: str, dense: Dense | None = None) -> None:
        """Indexes an episode by its summary and its messages' text; `dense` is the vector of `summary_text`."""
        ...

    async def search(self, query: Query, dense: Dense | None = None) -> list[Recalled]:
        """The best `k` episodes, best first; none that shares no word with the query, unless `dense` finds it.

        `dense`: the query's vector, of the model that made those of the episodes.
        """
        ...

    async def revisions(self, episode_ids: Sequence[str]) -> dict[str, int]:
        """The indexed revision of those of the ids that are indexed."""
        ...

    async def has(self, episode_ids: Sequence[str]) -> set[str]:
        """Those of the ids that are indexed."""
        ...

    def all_ids(self) -> AsyncIterator[str]:
        """Every `episode_id` that is indexed, in no particular order."""
        ...

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


def summary_text(summary: SummaryCreated) -> str:
    """The text of a summary that is searched."""
    return f"{summary.title}\n{summary.short_summary}\n{summary.long_summary}"


def raw_text(contents: Iterable[str]) -> str:
    """The text of an episode's core messages that is searched, from the event or from the archive alike."""
    return "\n".join(contents)
