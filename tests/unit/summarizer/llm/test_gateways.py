"""Recorded answers of gateways such as LiteLLM, and what is asked of a server that pauses or refuses everything."""

from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from afterword.schemas import Usage
from afterword.streams import errors
from afterword.streams.errors import AnswerInvalid, ProviderMisconfigured, ProviderUnavailable
from afterword.streams.http import failure
from afterword.streams.settings import Llm
from afterword.streams.summarizer import retrying
from afterword.streams.summarizer.llm import ONLY_THOUGHT, Asking, ChatRequest, Ollama, Reply, read_openai_reply
from afterword.streams.summarizer.retrying import MOST_UNUSABLE, ServerState
from tests.doubles.llm import a_client
from tests.unit.summarizer.llm.test_strange_servers import TEXT, TEXTS, Server, answers, provider, summary_of

HALF = "The user asked to cancel order 4711. The assistant cancelled it and said that the refund"
LINES = Path(__file__).with_name("gateways.jsonl").read_text().splitlines()[1:]


@pytest.mark.parametrize("case", [orjson.loads(line) for line in LINES], ids=lambda case: case["from"])
def test_recorded_error_has_its_meaning(case: dict[str, Any]) -> None:
    response = httpx.Response(case["status"], headers=case.get("headers"), json=case["body"])
    found = failure(response, response.content, {"messages": [], "model": "m", "temperature": 0.2})
    assert type(found) is getattr(errors, case["error"])
    assert case.get("says", "") in str(found)
    assert case.get("not", "\0") not in str(found)
    if "wait" in case:
        assert isinstance(found, ProviderUnavailable)
        assert found.retry_after == case["wait"]


def ended(native: object, text: str | None = HALF, **choice: Any) -> dict[str, Any]:
    """Return a completion as LiteLLM gives it, which calls every reason that it does not know "stop"."""
    fields = {"provider_specific_fields": {"native_finish_reason": native}, **choice}
    message = {"role": "assistant", "content": text}
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": message, **fields}]}


@pytest.mark.parametrize(
    "native",
    [
        "abort",
        "insufficient_system_resource",
        "network_error",
        "model_length",
        "incomplete",
        "MALFORMED_RESPONSE",
        "UNEXPECTED_TOOL_CALL",
        "model_context_window_exceeded",
        "TOO_MANY_TOOL_CALLS",
        "MISSING_THOUGHT_SIGNATURE",
    ],
)
def test_native_reason_of_an_interruption_counts(native: str) -> None:
    assert read_openai_reply(ended(native), {}).cut_off
    assert read_openai_reply(ended(None, native_finish_reason=native), {}).cut_off


@pytest.mark.parametrize(
    "native", ["eos", "eos_token", "end_turn", "stop_sequence", "COMPLETE", "STOP", "completed", None, ""]
)
def test_native_reason_of_a_complete_answer_is_complete(native: object) -> None:
    assert not read_openai_reply(ended(native), {}).cut_off
    assert not read_openai_reply(ended(None, native_finish_reason=native), {}).cut_off
    for fields in ({}, None, [], "x"):
        assert not read_openai_reply(ended(None, provider_specific_fields=fields), {}).cut_off


@pytest.mark.parametrize(
    "choice",
    [
        {"provider_specific_fields": {"error": {"code": 502, "message": "x"}, "native_finish_reason": "error"}},
        {"provider_specific_fields": {"native_finish_reason": "ERROR"}},
        {"native_finish_reason": "error"},
    ],
)
def test_error_beside_an_answer_makes_it_unavailable(choice: dict[str, Any]) -> None:
    with pytest.raises(ProviderUnavailable):
        read_openai_reply(ended(None, **choice), {})


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (answers("no idea"), "no JSON object"),
        (answers(None, "length", reasoning_content="Let me think"), "AFTERWORD_LLM__MAX_OUTPUT_TOKENS"),
        (answers(None, refusal="I'm sorry, I can't help with that."), "refusal"),
    ],
)
async def test_try_out_judges_the_answer_as_a_summary(response: Any, problem: str) -> None:
    asked, _ = provider(lambda _: response)
    await asked.check()
    with pytest.raises(AnswerInvalid, match=problem):
        await asked.try_out()


