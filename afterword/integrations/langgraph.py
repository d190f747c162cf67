"""LangGraph adapters: a node that loads memory into the state, and a store that reads and searches episodes."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, NoReturn

from afterword.extras import extra_required
from afterword.integrations import AsyncOnly
from afterword.reading.context import Context
from afterword.reading.matches import hits_as_text
from afterword.reading.memory import MAX_TOKENS, PROFILE_SHARE, ConversationEntry, Memory, Recalled, StoredEpisode
from afterword.streams.errors import AfterwordError
from afterword.streams.stores.index import MIN_COVERAGE, MOST_HITS

with extra_required("langgraph", __name__):
    from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage, convert_to_messages
    from langchain_core.runnables import RunnableConfig
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        Item,
        ListNamespacesOp,
        MatchCondition,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
    )

CONTEXT = "context"
"""The key of the loaded messages in the state."""
Namespace = tuple[str, ...]
LoadContext = Callable[[Mapping[str, Any], RunnableConfig], Awaitable[dict[str, list[AnyMessage]]]]


class StoreReadOnly(AfterwordError, NotImplementedError):
    """the store is read-only because episodes are made from messages: send messages with afterword.Producer, and delete
    them with its delete and delete_conversation"""


class NamespaceUnknown(AfterwordError, ValueError):
    """a namespace must be (user_id,) or (user_id, conversation_id); a search across all users is not possible"""


class FilterUnknown(AfterwordError, ValueError):
    """filters must be agent_id or conversation_id, each with the string that it must equal"""


class ThreadUnnamed(AfterwordError, ValueError):
    """the graph's config has no configurable.{field}"""


