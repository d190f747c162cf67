"""Cache of an LLM's replies: it saves requests, and its outage changes nothing."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from afterword.schemas import Usage
from afterword.streams.errors import AnswerInvalid, ProviderUnavailable, StoreUnavailable
from afterword.streams.settings import Llm
from afterword.streams.stores.replies import KeptReply
from afterword.streams.summarizer.llm.chat import MOST_CHARACTERS, ChatRequest, Reply
from afterword.streams.summarizer.llm.client import ANSWERS, Asking, LlmClient
from afterword.streams.summarizer.llm.retrying import RetryBudget
from tests.doubles.llm import a_client
from tests.doubles.stores import MemoryReplies

LLM = Llm(provider="openai", model="m", attempts=1)
QUESTION = ChatRequest([{"role": "user", "content": "Where is my order?"}], 500, {"type": "object"})
USAGE = Usage(prompt_tokens=10, completion_tokens=5)


def asking(client: LlmClient, *, fresh: bool = False) -> Asking:
    return Asking(client, RetryBudget(60), fresh)


async def asked(client: LlmClient, question: ChatRequest = QUESTION) -> tuple[str, Usage]:
    """Text and cost of an answer, without the time that the test happened to take."""
    once = asking(client)
    text = await once.until_usable(lambda _: question, str)
    return text, once.used.model_copy(update={"seconds": 0.0})


class Endpoint:
    """A protocol that answers each question with its number, or fails when it is told to."""

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


class Away:
    """A ReplyCache that cannot be reached."""

    def __init__(self) -> None:
        self.calls = 0

    async def get(self, key: str) -> KeptReply | None:
        return self._fail()

    async def put(self, key: str, reply: KeptReply, expires_at: datetime) -> None:
        self._fail()

    def _fail(self) -> Any:
        self.calls += 1
        raise StoreUnavailable(store="mongodb", problem="away")


async def test_the_same_question_is_asked_once_and_costs_nothing_the_second_time() -> None:
    endpoint, replies = Endpoint(), MemoryReplies()
    first = await asked(a_client(endpoint, LLM, replies))
    second = await asked(a_client(endpoint, LLM, replies))
    assert len(endpoint.asked) == 1
    assert first == ("Answer 1", USAGE)
    assert second == ("Answer 1", Usage())


async def test_time_is_counted_like_tokens_and_a_kept_reply_takes_none() -> None:
    endpoint, replies = Endpoint(), MemoryReplies()
    endpoint.answering.clear()
    first, second = asking(a_client(endpoint, LLM, replies)), asking(a_client(endpoint, LLM, replies))
    waiting = asyncio.create_task(first.until_usable(lambda _: QUESTION, str))
    asyncio.get_running_loop().call_later(0.05, endpoint.answering.set)
    await waiting
    await second.until_usable(lambda _: QUESTION, str)
    assert 0.04 < first.used.seconds < 30
    assert second.used.seconds == 0


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
    client = a_client(endpoint, LLM, MemoryReplies())
    texts = [(await asked(client, question))[0] for question in (QUESTION, other, QUESTION, other)]
    assert texts == ["Answer 1", "Answer 2", "Answer 1", "Answer 2"]


@pytest.mark.parametrize("changed", [{"model": "n"}, {"temperature": 0.3}, {"chat_format": "chatml"}])
async def test_another_model_or_parameter_is_another_answer(changed: dict[str, Any]) -> None:
    endpoint, replies = Endpoint(), MemoryReplies()
    await asked(a_client(endpoint, LLM, replies))
    other = await asked(a_client(endpoint, LLM.model_copy(update=changed), replies))
    assert other[0] == "Answer 2"


async def test_the_model_that_is_named_and_the_one_that_is_set_are_the_same_question() -> None:
    endpoint = Endpoint()
    client = a_client(endpoint, LLM, MemoryReplies())
    await asked(client)
    assert (await asked(client, replace(QUESTION, model="m")))[0] == "Answer 1"


async def test_a_reply_is_kept_for_as_long_as_is_set() -> None:
    replies = MemoryReplies()
    await asked(a_client(Endpoint(), LLM.model_copy(update={"cache_seconds": 60}), replies))
    ((_, expires_at),) = replies.kept.values()
    assert 0 < (expires_at - datetime.now(UTC)).total_seconds() <= 60


async def test_what_is_asked_by_several_at_once_is_asked_once() -> None:
    endpoint = Endpoint()
    endpoint.answering.clear()
    client = a_client(endpoint, LLM, MemoryReplies())
    tasks = [asyncio.create_task(asked(client)) for _ in range(5)]
    await asyncio.sleep(0)
    endpoint.answering.set()
    replies = await asyncio.gather(*tasks)
    assert {text for text, _ in replies} == {"Answer 1"}
    assert sum(cost.prompt_tokens for _, cost in replies) == USAGE.prompt_tokens


async def test_who_waits_for_a_call_that_is_given_up_makes_it_itself() -> None:
    endpoint = Endpoint()
    endpoint.answering.clear()
    client = a_client(endpoint, LLM, MemoryReplies())
    first, second = (asyncio.create_task(asked(client)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    endpoint.answering.set()
    assert (await second)[0] == "Answer 2"
    assert first.cancelled()


async def test_a_failure_is_not_kept() -> None:
    endpoint = Endpoint(ProviderUnavailable(problem="away"))
    client = a_client(endpoint, LLM, MemoryReplies())
    with pytest.raises(ProviderUnavailable):
        await asked(client)
    assert (await asked(client))[0] == "Answer 2"


async def test_a_reply_of_absurd_length_is_neither_read_nor_kept() -> None:
    replies = MemoryReplies()
    client = a_client(Endpoint(text="a" * MOST_CHARACTERS), LLM, replies)
    with pytest.raises(AnswerInvalid, match="longer than"):
        await asking(client).until_usable(lambda _: QUESTION, len)
    assert replies.kept == {}


async def test_a_reply_is_kept_only_after_it_was_read() -> None:
    """A reply that could not be read, or made the worker hang, is asked for anew after a restart."""
    replies = MemoryReplies()

    def read(text: str) -> str:
        assert replies.kept == {}
        return text

    await asking(a_client(Endpoint(), LLM, replies)).until_usable(lambda _: QUESTION, read)
    assert len(replies.kept) == 1


async def test_a_kept_reply_that_cannot_be_read_any_more_is_replaced() -> None:
    endpoint, replies = Endpoint(), MemoryReplies()
    await asked(a_client(endpoint, LLM, replies))

    def read(text: str) -> str:
        if text == "Answer 1":
            raise AnswerInvalid(problem="no good")
        return text

    for _ in range(2):
        assert await asking(a_client(endpoint, LLM, replies)).until_usable(lambda _: QUESTION, read) == "Answer 2"
    assert len(endpoint.asked) == 2


async def test_a_fresh_answer_replaces_the_kept_one() -> None:
    endpoint, replies = Endpoint(), MemoryReplies()
    for fresh, text in ((False, "Answer 1"), (False, "Answer 1"), (True, "Answer 2"), (False, "Answer 2")):
        client = a_client(endpoint, LLM, replies)
        assert await asking(client, fresh=fresh).until_usable(lambda _: QUESTION, str) == text


async def test_a_cache_that_is_away_fails_nothing_and_is_told_once() -> None:
    endpoint, away = Endpoint(), Away()
    client = a_client(endpoint, LLM, away)
    with capture_logs() as logs:
        texts = [(await asked(client))[0] for _ in range(3)]
    assert texts == ["Answer 1", "Answer 2", "Answer 3"]
    assert [(entry["stage"], entry["error_type"]) for entry in logs] == [("llm_cache", "store_unavailable")]
    assert away.calls == 1  # each try may take long: after the first the rest do without


async def test_answers_of_no_use_are_asked_for_anew_also_by_the_same_words_and_never_kept() -> None:
    endpoint, replies = Endpoint(), MemoryReplies()

    def refused(text: str) -> str:
        raise AnswerInvalid(problem="no good")

    def question(problem: str | None) -> ChatRequest:
        return replace(QUESTION, messages=[*QUESTION.messages, {"role": "user", "content": problem or ""}])

    for times in (1, 2):
        with pytest.raises(AnswerInvalid):
            await asking(a_client(endpoint, LLM, replies)).until_usable(question, refused)
        assert replies.kept == {}
        assert len(endpoint.asked) == ANSWERS * times


async def test_of_a_bad_answer_and_a_good_one_only_the_good_one_is_kept_and_both_are_paid() -> None:
    endpoint, replies = Endpoint(), MemoryReplies()

    def read(text: str) -> str:
        if text == "Answer 1":
            raise AnswerInvalid(problem="no good")
        return text

    def question(problem: str | None) -> ChatRequest:
        return replace(QUESTION, messages=[{"role": "user", "content": problem or "first"}])

    both = asking(a_client(endpoint, LLM, replies))
    assert await both.until_usable(question, read) == "Answer 2"
    assert both.used.prompt_tokens == 2 * USAGE.prompt_tokens
    assert [reply.text for reply, _ in replies.kept.values()] == ["Answer 2"]
