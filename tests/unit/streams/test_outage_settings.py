"""Settings about an LLM that does not answer, or may not be asked."""

import pytest

from afterword.streams.errors import ConfigurationError
from afterword.streams.settings import Budget, load_settings


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("AFTERWORD_SUMMARIZER__ON_LLM_OUTAGE", "panic", "'fallback' or 'wait'"),
        ("AFTERWORD_BUDGET__ON_EXHAUSTED", "stop", "'fallback' or 'wait'"),
        ("AFTERWORD_BUDGET__TOKENS_PER_HOUR", "0", "greater than or equal to 1"),
        ("AFTERWORD_RETRY__ATTEMPTS", "-1", "greater than or equal to 0"),
        ("AFTERWORD_RETRY__UNUSABLE_ANSWERS", "0", "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_meant_stops_the_start_and_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, problem: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=problem) as raised:
        load_settings()
    assert str(raised.value).startswith(f"{name}:")


def test_a_first_delay_longer_than_the_longest_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERWORD_RETRY__FIRST_DELAY_SECONDS", "1000")
    with pytest.raises(ConfigurationError, match=r"^AFTERWORD_RETRY: first_delay_seconds \(1000\) is longer"):
        load_settings()


def test_nothing_is_limited_unless_it_is_set() -> None:
    assert not Budget().limited
    assert Budget(tokens_per_hour=1).limited
    assert Budget(tenant_tokens_per_hour=1).limited
