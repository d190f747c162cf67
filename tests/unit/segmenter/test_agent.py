"""A batch's outcome is counted once, whatever it contains."""

from collections import Counter

from afterword.streams.segmenter.agent import count
from afterword.streams.segmenter.processor import Outcome
from afterword.streams.telemetry import Metrics


def test_outcome_is_added_to_the_metrics() -> None:
    metrics = Metrics("segmenter", "1.2.3")
    outcome = Outcome(
        messages=5,
        duplicates=2,
        changed_repeats=1,
        skipped=1,
        amendments=1,
        dead_letters=Counter(too_large=3),
        episodes=Counter(idle=2, flush=1),
    )
    count(outcome, metrics)
    count(outcome, metrics)
    value = metrics.registry.get_sample_value
    by_outcome = {"taken": 10, "duplicate": 4, "changed_repeat": 2, "skipped": 2, "amendment": 2, "dead_letter": 6}
    assert {name: value("afterword_messages_total", {"outcome": name}) for name in by_outcome} == by_outcome
    assert value("afterword_dead_letters_total", {"stage": "segmenter", "error_type": "too_large"}) == 6
    assert value("afterword_episodes_closed_total", {"close_reason": "idle"}) == 4
