"""Agents of three frameworks on real servers and workers know in one conversation what was said in another."""

from collections.abc import AsyncIterator
from typing import Any, NoReturn

import orjson
import pytest
import pytest_asyncio
from agents import Agent, Model, ModelResponse, RunConfig, Runner, TResponseInputItem, Usage
from agents.memory.session import Session
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AnyMessage
from langchain_core.tools import create_retriever_tool
from langgraph.graph import START, MessagesState, StateGraph
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputItem,
    ResponseOutputMessage,
    ResponseOutputText,
)

from afterword import Memory, Producer
from afterword.integrations.langchain import AfterwordRetriever
from afterword.integrations.langgraph import AfterwordStore, context_node
from afterword.integrations.openai_agents import AfterwordSession, ItemTooLarge, SessionTaken, recall_tool
from tests.e2e.deployment import WAIT_SECONDS, Deployment
from tests.waiting import until


class RepeatingModel(Model):
    """Answers with the last tool's output; without tools with the number of items that it was given."""

    def __init__(self) -> None:
        self.given: list[list[TResponseInputItem]] = []

    async def get_response(self, *given: Any, **named: Any) -> ModelResponse:
        _, items, _, tools, *_ = given or (None, named["input"], None, named["tools"])
        self.given.append(items)
        return ModelResponse(output=[self._output(items, tools)], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError

    def _output(self, items: list[Any], tools: list[Any]) -> ResponseOutputItem:
        last = items[-1]
        if tools and last.get("type") != "function_call_output":
            return ResponseFunctionToolCall(
                type="function_call",
                call_id=f"call_{len(self.given)}",
                name=tools[0].name,
                arguments=orjson.dumps({"query": last["content"]}).decode(),
            )
        text = last["output"] if tools else f"I was given {len(items)} items."
        return ResponseOutputMessage(
            id="__fake_id__",  # as the SDK's own models for other servers
            type="message",
            role="assistant",
            status="completed",
            content=[ResponseOutputText(type="output_text", text=text, annotations=[])],
        )


pytestmark = pytest.mark.nightly

ALLERGY = "I am allergic to peanuts, please remember that."
OWNER: Any = {"user_id": "ada", "tenant_id": "acme"}
UNTRACED = RunConfig(tracing_disabled=True)


class Clients:
    """The clients that an agent's process opens, and sessions on them."""

    def __init__(self, memory: Memory, producer: Producer) -> None:
        self.memory = memory
        self.producer = producer

    def session(self, conversation_id: str, **fields: Any) -> AfterwordSession:
        given = {**OWNER, **fields}
        return AfterwordSession(conversation_id, memory=self.memory, producer=self.producer, **given)


@pytest_asyncio.fixture
async def clients(deployment: Deployment) -> AsyncIterator[Clients]:
    settings = deployment.settings
    async with Memory.from_settings(settings) as memory, Producer.from_settings(settings) as producer:
        yield Clients(memory, producer)


def texts(items: list[Any]) -> list[str]:
    return [item["content"] for item in items]


def said(*contents: str) -> Any:
    return [{"role": "user", "content": content} for content in contents]


async def test_session_reads_unarchived_writes_and_loses_what_it_deletes(
    deployment: Deployment, clients: Clients
) -> None:
    session = clients.session("s1")
    assert isinstance(session, Session)
    assert await session.get_items() == []
    assert await session.pop_item() is None
    await session.add_items(said("one", "two", "three", "four"))
    assert texts(await session.get_items()) == ["one", "two", "three", "four"]
    assert texts(await session.get_items(2)) == ["three", "four"]
    popped: Any = await session.pop_item()
    assert popped["content"] == "four"
    assert texts(await session.get_items()) == ["one", "two", "three"]

    with pytest.raises(TimeoutError):
        await session.archived(0.01)

    deployment.start("archiver")
    await session.archived(WAIT_SECONDS)
    fresh = clients.session("s1")

    async def archived() -> bool:
        return texts(await fresh.get_items()) == ["one", "two", "three"]

    await until(archived)
    await fresh.add_items(said("five"))
    assert texts(await fresh.get_items()) == ["one", "two", "three", "five"]
    for stranger in ({"user_id": "bob"}, {"tenant_id": None}):
        assert await clients.session("s1", **stranger).get_items() == []
        with pytest.raises(SessionTaken):
            await clients.session("s1", **stranger).add_items(said("mine"))
    with pytest.raises(ItemTooLarge, match="item 2"):
        await fresh.add_items(said("six", "x" * 700_000))

    await fresh.clear_session()
    assert await fresh.get_items() == []
    await fresh.add_items(said("again"))
    assert texts(await fresh.get_items()) == ["again"]

    async def cleared() -> bool:
        return texts(await clients.session("s1").get_items()) == ["again"]

    await until(cleared)
    assert texts(await fresh.get_items()) == ["again"]


async def test_agents_recall_earlier_conversations_in_a_new_one(deployment: Deployment, clients: Clients) -> None:
    for role in ("segmenter", "summarizer", "archiver"):
        deployment.start(role)
    listener = RepeatingModel()
    for text in (ALLERGY, "Now let us talk about lamps."):
        session = clients.session("earlier")  # as in two requests
        await Runner.run(Agent("listener", model=listener), text, session=session, run_config=UNTRACED)
        await session.archived(WAIT_SECONDS)
    assert [len(items) for items in listener.given] == [1, 3]
    await clients.producer.flush("earlier", tenant_id="acme")

    async def summarized() -> bool:
        return bool(await clients.memory.recall("peanuts", **OWNER))

    await until(summarized)
    question = "May I eat peanuts?"

    model = RepeatingModel()
    agent = Agent("rememberer", model=model, tools=[recall_tool(clients.memory, **OWNER)])
    session = clients.session("new")
    done = await Runner.run(agent, question, session=session, run_config=UNTRACED)
    assert "allergic to peanuts" in done.final_output
    kinds = [item.get("type", "message") for item in await session.get_items()]
    assert kinds == ["message", "function_call", "function_call_output", "message"]

    assert "allergic to peanuts" in str(await graph_answers(clients.memory, question))

    retriever = AfterwordRetriever(memory=clients.memory, **OWNER)
    tool = create_retriever_tool(retriever, "recall", "Search earlier conversations.")
    assert "allergic to peanuts" in await tool.ainvoke({"query": question})

    items = await AfterwordStore(clients.memory, tenant_id="acme").asearch(("ada",), query=question)
    assert ("ada", "earlier") in [item.namespace for item in items]
    report = await deployment.audit()
    assert report.clean, report.lines()


class State(MessagesState):
    context: list[AnyMessage]


async def graph_answers(memory: Memory, question: str) -> list[AnyMessage]:
    """Return the model's input in a graph, in a new conversation."""
    given: list[AnyMessage] = []

    async def answer(state: State) -> dict[str, Any]:
        given.extend(state["context"])
        return {"messages": [await FakeListChatModel(responses=["No."]).ainvoke([*given, *state["messages"]])]}

    graph = StateGraph(State).add_node("memory", context_node(memory)).add_node("answer", answer)
    graph.add_edge(START, "memory").add_edge("memory", "answer")
    store = AfterwordStore(memory, tenant_id="acme")
    config: Any = {"configurable": {"thread_id": "begun", **OWNER}}
    await graph.compile(store=store).ainvoke({"messages": [("user", question)]}, config)
    return given
