"""Vectors of queries, as the search gets them from an embedder."""

from collections.abc import Sequence
from dataclasses import replace

from afterword.schemas import SummaryCreated
from afterword.streams.stores.episodes import StoredEpisode
from afterword.streams.stores.index import Dense, EpisodeIndex, Noise, QueryVector, SearchText
from tests.samples import a_stored_episode

USUAL = Noise(0.0, 0.25)


async def no_passages(texts: Sequence[str]) -> list[Dense | None]:
    return [None] * len(texts)


def query_vector(vector: Dense, noise: Noise = USUAL) -> QueryVector:
    """Make a query's vector whose cosines are judged by `noise`, and which compares no sentences."""
    return QueryVector(vector, noise, noise, no_passages)


async def put(
    index: EpisodeIndex, summary: SummaryCreated, text: str, vector: Dense | None = None, writers: tuple[str, ...] = ()
) -> None:
    """Index an episode whose first message has this text and this vector."""
    first = summary.message_ids[0]
    await index.put(episode_of(summary, writers), {first: SearchText(text)}, {first: vector} if vector else None)


def episode_of(summary: SummaryCreated, writers: tuple[str, ...] = ()) -> StoredEpisode:
    return replace(a_stored_episode(summary.ordinal), summary=summary, writers=writers or (summary.user_id,))
