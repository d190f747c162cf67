"""The load of the benchmark of state, and how its costs are judged."""

from collections import Counter

import pytest

from afterword.streams.settings import load_settings
from benchmarks.deployment import environment
from benchmarks.state import (
    CONVERSATIONS,
    FEWER,
    LENGTHS,
    MESSAGE_BYTES,
    MESSAGES,
    WINDOW,
    Cost,
    finding,
    messages,
    settings,
    spread,
)


def test_every_message_has_300_bytes_and_each_batch_one_of_each_conversation() -> None:
    records = list(messages(7, 9))
    assert {len(value) for _, value in records} == {MESSAGE_BYTES}
    assert set(Counter(key for key, _ in records[:CONVERSATIONS]).values()) == {1}
    assert len(records) == 2 * CONVERSATIONS


@pytest.mark.parametrize("length", LENGTHS)
def test_nothing_is_pending_where_is_measured_and_the_window_is_full(length: int) -> None:
    assert MESSAGES % length == 0
    assert WINDOW < FEWER <= MESSAGES


def test_a_worker_is_told_in_its_environment_what_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = settings(20, 40)
    for name, value in environment(wanted).items():
        monkeypatch.setenv(name, value)
    assert load_settings().model_dump(include={"episodes", "engine"}) == load_settings(**wanted).model_dump(
        include={"episodes", "engine"}
    )
    assert load_settings().engine.max_batch == 40


def test_costs_are_flat_when_none_is_a_tenth_away_from_their_median() -> None:
    assert spread([90.0, 100.0, 120.0]) == pytest.approx([-0.1, 0.0, 0.2])
    costs = [Cost(5, 100, 50, 100), Cost(20, 108, 50, 100), Cost(100, 101, 50, 130)]
    found = finding("state", costs)
    assert [line.met for line in found.lines] == [True, True, False]
    assert found.ratios == {"state/flat": pytest.approx(100 / 108)}
