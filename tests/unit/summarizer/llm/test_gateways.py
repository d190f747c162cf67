"""Recorded answers of LLM servers and gateways: a result, or an error due to prompt, field or server."""

import asyncio
from asyncio import gather
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from opentelemetry.trace import NoOpTracer
from pydantic import SecretStr

from afterword.schemas import Usage
from afterword.schemas.summaries import total
from afterword.streams import errors
from afterword.streams.errors import (
    AnswerInvalid,
    PromptFailed,
    PromptRefused,
    ProviderError,
    ProviderMisconfigured,
    ProviderUnavailable,
    StoreUnavailable,
)
from afterword.streams.http import HttpClient, failure
from afterword.streams.settings import Llm
from afterword.streams.stores.sqlite import SqliteFile, SqliteRecords
from afterword.streams.summarizer import retrying
from afterword.streams.summarizer.llm import (
    ONLY_THOUGHT,
    Asking,
    ChatRequest,
    LlmClient,
    Ollama,
    OpenAi,
    Reply,
    read_ollama_reply,
    read_openai_reply,
)
from afterword.streams.summarizer.prompt import TEMPLATES
from afterword.streams.summarizer.providers import LlmProvider
from afterword.streams.summarizer.retrying import MOST_UNUSABLE, ServerState
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from afterword.streams.summarizer.timers import TRANSIENT
from tests.doubles.llm import a_client, an_llm_provider, unread
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


STRANGE = Path(__file__).with_name("strange_servers.jsonl").read_text().splitlines()[1:]
ROWS = [orjson.loads(line) for line in STRANGE]


def responses(*meanings: str) -> list[Response]:
    return [(row["status"], row["body"]) for row in ROWS if row["meaning"] in meanings]


