"""The retriever in a LangChain chain, and the middleware in an agent, with fake models."""

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models import FakeListChatModel, FakeMessagesListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolCall
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import Field

from afterword import OwnerMissing
from afterword.integrations import AsyncOnly
from afterword.integrations.langchain import AfterwordMiddleware, AfterwordRetriever
from afterword.integrations.langgraph import ThreadUnnamed
from afterword.schemas import MessageCreated
from tests.samples import a_fact, a_stored_episode
from tests.unit.afterword.reading.remembered import Remembered


async def remembered() -> Remembered:
    world = Remembered()
    await world.summarise(await world.say("I am allergic to peanuts.", "Noted: no peanuts for you.", user_id="ada"))
    other = await world.say("My peanuts are organic.", "Good.", conversation_id="c2", user_id="bob")
    await world.summarise(other)
    known = a_stored_episode(1, conversation_id="c9", user_id="ada", facts=(a_fact("likes tea", user_id="ada"),))
    assert await world.episodes.put(known, None)
    return world


def retriever(world: Remembered, **fields: Any) -> AfterwordRetriever:
    return AfterwordRetriever(memory=world.memory, **{"user_id": "ada", "tenant_id": "t1", **fields})


async def test_documents_are_the_users_episodes_only() -> None:
    world = await remembered()
    [document] = await retriever(world).ainvoke("peanuts")
    assert document.page_content.startswith("2026-01-05, user: I am allergic to peanuts.\n")
    assert document.metadata["matches"][0]["content"] == "I am allergic to peanuts."
    assert document.id == "c1:1"
    assert document.metadata["conversation_id"] == "c1"
    assert document.metadata["message_ids"] == ["m0", "m1"]
    assert await retriever(world, tenant_id=None).ainvoke("peanuts") == []


async def test_retriever_works_in_a_chain() -> None:
    world = await remembered()
    prompts: list[str] = []

    def keep(prompt: Any) -> Any:
        prompts.append(prompt.to_string())
        return prompt

    prompt = ChatPromptTemplate.from_template("{known}\n{question}")
    model = FakeListChatModel(responses=["No satay."])
    chain = {"known": retriever(world), "question": RunnablePassthrough()} | prompt | keep | model
    assert (await chain.ainvoke("may I have peanuts?")).content == "No satay."
    assert "allergic to peanuts" in prompts[0]


async def test_retriever_without_a_user_raises() -> None:
    with pytest.raises(OwnerMissing):
        await retriever(await remembered(), user_id="").ainvoke("peanuts")


async def test_synchronous_call_is_refused_with_the_asynchronous_name() -> None:
    with pytest.raises(AsyncOnly, match="ainvoke"):
        retriever(Remembered()).invoke("peanuts")


OWNER = {"user_id": "ada", "tenant_id": "t1"}


class Sent:
    """A producer that keeps what it is given."""

    def __init__(self) -> None:
        self.messages: list[MessageCreated] = []

    async def send_all(self, messages: list[MessageCreated]) -> None:
        self.messages += messages

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(message.role, message.content) for message in self.messages]


class Model(FakeMessagesListChatModel):
    """Keeps what it is asked, and answers with the next message."""

    given: list[list[BaseMessage]] = Field(default_factory=list)

    def _generate(self, messages: list[BaseMessage], *rest: Any, **named: Any) -> Any:
        self.given.append(messages)
        return super()._generate(messages, *rest, **named)

    def bind_tools(self, *_: Any, **__: Any) -> "Model":
        return self


@tool
def price(item: str) -> str:
    """Return an item's price."""
    return f"{item}: 40 euros"


def model(*answers: AIMessage) -> Model:
    return Model(responses=list(answers))


