"""`Memory`: what an agent reads of its conversations. Typed, asynchronous and read-only."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import structlog

from afterword.context import ANYONE, Anyone, Context, ContextRequest, Owner, read_context
from afterword.schemas import SummaryCreated
from afterword.schemas.ids import scope_id
from afterword.streams.errors import OwnerMissing
from afterword.streams.settings import EmbedderSettings, Settings, load_settings
from afterword.streams.stores.arguments import require, require_within
from afterword.streams.stores.episodes import EpisodeStore, StoredEpisode, agent_of_scope
from afterword.streams.stores.index import MOST_QUERY_CHARACTERS, Dense, Embed, Query, Recalled
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.opening import open_stores
from afterword.withheld import Withheld, read_withheld

if TYPE_CHECKING:
    from afterword.streams.summarizer.embedders import Embedder as OpenEmbedder

__all__ = ["ANYONE", "Context", "EpisodePage", "Memory", "OwnerMissing", "Recalled", "StoredEpisode"]

KEEP_RECENT = 4
MAX_TOKENS = 3500
PAGE_EPISODES = 20
MOST_PAGE_EPISODES = 1000

log = structlog.get_logger(__name__)

Search = Callable[[Query], Awaitable[list[Recalled]]]
Close = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class EpisodePage:
    """Episodes, newest first."""

    episodes: tuple[StoredEpisode, ...]
    next_before: int | None
    """`before` of the next page; None when this is the last one."""


class Memory:
    """Reads conversations and their episodes, and searches them; to be closed, or used with `async with`.

    `keep_recent`: the number of last messages that `context` returns by default. All methods raise StoreUnavailable,
    and for an argument from a request's JSON that is of another type, TypeError, or out of bounds, ValueError.
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
        """Open the stores of these settings; each connects with its first use. Raises: ConfigurationError."""
        stores, embed = open_stores(settings), QueryEmbedder(settings.embedder)
        return cls(
            stores.episodes,
            stores.messages,
            lambda query: stores.index_reader.search(query, embed),
            keep_recent=settings.episodes.preset.keep_recent,
            closing=(embed.close, stores.close),
        )

    @classmethod
    def open(cls) -> Self:
        """Open with the settings of the environment, and of the file that it names. Raises: ConfigurationError."""
        return cls.from_settings(load_settings())

    async def context(
        self,
        conversation_id: str,
        keep_recent: int | None = None,
        max_tokens: int = MAX_TOKENS,
        agent_id: str | None = None,
        *,
        user_id: str | Anyone = ANYONE,
        tenant_id: str | Anyone | None = ANYONE,
    ) -> Context | None:
        """The summary of a conversation and its last messages, in at most `max_tokens` tokens; None if it is unknown.

        The last `keep_recent` messages and all that are in no summary yet; a tool's call always with its results.
        `agent_id`: only an agent's part of the conversation, where episodes are kept by agent.
        `user_id`, `tenant_id`: those the conversation began with, or it is unknown; not compared by default.
        Raises: OwnerMissing for a user None or "".
        """
        owner = _owner(user_id, tenant_id)
        require(str, conversation_id=conversation_id)
        require(str | None, agent_id=agent_id)
        require(int | None, keep_recent=keep_recent)
        require(int, max_tokens=max_tokens)
        recent = self._keep_recent if keep_recent is None else keep_recent
        require_within(0, keep_recent=recent)
        require_within(1, max_tokens=max_tokens)
        return await read_context(
            self._episodes, self._messages, ContextRequest(conversation_id, agent_id, recent, max_tokens, owner)
        )

    async def episodes(
        self,
        conversation_id: str,
        limit: int = PAGE_EPISODES,
        before: int | None = None,
        agent_id: str | None = None,
        *,
        user_id: str | Anyone = ANYONE,
        tenant_id: str | Anyone | None = ANYONE,
    ) -> EpisodePage:
        """A page of the conversation's episodes, newest first, with an ordinal less than `before`.

        `limit`: 1 to 1,000.
        `user_id`, `tenant_id`: as those of `context`; none of somebody else's conversation. Raises: OwnerMissing.
        """
        owner = _owner(user_id, tenant_id)
        require(str, conversation_id=conversation_id)
        require(str | None, agent_id=agent_id)
        require(int, limit=limit)
        require_within(1, MOST_PAGE_EPISODES, limit=limit)
        require(int | None, before=before)
        if owner != Owner():
            known = await self._episodes.conversation(scope_id(conversation_id, agent_id))
            if known is None or not owner.has(known.user_id, known.tenant_id):
                return EpisodePage((), None)
        withheld = await read_withheld(self._messages, [conversation_id])
        found = await self._episodes.latest(conversation_id, limit + 1, before=before, agent_id=agent_id)
        page = found[:limit]
        shown = await self._shown([episode for episode in page if not withheld.hides(episode)], withheld)
        return EpisodePage(shown, page[-1].summary.ordinal if len(found) > limit else None)

    async def _shown(self, episodes: Sequence[StoredEpisode], withheld: Withheld) -> tuple[StoredEpisode, ...]:
        """Episodes of one scope, the newest first, without rolling summaries that may have what was deleted."""
        if not episodes:
            return ()
        last = episodes[0].summary
        whose = last.conversation_id, last.tenant_id, agent_of_scope(last)
        if not await withheld.conceals(self._episodes, *whose, last.ordinal):
            return tuple(episodes)
        return tuple(
            replace(episode, summary=episode.summary.model_copy(update={"rolling_summary": ""})) for episode in episodes
        )

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
        """The user's episodes that match the query best, best first.

        Only the first MOST_QUERY_CHARACTERS (2,000) of the query are searched for; that a longer one was cut is logged.
        What has expired, or lost a message a moment ago, is left out: there may be fewer than `k` hits.
        `tenant_id`: None means episodes without a tenant, never those of all tenants. Raises: OwnerMissing for a user
        None or "", which is what messages have whose producer knew no user.
        """
        _check_user(user_id)
        _check_tenant(tenant_id)
        require(str, query=query)
        require(str | None, agent_id=agent_id, conversation_id=conversation_id)
        require(int, k=k)
        hits = await self._search(
            Query(
                text=_cut(query),
                user_id=user_id,
                tenant_id=tenant_id,
                k=k,
                agent_id=agent_id,
                conversation_id=conversation_id,
            )
        )
        # in this order: what is settled meanwhile has its next revision when the episodes are read
        withheld = await read_withheld(self._messages, list({hit.conversation_id for hit in hits}))
        stored = await self._episodes.find_many([hit.episode_id for hit in hits])
        known = [(hit, stored[hit.episode_id]) for hit in hits if hit.episode_id in stored]
        return [_as_stored(hit, episode) for hit, episode in known if not withheld.hides(episode)]

    async def close(self) -> None:
        """Close the connections."""
        for close in self._closing:
            await close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class QueryEmbedder:
    """Makes vectors of queries. The embedder is imported and opened with the first one: it may take a second.

    Calls raise ConfigurationError.
    """

    def __init__(self, settings: EmbedderSettings) -> None:
        self._settings = settings
        self._embedder: OpenEmbedder | None = None
        self._embed: Embed | None = None

    async def __call__(self, text: str) -> Dense | None:
        if self._embed is None:
            from afterword.streams.summarizer.embedders import make_embedder, query_embedder

            self._embedder = make_embedder(self._settings)
            self._embed = query_embedder(self._embedder)
        return await self._embed(text)

    async def close(self) -> None:
        if self._embedder is not None:
            await self._embedder.close()


