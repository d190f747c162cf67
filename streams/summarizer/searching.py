"""Vectors of search queries: by words alone is searched without an embedder, and while it is away."""

import structlog

from afterword.streams.errors import StoreUnavailable
from afterword.streams.stores.index import Dense, Embed
from afterword.streams.summarizer.embedders import Embedder

STAGE = "recall"

log = structlog.get_logger(__name__)


def query_embedder(embedder: Embedder | None) -> Embed:
    """The embedder for queries. Calls raise ConfigurationError."""

    async def embed(text: str) -> Dense | None:
        if embedder is None or not text.strip():
            return None
        try:
            return await embedder.embed(text)
        except StoreUnavailable as error:
            log.warning("query_embedding_failed", stage=STAGE, error_type=error.error_type, problem=str(error))
            return None

    return embed
