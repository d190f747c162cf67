"""The summarizer's whole world in memory: its handler, its lanes and the engine, on stores that all workers share."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from structlog.contextvars import get_contextvars

from afterword.schemas import EpisodeClosed, Quality, SummaryCreated, Usage
from afterword.streams.errors import ProviderUnavailable
from afterword.streams.runtime import Options
from afterword.streams.runtime.at_least_once import AtLeastOnce, AtLeastOncePartition, joining
from afterword.streams.runtime.batch import Output, current_batch
from afterword.streams.runtime.progress import Progress
from afterword.streams.settings import Retry
from afterword.streams.summarizer.agent import LaneKey, lane_of
from afterword.streams.summarizer.lanes import Lanes
from afterword.streams.summarizer.pipeline import Pipeline
from afterword.streams.summarizer.retries import Try, headers_of
from afterword.streams.summarizer.rolling import SummaryRules
from afterword.streams.summarizer.steps import StepRunner
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from tests.doubles.index import MemoryIndex
from tests.doubles.stores import MemoryEpisodes, MemoryMessages, MemoryReplies
from tests.model.broker import Broker, Record, Transaction
from tests.model.loop import Loop
from tests.model.network import Network
from tests.model.process import Process
from tests.samples import NOON, a_closed_episode
from tests.summarizer_world import a_handler, a_step_runner

SOURCE = TopicPartition("episode.closed", 0)
RETRIES = TopicPartition("episode.retry", 0)
SUMMARIES = TopicPartition("summary.created", 0)
DEAD_LETTERS = TopicPartition("episode.closed.dlq", 0)
AWAY = ProviderUnavailable(problem="away")
ENGINE = Options(
    max_in_flight=4, commit_interval_seconds=1.0, offset_metadata_bytes=19, max_written_bytes=100, clock=lambda: 0
)
"""Few records in memory, few offsets in the metadata of a commit, few bytes in one: all limits are reached."""
PAUSE_SECONDS = 0.2
RETRY = Retry(attempts=10**6, first_delay_seconds=PAUSE_SECONDS, longest_delay_seconds=PAUSE_SECONDS)
FALLBACK = Quality(source="fallback", reason=AWAY.error_type)
CONVERSATIONS = "abc"


@cache
def closed(conversation: str, ordinal: int) -> EpisodeClosed:
    return a_closed_episode(ordinal, conversation)


@cache
def encoded(conversation: str, ordinal: int) -> bytes:
    return closed(conversation, ordinal).to_json()


@dataclass
class Shared:
    """State that outlives every worker."""

    episodes: MemoryEpisodes = field(default_factory=MemoryEpisodes)
    messages: MemoryMessages = field(default_factory=MemoryMessages)
    index: MemoryIndex = field(default_factory=MemoryIndex)
    sent: list[SummaryCreated] = field(default_factory=list)
    """Committed or not: the value of a record is its number here."""
    answers: int = 0
    llm_is_away: bool = False

    def answer(self, request: SummaryRequest) -> Summary:
        """Another one each time, as of an LLM that is asked twice."""
        self.answers += 1
        text = f"{request.episode.ordinal} told the {self.answers}. time."
        return Summary(
            title=text,
            short_summary=text,
            long_summary=text,
            rolling_summary=f"{request.previous_rolling} {text}".strip(),
            quality=FALLBACK if self.llm_is_away else Quality(source="llm"),
            model="model",
            usage=Usage(prompt_tokens=1, completion_tokens=1),
        )


class Remote:
    """A store of ours, at the other end of the network."""

    def __init__(self, network: Network, process: Process, store: Any) -> None:
        self._network, self._process, self._store = network, process, store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            effect = partial(done_at_once, method, *args, **kwargs)
            return await self._network.call(self._process, name, effect, writes=True)

        return call


def done_at_once(method: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of a coroutine that waits for nothing."""
    coroutine: Coroutine[Any, Any, Any] = method(*args, **kwargs)
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a store in memory waits for nothing")


class Worker(Process):
    """One process of the summarizer."""

    def __init__(self, name: str, world: "World") -> None:
        super().__init__(name, world.network, world.broker, ENGINE, {}, "summarizer")
        self.world = world
        steps = a_step_runner(backoff=lambda *_: PAUSE_SECONDS)
        outputs: Any = SimpleNamespace(publish=self._publish, send_to_dlq=self._send_to_dlq, retry=self._retry)
        self._episodes = AtLeastOnce(order=lane_of)
        self._retries = AtLeastOnce(max_in_flight=1, hold=lambda _: self._pause())
        self._second: AtLeastOncePartition | None = None
        self._handler = a_handler(self._pipeline(steps), outputs, RETRY, ENGINE.clock)
        self._lanes = Lanes[LaneKey](lambda _, error: self.stop_worker(error))

    def new_partition(self, source: TopicPartition) -> AtLeastOncePartition:
        """Open the partition and that of the retries: both are assigned and revoked together."""
        self._second = AtLeastOncePartition(self, RETRIES, self._retries)
        return AtLeastOncePartition(self, source, self._episodes)

    @property
    def replaces(self) -> bool:
        return self._second is not None and self._second.ready

    async def agent(self) -> None:
        """Handle events as `attach` does."""
        async for event in self.events():
            retries = event.value.topic == RETRIES.topic
            step = self._handler.replace_fallback if retries else self._handler.summarize
            self._lanes.submit(lane_of(event.value), partial(joining, event, step))

    async def before_taking(self) -> None:
        await self.take_its_time()

    async def after_release(self) -> None:
        if self._second is not None:
            await self._second.stop(0.0)
        await self._lanes.cancel(lambda _: True)

    def _pipeline(self, steps: StepRunner) -> Pipeline:
        shared = self.world.shared
        summarizer: Any = SimpleNamespace(summarize=self._summarize, summarize_without_fallback=self._ask_llm)
        return Pipeline(
            episodes=Remote(self.network, self, shared.episodes),
            messages=Remote(self.network, self, shared.messages),
            index=Remote(self.network, self, shared.index),
            summarizer=summarizer,
            embedder=None,
            publish=self._publish,
            steps=steps,
            rules=SummaryRules(rolling_max_tokens=20),
            replies=MemoryReplies(),
            clock=lambda: NOON,
        )

    async def _summarize(self, request: SummaryRequest) -> Summary:
        return await self.network.call(self, "summarize", lambda: self.world.shared.answer(request))

    async def _ask_llm(self, request: SummaryRequest) -> Summary:
        answer = await self._summarize(request)
        if answer.quality == FALLBACK:
            raise AWAY
        return answer

    async def _retry(self, record: Any, attempt: Try, value: bytes | None) -> None:
        send(RETRIES, record.key, value, headers_of(attempt))

    async def _publish(self, summary: SummaryCreated) -> None:
        self.world.shared.sent.append(summary)
        send(SUMMARIES, None, b"%d" % (len(self.world.shared.sent) - 1), [])

    async def _send_to_dlq(self, key: bytes | None, value: bytes | None, headers: Any) -> None:
        send(DEAD_LETTERS, key, value, [])

    async def _pause(self) -> None:
        await asyncio.sleep(PAUSE_SECONDS)


