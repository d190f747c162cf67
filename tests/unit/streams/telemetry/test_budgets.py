from datetime import timedelta

from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.metrics import HourlyBudgets
from tests.samples import NOON


class Clock:
    def __init__(self) -> None:
        self.now = NOON
        self.metrics = Metrics("summarizer", "1.2.3")
        self.budgets = HourlyBudgets(self.metrics, lambda: self.now)

    def left(self, budget: str) -> float | None:
        self.metrics.text()
        return self.metrics.registry.get_sample_value("afterword_budget_left_tokens", {"budget": budget})


def test_what_is_left_is_shown() -> None:
    clock = Clock()
    clock.budgets.used("all", NOON, 300, 1000)
    assert clock.left("all") == 700


def test_of_tenants_the_one_that_used_most_is_shown_and_nothing_is_left_below_0() -> None:
    clock = Clock()
    for tokens in (40, 120, 70):
        clock.budgets.used("tenant", NOON + timedelta(minutes=tokens % 60), tokens, 100)
    assert clock.left("tenant") == 0


def test_a_new_hour_begins_with_nothing_used() -> None:
    clock = Clock()
    clock.budgets.used("all", NOON, 300, 1000)
    clock.now += timedelta(hours=1)
    assert clock.left("all") == 1000


def test_a_question_of_the_hour_before_is_not_counted_in_this_one() -> None:
    clock = Clock()
    clock.budgets.used("all", NOON + timedelta(hours=1), 50, 1000)
    clock.budgets.used("all", NOON, 300, 1000)
    clock.now += timedelta(hours=1)
    assert clock.left("all") == 950


def test_without_a_budget_there_is_no_series() -> None:
    assert Clock().left("all") is None
