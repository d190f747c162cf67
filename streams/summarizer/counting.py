"""How the summarizer fares, as metrics."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from afterword.streams.errors import ProviderError
from afterword.streams.summarizer.observer import Answered, Observer
from afterword.streams.summarizer.providers.endpoint import Reply
from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.metrics import HourlyBudgets
from afterword.streams.telemetry.metrics import error_type as bounded


class Counting(Observer):
    """Adds what it is told to the metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._budgets = HourlyBudgets(metrics)

    @contextmanager
    def question(self, _endpoint: str, _model: str | None) -> Iterator[Answered]:
        try:
            yield self._answered
        except ProviderError as error:
            self._metrics.llm_requests.labels(bounded(error.error_type)).inc()
            raise

    def _answered(self, reply: Reply) -> None:
        self._metrics.llm_requests.labels(outcome_of(reply)).inc()
        self._metrics.llm_tokens.labels("prompt").inc(reply.usage.prompt_tokens)
        self._metrics.llm_tokens.labels("completion").inc(reply.usage.completion_tokens)

    def took(self, seconds: float) -> None:
        self._metrics.llm_request_seconds.observe(seconds)

    def retried(self, error_type: str) -> None:
        self._metrics.llm_retries.labels(bounded(error_type)).inc()

    def refused(self, reason: str) -> None:
        self._metrics.quality_rejections.labels(bounded(reason)).inc()

    def used(self, budget: str, hour: datetime, tokens: int, limit: int) -> None:
        self._budgets.used(budget, hour, tokens, limit)

    def exhausted(self, budget: str) -> None:
        self._metrics.budget_refusals.labels(budget).inc()


def outcome_of(reply: Reply) -> str:
    """`refused`, `cut_off`, else `ok`; whether an `ok` can be used is another question."""
    if reply.refused:
        return "refused"
    return "cut_off" if reply.cut_off else "ok"
