"""Retries of an episode that has a fallback: how often, when, and how a record counts them."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import InvalidRecord
from afterword.streams.errors import (
    AnswerInvalid,
    BudgetExhausted,
    ProviderError,
    ProviderMisconfigured,
    ProviderRateLimited,
    ProviderUnavailable,
)
from afterword.streams.settings import Retry
from afterword.streams.summarizer.retries import (
    NOT_BEFORE,
    NUMBER,
    UNUSABLE,
    Try,
    first_try,
    headers_of,
    next_try,
    try_from,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
AWAY = ProviderUnavailable(problem="x")
UNUSABLE_ANSWER = AnswerInvalid(problem="x")


def tries(retry: Retry, error: ProviderError) -> list[Try]:
    """All that follow each other when each ends with that error."""
    found, attempt = list[Try](), first_try(retry, NOW)
    while attempt is not None:
        found.append(attempt)
        attempt = next_try(attempt, error, retry, NOW)
    return found


def delays(retry: Retry, error: ProviderError = AWAY) -> list[float]:
    return [(t.not_before - NOW).total_seconds() for t in tries(retry, error) if t.not_before]


def test_the_delay_doubles_up_to_the_longest() -> None:
    retry = Retry(attempts=6, first_delay_seconds=30, longest_delay_seconds=200)
    assert delays(retry) == [30, 60, 120, 200, 200, 200]


def test_the_delay_of_any_number_of_attempts_can_be_told() -> None:
    late = next_try(Try(10**8, 0, None), AWAY, Retry(attempts=10**9), NOW)
    assert late == Try(10**8 + 1, 0, NOW + timedelta(seconds=900))


@pytest.mark.parametrize(
    "error",
    [
        AWAY,
        ProviderRateLimited(retry_after=1),
        ProviderMisconfigured(problem="x"),
        BudgetExhausted(whose="x", limit=1),
    ],
)
def test_an_llm_that_does_not_answer_is_asked_until_the_attempts_are_used_up(error: ProviderError) -> None:
    assert [t.number for t in tries(Retry(attempts=7, unusable_answers=2), error)] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("error", [UNUSABLE_ANSWER, ProviderError(problem="it refused the request")])
def test_answers_that_cannot_be_used_are_asked_for_less_often(error: ProviderError) -> None:
    assert [t.number for t in tries(Retry(attempts=7, unusable_answers=2), error)] == [1, 2]


def test_an_outage_in_between_is_not_counted_as_an_answer() -> None:
    retry = Retry(unusable_answers=2)
    after_outage = next_try(Try(1, 1, NOW), AWAY, retry, NOW)
    assert after_outage is not None
    assert (after_outage.number, after_outage.unusable) == (2, 1)
    assert next_try(after_outage, UNUSABLE_ANSWER, retry, NOW) is None


def test_no_attempts_means_that_fallbacks_stay() -> None:
    assert first_try(Retry(attempts=0), NOW) is None


MOMENTS = st.none() | st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)).map(
    lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)
)


@given(st.builds(Try, st.integers(1, 10**8), st.integers(0, 10**8), MOMENTS, st.booleans()))
def test_headers_give_back_what_they_were_made_of(attempt: Try) -> None:
    assert try_from(headers_of(attempt)) == attempt


def test_a_record_without_these_headers_is_a_first_try_that_is_due() -> None:
    assert try_from([("ce_id", b"c1:1:1")]) == Try(1, 0, None)


@pytest.mark.parametrize("name", [NUMBER, UNUSABLE, NOT_BEFORE])
@pytest.mark.parametrize("value", [b"-1", b"soon", b"\xff", b"1e9", b"9" * 50, "²".encode()])
def test_headers_that_say_nothing_are_named(name: str, value: bytes) -> None:
    with pytest.raises(InvalidRecord, match=name):
        try_from([(name, value)])
