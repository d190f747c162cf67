"""A summary meets its deadline, whatever the LLM does and however long its calls wait for others."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from afterword.schemas import Usage
from afterword.streams.errors import ProviderError, ProviderRateLimited, ProviderUnavailable
from afterword.streams.settings import Llm, QualitySettings, load_settings
from afterword.streams.summarizer.agent import summarizer_app
from afterword.streams.summarizer.llm import ChatRequest, Reply
from afterword.streams.summarizer.prompt import TEMPLATES
from afterword.streams.summarizer.providers import LlmProvider
from afterword.streams.summarizer.summarizer import Summarizer, SummaryCheck
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from distributions.engine.tests.simulation.virtual_time import run_in_virtual_time
from tests.doubles.llm import a_client, unread
from tests.doubles.provider import ScriptedProvider
from tests.summarizer_world import METRICS
from tests.unit.summarizer.conversations import an_episode_of
from tests.unit.summarizer.test_amending import a_world, amend, edit

FOR_EVER = 1e9
ROUNDING = 1e-6
"""Seconds; sums of floating-point numbers differ in their last digits."""
SAID = "Ada cancelled order 4711. The assistant confirmed it. The refund takes three days."
INVENTED = "Karen Whitfield booked a hotel in Boston with Northwind Bank for 512 dollars on 3 May."
SHORT = SummaryRequest(an_episode_of(("user", SAID)), "", 800)
LONG = SummaryRequest(an_episode_of(*[("user", f"{SAID} Item {n}. " * 12) for n in range(9)]), "Before.", 800)

Call = tuple[float, Reply | ProviderError]
"""Seconds that a call takes, and how it ends."""


def answer(text: str, **ends: Any) -> Reply:
    return Reply(text, Usage(prompt_tokens=7, completion_tokens=3), **ends)


def in_json(text: str) -> str:
    fields = ("title", "short_summary", "long_summary", "rolling_summary")
    return orjson.dumps(dict.fromkeys(fields, text)).decode()


class Script:
    """A protocol that repeats a script."""

    name = "script"

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls: Iterator[Call] = chain.from_iterable(repeat(calls))
        self.began: list[float] = []

    async def chat(self, request: ChatRequest) -> Reply:
        self.began.append(asyncio.get_running_loop().time())
        seconds, outcome = next(self._calls)
        await asyncio.sleep(seconds)
        if isinstance(outcome, ProviderError):
            raise type(outcome)(**vars(outcome))
        return outcome


def a_summarizer(script: Script, llm: Llm, preset: str = "episodic", seconds: float | None = None) -> Summarizer:
    provider = LlmProvider(a_client(script, llm), llm, TEMPLATES[preset])
    return Summarizer(
        provider,
        room=provider.room,
        check=SummaryCheck(QualitySettings(), unread()),
        seconds=llm.summary_seconds if seconds is None else seconds,
    )


def an_llm(**given: Any) -> Llm:
    return Llm.model_validate({"provider": "openai", "model": "m", "context_tokens": 4096, **given})


async def timed(summarizer: Summarizer, request: SummaryRequest) -> tuple[Summary, float]:
    summary = await summarizer.summarize(replace(request, calls=[]))
    return summary, asyncio.get_running_loop().time()


outcomes = st.sampled_from(
    [
        ProviderUnavailable(problem="500"),
        ProviderRateLimited(retry_after=0),
        ProviderError(problem="400"),
        answer("nonsense"),
        answer("", outcome="cut_off", problem="it was cut off"),
        answer(in_json(INVENTED)),
        answer(in_json(SAID)),
        answer(SAID),
    ]
) | st.floats(0.1, 5000).map(lambda seconds: ProviderRateLimited(retry_after=seconds))
durations = st.sampled_from([0.0, 0.2, 9.0, 60.0, FOR_EVER])
llms = st.builds(
    an_llm,
    timeout_seconds=st.sampled_from([0.5, 10.0, 60.0]),
    retry_budget_seconds=st.sampled_from([0.5, 20.0, 180.0]),
    attempts=st.integers(1, 40),
    max_concurrency=st.integers(1, 4),
    title_model=st.sampled_from([None, "tiny"]),
)


@given(
    st.lists(st.tuples(durations, outcomes), min_size=1, max_size=6),
    llms,
    st.sampled_from(["episodic", "plain_3_5"]),
    st.booleans(),
)
def test_summary_ends_by_its_deadline(calls: list[Call], llm: Llm, preset: str, in_parts: bool) -> None:
    script = Script(calls)
    with capture_logs():
        summary, seconds = run_in_virtual_time(timed(a_summarizer(script, llm, preset), LONG if in_parts else SHORT))
    assert summary.long_summary
    assert max(seconds, *script.began) <= llm.summary_seconds + ROUNDING


def test_call_at_the_deadline_ends_with_earlier_tokens_counted() -> None:
    script = Script([(30, answer("nonsense")), (FOR_EVER, answer(""))])
    with capture_logs():
        summary, seconds = run_in_virtual_time(timed(a_summarizer(script, an_llm(), seconds=100), SHORT))
    assert (seconds, summary.quality.reason, summary.usage.prompt_tokens) == (100, "provider_unavailable", 7)


@pytest.mark.parametrize(
    ("call", "ends", "reason"),
    [
        ((0, ProviderRateLimited(retry_after=101)), 0, "provider_rate_limited"),
        ((50, ProviderRateLimited(retry_after=51)), 50, "provider_rate_limited"),
        ((99, ProviderUnavailable(problem="500")), 99, "provider_unavailable"),
    ],
)
def test_retry_beyond_the_deadline_is_not_begun(call: Call, ends: float, reason: str) -> None:
    script = Script([call])
    with capture_logs():
        summary, seconds = run_in_virtual_time(timed(a_summarizer(script, an_llm(), seconds=100), SHORT))
    assert (seconds, summary.quality.reason, script.began) == (ends, reason, [0])


def test_waiting_for_other_summaries_costs_no_time() -> None:
    async def story() -> list[str]:
        summarizer = a_summarizer(Script([(50, answer(in_json(SAID)))]), an_llm(max_concurrency=1), seconds=60)
        made = await asyncio.gather(*(summarizer.summarize(SHORT) for _ in range(5)))
        assert asyncio.get_running_loop().time() == 250
        return [summary.quality.source for summary in made]

    assert run_in_virtual_time(story()) == ["llm"] * 5


def test_waiting_within_an_episode_costs_time() -> None:
    script = Script([(50, answer(in_json(SAID)))])
    with capture_logs():
        summary, seconds = run_in_virtual_time(timed(a_summarizer(script, an_llm(max_concurrency=1), seconds=60), LONG))
    assert (summary.quality.source, seconds) == ("fallback", 60)


def test_watchdog_waits_as_long_as_one_record_may_take() -> None:
    given = load_settings(llm={"provider": "openai", "model": "m"})
    app = summarizer_app(given, METRICS)

    async def story() -> float:
        world = await a_world()
        slow = ScriptedProvider(delay_seconds=given.llm.summary_seconds)
        await amend(world, edit("m1"), provider=slow)  # it is in two episodes
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(story()) == app.engine.handling_seconds == 2 * given.llm.summary_seconds


def test_deadline_allows_all_retries_and_many_calls() -> None:
    llm = an_llm(timeout_seconds=60, retry_budget_seconds=180)
    assert llm.summary_seconds == 180 + 20 * 60
    assert Llm().summary_seconds == 0
