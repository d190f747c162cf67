"""What a batch led to, as metrics: counted once for a batch, not for each message."""

from collections.abc import Callable

from afterword.streams.segmenter.outcome import Outcome
from afterword.streams.telemetry import Metrics

STAGE = "segmenter"


def counting(metrics: Metrics) -> Callable[[Outcome], None]:
    """Adds outcomes to the metrics."""
    messages = {name: metrics.messages.labels(name) for name in ("taken", "duplicate", "skipped", "dead_letter")}

    def count(outcome: Outcome) -> None:
        messages["taken"].inc(outcome.messages)
        messages["duplicate"].inc(outcome.duplicates)
        messages["skipped"].inc(outcome.skipped)
        messages["dead_letter"].inc(outcome.dead_letters.total())
        for error_type, number in outcome.dead_letters.items():
            metrics.count_dead_letters(STAGE, error_type, number)
        for reason, number in outcome.episodes.items():
            metrics.episodes_closed.labels(reason).inc(number)

    return count
