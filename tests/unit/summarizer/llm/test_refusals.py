"""An LLM's server that refuses one request, and one that refuses all."""

import asyncio

from afterword.schemas import Usage
from afterword.streams.errors import AnswerInvalid, PromptRefused, ProviderMisconfigured
from afterword.streams.settings import Llm
from afterword.streams.summarizer.llm import Asking, ChatRequest, Reply
from tests.doubles.llm import a_client

LLM = Llm(provider="openai", model="m", attempts=2)


class Server:
    """Refuses prompts with the word "flagged" in them, or all prompts."""

    name = "openai"

    def __init__(self, refuses_all: bool = False, odd: bool = False) -> None:
        self.refuses_all = refuses_all
        self.odd = odd
        self.prompts: list[str] = []

    async def chat(self, request: ChatRequest) -> Reply:
        prompt = request.messages[0]["content"]
        self.prompts.append(prompt)
        if self.refuses_all or "flagged" in prompt:
            await asyncio.sleep(0)
            raise ProviderMisconfigured(problem="the API key may not do this (403)")
        if self.odd:
            raise AnswerInvalid(problem="the response was not a chat completion")
        return Reply("text", Usage())

    def optional_fields(self, request: ChatRequest) -> frozenset[str]:
        return frozenset()


async def ask(server: Server, *prompts: str) -> list[str | BaseException]:
    client = a_client(server, LLM)

    def question(prompt: str) -> ChatRequest:
        return ChatRequest([{"role": "user", "content": prompt}], 10)

    async def answer(prompt: str) -> str:
        return await Asking(client, 0.1).until_usable(lambda _: question(prompt), lambda text: text)

    return await asyncio.gather(*map(answer, prompts), return_exceptions=True)


async def test_request_refused_alone_fails_at_once_with_reason() -> None:
    server = Server()
    (error,) = await ask(server, "flagged")
    assert isinstance(error, PromptRefused)
    assert "403" in str(error)
    assert server.prompts == ["flagged", "Answer with yes."]


async def test_server_that_answers_others_is_asked_nothing_more() -> None:
    server = Server()
    refused, answered = await ask(server, "flagged", "fine")
    assert isinstance(refused, PromptRefused)
    assert answered == "text"
    assert sorted(server.prompts) == ["fine", "flagged"]


async def test_many_refused_requests_ask_one_more_question() -> None:
    server = Server()
    errors = await ask(server, *["flagged"] * 5)
    assert {type(error) for error in errors} == {PromptRefused}
    assert server.prompts.count("Answer with yes.") == 1


async def test_server_that_refuses_everything_is_to_blame() -> None:
    (error,) = await ask(Server(refuses_all=True), "fine")
    assert isinstance(error, ProviderMisconfigured)
