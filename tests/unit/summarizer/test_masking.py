"""With `llm`, an LLM sees placeholders, and summaries contain the originals."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import Usage
from afterword.streams.settings import Llm, QualitySettings, Redaction
from afterword.streams.summarizer.llm import ChatRequest, Reply
from afterword.streams.summarizer.prompt import TEMPLATES
from afterword.streams.summarizer.providers import LlmProvider
from afterword.streams.summarizer.summarizer import Masking, Summarizer, SummaryCheck
from afterword.streams.summarizer.summary import SummaryRequest
from tests.doubles.llm import a_client, unread
from tests.unit.streams.redaction.test_redactor import TEXTS
from tests.unit.summarizer.conversations import an_episode_of

REDACTOR = Redaction(patterns={"QUOTED": '"[^"]{1,9}"'}).redactor()
ANN, BOB = "ann.needle@example.com", "bob@example.com"
LLM = Llm(provider="openai", model="m")


class Model:
    """Answers with what it is told, or repeats what it was shown; remembers every prompt."""

    name = "model"

    def __init__(self, **texts: str) -> None:
        self.texts = texts
        self.prompts: list[str] = []

    async def chat(self, request: ChatRequest) -> Reply:
        self.prompts.append("\n".join(message["content"] for message in request.messages))
        said = {
            "title": "A title",
            "short_summary": "They spoke.",
            "long_summary": "They spoke.",
            "rolling_summary": "x",
        }
        text = orjson.dumps(said | self.texts).decode() if request.schema else self.texts["long_summary"]
        return Reply(text, Usage())


def a_request(*said: str, previous: str = "") -> SummaryRequest:
    return SummaryRequest(an_episode_of(*(("user", text) for text in said)), previous, 400)


def a_summarizer(model: Model, preset: Any = "episodic", **fields: Any) -> Summarizer:
    llm = LLM.model_copy(update=fields)
    provider = LlmProvider(a_client(model, llm), llm, TEMPLATES[preset])
    return Summarizer(provider, redactor=REDACTOR)


@given(TEXTS, TEXTS)
def test_masked_text_is_restored(first: str, second: str) -> None:
    masking = Masking(REDACTOR)
    shown = [masking.masked(first), masking.masked(second)]
    assert [masking.restored(text) for text in shown] == [first, second]


@given(
    st.lists(st.sampled_from([ANN, "[EMAIL_1]", "[email 2]", "[EMAIL_", "1]", "[", "]", '"EMAIL_1"', " "])).map("".join)
)
def test_placeholder_look_alike_is_restored(text: str) -> None:
    masking = Masking(REDACTOR)
    assert masking.restored(masking.masked(text)) == text


def test_equal_values_share_a_number() -> None:
    masking = Masking(REDACTOR)
    assert masking.masked(f"{ANN} {BOB} {ANN}") == "[EMAIL_1] [EMAIL_2] [EMAIL_1]"
    assert masking.masked(BOB) == "[EMAIL_2]"


def test_numbers_begin_with_the_summary_so_far() -> None:
    first = Masking(REDACTOR).request(a_request(f"I am {ANN}"))
    later = Masking(REDACTOR).request(a_request(f"{BOB} and {ANN}", previous=f"The user is {ANN}."))
    assert first.episode.messages[0].content == "I am [EMAIL_1]"
    assert later.previous_rolling == "The user is [EMAIL_1]."
    assert later.episode.messages[0].content == "[EMAIL_2] and [EMAIL_1]"


def test_users_fake_placeholder_is_not_taken_for_one() -> None:
    masking = Masking(REDACTOR)
    assert masking.masked(f"[EMAIL_1] is {ANN}") == "[EMAIL_1] is [EMAIL_2]"
    assert masking.restored("[EMAIL_1], [EMAIL_2]") == f"[EMAIL_1], {ANN}"


async def test_llm_sees_placeholders_and_the_summary_originals() -> None:
    model = Model(long_summary="The user is [EMAIL_1], not [EMAIL_7].", rolling_summary="[EMAIL_1] wrote.")
    summary = await a_summarizer(model).summarize(a_request(f"I am {ANN}, really", previous=f"{ANN} was here."))
    assert summary.long_summary == f"The user is {ANN}, not [EMAIL_7]."
    assert summary.rolling_summary == f"{ANN} wrote."
    assert "I am [EMAIL_1], really" in model.prompts[0]
    assert not any(ANN in prompt for prompt in model.prompts)


@pytest.mark.parametrize("preset", ["episodic", "plain_3_5"])
async def test_no_prompt_has_an_original(preset: str) -> None:
    model = Model(long_summary="The user is [EMAIL_1].")
    asked = replace(a_request(f"I am {ANN}", previous=f"It is {ANN}."), problem=f"it has {ANN}")
    await a_summarizer(model, preset=preset, title_model="t").summarize(asked)
    assert len(model.prompts) > 1
    assert not any(ANN in prompt for prompt in model.prompts)


async def test_llm_input_does_not_depend_on_originals() -> None:
    """The code of the fences is a digest of the texts; if of the originals, one could try all telephone numbers."""
    shown = []
    for address in (ANN, BOB):
        model = Model()
        await a_summarizer(model).summarize(a_request(f"I am {address}"))
        shown.append(model.prompts)
    assert shown[0] == shown[1]


async def test_texts_with_originals_keep_their_lengths() -> None:
    long = f"{'a' * 55}@example.com"
    model = Model(
        title="Mail to [EMAIL_1] and more", short_summary="[EMAIL_1] " * 30, long_summary="Wrote [EMAIL_1]. " * 40
    )
    summary = await a_summarizer(model).summarize(a_request(f"I am {long}"))
    assert len(summary.title) <= 60
    assert len(summary.short_summary) <= 400
    assert len(summary.long_summary) <= 1000
    assert "[EMAIL" not in summary.long_summary


async def test_long_episode_has_its_originals() -> None:
    model = Model(long_summary="The user is [EMAIL_1].")
    llm = LLM.model_copy(update={"context_tokens": 4096})
    provider = LlmProvider(a_client(model, llm), llm)
    summarizer = Summarizer(provider, room=provider.room, redactor=REDACTOR)
    asked = a_request(*(f"{n}: I am {ANN}. " + "We spoke about the harvest. " * 60 for n in range(40)))
    summary = await summarizer.summarize(asked)
    assert len(model.prompts) > 2
    assert summary.long_summary == f"The user is {ANN}."
    assert not any(ANN in prompt for prompt in model.prompts)


async def test_quality_gate_judges_the_originals() -> None:
    model = Model(
        title="The address of the user",
        short_summary="The user is [EMAIL_1].",
        long_summary="The user gave the address [EMAIL_1] for the order of hats.",
        rolling_summary="The user is [EMAIL_1].",
    )
    provider = LlmProvider(a_client(model, LLM), LLM)
    gated = Summarizer(provider, check=SummaryCheck(QualitySettings(), unread()), redactor=REDACTOR)
    asked = a_request(f"I am the user, my address for the order of hats is {ANN}")
    assert (await gated.summarize(asked)).quality.source == "llm"
