"""Searching episodes by words, and by meaning where an embedder is configured."""

import structlog

from afterword.streams.errors import StoreUnavailable
from afterword.streams.stores.index import Dense, EpisodeIndex, Query, Recalled
from afterword.streams.summarizer.embedders import Embedder

STAGE = "recall"

log = structlog.get_logger(__name__)


class Searcher:
    """Called with a query, finds its episodes, best first. Raises: StoreUnavailable, ConfigurationError."""

    def __init__(self, index: EpisodeIndex, embedder: Embedder | None) -> None:
        self._index = index
        self._embedder = embedder

    async def __call__(self, query: Query) -> list[Recalled]:
        return await self._index.search(query, await self._dense(query.text))

    async def _dense(self, text: str) -> Dense | None:
        """None also while the embedder is away: words alone find most of it."""
        if self._embedder is None or not text.strip():
            return None
        try:
            return await self._embedder.embed(text)
        except StoreUnavailable as error:
            log.warning("searching_without_embedder", stage=STAGE, error_type=error.error_type, problem=str(error))
            return None