@pytest.mark.parametrize(
    ("response", "error"),
    [*((one, PromptRefused) for one in responses("refusal")), *((one, PromptFailed) for one in responses("failure"))],
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


HALF = "The user asked to cancel order 4711. The assistant cancelled it and said that the refund"
LINES = Path(__file__).with_name("gateways.jsonl").read_text().splitlines()[1:]


@pytest.mark.parametrize("case", [orjson.loads(line) for line in LINES], ids=lambda case: case["from"])
def test_recorded_error_has_its_meaning(case: dict[str, Any]) -> None:
    response = httpx.Response(case["status"], headers=case.get("headers"), json=case["body"])
    found = failure(response, response.content, {"messages": [], "model": "m", "temperature": 0.2, "max_tokens": 64})
    assert type(found) is getattr(errors, case["error"])
    assert case.get("says", "") in str(found)
    assert case.get("not", "\0") not in str(found)
    if "stops" in case:
        assert getattr(found, "stops_asking", False) is case["stops"]
    if "wait" in case:
        assert isinstance(found, ProviderUnavailable)
        assert found.retry_after == case["wait"]


def ended(native: object, text: str | None = HALF, **choice: Any) -> dict[str, Any]:
    """Return a completion as LiteLLM gives it, which calls every reason that it does not know "stop"."""
    fields = {"provider_specific_fields": {"native_finish_reason": native}, **choice}
    message = {"role": "assistant", "content": text}
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": message, **fields}]}


INTERRUPTED = """
abort insufficient_system_resource network_error model_length incomplete MALFORMED_RESPONSE UNEXPECTED_TOOL_CALL
model_context_window_exceeded TOO_MANY_TOOL_CALLS MISSING_THOUGHT_SIGNATURE max_tokens
"""
DECLINED = "refusal SAFETY RECITATION BLOCKLIST PROHIBITED_CONTENT SPII sensitive guardrail_intervened content_filtered"
ENDED = ["eos", "eos_token", "end_turn", "stop_sequence", "COMPLETE", "STOP", "completed", "EndTurn", None, ""]


@pytest.mark.parametrize(
    ("native", "outcome"),
    [
        *((native, "cut_off") for native in INTERRUPTED.split()),
        *((native, "refused") for native in DECLINED.split()),
        *((native, "ok") for native in ENDED),
    ],
)
def test_native_reason_counts_wherever_it_is(native: str | None, outcome: str) -> None:
    fields = {"native_finish_reason": native}
    assert read_openai_reply(ended(native), {}).outcome == outcome
    assert read_openai_reply(ended(None, native_finish_reason=native), {}).outcome == outcome
    in_message = ended(None)
    in_message["choices"][0]["message"]["provider_specific_fields"] = fields
    assert read_openai_reply(in_message, {}).outcome == outcome


@pytest.mark.parametrize("fields", [{}, None, [], "x", {"native_finish_reason": 5}])
def test_unreadable_native_reason_leaves_the_mapped_one(fields: object) -> None:
    assert read_openai_reply(ended(None, provider_specific_fields=fields), {}).outcome == "ok"


@with_rows
def test_error_beside_an_answer_makes_it_unavailable(choice: dict[str, Any]) -> None:
    with pytest.raises(ProviderUnavailable):
        read_openai_reply(ended(None, **choice), {})


@with_rows
def test_answer_cut_off_in_its_thoughts_says_what_helps(message: dict[str, Any]) -> None:
    of_openai = read_openai_reply({"choices": [{"message": message, "finish_reason": "length"}]}, {})
    of_ollama = read_ollama_reply({"message": message, "done": True, "done_reason": "length"})
    for reply in (of_openai, of_ollama):
        with pytest.raises(AnswerInvalid, match="AFTERWORD_LLM__MAX_OUTPUT_TOKENS"):
            _ = reply.complete_text


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


def test_wait_a_server_asks_for_binds_all_callers() -> None:
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


def test_one_answer_lets_all_calls_through_again() -> None:
    clock = Clock()
    state = ServerState(clock)
    state.failed(failed_with(stops_asking=True))
    clock.now += 5
    assert is_open(state)
    assert not is_open(state)
    state.answered()
    assert is_open(state)
    assert is_open(state)


def test_try_out_does_not_use_the_interval() -> None:
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


def test_alternating_answer_faults_do_not_hold_back_calls() -> None:
    state = ServerState(Clock())
    for number in range(4 * MOST_UNUSABLE):
        state.used(f"fault {number % 2}")
    assert is_open(state)


class Keyed:
    """A server that refuses the key until it is restored."""

    name, restored = "openai", False

    def __init__(self) -> None:
        self.llm = LLM
        self.asked: list[float] = []
        self.clock = Clock()

    async def chat(self, _: ChatRequest) -> Reply:
        self.asked.append(self.clock.now)
        if self.restored:
            return Reply("yes", Usage(prompt_tokens=1))
        raise ProviderMisconfigured(problem="401", stops_asking=True)

    def optional_fields(self, _: ChatRequest) -> frozenset[str]:
        return frozenset()

    def worker(self, records: Any) -> LlmClient:
        return LlmClient(self, self.llm, unread(), NoOpTracer(), records=records, clock=self.clock)  # type: ignore[arg-type]


async def hears(client: LlmClient) -> bool:
    """Let the timer's question and an episode's pass if they may; return whether one was answered."""
    question = Asking(client, 0).until_usable(lambda _: ChatRequest([{"role": "user", "content": "x"}], 9), str)
    heard = [await gather(one, return_exceptions=True) for one in (client.check(), question)]
    return not all(isinstance(one, ProviderUnavailable) for [one] in heard)


async def test_one_question_tells_all_workers_of_a_refused_key() -> None:
    server, records = Keyed(), SqliteRecords(SqliteFile(None))
    workers = [server.worker(records) for _ in range(5)]
    for _ in range(720):
        for worker in workers:
            await hears(worker)
        server.clock.now += 5
    assert [at - 1000 for at in server.asked[:6]] == [0, 5, 15, 35, 75, 155]
    assert server.asked[-1] - server.asked[-2] == retrying.LONGEST_INTERVAL_SECONDS
    assert not await hears(server.worker(records)), "nor does one that starts ask at once"
    server.restored = True
    server.clock.now += retrying.LONGEST_INTERVAL_SECONDS
    assert all([await hears(worker) for worker in workers])
    assert await records.read_all("llm_servers") == {}


async def test_new_key_is_tried_at_once() -> None:
    server, records = Keyed(), SqliteRecords(SqliteFile(None))
    await hears(server.worker(records))
    server.restored, server.llm = True, LLM.model_copy(update={"api_key": SecretStr("new")})
    assert await hears(server.worker(records))


async def test_workers_share_the_pause_of_an_unusable_model() -> None:
    server, records = Keyed(), SqliteRecords(SqliteFile(None))
    server.restored = True
    first, second = server.worker(records), server.worker(records)
    question = ChatRequest([{"role": "user", "content": "x"}], 9)
    for _ in range(MOST_UNUSABLE):
        await first.gave_up(question, "no JSON")
    for worker in (first, second):
        with pytest.raises(ProviderMisconfigured, match="no JSON, 5 times in a row"):
            await Asking(worker, 0).until_usable(lambda _: question, str)
    server.clock.now += 5
    for worker in (first, second):
        await worker.check()  # which says nothing of the answers to real questions
    assert await Asking(second, 0).until_usable(lambda _: question, str) == "yes"
    assert await Asking(first, 0).until_usable(lambda _: question, str) == "yes"


async def test_clock_of_another_worker_holds_back_no_longer_than_an_interval() -> None:
    server, records = Keyed(), SqliteRecords(SqliteFile(None))
    server.clock.now += 86_400
    await hears(server.worker(records))  # and it ends
    server.clock.now -= 86_400
    worker, server.restored = server.worker(records), True
    assert not await hears(worker)
    server.clock.now += retrying.LONGEST_INTERVAL_SECONDS
    assert await hears(worker)


async def test_workers_without_a_store_ask_on_their_own() -> None:
    class Away:
        async def read(self, *_: object) -> None:
            raise StoreUnavailable(store="any", problem="away")

        replace = read

    server = Keyed()
    workers = [server.worker(Away()) for _ in range(3)]
    for _ in range(7):
        for worker in workers:
            await hears(worker)
        server.clock.now += 1
    assert len(server.asked) == 6


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (lambda _: answers("no idea"), "answer_invalid"),
        (lambda _: answers(HALF, "length"), "cut_off"),
        (lambda _: answers(None, refusal="No."), "refused"),
        (lambda _: (500, {}), "provider_unavailable"),
    ],
)
async def test_failed_calls_have_model_and_outcome(answer: Any, outcome: str) -> None:
    asked, _ = provider(answer)
    request = SummaryRequest(a_closed_episode(), "", 800)
    with pytest.raises(ProviderError):
        await asked.summarize(request)
    assert {(calls.model, calls.outcome) for calls in request.calls} == {("m", outcome)}


