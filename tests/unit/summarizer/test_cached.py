"""What an LLM has answered is not asked for again, and a cache that is away changes nothing."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from afterword.schemas import Usage
from afterword.streams.errors import AnswerInvalid, ProviderUnavailable, StoreUnavailable
from afterword.streams.settings import Llm
from afterword.streams.stores.replies import KeptReply
from afterword.streams.summarizer.providers.asking import Asking
from afterword.streams.summarizer.providers.cached import MAX_CHARACTERS, Cached
from afterword.streams.summarizer.providers.endpoint import ChatRequest, Reply
from tests.doubles.stores import MemoryReplies

LLM = Llm(provider="openai", model="m")
QUESTION = ChatRequest([{"role": "user", "content": "Where is my order?"}], 500, {"type": "object"})
USAGE = Usage(prompt_tokens=10, completion_tokens=5)


class Endpoint:
    """Answers each question with its number, or fails when it is told to."""

    name = "endpoint"

    def __init__(self, *failures: Exception, text: str = "Answer") -> None:
        self.asked: list[ChatRequest] = []
        self.failures = list(failures)
        self.text = text
        self.answering = asyncio.Event()
        self.answering.set()

    async def chat(self, request: ChatRequest) -> Reply:
        self.asked.append(request)
        number = len(self.asked)
        await self.answering.wait()
        if self.failures:
            raise self.failures.pop(0)
        return Reply(f"{self.text} {number}", USAGE)

    async def forget(self, requests: Sequence[ChatRequest]) -> None: ...

    async def check(self) -> None: ...

    async def close(self) -> None: ...


class Away:
    """A ReplyCache that cannot be reached."""

    def __init__(self) -> None:
        self.calls = 0

    async def get(self, key: str) -> KeptReply | None:
        return self._fail()

    async def put(self, key: str, reply: KeptReply, expires_at: datetime) -> None:
        self._fail()

    async def forget(self, keys: Sequence[str]) -> None:
        self._fail()

    def _fail(self) -> Any:
        self.calls += 1
        raise StoreUnavailable(store="mongodb", problem="away")


async def test_the_same_question_is_asked_once_and_costs_nothing_the_second_time() -> None:
    endpoint, replies = Endpoint(), MemoryReplies()
    first = await Cached(endpoint, replies, LLM).chat(QUESTION)
    second = await Cached(endpoint, replies, LLM).chat(QUESTION)
    assert len(endpoint.asked) == 1
    assert (first.text, first.usage) == ("Answer 1", USAGE)
    assert (second.text, second.usage) == ("Answer 1", Usage())


@pytest.mark.parametrize(
    "other",
    [
        replace(QUESTION, messages=[{"role": "system", "content": "Where is my order?"}]),
        replace(QUESTION, messages=[{"role": "user", "content": "Where is my order ?"}]),
        replace(QUESTION, max_tokens=501),
        replace(QUESTION, schema=None),
        replace(QUESTION, model="title-model"),
    ],
)
async def test_another_question_is_another_answer(other: ChatRequest) -> None:
    endpoint = Endpoint()
    cached = Cached(endpoint, MemoryReplies(), LLM)
    texts = [(await cached.chat(question)).text for question in (QUESTION, other, QUESTION, other)]
    assert texts == ["Answer 1", "Answer 2", "Answer 1", "Answer 2"]


@pytest.mark.parametrize("changed", [{"model": "n"}, {"temperature": 0.3}, {"chat_format": "chatml"}])
async def test_another_model_or_parameter_is_another_answer(changed: dict[str, Any]) -> None:
    endpoint, replies = Endpoint(), MemoryReplies()
    await Cached(endpoint, replies, LLM).chat(QUESTION)
    other = await Cached(endpoint, replies, LLM.model_copy(update=changed)).chat(QUESTION)
    assert other.text == "Answer 2"


async def test_the_model_that_is_named_and_the_one_that_is_set_are_the_same_question() -> None:
    endpoint = Endpoint()
    cached = Cached(endpoint, MemoryReplies(), LLM)
    await cached.chat(QUESTION)
    assert (await cached.chat(replace(QUESTION, model="m"))).text == "Answer 1"


async def test_a_reply_is_kept_for_as_long_as_is_set() -> None:
    replies = MemoryReplies()
    await Cached(Endpoint(), replies, LLM.model_copy(update={"cache_seconds": 60})).chat(QUESTION)
    ((_, expires_at),) = replies.kept.values()
    assert 0 < (expires_at - datetime.now(UTC)).total_seconds() <= 60


async def test_what_is_asked_by_several_at_once_is_asked_once() -> None:
    endpoint = Endpoint()
    endpoint.answering.clear()
    cached = Cached(endpoint, MemoryReplies(), LLM)
    asking = [asyncio.create_task(cached.chat(QUESTION)) for _ in range(5)]
    await asyncio.sleep(0)
    endpoint.answering.set()
    replies = await asyncio.gather(*asking)
    assert {reply.text for reply in replies} == {"Answer 1"}
    assert sum(reply.usage.prompt_tokens for reply in replies) == USAGE.prompt_tokens


async def test_who_waits_for_a_call_that_is_given_up_makes_it_itself() -> None:
    endpoint = Endpoint()
    endpoint.answering.clear()
    cached = Cached(endpoint, MemoryReplies(), LLM)
    first, second = (asyncio.create_task(cached.chat(QUESTION)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    endpoint.answering.set()
    assert (await second).text == "Answer 2"
    assert first.cancelled()


async def test_a_failure_is_not_kept() -> None:
    endpoint = Endpoint(ProviderUnavailable(problem="away"))
    cached = Cached(endpoint, MemoryReplies(), LLM)
    with pytest.raises(ProviderUnavailable):
        await cached.chat(QUESTION)
    assert (await cached.chat(QUESTION)).text == "Answer 2"


async def test_a_reply_of_absurd_length_is_not_kept() -> None:
    replies = MemoryReplies()
    await Cached(Endpoint(text="a" * MAX_CHARACTERS), replies, LLM).chat(QUESTION)
    assert replies.kept == {}


async def test_a_cache_that_is_away_fails_nothing_and_is_told_once() -> None:
    endpoint, away = Endpoint(), Away()
    cached = Cached(endpoint, away, LLM)
    with capture_logs() as logs:
        texts = [(await cached.chat(QUESTION)).text for _ in range(3)]
        await cached.forget([QUESTION])
    assert texts == ["Answer 1", "Answer 2", "Answer 3"]
    assert [(entry["stage"], entry["error_type"]) for entry in logs] == [("llm_cache", "store_unavailable")]
    assert away.calls == 1  # each try may take long: after the first the rest do without


async def test_answers_of_no_use_are_asked_for_anew_also_by_the_same_words_and_forgotten_in_the_end() -> None:
    endpoint, replies = Endpoint(), MemoryReplies()

    def refused(text: str) -> str:
        raise AnswerInvalid(problem="no good")

    def question(problem: str | None) -> ChatRequest:
        return replace(QUESTION, messages=[*QUESTION.messages, {"role": "user", "content": problem or ""}])

    for times in (1, 2):
        with pytest.raises(AnswerInvalid):
            await Asking(Cached(endpoint, replies, LLM), LLM).until_usable(question, refused)
        assert replies.kept == {}
        assert len(endpoint.asked) == LLM.json_attempts * times


async def test_a_good_answer_after_a_bad_one_is_found_again_by_the_same_way() -> None:
    endpoint, replies = Endpoint(), MemoryReplies()

    def read(text: str) -> str:
        if text == "Answer 1":
            raise AnswerInvalid(problem="no good")
        return text

    def question(problem: str | None) -> ChatRequest:
        return replace(QUESTION, messages=[{"role": "user", "content": problem or "first"}])

    asking = [Asking(Cached(endpoint, replies, LLM), LLM) for _ in range(2)]
    assert [await each.until_usable(question, read) for each in asking] == ["Answer 2", "Answer 2"]
    assert len(endpoint.asked) == 2
    assert [each.used.prompt_tokens for each in asking] == [2 * USAGE.prompt_tokens, 0]
