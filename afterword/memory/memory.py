"""`Memory`: what an agent reads. Typed, asynchronous, and it changes nothing."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

from afterword.memory.context import Context, Wish, read_context
from afterword.memory.recall import DirectorySearch, ServerSearch, of_owner
from afterword.streams.settings import Settings, load_settings
from afterword.streams.stores import mongo
from afterword.streams.stores.episodes import EpisodeStore, StoredEpisode
from afterword.streams.stores.index import Query, Recalled
from afterword.streams.stores.local_index import Search
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.mongo import MongoEpisodes, MongoMessages

KEEP_RECENT = 4
MAX_TOKENS = 3500
PAGE_EPISODES = 20

Close = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class EpisodePage:
    """Episodes, newest first."""

    episodes: tuple[StoredEpisode, ...]
    next_before: int | None
    """`before` of the next page; None when this is the last one."""


class Memory:
    """Reads conversations, their episodes, and searches them; to be closed, or used with `async with`.

    `keep_recent`: how many of the last messages `context` gives when it is not told. All methods raise
    StoreUnavailable.
    """

    def __init__(
        self,
        episodes: EpisodeStore,
        messages: MessageArchive,
        search: Search,
        *,
        keep_recent: int = KEEP_RECENT,
        closing: tuple[Close, ...] = (),
    ) -> None:
        self._episodes = episodes
        self._messages = messages
        self._search = search
        self._keep_recent = keep_recent
        self._closing = closing

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """On the stores that these settings name; each is connected with its first use. Raises: ConfigurationError."""
        database = mongo.connect(settings.mongo)
        path = settings.qdrant.path
        search = DirectorySearch(settings, path) if path else ServerSearch(settings)
        return cls(
            MongoEpisodes(database),
            MongoMessages(database),
            search,
            keep_recent=settings.episodes.preset.keep_recent,
            closing=(search.close, lambda: mongo.close(database)),
        )

    @classmethod
    def open(cls) -> Self:
        """With the settings of the environment, and of the file it names. Raises: ConfigurationError."""
        return cls.from_settings(load_settings())

    async def context(
        self,
        conversation_id: str,
        keep_recent: int | None = None,
        max_tokens: int = MAX_TOKENS,
        agent_id: str | None = None,
    ) -> Context | None:
        """What a conversation was about and its last messages, in at most `max_tokens` tokens.

        The last `keep_recent` messages and all that no summary tells of yet; a tool's call never without its results.
        `agent_id`: an agent's part of the conversation, where episodes are kept by agent. None when nothing is known.
        """
        recent = self._keep_recent if keep_recent is None else keep_recent
        return await read_context(self._episodes, self._messages, Wish(conversation_id, agent_id, recent, max_tokens))

    async def episodes(
        self,
        conversation_id: str,
        limit: int = PAGE_EPISODES,
        before: int | None = None,
        agent_id: str | None = None,
    ) -> EpisodePage:
        """A page of the conversation's episodes, newest first: those with an ordinal less than `before`."""
        found = await self._episodes.latest(conversation_id, limit + 1, before=before, agent_id=agent_id)
        page = tuple(found[:limit])
        return EpisodePage(page, page[-1].summary.ordinal if len(found) > limit else None)

    async def recall(
        self,
        query: str,
        *,
        user_id: str,
        tenant_id: str | None,
        k: int = 5,
        agent_id: str | None = None,
        conversation_id: str | None = None,
    ) -> list[Recalled]:
        """The user's episodes that have most to do with the query, best first.

        `tenant_id`: None means episodes without a tenant, never those of all tenants. Raises: OwnerMissing.
        """
        user, tenant = of_owner(user_id, tenant_id)
        return await self._search(
            Query(text=query, user_id=user, tenant_id=tenant, k=k, agent_id=agent_id, conversation_id=conversation_id)
        )

    async def close(self) -> None:
        """Lets go of connections."""
        for close in self._closing:
            await close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