def _owner(user_id: str | Anyone, tenant_id: str | Anyone | None) -> Owner:
    """Raises: OwnerMissing."""
    if user_id is not ANYONE:
        _check_user(user_id)
    if tenant_id is not ANYONE:
        _check_tenant(tenant_id)
    return Owner(user_id, tenant_id)


def _as_stored(hit: Recalled, episode: StoredEpisode) -> Recalled:
    """The hit with the texts of the stored revision, if the index has an earlier one."""
    summary = episode.summary
    if summary.revision <= hit.revision:
        return hit
    names = Recalled.model_fields.keys() & SummaryCreated.model_fields.keys()
    later = {name: getattr(summary, name) for name in names}
    return hit.model_copy(update={**later, "source": summary.quality.source})


def _cut(query: str) -> str:
    if len(query) > MOST_QUERY_CHARACTERS:
        log.warning("query_cut", stage="recall", characters=len(query), kept=MOST_QUERY_CHARACTERS)
    return query[:MOST_QUERY_CHARACTERS]


def _check_user(user_id: object) -> None:
    """Raises: OwnerMissing."""
    if not isinstance(user_id, str) or not user_id:
        raise OwnerMissing(field="user_id")


def _check_tenant(tenant_id: object) -> None:
    """Raises: OwnerMissing."""
    if tenant_id is not None and not isinstance(tenant_id, str):
        raise OwnerMissing(field="tenant_id")
