"""The model beside what was measured."""

from typing import Any

import numpy as np
import pytest

from benchmarks.simulation.parameters import Parameters, changed
from benchmarks.simulation.validation import (
    Compared,
    backlog_rate,
    calibrated,
    latency,
    number,
    slots_busy,
    validate,
    worst,
)

P = Parameters()


def a_finding(*lines: tuple[str, dict[str, str]], notes: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"title": "", "notes": list(notes), "lines": [{"program": one, "figures": two} for one, two in lines]}


BENCH = {
    "findings": {
        "segmenter": [a_finding(("segmenter", {"messages/s": "15,000", "CPU µs each": "60"}), ("by hand", {}))],
        "slots": [
            a_finding(("8 slots", {"busy": "97.5%", "episodes": "120", "CPU each": "8 ms"})),
            a_finding(("no slow conversation", {"episodes": "48", "p50": "9 ms"})),
        ],
        "archiver": [a_finding(("archiver", {"messages/s": "5,000"}), ("by hand", {"messages/s": "6,000"}))],
        "memory": [a_finding(("10,000", {"recovery": "90,000/s"}), ("100,000", {"recovery": "120,000/s"}))],
        "latency": [
            a_finding(
                ("at 10% of capacity", {"messages/s": "60", "p50": "31 ms", "p99": "80 ms"}),
                notes=("capacity in this run: 600 messages/s, 60 episodes/s",),
            )
        ],
    }
}


@pytest.mark.parametrize(("text", "value"), [("12,345 ms", 12345), ("98.5%", 98.5), ("at 10% of", 10)])
def test_the_number_of_a_figure(text: str, value: float) -> None:
    assert number(text) == value


def test_a_figure_without_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="no number"):
        number("none")


def test_service_times_are_those_of_the_run() -> None:
    p = calibrated(P, BENCH)
    assert p.message_core_seconds == pytest.approx(60e-6)
    assert p.episode_core_seconds == pytest.approx(8e-3)
    assert p.archiver_messages_per_second == 5_000
    assert p.recovery_rows_per_second == 120_000
    assert calibrated(P, {"findings": {}}) == P


def test_everything_that_was_measured_is_compared_and_nothing_else() -> None:
    found = [one.what for one in validate(P, BENCH)]
    assert found == [
        "segmenter, a full topic",
        "latency at 10% of capacity, p50",
        "latency at 10% of capacity, p99",
        "slots busy, 8 slots",
    ]
    assert validate(P, {"findings": {}}) == []


def test_a_full_topic_is_worked_off_as_fast_as_the_core_allows() -> None:
    p = changed(P, {"message_core_seconds": 1e-4, "transaction_core_seconds": 0, "commit_seconds": 1e-6})
    p = changed(p, {"commit_p99_seconds": 1e-6})
    assert backlog_rate(60_000, 4, p, np.random.default_rng(1)) == pytest.approx(10_000, rel=0.02)


def test_latency_grows_with_the_load() -> None:
    p = changed(P, {"episode_core_seconds": 1 / 60})
    idle, busy = (latency(rate, p, np.random.default_rng(1)) for rate in (60, 480))
    assert idle[0] < busy[0]
    assert idle[0] > p.episode_core_seconds + p.store_seconds


def test_slots_are_nearly_all_busy_until_the_core_is() -> None:
    few, many = (slots_busy(slots, 1000, P, np.random.default_rng(1)) for slots in (8, 128))
    assert few > 0.98
    assert many < 0.9  # 128 calls of a second, of 10 ms each on the core, are more than one core


def test_how_far_off_the_model_is_at_most() -> None:
    assert worst([Compared("a", 10, 12, "ms"), Compared("b", 10, 5, "ms")]) == 2.0
    assert worst([]) == 1.0
