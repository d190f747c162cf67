"""Metrics of every role, with their labels and meanings. docs/reference/metrics.md is generated from them.

Nothing is global: a worker's composition root makes one `Metrics` and one tracer, and passes them to its components.
"""

from collections.abc import Callable, Iterable
from importlib.resources import files

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)

from faust_eos.metrics import EngineMetrics, Family, PartitionStatus, add_families

PREFIX = "afterword_"


class Metrics:
    """The metrics of one worker, in their own registry.

    Label values come from small fixed sets, because a series takes memory here and in Prometheus for ever. No label is
    an id.
    """

    ready: Gauge
    waiting: Gauge
    messages: Counter
    archived: Counter
    ingested: Counter
    episodes_closed: Counter
    pending_conversations: Gauge
    oldest_pending: Gauge
    summaries: Counter
    quality_rejections: Counter
    llm_requests: Counter
    llm_seconds: Histogram
    llm_tokens: Counter
    llm_retries: Counter
    dead_letters: Counter
    in_flight: Gauge
    step_seconds: Histogram
    requests: Counter
    request_seconds: Histogram
    event_clients: Gauge
    webhooks: Counter

    def __init__(self, role: str, version: str, *others: str) -> None:
        """`others` are further roles of the same process; counters without the label `role` are of all of them."""
        self.registry = registry = CollectorRegistry()
        self.engine = EngineMetrics(registry, role, PREFIX)
        self._roles = (role, *others)
        for other in others:
            self.engine.of_group(other)
        self._not_ready: Callable[[], Iterable[str]] | None = None
        self._assignment = ""
        # the start time of each counter would double the series, and nobody reads it
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library does not type it
        table = (files(__package__) / "metrics.toml").read_text(encoding="utf-8")
        self.described = add_families(self, registry, "", table) + self.engine.described
        meaning = "Version and role of this worker; always 1. A process with several roles has a series for each."
        self.described.append(Family(PREFIX + "build_info", "gauge", ("version", "role"), meaning))
        build = Info(PREFIX + "build", meaning, ("role",), registry=registry)
        for each in self._roles:
            build.labels(each).info({"version": version})

    def text(self) -> bytes:
        """Render the current values in Prometheus' text format."""
        if self._not_ready is not None:
            reasons = list(self._not_ready())
            for role in self._roles:
                self.ready.labels(role).set(not reasons)
            self.waiting.clear()
            for stage in reasons:
                if not stage.startswith(self._assignment):
                    self.waiting.labels(stage).set(1)
        return generate_latest(self.registry)

    def engine_of(self, role: str) -> EngineMetrics:
        """Return the engine's metrics with this label: those of a consumer group of this process."""
        return next((group for group in self.engine.groups if group.role == role), None) or self.engine.of_group(role)

    def watch_readiness(self, not_ready: Callable[[], Iterable[str]], assignment: str) -> None:
        """Show readiness. `not_ready` lists the stages that wait, and reasons that begin with `assignment`."""
        self._not_ready, self._assignment = not_ready, assignment

    def watch_pending(self, idle_seconds: float, clock: Callable[[], int]) -> None:
        """Show the conversations with pending messages. `clock` returns milliseconds since 1970."""
        self.pending_conversations.set_function(
            lambda: sum(status.scheduled or 0 for status in self.partition_statuses)
        )
        self.oldest_pending.set_function(lambda: oldest_pending_seconds(self.partition_statuses, clock(), idle_seconds))

    @property
    def partition_statuses(self) -> list[PartitionStatus]:
        """The assigned partitions of all consumer groups of this process."""
        return [found for group in self.engine.groups for found in group.partition_statuses]


def oldest_pending_seconds(partition_statuses: Iterable[PartitionStatus], now_ms: int, idle_seconds: float) -> float:
    deadlines = [status.next_deadline_ms for status in partition_statuses if status.next_deadline_ms is not None]
    if not deadlines:
        return 0.0
    return max(0.0, (now_ms - min(deadlines)) / 1000 + idle_seconds)
