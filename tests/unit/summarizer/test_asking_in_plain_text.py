"""Summaries by models that write no JSON, titles by a separate model, and the prompts of both."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from afterword.schemas import Usage
from afterword.schemas.summaries import total
from afterword.streams.errors import AnswerInvalid, ProviderError, ProviderUnavailable
from afterword.streams.settings import Llm
from afterword.streams.summarizer.llm import Asking, ChatRequest, Reply
from afterword.streams.summarizer.prompt import EPISODIC, PLAIN, TEMPLATES, Template
from afterword.streams.summarizer.providers import LlmProvider, StructuredQuestions
from afterword.streams.summarizer.summary import SummaryRequest, SummaryRules
from afterword_text.tokens import count_tokens
from tests.doubles.llm import a_client, an_llm_provider
from tests.samples import a_closed_episode, an_episode_message
from tests.summarizer_world import World

LONG = "Ada cancelled order 4711. The assistant confirmed it. The refund takes three days."
ANSWERS = {
    "TITLE": "A refund",
    "SHORT": "Ada cancelled order 4711.",
    "ROLLING": "Ada waits for a refund.",
    "LONG": LONG,
}
JSON = {
    "title": "Its own title",
    **{f"{name.lower()}_summary": text for name, text in ANSWERS.items() if name != "TITLE"},
}
REQUEST = SummaryRequest(a_closed_episode(), "Ada is a customer.", 800)


def kind(request: ChatRequest) -> str:
    """Kind of text that is asked for."""
    user = request.messages[1]["content"]
    told = {"Give this summary a title": "TITLE", "Say in 1 or 2 sentences": "SHORT", "Bring the summary": "ROLLING"}
    return next((name for words, name in told.items() if user.startswith(words)), "JSON" if request.schema else "LONG")


def fenced(request: ChatRequest, label: str) -> str:
    found = re.search(rf"BEGIN {label} \w+ -----\n(.*)\n----- END {label}", request.messages[1]["content"], re.DOTALL)
    return found[1] if found else ""


class Model:
    """A protocol whose answers come from one function per kind of text."""

    name = "model"

    def __init__(self, **answers: Callable[[ChatRequest], str | ProviderError]) -> None:
        self.answers = answers
        self.requests: list[ChatRequest] = []

    async def chat(self, request: ChatRequest) -> Reply:
        self.requests.append(request)
        answer = self.answers[kind(request)](request) if kind(request) in self.answers else self.usual(request)
        if isinstance(answer, ProviderError):
            raise answer
        return Reply(text=answer, usage=Usage(prompt_tokens=10, completion_tokens=1))

    def usual(self, request: ChatRequest) -> str:
        return orjson.dumps(JSON).decode() if request.schema else ANSWERS[kind(request)]

    @property
    def asked(self) -> list[str]:
        return [kind(request) for request in self.requests]


def provider(model: Model, template: Template = TEMPLATES[PLAIN], **llm: Any) -> LlmProvider:
    given = {"provider": "openai", "model": "m", "attempts": 1, "retry_budget_seconds": 0.1}
    return an_llm_provider(model, Llm(**{**given, **llm}), template)


async def test_each_plain_text_is_a_separate_question() -> None:
    model, request = Model(), replace(REQUEST, calls=[])
    summary = await provider(model).summarize(request)
    assert sorted(model.asked) == ["LONG", "ROLLING", "SHORT", "TITLE"]
    assert {(request.schema, request.max_tokens, request.model) for request in model.requests} == {(None, 500, None)}
    texts = JSON | {"title": ANSWERS["TITLE"]}
    assert {name: getattr(summary, name) for name in texts} == texts
    assert (total(request.calls).prompt_tokens, summary.quality.source) == (40, "llm")
    assert summary.prompt_version is not None
    assert summary.prompt_version.startswith("plain_3_5-")


async def test_title_and_short_summary_come_from_the_long_one() -> None:
    model = Model()
    await provider(model).summarize(REQUEST)
    by_kind = dict(zip(model.asked, model.requests, strict=True))
    assert fenced(by_kind["TITLE"], "SUMMARY") == fenced(by_kind["SHORT"], "SUMMARY") == LONG
    assert fenced(by_kind["ROLLING"], "PREVIOUS") == "Ada is a customer."
    assert "Text of m0." in fenced(by_kind["ROLLING"], "TRANSCRIPT")


async def test_unneeded_rolling_summary_is_not_requested() -> None:
    model = Model()
    summary = await provider(model).summarize(SummaryRequest(a_closed_episode(), "", 800))
    assert summary.rolling_summary == ""
    carried = await provider(model).summarize(SummaryRequest(a_closed_episode(), "Before.", 800, wants_rolling=False))
    assert carried.rolling_summary == ""
    assert "ROLLING" not in model.asked


async def test_json_answer_is_sized_for_its_texts() -> None:
    model = Model()
    json = provider(model, EPISODIC)
    await json.summarize(REQUEST)
    await json.summarize(SummaryRequest(a_closed_episode(), "Before.", 2000, max_summary_length=2000))
    carried = await json.summarize(SummaryRequest(a_closed_episode(), "Before.", 800, wants_rolling=False))
    assert [request.max_tokens for request in model.requests] == [1900, 3650, 900]
    missing = [set(JSON) - set((request.schema or {})["required"]) for request in model.requests]
    assert missing == [set(), set(), {"rolling_summary"}]
    assert carried.rolling_summary == ""
    await provider(model, EPISODIC, max_output_tokens=700).summarize(REQUEST)
    assert model.requests[-1].max_tokens == 700


async def test_unusable_answer_is_repeated_and_its_tokens_count() -> None:
    answers = iter(["", "I'm sorry, but I can't.", LONG])
    model, request = Model(LONG=lambda _: next(answers)), replace(REQUEST, calls=[])
    await provider(model).summarize(request)
    assert model.asked[:3] == ["LONG"] * 3
    assert "it was empty" in model.requests[1].messages[1]["content"]
    assert total(request.calls).prompt_tokens == 60


ERRORS = [kind(problem="x") for kind in (ProviderUnavailable, ProviderError)]


@pytest.mark.parametrize(
    ("question", "answers", "calls"),
    [
        ("SHORT", [""] * 3, 4),
        ("LONG", ["", ERRORS[0]], 1),
        *(("LONG", [error], 0) for error in ERRORS),
        *(("SHORT", [error], 1) for error in ERRORS),
        *(("ROLLING", [error], 2) for error in ERRORS),
    ],
)
async def test_tokens_before_an_error_are_counted(question: str, answers: list[Any], calls: int) -> None:
    left, request = iter(answers), replace(REQUEST, calls=[])
    with pytest.raises(type(answers[-1]) if answers[-1] else AnswerInvalid):
        await provider(Model(**{question: lambda _: next(left)})).summarize(request)
    used = total(request.calls)
    assert (used.prompt_tokens, used.completion_tokens) == (10 * calls, calls)


@pytest.mark.parametrize("template", [EPISODIC, TEMPLATES[PLAIN]], ids=["JSON", "plain"])
async def test_title_model_gets_the_summary(template: Template) -> None:
    model = Model()
    summary = await provider(model, template, title_model="tiny").summarize(REQUEST)
    (titles,) = [request for request in model.requests if request.model]
    assert (titles.model, titles.schema, kind(titles), fenced(titles, "SUMMARY")) == ("tiny", None, "TITLE", LONG)
    assert summary.title == "A refund"


@pytest.mark.parametrize("failure", ["", ProviderUnavailable(problem="away")])
async def test_missing_title_is_no_reason_to_fall_back(failure: Any) -> None:
    with capture_logs() as logs:
        json = await provider(Model(TITLE=lambda _: failure), EPISODIC, title_model="tiny").summarize(REQUEST)
        plain = await provider(Model(TITLE=lambda _: failure)).summarize(REQUEST)
    assert (json.title, plain.title) == ("Its own title", "Ada cancelled order 4711.")
    assert {entry["event"] for entry in logs if entry["log_level"] == "warning"} >= {"title_fell_back"}


async def test_context_left_is_computed_for_the_longest_prompt() -> None:
    model = Model()
    asked = provider(model, context_tokens=8192)
    await asked.summarize(REQUEST)
    longest = max(sum(count_tokens(m["content"]) for m in request.messages) for request in model.requests)
    assert asked.room(REQUEST) == int((8192 - 500) / 1.3) - longest


async def test_episode_stores_the_prompt_version_used() -> None:
    world = World()
    await world.run((a_closed_episode(),), provider=provider(Model(), EPISODIC))
    await world.run((a_closed_episode(2),))
    stored = [episode.summary.prompt_version for episode in world.episodes.episodes.values()]
    assert stored[0] is not None
    assert re.fullmatch("episodic-[0-9a-f]{8}", stored[0])
    assert stored[1] is None


LEAKS = ("<|im_start|>", "<|im_end|>\n<|im_start|>user\nTell me more.", "</s>[INST] Go on. [/INST]", "<end_of_turn>")
CHAIN = 50


def leaking(answer: str, ordinal: int) -> str:
    return f"<|im_start|>assistant\n{answer}{LEAKS[ordinal % len(LEAKS)]}"


async def test_leaked_control_token_never_grows_the_next_prompt() -> None:
    calls = count(1)

    def told(request: ChatRequest) -> str:
        previous, number = fenced(request, "PREVIOUS") if kind(request) == "ROLLING" else "", next(calls)
        return leaking(f"{previous} Fact {number}.", number)

    model, world = Model(LONG=told, SHORT=told, TITLE=told, ROLLING=told), World()
    episodes = tuple(a_closed_episode(ordinal) for ordinal in range(1, CHAIN + 1))
    await world.run(episodes, provider=provider(model), rules=SummaryRules(100))
    prompts = ["\n".join(message["content"] for message in request.messages) for request in model.requests]
    rows = world.episodes.all_rows["c1"]
    assert len(prompts) == 4 * CHAIN - len(rows), "a row begins with the first long summary"
    for prompt in prompts:
        assert not any(
            token in prompt
            for token in ("<|im_start|>", "<|im_end|>", "[INST]", "</s>", "end_of_turn", "Tell me more", "Go on.")
        )
    sizes = [count_tokens(prompt) for prompt, name in zip(prompts, model.asked, strict=True) if name == "ROLLING"]
    assert max(sizes[CHAIN // 2 :]) < max(sizes[: CHAIN // 2]) + 50
    stored = [episode.summary for episode in world.episodes.episodes.values()]
    assert not any("<" in f"{s.title}{s.short_summary}{s.long_summary}" for s in stored)
    assert not any("<" in row.content for row in rows)


FIRST = "My name is Ada Lovelace and I am allergic to peanuts."


@pytest.mark.parametrize("template", [EPISODIC, TEMPLATES[PLAIN]], ids=["JSON", "plain"])
async def test_llm_keeps_facts_of_the_first_episode_for_fifty(template: Template) -> None:
    def latest(request: ChatRequest) -> str:
        said = fenced(request, "TRANSCRIPT").rpartition("user: ")[2]
        return said.replace("My name is", "The user is").replace("I am", "is").replace("I ", "The user ")

    def rolling(request: ChatRequest) -> str:
        return f"{fenced(request, 'PREVIOUS')}\n{latest(request)}"

    def json(request: ChatRequest) -> str:
        return orjson.dumps({**JSON, "long_summary": latest(request), "rolling_summary": rolling(request)}).decode()

    told = [FIRST, *(f"I talked about topic {n} for a while, and then about the weather." for n in range(2, CHAIN + 1))]
    episodes = tuple(
        a_closed_episode(n, messages=(an_episode_message(f"m{n}", content=text),), overlap=())
        for n, text in enumerate(told, 1)
    )
    world = World()
    model = Model(LONG=latest, ROLLING=rolling, JSON=json)
    await world.run(episodes, provider=provider(model, template), rules=SummaryRules(200))
    rows = world.episodes.all_rows["c1"]
    assert "Ada Lovelace" in rows[0].content
    assert "peanuts" in rows[0].content
    assert all(count_tokens(row.content) <= 250 for row in rows)
    assert f"topic {rows[-1].last_ordinal}" in rows[-1].content


LLM = Llm(provider="openai", model="m")
ANSWER = {
    "title": "A refund",
    "short_summary": "Ada cancelled order 4711.",
    "long_summary": "Ada cancelled order 4711. The assistant confirmed it. The refund takes three days.",
    "rolling_summary": "Ada waits for a refund.",
}


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
