"""The retriever in a LangChain chain with a fake model."""

from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

from afterword import OwnerMissing
from afterword.integrations import AsyncOnly
from afterword.integrations.langchain import AfterwordRetriever
from tests.unit.afterword.reading.remembered import Remembered


async def remembered() -> Remembered:
    world = Remembered()
    await world.summarise(await world.say("I am allergic to peanuts.", "Noted: no peanuts for you.", user_id="ada"))
    other = await world.say("My peanuts are organic.", "Good.", conversation_id="c2", user_id="bob")
    await world.summarise(other)
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