@pytest.mark.parametrize("preset", ["episodic", "plain_3_5"])
async def test_try_out_accepts_a_short_answer(preset: str) -> None:
    texts = orjson.dumps({**dict.fromkeys(TEXTS, "Yes"), "facts": []}).decode()
    asked, _ = provider(lambda _: answers(texts if preset == "episodic" else "Yes"), preset)
    await asked.try_out()


async def test_model_without_usable_answers_is_asked_seldom() -> None:
    asked, server = provider(lambda _: answers(None, "length", reasoning_content="Let me think"))
    for _ in range(MOST_UNUSABLE):
        with pytest.raises(AnswerInvalid, match="thinking"):
            await summary_of(asked)
    count = len(server.asked)
    for _ in range(5):
        with pytest.raises(ProviderMisconfigured, match=ONLY_THOUGHT):
            await summary_of(asked)
    assert len(server.asked) == count


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def failed_with(**values: Any) -> ProviderUnavailable:
    return ProviderUnavailable(**{"problem": "x", **values})


def is_open(state: ServerState, *, takes_interval: bool = True) -> bool:
    try:
        state.require_open(takes_interval=takes_interval)
    except ProviderUnavailable:
        return False
    return True


def test_wait_that_a_server_asks_for_is_kept_by_all() -> None:
    clock = Clock()
    state = ServerState(clock)
    state.failed(failed_with(retry_after=20.0))
    state.answered()  # by a request that was sent before
    assert not is_open(state)
    with pytest.raises(ProviderUnavailable) as raised:
        state.require_open(takes_interval=False)
    assert raised.value.retry_after == 20.0
    clock.now += 20
    assert all(is_open(state) for _ in range(3))


def test_server_that_refuses_everything_is_asked_at_growing_intervals() -> None:
    clock = Clock()
    state = ServerState(clock)
    asked = []
    for _ in range(3600):
        if is_open(state):
            asked.append(clock.now - 1000)
            state.failed(failed_with(stops_asking=True))
        clock.now += 1
    assert asked[:5] == [0, 5, 15, 35, 75]
    assert asked[-1] - asked[-2] == retrying.LONGEST_INTERVAL_SECONDS


def test_one_answer_ends_the_intervals() -> None:
    clock = Clock()
    state = ServerState(clock)
    state.failed(failed_with(stops_asking=True))
    clock.now += 5
    assert is_open(state)
    assert not is_open(state)
    state.answered()
    assert is_open(state)
    assert is_open(state)


def test_test_question_leaves_the_interval_to_a_real_one() -> None:
    clock = Clock()
    state = ServerState(clock)
    for _ in range(MOST_UNUSABLE):
        state.used("no JSON")
    clock.now += 5
    assert is_open(state, takes_interval=False)
    state.answered()
    assert is_open(state)
    assert not is_open(state)
    state.used(None)
    assert is_open(state)


def test_different_faults_of_answers_stop_nothing() -> None:
    state = ServerState(Clock())
    for number in range(4 * MOST_UNUSABLE):
        state.used(f"fault {number % 2}")
    assert is_open(state)


async def test_answer_without_usage_counts_as_estimated() -> None:
    class Silent:
        name = "openai"

        async def chat(self, request: ChatRequest) -> Reply:
            return Reply("five words are enough here", Usage())

    client = a_client(Silent(), Llm(provider="openai", model="m"))  # type: ignore[arg-type]
    asking = Asking(client, 1)
    await asking.until_usable(lambda _: ChatRequest([{"role": "user", "content": "word " * 50}], 10), str)
    assert 40 < asking.used.prompt_tokens < 80
    assert 3 < asking.used.completion_tokens < 10
    assert not client.is_metered


async def test_ollama_refuses_rather_than_cuts_a_long_prompt() -> None:
    llm = Llm(provider="ollama", model="m")
    server = Server(lambda _: (200, {"message": {"content": TEXT}, "done": True, "done_reason": "stop"}))
    await Ollama(llm, server).chat(ChatRequest([{"role": "user", "content": "x"}], 10))
    assert server.asked[0]["truncate"] is False
    assert server.asked[0]["shift"] is False


async def test_held_back_call_takes_no_attempt() -> None:
    held = [failed_with(was_held=True)] * 5 + [failed_with()] * 3
    calls = 0

    async def call() -> None:
        nonlocal calls
        calls += 1
        raise held.pop(0)

    with pytest.raises(ProviderUnavailable):
        await retrying.retrying("summarize", call, 3, 2.0)
    assert calls == 8
