"""LangGraph adapters: a node that loads memory into the state, and a store that reads and searches episodes."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, NoReturn

import structlog

from afterword.integrations import AsyncOnly
from afterword.reading.memory import MAX_TOKENS, PROFILE_SHARE, Memory, hits_as_text
from afterword.schemas import SummaryCreated
from afterword.streams.errors import AfterwordError
from afterword.streams.installed import extra_required
from afterword.streams.stores.episodes import StoredEpisode
from afterword.streams.stores.index import MIN_COVERAGE, MOST_HITS, Recalled

with extra_required("langgraph", __name__):
    from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage, convert_to_messages
    from langchain_core.runnables import RunnableConfig
    from langgraph.runtime import Runtime
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        Item,
        ListNamespacesOp,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
    )

CONTEXT = "context"
"""The key of the loaded messages in the state."""
Namespace = tuple[str, ...]
LoadContext = Callable[[Mapping[str, Any], RunnableConfig, Runtime[Any]], Awaitable[dict[str, list[AnyMessage]]]]

log = structlog.get_logger(__name__)


class StoreReadOnly(AfterwordError, NotImplementedError):
    """the store is read-only because episodes are made from messages: send messages with afterword.Producer, and delete
    them with its delete and delete_conversation"""


class NamespaceUnknown(AfterwordError, ValueError):
    """a namespace must be (user_id,) or (user_id, conversation_id), also the prefix of those to list"""


class FilterUnknown(AfterwordError, ValueError):
    """a filter must be agent_id with the string that it must equal, or {{"$eq": string}}; the namespace names the
    conversation"""


class ThreadUnnamed(AfterwordError, ValueError):
    """neither the runtime's context nor the config's configurable has a {field}"""


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

    In the runtime's context or else in the config's `configurable`, `thread_id` names the conversation, and `user_id`
    and optionally `tenant_id` its owner; the application sets them, not the model. With `profile`, what is known about
    the user comes first, in at most a quarter of `max_tokens`. The conversation's summary and last messages come next,
    in the remaining tokens. If k > 0, a human message follows with the `k` episodes of the user's other conversations
    that best match the last human message in `messages`. So the part that changes with each turn is last, and a server
    can cache the rest of the prompt. The node raises the errors of `Memory.context`, `Memory.profile` and
    `Memory.recall`, and ThreadUnnamed.
    """

    async def load_context(
        state: Mapping[str, Any], config: RunnableConfig, runtime: Runtime[Any]
    ) -> dict[str, list[AnyMessage]]:
        conversation_id, user_id, tenant_id = named_by(runtime, config)
        said = [message for message in convert_to_messages(state["messages"]) if isinstance(message, HumanMessage)]
        question = said[-1].text if said else ""
        hits: list[Recalled] = []
        if k and question:
            hits = await memory.recall(
                question,
                user_id=user_id,
                tenant_id=tenant_id,
                k=k,
                current_conversation_id=conversation_id,
                min_coverage=min_coverage,
            )
        elsewhere = [hit for hit in hits if hit.conversation_id != conversation_id]
        # not part of the context, because a new conversation has no context
        known = await memory.profile(user_id, tenant_id, max_tokens // PROFILE_SHARE) if profile else None
        rest = max_tokens - (known.tokens if known else 0)
        context = await memory.context(conversation_id, max_tokens=rest, user_id=user_id, tenant_id=tenant_id)
        loaded: list[AnyMessage] = [SystemMessage(known.as_text())] if known and known.facts else []
        loaded += convert_to_messages(context.as_messages() if context else [])  # type: ignore[arg-type]  # with known roles
        # a human message, because some models accept system messages only at the beginning
        return {CONTEXT: [*loaded, HumanMessage(hits_as_text(elsewhere))] if elsewhere else loaded}

    return load_context


def named_by(runtime: Runtime[Any], config: RunnableConfig) -> tuple[str, str, str | None]:
    """Return conversation, user and tenant, from the runtime's context or the config. Raises: ThreadUnnamed."""
    context, configurable = runtime.context, config.get("configurable", {})

    def named(field: str) -> str | None:  # it may be a number or a UUID
        value = context.get(field) if isinstance(context, Mapping) else getattr(context, field, None)
        value = configurable.get(field) if value is None else value
        return None if value is None else str(value)

    thread_id, user_id = named("thread_id"), named("user_id")
    if not (thread_id and user_id):
        raise ThreadUnnamed(field="user_id" if thread_id else "thread_id")
    return thread_id, user_id, named("tenant_id")


class AfterwordStore(BaseStore):
    """A read-only store of episodes. The key of an item is its `episode_id`.

    A namespace is `(user_id,)`, for all conversations of a user, or `(user_id, conversation_id)`. The tenant is fixed
    in this object. Whoever calls the store chooses the user, so let a model choose the query but not the namespace.

    A search with a query ranks like `Memory.recall`, within its first 100 hits, and each value includes the `matches`.
    Without a query it lists episodes, starting with the most recently summarized conversation. `aget` also returns the
    long summary. An item's times are those of its last message. What was said in a conversation that is still open is
    found too; it is not an episode yet, so `aget` does not know it. `alist_namespaces` lists one user's namespaces. The
    store is asynchronous only. Calls raise the errors of `Memory`, StoreReadOnly, NamespaceUnknown and FilterUnknown.
    """

    def __init__(self, memory: Memory, *, tenant_id: str | None, min_coverage: float = MIN_COVERAGE) -> None:
        """`min_coverage` is as for `Memory.recall`."""
        self._memory = memory
        self._min_coverage = min_coverage
        self._tenant_id = tenant_id

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return [await self._done(op) for op in ops]

    async def _done(self, op: Op) -> Result:
        match op:
            case GetOp():
                return await self.aget(op.namespace, op.key)
            case SearchOp():
                return await self.asearch(
                    op.namespace_prefix, query=op.query, filter=op.filter, limit=op.limit, offset=op.offset
                )
            case ListNamespacesOp():
                wanted = {condition.match_type: condition.path for condition in op.match_conditions or ()}
                return await self.alist_namespaces(**wanted, max_depth=op.max_depth, limit=op.limit, offset=op.offset)
            case PutOp():
                raise StoreReadOnly

    def batch(self, ops: Iterable[Op]) -> NoReturn:  # noqa: ARG002 – the framework's signature
        raise AsyncOnly(called="a synchronous call of AfterwordStore", instead="aget or asearch")

    # The framework's own methods reject labels with a full stop, which e-mail addresses contain.

    async def aget(self, namespace: Namespace, key: str, *, refresh_ttl: bool | None = None) -> Item | None:  # noqa: ARG002 – reading does not extend any lifetime
        user_id, conversation_id = _place(namespace)
        episode = await self._memory.episode(key, user_id=user_id, tenant_id=self._tenant_id)
        if episode is None or conversation_id not in (None, episode.summary.conversation_id):
            return None
        return Item(**_fields(user_id, episode.summary, {*SHOWN, "long_summary"}))

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
        user_id, conversation_id = _place(namespace_prefix)
        agent_id = _agent_in(filter or {})
        if limit < 1 or offset < 0:
            return []
        if conversation_id is not None and await self._memory.owner(conversation_id) is None:
            log.warning("conversation_unknown", namespace=namespace_prefix, problem=str(NamespaceUnknown()))
            return []
        if query:
            hits = await self._memory.recall(
                query,
                user_id=user_id,
                tenant_id=self._tenant_id,
                k=min(offset + limit, MOST_HITS),
                agent_id=agent_id,
                conversation_id=conversation_id,
                min_coverage=self._min_coverage,
            )
            page = hits[offset : offset + limit]
            return [SearchItem(**_fields(user_id, hit, {*SHOWN, "matches"}), score=hit.score) for hit in page]
        items: list[SearchItem] = []
        async with aclosing(self._episodes(user_id, conversation_id, agent_id)) as episodes:
            async for episode in episodes:
                items.append(SearchItem(**_fields(user_id, episode.summary, SHOWN)))
                if len(items) == offset + limit:
                    break
        return items[offset:]

    async def alist_namespaces(
        self,
        *,
        prefix: Namespace | None = None,
        suffix: Namespace | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Namespace]:
        user_id, _ = _place(prefix or ())
        names = [(user_id, conversation) async for conversation, _ in self._scopes(user_id, None, None)]
        ends = [(prefix or (), 1), ((suffix or ())[::-1], -1)]
        matching = [name for name in names if all(_begins(name[::step], path) for path, step in ends)]
        cut = sorted({name[:max_depth] for name in matching})
        return cut[offset : offset + limit] if offset >= 0 else []

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
        """Yield conversation and agent, for one conversation or for all that the user began."""
        if conversation_id is not None:
            yield conversation_id, agent_id
            return
        after: str | None = None
        while True:
            page = await self._memory.conversations(user_id=user_id, tenant_id=self._tenant_id, after=after)
            for entry in page.conversations:
                if agent_id in (None, entry.agent_id):
                    yield entry.conversation_id, entry.agent_id
            after = page.next_after
            if after is None:
                return


def _place(namespace: Namespace) -> tuple[str, str | None]:
    match namespace:
        case (user_id,):
            return user_id, None
        case (user_id, conversation_id):
            return user_id, conversation_id
    raise NamespaceUnknown


SHOWN = {"conversation_id", "agent_id", "ordinal", "title", "short_summary", "message_ids", "started_at", "ended_at"}
"""Fields copied into an item's value, from hits and episodes alike."""


def _fields(user_id: str, episode: Recalled | SummaryCreated, shown: set[str]) -> dict[str, Any]:
    return {
        "namespace": (user_id, episode.conversation_id),
        "key": episode.episode_id,
        "value": episode.model_dump(mode="json", include=shown),
        "created_at": episode.ended_at,
        "updated_at": episode.ended_at,
    }


def _agent_in(filter: Mapping[str, Any]) -> str | None:  # noqa: A002 – the framework's name
    """Return the agent that a filter names, as a value or as `{"$eq": value}`. Raises: FilterUnknown."""
    agent_id = filter.get("agent_id")
    if isinstance(agent_id, dict) and agent_id.keys() == {"$eq"}:
        agent_id = agent_id["$eq"]
    if filter and (filter.keys() != {"agent_id"} or not isinstance(agent_id, str)):
        raise FilterUnknown
    return agent_id


def _begins(name: Namespace, path: Namespace) -> bool:
    return len(path) <= len(name) and all(label in ("*", own) for own, label in zip(name, path, strict=False))
