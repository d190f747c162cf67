"""Every metric of every role, with its labels and its meaning. `docs/reference/metrics.md` is made from this."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Info, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from afterword.streams.runtime.lag import Standing
from afterword.streams.runtime.metrics import EngineMetrics, Families
from afterword.streams.telemetry.labels import error_type

PREFIX = "afterword_"
CALL_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 45, 60, 120)
"""Calls of an LLM: the default timeout is 60 seconds."""
STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Steps of a summary, which may wait for a server that is away."""

NotReady = Callable[[], Iterable[str]]


class Metrics:
    """One worker's; each has a registry of its own. Label values are from small fixed sets; none is an id."""

    def __init__(self, role: str, version: str) -> None:
        self.role = role
        self.registry = registry = CollectorRegistry()
        self.engine = EngineMetrics(registry, role, PREFIX)
        self.before_reading: list[Callable[[], None]] = []
        """Called before the values are read: for what is known elsewhere."""
        families = Families(registry, PREFIX)
        counter, gauge, histogram = families.counter, families.gauge, families.histogram
        meaning = "The version of this worker, and its role; always 1."
        families.describe("build_info", "gauge", meaning, ("version", "role"))
        Info(PREFIX + "build", meaning, registry=registry).info({"version": version, "role": role})
        self.ready = gauge("ready", "1 when the worker answers 200 at /readyz, 0 when it does not.", "role")
        self.waiting = gauge(
            "waiting",
            "1 while work waits at this stage for what is away or misconfigured; /readyz has the reason.",
            "stage",
        )
        self.messages = counter(
            "messages_total",
            "Messages that the segmenter read: taken, duplicate, skipped (not to be summarised) or dead_letter. "
            "A batch that had to be run again counts again.",
            "outcome",
        )
        self.archived = counter(
            "archived_records_total",
            "Records that the archiver has done: archived, invalid (the segmenter buries them) or other (flushes).",
            "outcome",
        )
        self.episodes_closed = counter(
            "episodes_closed_total",
            "Episodes closed by the segmenter. A batch that had to be run again counts again.",
            "close_reason",
        )
        self.pending_conversations = gauge(
            "pending_conversations",
            "Conversations (with scope = agent: agents of one) in the segmenter's index of deadlines, about: with "
            "pending messages, or with none for less than idle_seconds.",
        )
        self.oldest_pending = gauge(
            "oldest_pending_seconds",
            "idle_seconds, more by as much as the earliest deadline is overdue, less by as much as it is to come: "
            "above idle_seconds it is about the longest silence of a conversation with pending messages, below an "
            "upper bound of it. 0 when nothing is pending.",
        )
        self.summaries = counter(
            "summaries_total",
            "Summaries that were announced, repeats included: source llm or fallback; reason: why no LLM wrote it, "
            "empty where one did.",
            "source",
            "reason",
        )
        self.quality_rejections = counter(
            "quality_rejections_total",
            "Summaries of the LLM that were refused, by the worst of their faults.",
            "reason",
        )
        self.llm_requests = counter(
            "llm_requests_total",
            "Questions put to the LLM's server: ok, cut_off, refused, or the type of the error. "
            "Answers that were kept from before are not among them.",
            "outcome",
        )
        self.llm_request_seconds = histogram(
            "llm_request_duration_seconds",
            "Seconds from sending a question to the LLM's server to the end of its answer or the error; without the "
            "wait for a turn.",
            CALL_SECONDS,
        )
        self.llm_tokens = counter("llm_tokens_total", "Tokens as the LLM's server counts them.", "type")
        self.llm_retries = counter(
            "llm_retries_total", "Questions that were put again, by what was wrong the time before.", "error_type"
        )
        self.budget_limit = gauge(
            "budget_limit_tokens",
            "What may be used in an hour (UTC) of the budget of all tenants together (all), or of each one (tenant).",
            "budget",
        )
        self.budget_used = gauge(
            "budget_used_tokens",
            "The most that was seen of it in this hour, by whichever worker it was used; of tenants, of the one that "
            "used most. Questions under way are in it by their estimates. 0 where this worker has asked nothing yet.",
            "budget",
        )
        self.budget_left = gauge(
            "budget_left_tokens", "The limit without what is used, as this worker knows it; not below 0.", "budget"
        )
        self.budget_refusals = counter(
            "budget_refusals_total", "Summaries for which no LLM was asked, because nothing was left of it.", "budget"
        )
        self.dead_letters = counter(
            "dead_letters_total", "Records that went to a topic of dead letters.", "stage", "error_type"
        )
        self.in_flight = gauge("episodes_in_flight", "Episodes that the summarizer has in hand, queued ones included.")
        self.step_seconds = histogram(
            "step_duration_seconds",
            "One step of a summary, or the archiver's write of a batch (archive), until it was done, with the time it "
            "waited for what was away.",
            STEP_SECONDS,
            "step",
        )
        self.described = families.described + self.engine.described

    def text(self) -> bytes:
        """In Prometheus' text format, as of now."""
        for refresh in self.before_reading:
            refresh()
        return generate_latest(_WithoutCreated(self.registry))

    def watch_readiness(self, not_ready: NotReady, apart: str) -> None:
        """`not_ready`: names of the conditions that do not hold now; all but `apart` mean that work waits there."""

        def refresh() -> None:
            reasons = list(not_ready())
            self.ready.labels(self.role).set(not reasons)
            self.waiting.clear()
            for stage in reasons:
                if stage != apart:
                    self.waiting.labels(stage).set(1)

        self.before_reading.append(refresh)

    def watch_pending(self, idle_seconds: float, clock: Callable[[], int]) -> None:
        """Show the conversations with pending messages. `clock`: milliseconds since 1970."""

        def refresh() -> None:
            standings = self.engine.standings
            self.pending_conversations.set(sum(found.scheduled or 0 for found in standings))
            self.oldest_pending.set(oldest_pending_seconds(standings, clock(), idle_seconds))

        self.before_reading.append(refresh)

    def buried(self, stage: str, kind: str, count: int = 1) -> None:
        self.dead_letters.labels(stage, error_type(kind)).inc(count)


def oldest_pending_seconds(standings: Iterable[Standing], now_ms: int, idle_seconds: float) -> float:
    deadlines = [found.next_deadline_ms for found in standings if found.next_deadline_ms is not None]
    if not deadlines:
        return 0.0
    return max(0.0, (now_ms - min(deadlines)) / 1000 + idle_seconds)


class _WithoutCreated(Collector):
    """A series for the start of each counter doubles their number, and nobody asks for it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
