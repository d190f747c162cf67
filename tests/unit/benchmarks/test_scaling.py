"""The scaling formulas, their inputs, and the tables of docs/scaling.md."""

import re
from pathlib import Path

import pytest

from afterword.streams.app import in_flight_by_default
from afterword.streams.settings import Llm, Settings, locations, variable
from benchmarks.scaling import (
    ASSUMED,
    DEFAULT,
    EXAMPLE,
    LOADS,
    Parameters,
    burst_wait,
    ceilings,
    changed,
    changelog_bytes_per_message,
    ends,
    listed,
    main,
    mean_call_seconds,
    messages_per_episode,
    need,
    over_limit,
    seconds,
    seconds_of_slot,
    short,
    tables,
)
from benchmarks.suite import Finding, as_markdown

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "scaling.md"
FILE = re.compile(r"^([\w/.-]+\.(?:md|py|yaml))")
P = Parameters()


def test_a_worked_example() -> None:
    """The one of docs/scaling.md."""
    p = changed(P, {"peak_to_mean": 2, "messages_per_conversation": 40, "trigger": 10, "shift_chance": 0.1})
    found = need(10e6, p)
    assert found.messages == pytest.approx(10e6 / 86_400 * 2)
    assert messages_per_episode(p) == pytest.approx(40 / (4 * 1.9))
    assert found.episodes == pytest.approx(found.messages / messages_per_episode(p))
    assert found.changelog_bytes_per_day == pytest.approx(10e6 * changelog_bytes_per_message(p))


@pytest.mark.parametrize(("messages", "shifts", "expected"), [(10, 0.0, 10), (40, 0.0, 10), (12, 0.0, 6), (10, 1.0, 1)])
def test_messages_of_an_episode(messages: int, shifts: float, expected: float) -> None:
    p = changed(P, {"messages_per_conversation": messages, "shift_chance": shifts})
    assert messages_per_episode(p) == pytest.approx(expected)


@pytest.mark.parametrize("load", LOADS)
def test_no_role_has_more_workers_than_partitions(load: float) -> None:
    found = need(load, P)
    assert max(found.segmenters, found.summarizers) <= found.partitions
    assert found.summarizers * found.slots_per_summarizer >= found.slots


def test_what_is_stored_grows_as_the_load_does() -> None:
    small, large = need(1e6, P), need(1e8, P)
    for name in ("state_bytes", "mongo_bytes", "qdrant_bytes", "kafka_bytes", "cost_per_day", "tokens_per_day"):
        assert getattr(large, name) == pytest.approx(100 * getattr(small, name))


def test_a_smaller_window_of_ids_means_less_state() -> None:
    never = {"forget_after_days": 0}
    large, small = need(1e8, changed(P, never)), need(1e8, changed(P, never | {"dedupe_window": 10}))
    assert small.state_bytes < large.state_bytes / 3
    assert small.recovery_seconds < large.recovery_seconds / 3


def test_state_follows_the_living() -> None:
    ever, some = need(1e8, changed(P, {"forget_after_days": 0})), need(1e8, P)
    assert some.state_bytes < ever.state_bytes / 10
    assert some.changelog_bytes_per_day > ever.changelog_bytes_per_day, "what is forgotten leaves tombstones first"
    assert need(1e8, changed(P, {"forget_after_days": 500})).state_bytes == ever.state_bytes


def test_every_ceiling_is_in_one_decade_and_the_lowest_comes_first() -> None:
    found = [end for load in (1e0, 1e1, 1e2, 1e3, *LOADS, 1e10, 1e11) for end in ends(load, P)]
    assert found == ceilings(P)
    assert [end.messages_per_day for end in found] == sorted(end.messages_per_day for end in found)


def test_at_a_ceiling_what_it_names_is_used_up() -> None:
    ceiling = next(end for end in ceilings(P) if end.what == "the provider's requests a minute")
    assert need(ceiling.messages_per_day, P).requests_per_minute == pytest.approx(P.requests_per_minute)


def test_every_parameter_says_where_it_is_from() -> None:
    for one in listed(Parameters()):
        known = FILE.match(one.source)
        assert one.source.startswith((ASSUMED, EXAMPLE, DEFAULT, "python -m", "Kafka's", "the row")) or known, one
        assert known is None or (ROOT / known.group(1)).exists(), one


def test_defaults_are_those_of_the_settings() -> None:
    known = {variable(location): field.default for location, field in locations(Settings)}
    for one in listed(Parameters()):
        named = re.search(r"AFTERWORD_\w+", one.source)
        if named and one.name != "linger_seconds":
            assert known[named.group()] == one.value, one
    assert known["AFTERWORD_ENGINE__LINGER_MS"] == Parameters().linger_seconds * 1000
    assert in_flight_by_default(Llm(provider="ollama", model="any", max_concurrency=32)) == Parameters().in_flight


def test_a_name_that_is_none_is_refused() -> None:
    assert changed(Parameters(), {"trigger": 5}).trigger == 5
    with pytest.raises(ValueError, match="unknown parameters: nonsense"):
        changed(Parameters(), {"nonsense": 1})


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--parameters", "--set", "trigger=7"])
    assert "trigger = 7 messages" in capsys.readouterr().out


def test_the_command_refuses_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--parameters", "--set", "nonsense=7"])
    assert "nonsense" in capsys.readouterr().err


def test_the_mean_of_a_lognormal_latency_lies_above_its_median() -> None:
    assert mean_call_seconds(changed(P, {"llm_p99_seconds": P.llm_seconds})) == pytest.approx(P.llm_seconds)
    assert mean_call_seconds(P) == pytest.approx(3.58, abs=0.01)


def test_nobody_waits_in_a_burst_that_the_slots_can_take() -> None:
    enough = int(P.burst_factor * seconds_of_slot(P)) + 1
    assert burst_wait(1.0, enough, P) == 0
    assert burst_wait(1.0, enough // 2, P) > 0


def test_a_burst_waits_for_the_episodes_before_it() -> None:
    p = changed(P, {"burst_factor": 3, "burst_seconds": 30})
    slots = int(seconds_of_slot(p) * 100)
    rate = slots / seconds_of_slot(p)
    backlog = 30 * (3 * rate - rate)
    assert burst_wait(rate, slots, p) == pytest.approx(backlog / rate)


def test_calls_beyond_either_limit_are_refused() -> None:
    p = changed(P, {"requests_per_minute": 60, "tokens_per_minute": 1e12, "calls_per_episode": 1})
    assert over_limit(0.5, p) == 0
    assert over_limit(4.0, p) == pytest.approx(0.75)
    assert over_limit(4.0, changed(p, {"requests_per_minute": 1e12, "tokens_per_minute": 1.0})) > 0.99


@pytest.mark.parametrize("found", tables(P), ids=lambda found: found.title)
def test_the_page_has_what_the_formulas_give(found: Finding) -> None:
    rows = as_markdown(found).splitlines()[2:]
    assert [row for row in rows if row and row not in PAGE.read_text()] == []


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.23, "0.2"), (8, "8"), (9960, "10 k"), (1234, "1.2 k"), (46e12, "46 T")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.013, "13 ms"), (5.24, "5.2 s"), (80, "80 s"), (300, "5 min"), (7300, "2 h"), (200_000, "2 d")],
)
def test_times_have_the_unit_that_fits(value: float, text: str) -> None:
    assert seconds(value) == text
