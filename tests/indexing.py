"""Indexing an episode by one text."""

from afterword.schemas import SummaryCreated
from afterword.streams.stores.index import Dense, EpisodeIndex


async def put(index: EpisodeIndex, summary: SummaryCreated, text: str, vector: Dense | None = None) -> None:
    """Index an episode whose first message has this text and this vector."""
    first = summary.message_ids[0]
    await index.put(summary, {first: text}, {first: vector} if vector else None)
