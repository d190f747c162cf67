"""What a worker says at its end adds up over its batches."""

from collections import Counter

from afterword.streams.segmenter.outcome import Outcome, Totals


def test_totals_add_up_over_batches() -> None:
    totals = Totals()
    totals.add(Outcome(messages=3, duplicates=1, episodes=Counter(trigger=1), dead_letters=Counter(key_mismatch=2)))
    totals.add(Outcome(messages=2, skipped=1, flushes=1, episodes=Counter(trigger=1, idle=1)))
    assert totals.counts == {
        "messages": 5,
        "duplicates": 1,
        "skipped": 1,
        "flushes": 1,
        "dead_letters_key_mismatch": 2,
        "episodes_trigger": 2,
        "episodes_idle": 1,
    }