def send(where: TopicPartition, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
    """Send with the batch of the record that is being handled, which the header names."""
    batch, of = current_batch(), get_contextvars()
    assert batch is not None
    cause = ("cause", f"{of['topic']} {of['offset']}".encode())
    batch.send(Output(where.topic, key, value, where.partition, None, [*headers, cause]))


class World:
    """Everything that there is."""

    def __init__(self, workers: int) -> None:
        self.loop = Loop()
        self.network = Network(self.loop)
        self.broker = Broker(self.network.post, lambda: 0)
        self.broker.on_commit = self.check_offsets
        self.shared = Shared()
        self.passed_over = False
        """An offset was committed past a record that was not finished."""
        self.unnamed = False
        """An output was committed of a record that its transaction does not name as finished."""
        self.too_long = False
        """The metadata of a commit was longer than the broker takes."""
        self.last = dict.fromkeys(CONVERSATIONS, 0)
        """Ordinal of each conversation's last episode."""
        self.workers = [self._new_worker(f"w{n}") for n in range(workers)]

    def close_episode(self, conversation: str) -> None:
        self.last[conversation] += 1
        self._append(conversation, encoded(conversation, self.last[conversation]))

    def repeat_episode(self, conversation: str, ordinal: int) -> None:
        if ordinal <= self.last[conversation]:
            self._append(conversation, encoded(conversation, ordinal))

    def append_rubbish(self, conversation: str) -> None:
        self._append(conversation, b"{")

    def _append(self, conversation: str, value: bytes) -> None:
        self.broker.append(SOURCE, [(conversation.encode(), value, 0, ())])

    @property
    def announced(self) -> list[SummaryCreated]:
        """Summaries that a reader of committed records has read."""
        return [self.shared.sent[int(record.value or b"")] for record in self.broker.log(SUMMARIES).read(0)]

    def outputs(self) -> list[Record]:
        """Committed records, whether their markers are written or not."""
        return [record for transaction in self.broker.committed for record in transaction.written]

    def check_offsets(self, transaction: Transaction) -> None:
        """Check offsets without raising: a caller of commit might take an error for an answer."""
        causes = {cause_of(record) for record in self.outputs()}
        for source, (offset, metadata) in transaction.offsets.items():  # type: ignore[misc]  # with metadata
            self.too_long |= len(metadata) > ENGINE.offset_metadata_bytes
            progress = Progress.read(offset, metadata)
            sent_for = [of for topic, of in map(cause_of, transaction.written) if topic == source.topic]
            self.unnamed |= not all(map(progress.covers, sent_for))
            for record in self.broker.log(source).read(0):
                if progress.covers(record.offset):
                    self.passed_over |= (record.topic, record.offset) not in causes

    def repeated(self) -> list[Record]:
        """Committed outputs of records that were finished before."""
        seen: set[tuple[str, tuple[str, int]]] = set()
        found = []
        for record in self.outputs():
            what = (record.topic, cause_of(record))
            if what in seen:
                found.append(record)
            seen.add(what)
        return found

    def take(self, number: int) -> None:
        """The group gives it the partition, in a new generation; if it is dead it starts again."""
        if self.workers[number].dead:
            self.workers[number] = self._new_worker(self.workers[number].name)
        worker = self.workers[number]
        if worker.partition is None:
            self.broker.generation += 1
            worker.generation = self.broker.generation
            worker.assign(self.loop, SOURCE)

    def is_outdated(self, number: int) -> bool:
        """Return whether the group no longer considers the worker the owner, as its next heartbeat will show."""
        return self.workers[number].generation != self.broker.generation

    def kill(self, number: int) -> None:
        self.workers[number].kill(self.loop)

    def close(self) -> None:
        for worker in self.workers:
            worker.kill(self.loop)

    def _new_worker(self, name: str) -> Worker:
        worker = Worker(name, self)
        worker.start(self.loop)
        return worker


def cause_of(output: Record) -> tuple[str, int]:
    """Topic and offset of the record whose handling sent it."""
    topic, offset = dict(output.headers)["cause"].decode().split()
    return topic, int(offset)
