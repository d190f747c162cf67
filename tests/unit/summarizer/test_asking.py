"""The question for a JSON object: made once for planning and asking, and anew where it says what was wrong."""

from collections.abc import Callable
from dataclasses import replace

import orjson
import pytest

from afterword.schemas import Usage
from afterword.streams.settings import Llm
from afterword.streams.summarizer.llm.chat import ChatRequest, Reply
from afterword.streams.summarizer.llm.client import Asking
from afterword.streams.summarizer.llm.retrying import RetryBudget
from afterword.streams.summarizer.prompt import EPISODIC
from afterword.streams.summarizer.providers import StructuredQuestions
from afterword.streams.summarizer.summary import SummaryRequest
from tests.doubles.llm import a_client
from tests.samples import a_closed_episode

LLM = Llm(provider="openai", model="m")
ANSWER = {
    "title": "A refund",
    "short_summary": "Ada cancelled order 4711.",
    "long_summary": "Ada cancelled order 4711. The assistant confirmed it. The refund takes three days.",
    "rolling_summary": "Ada waits for a refund.",
}
REQUEST = SummaryRequest(a_closed_episode(), "Ada is a customer.", 800)


class Recording:
    """Protocol that keeps the questions, and answers in these texts; then with a good one.

    Each time it is asked, the request is measured once more.
    """

    name = "recording"

    def __init__(self, measure: Callable[[], object], *texts: str) -> None:
        self.questions: list[ChatRequest] = []
        self._measure = measure
        self._texts = list(texts)

    async def chat(self, request: ChatRequest) -> Reply:
        self.questions.append(request)
        self._measure()
        return Reply(self._texts.pop(0) if self._texts else orjson.dumps(ANSWER).decode(), Usage())


async def asked(questions: StructuredQuestions, request: SummaryRequest, *texts: str) -> list[ChatRequest]:
    recording = Recording(lambda: questions.longest(request) if texts else None, *texts)
    await questions.ask(request, Asking(a_client(recording, LLM), RetryBudget(60)))
    return recording.questions


async def test_the_question_that_was_measured_is_the_one_that_is_asked() -> None:
    questions = StructuredQuestions(EPISODIC, LLM)
    [measured] = questions.longest(REQUEST)
    [question] = await asked(questions, REQUEST)
    assert question is measured
    [again] = await asked(questions, REQUEST)
    assert (again, again is measured) == (measured, False), "nothing of an episode is kept"


async def test_a_question_says_what_was_wrong_though_another_one_was_measured() -> None:
    questions = StructuredQuestions(EPISODIC, LLM)
    [measured] = questions.longest(REQUEST)
    first, second = await asked(questions, REQUEST, "no JSON")
    assert first is measured
    assert "could not be used" in second.messages[1]["content"]
    questions.longest(REQUEST)
    [corrected] = await asked(questions, replace(REQUEST, problem="it was rude"))
    assert "it was rude" in corrected.messages[1]["content"]


@pytest.mark.parametrize("changed", [{"previous_rolling": "Eve is a guest."}, {"wants_rolling": False}])
async def test_what_was_measured_is_asked_of_that_request_only(changed: dict[str, object]) -> None:
    questions, other = StructuredQuestions(EPISODIC, LLM), replace(REQUEST, **changed)  # type: ignore[arg-type]
    [measured] = questions.longest(REQUEST)
    [question] = await asked(questions, other)
    assert question != measured
    assert [question] == StructuredQuestions(EPISODIC, LLM).longest(other)
