from datetime import timedelta

from prometheus_client.parser import text_string_to_metric_families

from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.metrics import HourlyBudgets
from tests.samples import NOON


class Clock:
    def __init__(self) -> None:
        self.now = NOON
        self.metrics = Metrics("summarizer", "1.2.3")
        self.budgets = HourlyBudgets(self.metrics, lambda: self.now)

    def shown(self, budget: str) -> list[float]:
        """Limit, used, left."""
        found = {
            sample.name: sample.value
            for family in text_string_to_metric_families(self.metrics.text().decode())
            for sample in family.samples
            if sample.labels.get("budget") == budget
        }
        return [found[f"afterword_budget_{name}_tokens"] for name in ("limit", "used", "left") if found]


def test_what_is_used_and_left_is_shown() -> None:
    clock = Clock()
    clock.budgets.used("all", NOON, 300, 1000)
    assert clock.shown("all") == [1000, 300, 700]


def test_of_tenants_the_one_that_used_most_is_shown_and_nothing_is_left_below_0() -> None:
    clock = Clock()
    for tokens in (40, 120, 70):
        clock.budgets.used("tenant", NOON + timedelta(minutes=tokens % 60), tokens, 100)
    assert clock.shown("tenant") == [100, 120, 0]


def test_a_new_hour_begins_with_nothing_used() -> None:
    clock = Clock()
    clock.budgets.used("all", NOON, 300, 1000)
    clock.now += timedelta(hours=1)
    assert clock.shown("all") == [1000, 0, 1000]


def test_a_question_of_the_hour_before_is_not_counted_in_this_one() -> None:
    clock = Clock()
    clock.budgets.used("all", NOON + timedelta(hours=1), 50, 1000)
    clock.budgets.used("all", NOON, 300, 1000)
    clock.now += timedelta(hours=1)
    assert clock.shown("all") == [1000, 50, 950]


def test_without_a_budget_there_is_no_series() -> None:
    assert Clock().shown("all") == []
