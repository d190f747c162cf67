"""Metrics of every role, with their labels and meanings. docs/reference/metrics.md is generated from this module.

Nothing is global: a worker's composition root makes one `Metrics` and one tracer, and passes them to its components.
`worker.py` contains the parts that only workers need, and loads the engine.
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Info, disable_created_metrics, generate_latest

from afterword.streams import genai
from faust_eos.metrics import EngineMetrics, Families, PartitionStatus

PREFIX = "afterword_"
OPERATION_SECONDS = tuple(0.01 * 2**n for n in range(14))
"""From 0.01 to 81.92, as the conventions say."""
STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Buckets for the steps of a summary, which may wait for an unavailable server."""


class Metrics:
    """The metrics of one worker, in their own registry.

    Label values come from small fixed sets, because a series takes memory here and in Prometheus for ever. No label is
    an id.
    """

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
        families = Families(registry, PREFIX)
        counter, gauge, histogram = families.counter, families.gauge, families.histogram
        meaning = "Version and role of this worker; always 1. A process with several roles has a series for each."
        families.describe("build_info", "gauge", meaning, ("version", "role"))
        build = Info(PREFIX + "build", meaning, ("role",), registry=registry)
        for each in self._roles:
            build.labels(each).info({"version": version})
        self.ready = gauge("ready", "1 when the worker answers 200 at /readyz, else 0.", "role")
        self.waiting = gauge(
            "waiting",
            "1 while work waits at this stage for an unavailable or misconfigured server; /readyz has the reason.",
            "stage",
        )
        self.messages = counter(
            "messages_total",
            "Messages read by the segmenter: taken, duplicate, skipped (not to be summarized), amendment (an edit or a "
            "deletion) or dead_letter.",
            "outcome",
        )
        self.archived = counter(
            "archived_records_total",
            "Records handled by the archiver: archived, amended (edits, deletions and assignments), invalid (the "
            "segmenter sends them to the dead-letter queue), other (flushes) or failed (the archiver's own dead "
            "letters).",
            "outcome",
        )
        self.ingested = counter(
            "ingested_records_total",
            "Records read by ingest: mapped, skipped or rejected (a dead letter), by the number of their source.",
            "source",
            "outcome",
        )
        self.episodes_closed = counter("episodes_closed_total", "Episodes closed by the segmenter.", "close_reason")
        self.pending_conversations = gauge(
            "pending_conversations",
            "Approximate number of conversations, or of their agents, in the segmenter's index of deadlines: those "
            "with pending messages, or with none for less than idle_seconds.",
        )
        self.oldest_pending = gauge(
            "oldest_pending_seconds",
            "Longest idle time of a conversation with pending messages; below idle_seconds, an upper bound. 0 when "
            "nothing is pending.",
        )
        self.summaries = counter(
            "summaries_total",
            "Announced summaries, including repeats. source: llm or fallback; reason: why no LLM wrote it, empty if "
            "one did.",
            "source",
            "reason",
        )
        self.quality_rejections = counter(
            "quality_rejections_total",
            "LLM summaries that were refused, by their worst fault.",
            "reason",
        )
        self.llm_requests = counter(
            "llm_requests_total",
            "Requests to the LLM's server: ok, cut_off, refused, or the type of the error.",
            "outcome",
        )
        conventional = Families(registry, "")
        self.llm_seconds = conventional.histogram(
            f"{in_prometheus(genai.INFERENCE_DURATION)}_seconds",
            "Seconds from asking the LLM's server to the end of its answer or the error, without the wait for a free "
            "slot. Name, labels and bounds are those of OpenTelemetry's GenAI conventions.",
            OPERATION_SECONDS,
            *map(in_prometheus, (genai.OPERATION, genai.PROVIDER, genai.REQUEST_MODEL)),
            "error_type",
        )
        self.llm_tokens = counter(
            "llm_tokens_total",
            "Tokens as counted by the LLM's server: prompt, cached (those of the prompts that were in its cache) or "
            "completion.",
            "type",
        )
        self.llm_retries = counter(
            "llm_retries_total", "Repeated requests to the LLM, by the error of the previous attempt.", "error_type"
        )
        self.dead_letters = counter("dead_letters_total", "Records sent to a dead-letter queue.", "stage", "error_type")
        self.in_flight = gauge("episodes_in_flight", "Episodes in flight in the summarizer, including queued ones.")
        self.step_seconds = histogram(
            "step_duration_seconds",
            "Duration of a step of a summary, or of the archiver's write of a batch (archive), including waits for "
            "unavailable servers.",
            STEP_SECONDS,
            "step",
        )
        self.requests = counter("requests_total", "Requests that the server answered, by route.", "route", "status")
        self.request_seconds = histogram(
            "request_duration_seconds",
            "Seconds from a request to the end of its answer; a stream of events lasts as long as its client.",
            STEP_SECONDS,
            "route",
        )
        self.event_clients = gauge("event_clients", "Clients that are reading the event stream.")
        self.webhooks = counter(
            "webhooks_total",
            "Events of a webhook endpoint: delivered, outdated or dead_letter; and its failed deliveries: http_429, "
            "http_5xx and so on, gone, timeout, connection, tls, name_not_resolved or address_refused.",
            "endpoint",
            "outcome",
        )
        self.described = families.described + conventional.described + self.engine.described

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


def in_prometheus(name: str) -> str:
    """Return a name of OpenTelemetry as Prometheus writes it, without the unit."""
    return name.replace(".", "_")


def oldest_pending_seconds(partition_statuses: Iterable[PartitionStatus], now_ms: int, idle_seconds: float) -> float:
    deadlines = [status.next_deadline_ms for status in partition_statuses if status.next_deadline_ms is not None]
    if not deadlines:
        return 0.0
    return max(0.0, (now_ms - min(deadlines)) / 1000 + idle_seconds)
