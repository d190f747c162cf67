"""Vectors of queries, as the search gets them from an embedder."""

from collections.abc import Sequence

from afterword.streams.stores.index import Dense, Noise, QueryVector

USUAL = Noise(0.0, 0.25)


async def no_passages(texts: Sequence[str]) -> list[Dense | None]:
    return [None] * len(texts)


def query_vector(vector: Dense, noise: Noise = USUAL) -> QueryVector:
    """Make a query's vector whose cosines are judged by `noise`, and which compares no sentences."""
    return QueryVector(vector, noise, noise, no_passages)
