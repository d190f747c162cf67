"""Real answers of LLM servers: a result, or an error due to the prompt, a field or the server."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from afterword.streams.errors import (
    AnswerInvalid,
    PromptFailed,
    PromptRefused,
    ProviderMisconfigured,
    ProviderUnavailable,
)
from afterword.streams.http import HttpClient
from afterword.streams.settings import Llm
from afterword.streams.summarizer.llm import OpenAi
from afterword.streams.summarizer.prompt import TEMPLATES
from afterword.streams.summarizer.providers import LlmProvider
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from afterword.streams.summarizer.timers import TRANSIENT
from tests.doubles.llm import an_llm_provider
from tests.rows import with_rows
from tests.samples import a_closed_episode, an_episode_message

LLM = Llm(provider="openai", model="m", attempts=2, retry_budget_seconds=0.1)
FLAGGED, OTHER = "The kayak is green.", "The boat is green."
TEXT = "Odile repaired the red tractor near Vannes. She replaced the worn belt. The work took two days."
TEXTS = {"title": "Tractor", "short_summary": "Odile did it.", "long_summary": TEXT, "rolling_summary": TEXT}

Response = tuple[int, Any]
"""Status and body."""
Respond = Callable[[dict[str, Any]], Response]
"""Answers the body of a request."""


class Server(HttpClient):
    """Answers as it is told to."""

    def __init__(self, respond: Respond) -> None:
        super().__init__(LLM, "llm", "http://127.0.0.1:1")
        self.respond = respond
        self.asked: list[dict[str, Any]] = []

    async def _send(self, path: str, content: bytes) -> tuple[httpx.Response, bytes]:
        self.asked.append(orjson.loads(content))
        status, body = self.respond(self.asked[-1])
        for _ in range(1 if status == 200 else 3):  # refusals come last
            await asyncio.sleep(0)
        return httpx.Response(status), body.encode() if isinstance(body, str) else orjson.dumps(body)


def answers(text: object, finish_reason: object = "stop", **message: object) -> Response:
    said = {"role": "assistant", "content": text, **message}
    return 200, {"choices": [{"message": said, "finish_reason": finish_reason}]}


def good(body: dict[str, Any]) -> Response:
    return answers(TEXT if body["messages"][0]["content"] == "Answer with yes." else orjson.dumps(TEXTS).decode())


def provider(respond: Respond, preset: str = "episodic") -> tuple[LlmProvider, Server]:
    server = Server(respond)
    return an_llm_provider(OpenAi(LLM, server), LLM, TEMPLATES[preset]), server


async def summary_of(asked: LlmProvider, content: str = OTHER) -> Summary:
    episode = a_closed_episode(messages=(an_episode_message("m1", content=content),))
    return await asked.summarize(SummaryRequest(episode, "Before.", 800))


LINES = Path(__file__).with_name("strange_servers.jsonl").read_text().splitlines()[1:]
ROWS = [orjson.loads(line) for line in LINES]


def responses(*meanings: str) -> list[Response]:
    return [(row["status"], row["body"]) for row in ROWS if row["meaning"] in meanings]


@pytest.mark.parametrize(
    ("response", "error"),
    [
        *((one, PromptRefused) for one in responses("refusal")),
        *((one, PromptFailed) for one in responses("failure")),
    ],
)
async def test_only_a_refusal_of_one_prompt_blames_it(response: Response, error: type[Exception]) -> None:
    asked, _ = provider(lambda body: response if "kayak" in str(body) else good(body))
    with pytest.raises(error):
        await summary_of(asked, FLAGGED)
    assert (await summary_of(asked)).long_summary == TEXT
    assert not asked.client.left_out
    assert issubclass(error, TRANSIENT) is (error is PromptFailed)


async def test_many_refused_prompts_ask_one_harmless_question() -> None:
    asked, server = provider(lambda body: (403, {}) if "kayak" in str(body) else good(body))
    made = await asyncio.gather(*(summary_of(asked, FLAGGED) for _ in range(5)), return_exceptions=True)
    assert {type(one) for one in made} == {PromptRefused}
    assert "403" in str(made[0])
    assert len(server.asked) == 6


async def test_refusal_beside_an_answer_asks_nothing_more() -> None:
    asked, server = provider(lambda body: (403, {}) if "kayak" in str(body) else good(body))
    refused, _ = await asyncio.gather(summary_of(asked, FLAGGED), summary_of(asked), return_exceptions=True)
    assert isinstance(refused, PromptRefused)
    assert len(server.asked) == 2


@pytest.mark.parametrize("response", responses("lockout"))
async def test_refused_key_stops_all_asking_at_once(response: Response) -> None:
    asked, server = provider(lambda _: response)
    for _ in range(3):
        with pytest.raises(ProviderMisconfigured):
            await summary_of(asked)
        with pytest.raises(ProviderMisconfigured):
            await asked.check()
    assert len(server.asked) == 1


@pytest.mark.parametrize("response", responses("refusal", "failure", "lockout", "limit"))
async def test_server_wide_answers_blame_the_server(response: Response) -> None:
    asked, _ = provider(lambda _: response)
    with pytest.raises(ProviderUnavailable):
        await summary_of(asked)
    with pytest.raises(ProviderUnavailable):
        await asked.check()


@pytest.mark.parametrize("row", [row for row in ROWS if row["meaning"] == "field"])
async def test_refused_field_is_omitted_from_then_on(row: dict[str, Any]) -> None:
    fields, response = set(row["fields"].split()), (row["status"], row["body"])
    asked, server = provider(lambda body: response if fields & set(body) else good(body))
    assert (await summary_of(asked)).long_summary == TEXT
    assert asked.client.left_out == fields
    server.asked.clear()
    assert (await summary_of(asked)).long_summary == TEXT
    assert len(server.asked) == 1
    await asked.check()


@with_rows
async def test_limit_only_short_answers_keep_is_omitted(error: dict[str, str]) -> None:
    limits = {"max_tokens", "max_completion_tokens"}
    refusal = 400, {"error": error}
    asked, _ = provider(lambda body: refusal if any(body.get(limit, 0) > 512 for limit in limits) else good(body))
    assert (await summary_of(asked)).long_summary == TEXT
    assert asked.client.left_out == limits


async def test_answer_the_server_calls_unusable_is_asked_again() -> None:
    failed = {"code": "json_validate_failed", "failed_generation": "The messages are longer than a tractor."}
    responses: list[Response] = [(400, {"error": failed})]
    asked, _ = provider(lambda body: responses.pop() if responses else good(body))
    assert (await summary_of(asked)).long_summary == TEXT
    assert not asked.client.left_out


async def test_refused_role_is_a_configuration_error() -> None:
    refusal = 400, {"object": "error", "message": "System role not supported"}
    asked, _ = provider(lambda body: refusal if body["messages"][0]["role"] == "system" else good(body))
    with pytest.raises(ProviderMisconfigured):
        await summary_of(asked)
    with pytest.raises(ProviderMisconfigured):
        await asked.check()


async def test_error_quoting_a_field_disables_it_only_if_confirmed() -> None:
    """A content filter, which refused only the first attempt."""
    refusals = [(400, {"error": {"message": "response_format occurs in your text"}})]
    asked, _ = provider(lambda body: refusals.pop() if refusals else good(body))
    assert (await summary_of(asked)).long_summary == TEXT
    assert not asked.client.left_out


@pytest.mark.parametrize("reason", ["length", "MAX_TOKENS", "model_length", "user_stop", "abort", "SAFETY", "", 5, {}])
async def test_answer_that_ended_for_unknown_reasons_is_cut(reason: object) -> None:
    asked, _ = provider(lambda _: answers("Odile repaired the red tractor. She", reason), "plain_3_5")
    with pytest.raises(AnswerInvalid, match="refusal" if reason == "SAFETY" else "cut off"):
        await summary_of(asked)


@pytest.mark.parametrize(
    "reason", ["stop", "STOP", "eos", "end_turn", "stop_sequence", "tool_calls", "FinishReason.STOP", None]
)
async def test_answer_that_ended_for_a_known_reason_is_complete(reason: object) -> None:
    asked, _ = provider(lambda _: answers(TEXT, reason), "plain_3_5")
    assert (await summary_of(asked)).long_summary == TEXT


@with_rows
async def test_text_is_found_in_any_form_of_content(content: object, message: dict[str, Any]) -> None:
    asked, _ = provider(lambda _: answers(content, **message), "plain_3_5")
    assert (await summary_of(asked)).long_summary == TEXT
