"""What a summarizer makes of a provider's answers: the gate, the deadline, and the fallback."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat
from threading import get_ident
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from afterword.schemas import Quality as Measured
from afterword.schemas import Usage
from afterword.schemas.summaries import total
from afterword.streams.errors import (
    AnswerInvalid,
    BudgetExhausted,
    PromptRefused,
    ProviderError,
    ProviderMisconfigured,
    ProviderRateLimited,
    ProviderUnavailable,
    SummaryRefused,
)
from afterword.streams.settings import Llm, QualitySettings, Settings, load_settings
from afterword.streams.summarizer.agent import summarizer_app
from afterword.streams.summarizer.llm import ChatRequest, Reply
from afterword.streams.summarizer.prompt import TEMPLATES
from afterword.streams.summarizer.providers import ExtractiveProvider, LlmProvider
from afterword.streams.summarizer.summarizer import Summarizer, SummaryCheck, waited_for
from afterword.streams.summarizer.summary import Summary, SummaryRequest, in_zone
from afterword_text.gate import share_of_pairs
from benchmarks.quality import gate
from distributions.engine.tests.simulation.virtual_time import run_in_virtual_time
from tests.doubles.llm import a_client, unread
from tests.doubles.provider import ScriptedProvider
from tests.rows import with_rows
from tests.samples import a_closed_episode, an_episode_message, some_calls
from tests.summarizer_world import METRICS
from tests.unit.summarizer.conversations import an_episode_of
from tests.unit.summarizer.test_amending import a_world, amend, edit

EPISODE = an_episode_of(
    ("user", "I need a table for four at Bella Napoli on March 12."),
    ("assistant", "Booked for 7 pm under reservation RX-204. The deposit is $25."),
    ("user", "Great, my name is Maria Lopez."),
    overlap=(),
)
REQUEST = SummaryRequest(EPISODE, "", 800)


@pytest.fixture(autouse=True)
def no_calls() -> None:
    REQUEST.calls.clear()


GOOD = Summary(
    title="Table at Bella Napoli",
    short_summary="Maria Lopez booked a table for 4 at Bella Napoli.",
    long_summary="Maria Lopez asked for a table for four at Bella Napoli. It is booked for 12 March at 19:00. The "
    "reservation is RX-204 and the deposit 25 dollars.",
    rolling_summary="Maria Lopez booked a table at Bella Napoli.",
    quality=Measured(source="llm"),
    model="m",
    calls=some_calls(Usage(prompt_tokens=100, completion_tokens=10)),
)
INVENTED = replace(GOOD, long_summary="Karen Whitfield booked a hotel in Boston with Northwind Bank for the table.")
LOOPING = replace(GOOD, long_summary="Maria Lopez booked a table. " * 9)


class Checked:
    """A summarizer with a check and without its fallback."""

    def __init__(self, provider: ScriptedProvider, quality: QualitySettings) -> None:
        self.metrics = unread()
        self.summarizer = Summarizer(provider, check=SummaryCheck(quality, self.metrics))
        self.summarize = self.summarizer.summarize_without_fallback


def checked(*script: object, **quality: object) -> tuple[Checked, ScriptedProvider]:
    provider = ScriptedProvider(script)  # type: ignore[arg-type]  # summaries and errors, as the test says
    return Checked(provider, QualitySettings.model_validate(quality)), provider


async def test_grounded_summary_passes_with_its_grounding() -> None:
    provider, asked = checked(GOOD)
    summary = await provider.summarize(REQUEST)
    assert summary == replace(GOOD, quality=Measured(source="llm", grounding=1.0))
    assert len(asked.requests) == 1


async def test_refused_summary_is_asked_again_with_the_problem() -> None:
    provider, asked = checked(INVENTED, GOOD)
    with capture_logs():
        summary = await provider.summarize(REQUEST)
    assert (summary.long_summary, summary.quality.grounding) == (GOOD.long_summary, 1.0)
    assert summary.usage == Usage(prompt_tokens=200, completion_tokens=20)
    assert [request.problem is None for request in asked.requests] == [True, False]
    assert not {"Karen", "Whitfield", "Boston"} & set((asked.requests[1].problem or "").split()), "it made them up"


async def test_twice_refused_summary_keeps_reason_and_tokens() -> None:
    provider, _ = checked(INVENTED, LOOPING)
    with capture_logs() as logs, pytest.raises(SummaryRefused) as refused:
        await provider.summarize(REQUEST)
    assert refused.value.error_type == "repetition"
    assert total(REQUEST.calls) == Usage(prompt_tokens=200, completion_tokens=20)
    for reason in ("ungrounded", "repetition"):
        labels = {"reason": reason}
        assert provider.metrics.registry.get_sample_value("afterword_quality_rejections_total", labels) == 1
    assert [entry["error_type"] for entry in logs] == ["ungrounded", "repetition"]


async def test_refused_summary_becomes_a_fallback_with_reason() -> None:
    provider = checked(INVENTED, INVENTED)[0].summarizer
    with capture_logs() as logs:
        summary = await provider.summarize(REQUEST)
    assert summary.quality == Measured(source="fallback", reason="ungrounded", grounding=1.0)
    assert "Karen" not in str(logs)


async def test_disabled_check_still_measures() -> None:
    provider, asked = checked(INVENTED, enabled=False)
    summary = await provider.summarize(REQUEST)
    assert (summary.quality.source, len(asked.requests)) == ("llm", 1)
    assert "Karen" in summary.quality.unsupported


async def test_required_grounding_is_a_setting() -> None:
    half = replace(GOOD, short_summary="Maria Lopez and Karen Whitfield booked a table at Bella Napoli.")
    provider, asked = checked(half, min_grounding=0.5)
    assert (await provider.summarize(REQUEST)).quality.unsupported == ("Karen", "Whitfield")
    assert len(asked.requests) == 1


async def test_one_wrong_figure_is_enough() -> None:
    wrong = replace(GOOD, long_summary=GOOD.long_summary.replace("25", "35"))
    with capture_logs(), pytest.raises(SummaryRefused) as refused:
        await checked(wrong, wrong)[0].summarize(REQUEST)
    assert refused.value.error_type == "unsupported_figure"


async def test_too_many_sentences_are_cut() -> None:
    words = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    long = " ".join(f"The table was asked for by Maria, {word} said." for word in words)
    provider, _ = checked(replace(GOOD, short_summary="Maria asked. It was booked. She left."), enabled=False)
    assert (await provider.summarize(REQUEST)).short_summary == "Maria asked. It was booked."
    provider, _ = checked(replace(GOOD, long_summary=long), enabled=False)
    assert (await provider.summarize(REQUEST)).long_summary.endswith("eight said.")


@pytest.mark.parametrize("error", [ProviderUnavailable(problem="x"), ProviderMisconfigured(problem="x")])
async def test_failed_second_attempt_keeps_the_firsts_tokens(error: ProviderUnavailable) -> None:
    with capture_logs(), pytest.raises(type(error)):
        await checked(INVENTED, error)[0].summarize(REQUEST)
    assert total(REQUEST.calls) == GOOD.usage


TUCSON = replace(GOOD, rolling_summary="The user lives in Tucson, has a dog, Biscuit, and booked Bella Napoli.")
NAMED = tuple(message.model_copy(update={"author": "Giulia Ferraro"}) for message in EPISODE.messages)
GIULIA = "Giulia Ferraro asked for a table for four at Bella Napoli. It is booked for 12 March at 19:00."


@pytest.mark.parametrize(
    ("made", "given"),
    [
        (TUCSON, {"previous_rolling": "The user lives in Tucson and has a dog called Biscuit."}),
        (replace(GOOD, rolling_summary=""), {"wants_rolling": False}),
        (replace(GOOD, long_summary=GIULIA), {"episode": EPISODE.model_copy(update={"messages": NAMED})}),
    ],
    ids=["earlier knowledge", "no rolling summary", "speaker's name"],
)
async def test_summary_of_what_was_given_is_grounded(made: Summary, given: Any) -> None:
    provider, asked = checked(made)
    assert (await provider.summarize(replace(REQUEST, **given))).quality.grounding == 1.0
    assert len(asked.requests) == 1


async def test_many_checks_run_at_a_time() -> None:
    provider = Checked(ScriptedProvider([GOOD] * 8), QualitySettings())
    made = await asyncio.gather(*(provider.summarize(REQUEST) for _ in range(8)))
    assert {summary.quality.grounding for summary in made} == {1.0}


@with_rows
async def test_message_times_are_evidence_in_the_requests_zone(zone: str, moment: str, is_right: bool) -> None:
    made = replace(GOOD, short_summary=f"Maria Lopez asked {moment} for a table for four at Bella Napoli.")
    provider, _ = checked(made, made)
    asked = provider.summarize(replace(REQUEST, episode=in_zone(EPISODE, ZoneInfo(zone))))
    with capture_logs():
        if is_right:
            assert (await asked).quality.grounding == 1.0
        else:
            with pytest.raises(SummaryRefused, match="a number, date"):
                await asked


UNCHECKED = SummaryRequest(a_closed_episode(), "Before.", 800)


@pytest.fixture(autouse=True)
def none_unchecked() -> None:
    UNCHECKED.calls.clear()


def with_fallback(*script: ProviderError) -> Summarizer:
    return Summarizer(ScriptedProvider(script))


async def test_providers_summary_is_passed_on() -> None:
    with capture_logs() as logs:
        summary = await with_fallback().summarize(UNCHECKED)
    assert (summary.quality.source, summary.model) == ("llm", "scripted")
    assert logs == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ProviderUnavailable(problem="x"), "provider_unavailable"),
        (ProviderRateLimited(retry_after=9), "provider_rate_limited"),
        (AnswerInvalid(problem="x"), "answer_invalid"),
        (ProviderError(problem="x"), "provider_error"),
    ],
)
async def test_failure_becomes_a_marked_summary(error: ProviderError, reason: str) -> None:
    with capture_logs() as logs:
        summary = await with_fallback(error).summarize(UNCHECKED)
    assert (summary.quality.source, summary.quality.reason, summary.model) == ("fallback", reason, "extractive")
    assert [(entry["stage"], entry["error_type"]) for entry in logs] == [("summarize", reason)]


async def test_extractive_summary_is_measured_by_its_pairs() -> None:
    turns = ("user", "Where is my order 4711-22?"), ("assistant", "Order 4711-22 was delivered on Monday.")
    summary = await ExtractiveProvider().summarize(SummaryRequest(an_episode_of(*turns), "", 800))
    said = [summary.short_summary, summary.long_summary]
    assert (summary.quality.grounding, summary.quality.unsupported) == (share_of_pairs(said, turns), ())


async def test_wasted_tokens_are_counted() -> None:
    spent = Usage(prompt_tokens=30, completion_tokens=3)
    with capture_logs():
        summary = await with_fallback(AnswerInvalid(problem="x", calls=some_calls(spent))).summarize(UNCHECKED)
    assert summary.usage == spent


AWAY = (ProviderUnavailable(problem="x"), ProviderRateLimited(retry_after=9), ProviderMisconfigured(problem="x"))
SPENT = BudgetExhausted(whose="a tenant", limit=1)
ANSWERED = (AnswerInvalid(problem="x"), ProviderError(problem="x"), PromptRefused(problem="x"))


@pytest.mark.parametrize(
    ("on_llm_outage", "waits", "falls_back"),
    [("fallback", (), (*AWAY, SPENT, *ANSWERED)), ("wait", (*AWAY, SPENT), ANSWERED)],
)
async def test_fallback_or_waiting_follows_the_setting(
    on_llm_outage: Any, waits: tuple[ProviderError, ...], falls_back: tuple[ProviderError, ...]
) -> None:
    kinds = waited_for(Settings.model_validate({"summarizer": {"on_llm_outage": on_llm_outage}}))
    for error in waits:
        with pytest.raises(type(error)):
            await Summarizer(ScriptedProvider([error]), waits=kinds).summarize(UNCHECKED)
    for error in falls_back:
        with capture_logs():
            summary = await Summarizer(ScriptedProvider([error]), waits=kinds).summarize(UNCHECKED)
        assert summary.quality.reason == error.error_type


async def test_extractive_summary_is_always_marked() -> None:
    quality = (await ExtractiveProvider().summarize(UNCHECKED)).quality
    assert (quality.source, quality.reason) == ("fallback", "extractive_provider")


@pytest.mark.parametrize(("characters", "truncated"), [(1_000, False), (700_000, True)])
async def test_extractive_summary_tells_whether_the_text_was_whole(characters: int, truncated: bool) -> None:
    message = an_episode_message("m1", content="A parcel is lost. " * (characters // 18))
    request = SummaryRequest(a_closed_episode(messages=(message,)), "", 800)
    for provider in (ExtractiveProvider(), with_fallback(ProviderError(problem="x"))):
        with capture_logs():
            assert (await provider.summarize(request)).quality.truncated is truncated


async def test_other_episodes_continue_while_long_texts_are_read() -> None:
    assert await UNCHECKED.read(get_ident) == get_ident()
    long = an_episode_message("m1", content="x" * 10_000)
    for request in (
        replace(UNCHECKED, previous_rolling=long.content),
        replace(UNCHECKED, episode=a_closed_episode(messages=(long,))),
        replace(UNCHECKED, episode=a_closed_episode(overlap=(long,))),
    ):
        assert await request.read(get_ident) != get_ident()


FOR_EVER = 1e9
ROUNDING = 1e-6
"""Seconds; sums of floating-point numbers differ in their last digits."""
SAID = "Ada cancelled order 4711. The assistant confirmed it. The refund takes three days."
INVENTION = "Karen Whitfield booked a hotel in Boston with Northwind Bank for 512 dollars on 3 May."
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
        answer(in_json(INVENTION)),
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


def test_gate_reaches_its_precision_and_recall_held_out() -> None:
    result = gate("test")
    assert result.precision >= 0.95
    assert result.recall >= 0.95