def context_node(
    memory: Memory,
    *,
    max_tokens: int = MAX_TOKENS,
    k: int = 5,
    min_coverage: float = MIN_COVERAGE,
    profile: bool = True,
) -> LoadContext:
    """Build a node that loads memory into the state's `context`, as messages to put before the prompt:

        class State(MessagesState):
            context: list[AnyMessage]

        graph.add_node("memory", context_node(memory))

    In the config's `configurable`, `thread_id` names the conversation, and `user_id` and optionally `tenant_id` its
    owner; the application sets them, not the model. With `profile`, what is known about the user comes first, in at
    most a quarter of `max_tokens`. The conversation's summary and last messages come next, within the rest. If k > 0, a
    human message follows with the `k` episodes of the user's other conversations that best match the last human message
    in `messages`. What changes with each turn is therefore last, so that a server can cache the rest of the prompt. The
    node raises the errors of `Memory.context`, `Memory.profile` and `Memory.recall`, and ThreadUnnamed.
    """

    async def load_context(state: Mapping[str, Any], config: RunnableConfig) -> dict[str, list[AnyMessage]]:
        conversation_id, user_id = _configured(config, "thread_id"), _configured(config, "user_id")
        tenant_id = config.get("configurable", {}).get("tenant_id")
        question = _question(state)
        found: list[Recalled] = []
        if k and question:
            found = await memory.recall(question, user_id=user_id, tenant_id=tenant_id, k=k, min_coverage=min_coverage)
        # not part of the context, because a new conversation has no context
        known = await memory.profile(user_id, tenant_id, max_tokens // PROFILE_SHARE) if profile else None
        rest = max_tokens - (known.tokens if known else 0)
        context = await memory.context(conversation_id, max_tokens=rest, user_id=user_id, tenant_id=tenant_id)
        loaded = _loaded([hit for hit in found if hit.conversation_id != conversation_id], context)
        prefix: list[AnyMessage] = [SystemMessage(known.as_text())] if known and known.facts else []
        return {CONTEXT: [*prefix, *loaded]}

    return load_context


def _configured(config: RunnableConfig, field: str) -> str:
    value = config.get("configurable", {}).get(field)
    if not isinstance(value, str) or not value:
        raise ThreadUnnamed(field=field)
    return value


def _question(state: Mapping[str, Any]) -> str:
    said = [message for message in convert_to_messages(state["messages"]) if isinstance(message, HumanMessage)]
    return said[-1].text if said else ""


def _loaded(hits: list[Recalled], context: Context | None) -> list[AnyMessage]:
    # a human message, because some models accept system messages only at the beginning
    recalled: list[AnyMessage] = [HumanMessage(hits_as_text(hits))] if hits else []
    return [*convert_to_messages(context.as_messages() if context else []), *recalled]  # type: ignore[list-item]  # with known roles


class AfterwordStore(BaseStore):
    """A read-only store of episodes. The key of an item is its `episode_id`.

    A namespace is `(user_id,)`, for all conversations of a user, or `(user_id, conversation_id)`. The tenant is fixed
    in this object. Whoever calls the store chooses the user, so let a model choose the query but not the namespace.

    A search with a query ranks like `Memory.recall`, within its first 100 hits, and each value includes the `matches`.
    Without a query it lists episodes, starting with the most recently summarized conversation. `aget` also returns the
    long summary. The store is asynchronous only. Calls raise the errors of `Memory`, StoreReadOnly, NamespaceUnknown
    and FilterUnknown.
    """

    def __init__(self, memory: Memory, *, tenant_id: str | None, min_coverage: float = MIN_COVERAGE) -> None:
        """`min_coverage` is as for `Memory.recall`."""
        self._memory = memory
        self._min_coverage = min_coverage
        self._tenant_id = tenant_id

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return [await self._done(op) for op in ops]

    # The framework's own methods reject labels with a full stop, which e-mail addresses contain.

    async def aget(self, namespace: Namespace, key: str, *, refresh_ttl: bool | None = None) -> Item | None:  # noqa: ARG002 – reading does not extend any lifetime
        return await self._get(GetOp(namespace, key))

    async def asearch(
        self,
        namespace_prefix: Namespace,
        /,
        *,
        query: str | None = None,
        filter: dict[str, Any] | None = None,  # noqa: A002 – the framework's name
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool | None = None,  # noqa: ARG002 – as above
    ) -> list[SearchItem]:
        return await self._search(SearchOp(namespace_prefix, filter, limit, offset, query))

    async def alist_namespaces(
        self,
        *,
        prefix: Namespace | None = None,
        suffix: Namespace | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Namespace]:
        wanted = [MatchCondition("prefix", prefix)] if prefix else []
        wanted += [MatchCondition("suffix", suffix)] if suffix else []
        return await self._namespaces(ListNamespacesOp(tuple(wanted), max_depth, limit, offset))

    def batch(self, ops: Iterable[Op]) -> NoReturn:  # noqa: ARG002 – the framework's signature
        raise AsyncOnly(called="a synchronous call of AfterwordStore", instead="aget, asearch or alist_namespaces")

    async def _done(self, op: Op) -> Result:
        match op:
            case GetOp():
                return await self._get(op)
            case SearchOp():
                return await self._search(op)
            case ListNamespacesOp():
                return await self._namespaces(op)
            case PutOp():
                raise StoreReadOnly

    async def _get(self, op: GetOp) -> Item | None:
        user_id, conversation_id = _place(op.namespace)
        found = await self._memory.episode(op.key, user_id=user_id, tenant_id=self._tenant_id)
        if found is None or conversation_id not in (None, found.summary.conversation_id):
            return None
        made = found.summary.created_at
        return Item(value=_whole(found), key=op.key, namespace=op.namespace, created_at=made, updated_at=made)

    async def _search(self, op: SearchOp) -> list[SearchItem]:
        user_id, conversation_id = _place(op.namespace_prefix)
        agent_id, filtered = _filters(op.filter)
        if op.limit < 1 or (filtered and conversation_id not in (None, filtered)):
            return []
        places = user_id, conversation_id or filtered, agent_id
        if op.query:
            return await self._recalled(op.query, *places, op.limit, op.offset)
        return await self._listed(*places, op.limit, op.offset)

    async def _recalled(
        self, query: str, user_id: str, conversation_id: str | None, agent_id: str | None, limit: int, offset: int
    ) -> list[SearchItem]:
        hits = await self._memory.recall(
            query,
            user_id=user_id,
            tenant_id=self._tenant_id,
            k=min(offset + limit, MOST_HITS),
            agent_id=agent_id,
            conversation_id=conversation_id,
            min_coverage=self._min_coverage,
        )
        return [_found(user_id, hit) for hit in hits[offset : offset + limit]]

    async def _listed(
        self, user_id: str, conversation_id: str | None, agent_id: str | None, limit: int, offset: int
    ) -> list[SearchItem]:
        found: list[SearchItem] = []
        async with aclosing(self._episodes(user_id, conversation_id, agent_id)) as episodes:
            async for episode in episodes:
                found.append(_listed_item(user_id, episode))
                if len(found) == offset + limit:
                    break
        return found[offset:]

    async def _episodes(
        self, user_id: str, conversation_id: str | None, agent_id: str | None
    ) -> AsyncGenerator[StoredEpisode, None]:
        """Yield the episodes of one conversation, newest first, or of all conversations that the user began."""
        async for conversation, agent in self._scopes(user_id, conversation_id, agent_id):
            before: int | None = None
            while True:
                page = await self._memory.episodes(
                    conversation, before=before, agent_id=agent, user_id=user_id, tenant_id=self._tenant_id
                )
                for episode in page.episodes:
                    yield episode
                before = page.next_before
                if before is None:
                    break

    async def _scopes(
        self, user_id: str, conversation_id: str | None, agent_id: str | None
    ) -> AsyncGenerator[tuple[str, str | None], None]:
        if conversation_id is not None:
            yield conversation_id, agent_id
            return
        async for entry in self._conversations(user_id):
            if agent_id in (None, entry.agent_id):
                yield entry.conversation_id, entry.agent_id

    async def _conversations(self, user_id: str) -> AsyncGenerator[ConversationEntry, None]:
        after: str | None = None
        while True:
            page = await self._memory.conversations(user_id=user_id, tenant_id=self._tenant_id, after=after)
            for entry in page.conversations:
                yield entry
            after = page.next_after
            if after is None:
                return

    async def _namespaces(self, op: ListNamespacesOp) -> list[Namespace]:
        user_id = _only_user(op)
        found: dict[Namespace, None] = {}
        if op.limit < 1:
            return []
        async with aclosing(self._conversations(user_id)) as entries:
            async for entry in entries:
                found[(user_id, entry.conversation_id)[: op.max_depth]] = None
                if len(found) == op.offset + op.limit:
                    break
        return list(found)[op.offset :]


def _place(namespace: Namespace) -> tuple[str, str | None]:
    match namespace:
        case (user_id,):
            return user_id, None
        case (user_id, conversation_id):
            return user_id, conversation_id
    raise NamespaceUnknown


def _only_user(op: ListNamespacesOp) -> str:
    match op.match_conditions:
        case (condition,) if condition.match_type == "prefix" and len(condition.path) == 1 and condition.path[0] != "*":
            return condition.path[0]
    raise NamespaceUnknown


def _filters(wanted: dict[str, Any] | None) -> tuple[str | None, str | None]:
    given = wanted or {}
    if given.keys() - {"agent_id", "conversation_id"} or not all(isinstance(value, str) for value in given.values()):
        raise FilterUnknown
    return given.get("agent_id"), given.get("conversation_id")


SHOWN = {"conversation_id", "agent_id", "ordinal", "title", "short_summary", "message_ids", "started_at", "ended_at"}
"""Fields copied into an item's value, from hits and episodes alike."""


def _found(user_id: str, hit: Recalled) -> SearchItem:
    return SearchItem(
        namespace=(user_id, hit.conversation_id),
        key=hit.episode_id,
        value=hit.model_dump(mode="json", include={*SHOWN, "matches"}),
        created_at=hit.ended_at,
        updated_at=hit.ended_at,
        score=hit.score,
    )


def _listed_item(user_id: str, episode: StoredEpisode) -> SearchItem:
    ended = episode.summary.ended_at
    return SearchItem(
        namespace=(user_id, episode.summary.conversation_id),
        key=episode.summary.episode_id,
        value=episode.summary.model_dump(mode="json", include=SHOWN),
        created_at=ended,
        updated_at=ended,
    )


def _whole(episode: StoredEpisode) -> dict[str, Any]:
    return episode.summary.model_dump(mode="json", include={*SHOWN, "long_summary"})
