"""A summary is checked before it is returned, and requested once more if it fails."""

import asyncio
from dataclasses import replace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from structlog.testing import capture_logs

from afterword.schemas import Quality as Measured
from afterword.schemas import Usage
from afterword.schemas.summaries import total
from afterword.streams.errors import ProviderMisconfigured, ProviderUnavailable, SummaryRefused
from afterword.streams.settings import QualitySettings
from afterword.streams.summarizer.summarizer import Summarizer, SummaryCheck
from afterword.streams.summarizer.summary import Summary, SummaryRequest, in_zone
from tests.doubles.llm import unread
from tests.doubles.provider import ScriptedProvider
from tests.rows import with_rows
from tests.samples import some_calls
from tests.unit.summarizer.conversations import an_episode_of

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
