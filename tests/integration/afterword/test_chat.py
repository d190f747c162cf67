"""The chat of the page with an LLM behind it."""

from afterword.schemas import MessageCreated
from afterword.streams.settings import Llm
from tests.openai_server import LlmServer, answers
from tests.samples import a_fact, a_stored_episode
from tests.unit.afterword.serving.served import serving
from tests.unit.afterword.serving.test_chat import YOU
from tests.unit.afterword.serving.test_page import OURS


async def test_llm_chat_answers_with_and_without_memory(llm_server: LlmServer) -> None:
    llm = Llm(provider="openai", base_url=f"{llm_server.url}/v1", model="a-model", attempts=1)
    llm_server.script(answers("An answer."), answers("An answer."))
    async with serving(llm=llm) as served:
        fact = a_fact(user_id="you", message_ids=("m0",))
        given = {**YOU, "participants": ("you",), "facts": (fact,), "message_ids": ("m0",)}
        await served.remembered.episodes.put(a_stored_episode(conversation_id="chat-1", **given), None)
        form = {"content": "Where do I live?", "name": "you"}
        asked = await served.client.post("/chat?id=chat-2", data=form, headers=OURS)
        assert asked.headers["location"] == "/chat?id=chat-2&name=you"
        remembering = ["lives in Porto" in request.prompt for request in llm_server.requests]
        assert sorted(remembering) == [False, True]
        for request in llm_server.requests:
            assert request.body["messages"][-1] == {"role": "user", "content": "Where do I live?"}
        said = [MessageCreated.model_validate_json(record.value) for record in served.broker.records]
        assert [(one.role, one.content) for one in said] == [("user", form["content"]), ("assistant", "An answer.")]
        assert not said[1].skip_summarization
        llm_server.down = True
        failed = await served.client.post("/chat?id=chat-2", data=form, headers=OURS)
        assert "did not answer" in (await served.client.get(failed.headers["location"])).text
        assert len(served.broker.records) == 3