@with_rows
async def test_tokens_a_server_does_not_report_are_estimated(usage: Any, prompt: int, completion: int) -> None:
    status, body = answers("five words are enough here")
    server = Server(lambda _: (status, {**body, "usage": usage}))
    client = a_client(OpenAi(LLM, server), LLM)
    asking = Asking(client, 1)
    await asking.until_usable(lambda _: ChatRequest([{"role": "user", "content": "word " * 50}], 10), str)
    used = total(asking.calls)
    assert (used.prompt_tokens, used.completion_tokens) == (
        pytest.approx(prompt, abs=4 * (prompt == 54)),
        pytest.approx(completion, abs=2 * (completion == 6)),
    )
    assert client.is_metered is (prompt == 120)


async def test_ollama_refuses_rather_than_cuts_a_long_prompt() -> None:
    llm = Llm(provider="ollama", model="m")
    server = Server(lambda _: (200, {"message": {"content": TEXT}, "done": True, "done_reason": "stop"}))
    await Ollama(llm, server).chat(ChatRequest([{"role": "user", "content": "x"}], 10))
    assert server.asked[0]["truncate"] is False
    assert server.asked[0]["shift"] is False


async def test_held_back_call_does_not_use_an_attempt() -> None:
    held = [failed_with(was_held=True)] * 5 + [failed_with()] * 3
    calls = 0

    async def call() -> None:
        nonlocal calls
        calls += 1
        raise held.pop(0)

    with pytest.raises(ProviderUnavailable):
        await retrying.retrying("summarize", call, 3, 2.0)
    assert calls == 8
