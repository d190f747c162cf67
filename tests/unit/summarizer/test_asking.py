"""The prompt for a JSON object is the same for planning and asking, unless it says what was wrong."""

from dataclasses import replace

import orjson

from afterword.schemas import Usage
from afterword.streams.settings import Llm
from afterword.streams.summarizer.llm import Asking, ChatRequest, Reply
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
    """A protocol that records the prompts and answers with these texts, then with a good one."""

    name = "recording"

    def __init__(self, *texts: str) -> None:
        self.questions: list[ChatRequest] = []
        self._texts = list(texts)

    async def chat(self, request: ChatRequest) -> Reply:
        self.questions.append(request)
        return Reply(self._texts.pop(0) if self._texts else orjson.dumps(ANSWER).decode(), Usage())


async def asked(request: SummaryRequest, *texts: str) -> list[ChatRequest]:
    recording = Recording(*texts)
    await StructuredQuestions(EPISODIC, LLM).ask(request, Asking(a_client(recording, LLM), 60))
    return recording.questions


async def test_measured_question_is_the_one_asked() -> None:
    assert await asked(REQUEST) == StructuredQuestions(EPISODIC, LLM).longest(REQUEST)


async def test_repeated_question_says_what_was_wrong() -> None:
    _, second = await asked(REQUEST, "no JSON")
    assert "could not be used" in second.messages[1]["content"]
    [corrected] = await asked(replace(REQUEST, problem="it was rude"))
    assert "it was rude" in corrected.messages[1]["content"]
