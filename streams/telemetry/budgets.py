"""What is used and left of the hour's budgets, as gauges that begin again with each hour."""

from collections.abc import Callable
from datetime import UTC, datetime

from afterword.streams.telemetry.metrics import Metrics


class HourlyBudgets:
    """Keeps the most that was seen in the hour, so that of many tenants the one that used most is shown, and no id."""

    def __init__(self, metrics: Metrics, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._metrics = metrics
        self._clock = clock
        self._hour: datetime | None = None
        self._used: dict[str, int] = {}
        self._limits: dict[str, int] = {}
        metrics.before_reading.append(self._show)

    def used(self, budget: str, when: datetime, tokens: int, limit: int) -> None:
        """`tokens`: what a counter of the hour that `when` is in holds."""
        self._begin(when)
        self._limits[budget] = limit
        if hour_of(when) == self._hour:
            self._used[budget] = max(tokens, self._used.get(budget, 0))

    def _begin(self, when: datetime) -> None:
        if self._hour is None or hour_of(when) > self._hour:
            self._hour, self._used = hour_of(when), {}

    def _show(self) -> None:
        self._begin(self._clock())
        for budget, limit in self._limits.items():
            used = self._used.get(budget, 0)
            self._metrics.budget_limit.labels(budget).set(limit)
            self._metrics.budget_used.labels(budget).set(used)
            self._metrics.budget_left.labels(budget).set(max(0, limit - used))


def hour_of(when: datetime) -> datetime:
    return when.replace(minute=0, second=0, microsecond=0)
