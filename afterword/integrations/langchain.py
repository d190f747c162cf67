"""A LangChain retriever: `Memory.recall` for one user."""

from typing import NoReturn

from afterword.installed import extra_required
from afterword.integrations import AsyncOnly
from afterword.reading.memory import Memory, hit_lines
from afterword.reading.profile import PROFILE_TOKENS
from afterword.streams.stores.index import MIN_COVERAGE, Recalled

with extra_required("langchain", __name__):
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.messages import BaseMessage, SystemMessage
    from langchain_core.retrievers import BaseRetriever


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


async def profile_messages(
    memory: Memory, *, user_id: str, tenant_id: str | None, max_tokens: int = PROFILE_TOKENS
) -> list[BaseMessage]:
    """Return what is known about the user as a system message to start a prompt with; no message if nothing is known.

    It changes less often than what a retriever finds, so a model's server can cache it. Calls raise the errors of
    `Memory.profile`.
    """
    known = await memory.profile(user_id, tenant_id, max_tokens)
    return [SystemMessage(known.as_text())] if known.facts else []


def _document(hit: Recalled) -> Document:
    return Document(id=hit.episode_id, page_content="\n".join(hit_lines(hit)), metadata=hit.model_dump(mode="json"))
