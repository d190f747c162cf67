"""LangChain adapters: a retriever for one user, and a middleware that gives an agent a memory."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, NoReturn

from afterword.integrations import AsyncOnly
from afterword.reading.memory import Memory, hit_lines
from afterword.schemas import MessageCreated
from afterword.schemas.messages import Role
from afterword.streams.installed import extra_required
from afterword.streams.stores.index import MIN_COVERAGE, Recalled
from afterword.writing.producer import Producer

with extra_required("langchain", __name__):
    from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest
    from langchain.agents.middleware.types import PrivateStateAttr
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.messages import AnyMessage, SystemMessage
    from langchain_core.retrievers import BaseRetriever
    from langgraph.config import get_config
    from langgraph.runtime import Runtime

    from afterword.integrations.langgraph import CONTEXT, context_node, named_by

ROLES: dict[str, Role] = {"human": "user", "ai": "assistant", "tool": "tool"}


class AfterwordRetriever(BaseRetriever):
    """Returns one user's episodes that match a query, as documents, best first:

        retriever = AfterwordRetriever(memory=memory, user_id="ada", tenant_id="acme")
        documents = await retriever.ainvoke("which lamp is missing?")

    User and tenant are fixed in this object, whatever a model asks for. A `tenant_id` of None means episodes without a
    tenant. A document's text is what was said, followed by the short summary. Its id is the episode's, and its metadata
    is the hit. The retriever is asynchronous only. Calls raise the same errors as `Memory.recall`.
    """

    memory: Memory
    user_id: str
    tenant_id: str | None
    k: int = 5
    """Maximum number of documents, 1 to 100."""
    agent_id: str | None = None
    """Only episodes of this agent, if episodes are kept per agent."""
    min_coverage: float = MIN_COVERAGE
    """Share of the query, 0 to 1, that the best hit must cover. If none does, there are no documents."""

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,  # noqa: ARG002 – the framework passes it by name
    ) -> list[Document]:
        hits = await self.memory.recall(
            query,
            user_id=self.user_id,
            tenant_id=self.tenant_id,
            k=self.k,
            agent_id=self.agent_id,
            min_coverage=self.min_coverage,
        )
        return [_document(hit) for hit in hits]

    def _get_relevant_documents(
        self,
        query: str,  # noqa: ARG002 – the framework's signature
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002 – the framework passes it by name
    ) -> NoReturn:
        raise AsyncOnly(called="AfterwordRetriever.invoke", instead="ainvoke")


class MemoryState(AgentState):  # type: ignore[misc]  # see the override in pyproject.toml
    remembered: Annotated[list[AnyMessage], PrivateStateAttr]


class AfterwordMiddleware(AgentMiddleware):  # type: ignore[misc]  # as above
    """Gives an agent what is remembered, and remembers what is said:

        agent = create_agent(model, tools, middleware=[AfterwordMiddleware(memory, producer)])
        await agent.ainvoke(question, {"configurable": {"thread_id": "chat-2", "user_id": "ada", "tenant_id": "acme"}})

    Thread, user and tenant are named as for `context_node`, which loads the memory once for each run, and which
    `options` are for. Every call of the model gets it, without what the thread's own messages say. The question is sent
    before the agent begins, the answers and the results of tools when it is done. `memory` and `producer` must be open.
    The agent is then asynchronous only. A run raises the errors of `context_node`, BrokerUnavailable and OtherLoop.
    """

    state_schema = MemoryState

    def __init__(self, memory: Memory, producer: Producer, **options: Any) -> None:
        super().__init__()
        self._load, self._producer = context_node(memory, **options), producer

    async def abefore_agent(self, state: MemoryState, runtime: Runtime[Any]) -> dict[str, Any]:
        loaded = await self._load(state, get_config(), runtime)
        begin, end = question_in(state["messages"])
        await self._send(state["messages"][begin:end], runtime)
        return {"remembered": loaded[CONTEXT]}

    async def awrap_model_call(self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[Any]]) -> Any:
        said = {message.text for message in request.messages}
        found = [message for message in request.state["remembered"] if message.text not in said]
        known = [message.text for message in found if isinstance(message, SystemMessage)]
        others = [message for message in found if not isinstance(message, SystemMessage)]
        request = request.override(messages=[*others, *request.messages])
        if known:  # in one system message, because some models accept no other
            own = request.system_message.content if request.system_message else ""
            blocks = [*own, *({"type": "text", "text": text} for text in known)]
            content = "\n\n".join(filter(None, (own, *known))) if isinstance(own, str) else blocks
            request = request.override(system_message=SystemMessage(content))
        return await handler(request)

    async def aafter_agent(self, state: MemoryState, runtime: Runtime[Any]) -> None:
        _, end = question_in(state["messages"])
        await self._send(state["messages"][end:], runtime)

    async def _send(self, messages: Sequence[AnyMessage], runtime: Runtime[Any]) -> None:
        conversation_id, user_id, tenant_id = named_by(runtime, get_config())
        owner: dict[str, Any] = {"conversation_id": conversation_id, "user_id": user_id, "tenant_id": tenant_id}
        await self._producer.send_all(
            [
                MessageCreated(
                    id=str(one.id), role=ROLES[one.type], content=one.text, sent_at=datetime.now(UTC), **owner
                )
                for one in messages
                # what SummarizationMiddleware puts in place of messages was said by nobody
                if one.type in ROLES and one.text.strip() and "lc_source" not in one.additional_kwargs
            ]
        )


def question_in(messages: Sequence[AnyMessage]) -> tuple[int, int]:
    """Return begin and end of the last human messages that follow each other."""
    end = max((number for number, one in enumerate(messages, 1) if one.type == "human"), default=len(messages))
    begin = end
    while begin and messages[begin - 1].type == "human":
        begin -= 1
    return begin, end


def _document(hit: Recalled) -> Document:
    return Document(id=hit.episode_id, page_content="\n".join(hit_lines(hit)), metadata=hit.model_dump(mode="json"))