async def test_agent_is_given_memory_and_sends_what_is_said() -> None:
    world, sent = await remembered(), Sent()
    call = AIMessage("", tool_calls=[ToolCall(name="price", args={"item": "lamp"}, id="1")])
    asked = model(call, AIMessage("A lamp costs 40 euros."), AIMessage("Better not."))
    agent = create_agent(
        asked,
        [price],
        system_prompt="Be brief.",
        middleware=[AfterwordMiddleware(world.memory, sent)],  # type: ignore[arg-type]
        checkpointer=InMemorySaver(),
    )
    config: Any = {"configurable": {"thread_id": "new", **OWNER}}
    await agent.ainvoke({"messages": [("user", "What is a lamp?")]}, config)
    first, second = asked.given
    assert isinstance(first[0], SystemMessage)
    assert first[0].text.startswith("Be brief.\n\n")
    assert "likes tea" in first[0].text
    assert [message.type for message in second] == ["system", "human", "ai", "tool"]
    assert sent.said == [
        ("user", "What is a lamp?"),
        ("tool", "lamp: 40 euros"),
        ("assistant", "A lamp costs 40 euros."),
    ]
    done = await agent.ainvoke({"messages": [("user", "May I eat peanuts?")]}, config)
    assert "remembered" not in done
    recalled = asked.given[2][1]
    assert isinstance(recalled, HumanMessage)
    assert "allergic to peanuts" in recalled.text
    assert sent.said[3:] == [("user", "May I eat peanuts?"), ("assistant", "Better not.")]
    assert len({message.id for message in sent.messages}) == 5
    assert {(m.conversation_id, m.user_id, m.tenant_id) for m in sent.messages} == {("new", "ada", "t1")}


async def test_thread_that_goes_on_is_given_its_messages_once() -> None:
    world, sent = await remembered(), Sent()
    asked = model(AIMessage("No peanuts."))
    agent = create_agent(asked, middleware=[AfterwordMiddleware(world.memory, sent)])  # type: ignore[arg-type]
    said = [("user", "I am allergic to peanuts."), ("assistant", "Noted: no peanuts for you."), ("user", "And now?")]
    await agent.ainvoke({"messages": said}, {"configurable": {"thread_id": "c1", **OWNER}})
    texts = [message.text for message in asked.given[0]]
    assert texts.count("I am allergic to peanuts.") == 1
    assert sent.said == [("user", "And now?"), ("assistant", "No peanuts.")]


async def test_summary_of_the_framework_is_not_sent() -> None:
    world, sent = await remembered(), Sent()
    summarizing = SummarizationMiddleware(
        model(AIMessage("They spoke.")), trigger=("messages", 3), keep=("messages", 1)
    )
    asked = model(AIMessage("One."), AIMessage("Two."))
    memory = AfterwordMiddleware(world.memory, sent)  # type: ignore[arg-type]
    agent = create_agent(asked, middleware=[memory, summarizing], checkpointer=InMemorySaver())
    for question in ("First?", "Second?"):
        await agent.ainvoke({"messages": [("user", question)]}, {"configurable": {"thread_id": "new", **OWNER}})
    assert "They spoke." in str(asked.given[1])
    assert sent.said == [("user", "First?"), ("assistant", "One."), ("user", "Second?"), ("assistant", "Two.")]


async def test_run_without_thread_or_on_no_loop_raises() -> None:
    world, sent = await remembered(), Sent()
    agent = create_agent(model(AIMessage("No.")), middleware=[AfterwordMiddleware(world.memory, sent)])  # type: ignore[arg-type]
    with pytest.raises(ThreadUnnamed):
        await agent.ainvoke({"messages": [("user", "x")]}, {"configurable": {**OWNER}})
    with pytest.raises((TypeError, NotImplementedError)):
        agent.invoke({"messages": [("user", "x")]}, {"configurable": {"thread_id": "new", **OWNER}})
    assert sent.messages == []


async def test_blocks_of_the_system_message_stay_as_they_are() -> None:
    world, sent = await remembered(), Sent()
    asked, cached = (
        model(AIMessage("Yes.")),
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
    )
    memory = AfterwordMiddleware(world.memory, sent)  # type: ignore[arg-type]
    agent = create_agent(asked, system_prompt=SystemMessage([cached]), middleware=[memory])
    await agent.ainvoke({"messages": [("user", "Tea?")]}, {"configurable": {"thread_id": "new", **OWNER}})
    content = asked.given[0][0].content
    assert content[0] == cached
    assert "likes tea" in content[1]["text"]
