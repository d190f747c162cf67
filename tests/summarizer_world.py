"""A summarizer's surroundings in memory, with faults that strike one chosen call."""

import asyncio
import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from opentelemetry.trace import NoOpTracer, Tracer

from afterword.schemas import ConversationUpdated, EpisodeClosed, SummaryCreated, SummaryDeleted
from afterword.streams.dead_letters import DeadLetters
from afterword.streams.errors import AfterwordError, ProviderError, StoreUnavailable
from afterword.streams.settings import Retry
from afterword.streams.steps import Backoff, StepRunner
from afterword.streams.summarizer.agent import RecordHandler
from afterword.streams.summarizer.providers import Maker, Provider
from afterword.streams.summarizer.reconciler import STAGE, Event, Reconciler
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import SummaryRules
from afterword.streams.telemetry.metrics import Metrics
from faust_eos.failures import Attempts, Breaker
from faust_eos.health import Readiness
from faust_eos.options import wall_clock_ms
from faust_eos.transaction import Output
from tests.doubles.index import MemoryIndex
from tests.doubles.provider import ScriptedProvider
from tests.doubles.stores import MemoryEpisodes, MemoryMessages
from tests.samples import NOON, a_cause, a_closed_episode

NO_TRACER = NoOpTracer()
TODAY = Maker("scripted", "episodic-2")
EPISODES = tuple(a_closed_episode(ordinal) for ordinal in (1, 2, 3))


class Crash(Exception):
    """The simulated process has died."""


METRICS = Metrics("none", "0")


class RecordedReadiness(Readiness):
    """Records every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, ...]] = []

    def not_ready(self, condition: str, reason: str) -> None:
        super().not_ready(condition, reason)
        self.calls.append(("not_ready", condition, reason))

    def ready(self, condition: str) -> None:
        super().ready(condition)
        self.calls.append(("ready", condition))


def no_wait(_failures: int, _error: Exception) -> float:
    return 0.0


def a_step_runner(
    readiness: Readiness | None = None,
    backoff: Backoff = no_wait,
    metrics: Metrics = METRICS,
    tracer: Tracer = NO_TRACER,
) -> StepRunner:
    return StepRunner(readiness or Readiness(), metrics, tracer, backoff)


def a_handler(
    reconciler: Reconciler,
    send: Callable[[Output], None],
    clock_ms: Callable[[], int] = wall_clock_ms,
    *,
    tracer: Tracer = NO_TRACER,
    breaker: Breaker | None = None,
    metrics: Metrics = METRICS,
) -> RecordHandler:
    """Make a handler whose telemetry is not read."""
    dead_letters = DeadLetters(STAGE, "episode.closed.dlq", metrics=metrics)
    attempts = Attempts(breaker or Breaker(), 3, (AfterwordError, Crash), wait_seconds=0.0)
    return RecordHandler(reconciler, dead_letters, attempts, tracer, "summarizers", clock_ms, send)


class FixedEmbedder:
    model = "fixed"

    async def passages(self, texts: Sequence[str]) -> list[Sequence[float] | None]:
        return [[float(len(text)), 1.0] for text in texts]

    async def query(self, text: str) -> Sequence[float] | None:
        return [float(len(text)), 1.0]

    async def close(self) -> None: ...


class Topic:
    """Acknowledged records, in order."""

    def __init__(self) -> None:
        self.published: list[Event] = []

    async def publish(self, event: Event) -> None:
        self.published.append(event)

    @property
    def events(self) -> list[SummaryCreated | SummaryDeleted]:
        return [event for event in self.published if not isinstance(event, ConversationUpdated)]

    @property
    def conversations(self) -> list[ConversationUpdated]:
        return [event for event in self.published if isinstance(event, ConversationUpdated)]


Fault = Callable[[], Any]


class Faults:
    """Lets all calls of its proxies through, and injects a fault before or after the n-th."""

    def __init__(self, at: int, after: bool, fault: Fault) -> None:
        self.calls = 0
        self.struck = False
        self._at, self._after, self._fault = at, after, fault

    def around(self, target: Any, *, is_remote: bool = True) -> Any:
        faults = self

        class Proxy:
            def __getattr__(self, name: str) -> Any:
                found = getattr(target, name)
                return faults.around_call(found, is_remote=is_remote) if inspect.iscoroutinefunction(found) else found

        return Proxy()

    def around_call(self, call: Any, *, is_remote: bool = True) -> Any:
        after = self._after and is_remote  # what this process has done itself is not lost

        async def faulty(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            struck = self.calls == self._at
            if struck and not after:
                self._strike()
            await asyncio.sleep(0)
            result = await call(*args, **kwargs)
            if struck and after:
                self._strike()
            return result

        return faulty

    def _strike(self) -> None:
        self.struck = True
        self._fault()


NO_FAULTS = Faults(0, after=False, fault=lambda: None)


@dataclass
class World:
    """Everything that outlives a process."""

    episodes: MemoryEpisodes = field(default_factory=MemoryEpisodes)
    messages: MemoryMessages = field(default_factory=MemoryMessages)
    index: MemoryIndex = field(default_factory=MemoryIndex)
    topic: Topic = field(default_factory=Topic)
    provider: ScriptedProvider = field(default_factory=ScriptedProvider)

    def reconciler(self, faults: Faults = NO_FAULTS, provider: Provider | None = None, **fields: Any) -> Reconciler:
        """Make a reconciler that waits for the provider's errors instead of falling back."""
        summarizer = Summarizer(provider or self.provider, waits=(ProviderError,))
        parts: dict[str, Any] = {
            "episodes": faults.around(self.episodes),
            "messages": faults.around(self.messages),
            "index": faults.around(self.index),
            "summarizer": summarizer if provider else faults.around(summarizer, is_remote=False),
            "embedder": faults.around(FixedEmbedder()),
            "publish": faults.around_call(self.topic.publish),
            "keep": Topic().publish,
            "steps": a_step_runner(),
            "rules": SummaryRules(rolling_max_tokens=20),
            "retry": Retry(),
            "clock": lambda: NOON + timedelta(hours=1),
        }
        return Reconciler(**parts | fields)

    async def run(self, closed: tuple[EpisodeClosed, ...], faults: Faults = NO_FAULTS, **fields: Any) -> None:
        reconciler = self.reconciler(faults, **fields)
        for episode in closed:
            await reconciler.handle(episode, a_cause(episode.ordinal))

    @property
    def state(self) -> Any:
        announced = {event.event_id: event.to_json() for event in self.topic.published}
        return copy.deepcopy(
            (
                self.episodes.episodes,
                self.episodes.all_rows,
                self.episodes.known,
                self.messages.episode_ids,
                self.index.points,
                announced,
            )
        )

    def contents_by_event_id(self) -> dict[str, set[bytes]]:
        contents: dict[str, set[bytes]] = {}
        for event in self.topic.events:
            contents.setdefault(event.event_id, set()).add(event.to_json())
        return contents


def crash() -> None:
    raise Crash


def cancelled() -> None:
    raise asyncio.CancelledError


def outage() -> None:
    raise StoreUnavailable(store="any", problem="away")
