"""Warming up: what a summarizer would load and open with its first episode, before it says that it is ready."""

import asyncio

from afterword.streams.errors import StoreUnavailable
from afterword.streams.stores.episodes import EpisodeStore
from afterword.streams.stores.index import pack_words
from afterword.streams.summarizer.quality import QualityRules, SourceTexts, Texts, assess
from afterword.streams.text.tokens import count_tokens

CONNECTIONS = 4
"""Writes of an episode at a time, each on a connection of its own."""
NOBODY = "afterword/warm-up"
"""Stands for a conversation that is not there."""
EXAMPLE = "The order arrived late, and the customer asks for a refund of the delivery fee."


def load_models() -> None:
    """Load what checks and indexes an episode, which takes 80 ms of CPU."""
    count_tokens(EXAMPLE)
    assess(SourceTexts(EXAMPLE), Texts(EXAMPLE, EXAMPLE, EXAMPLE), QualityRules())
    pack_words([EXAMPLE], EXAMPLE)


async def open_connections(episodes: EpisodeStore) -> None:
    """Open the connections of one episode; a database that is away is left to the first one."""
    reads = [episodes.latest_row(NOBODY) for _ in range(CONNECTIONS)]
    for found in await asyncio.gather(*reads, return_exceptions=True):
        if isinstance(found, BaseException) and not isinstance(found, StoreUnavailable):
            raise found
