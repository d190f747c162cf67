"""One summarizer: a lane for each conversation, so many calls at a time, so many episodes in hand."""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulation.arrivals import Numbers, Random, Times
from benchmarks.simulation.provider import Limits, pause


class Latency(Protocol):
    def draw(self, conversation: int, chance: Random) -> float: ...


@dataclass(frozen=True)
class Work:
    """Episodes in the order in which they come; one array each, of the same length."""

    came: Times
    partition: Numbers
    conversation: Numbers
    tokens: Numbers
    """Of the prompt and the answer of one call."""


@dataclass(frozen=True)
class Worker:
    """Seconds, and how many of what at a time."""

    slots: int
    in_flight: int
    """Of one partition."""
    core_seconds: float
    """That one episode takes of the only core, half before its call and half after it."""
    store_seconds: float
    """That it waits for stores and Kafka, half before its call and half after it."""
    llm: Latency
    error_chance: float = 0.0
    """That a call fails and is made again."""
    attempts: int = 4
    budget_seconds: float = 180.0


@dataclass(frozen=True)
class Result:
    done: Times
    called: Times
    """When its last call began, and when that was answered; NaN where none was let through."""
    answered: Times
    fell_back: NDArray[np.bool_]
    calls: int
    slot_seconds: float
    """Busy, of all slots together."""
    queued_seconds: float
    """During which work was waiting for a slot."""
    busy_while_queued: float
    """Slot seconds in that time."""

    def busy_share(self, slots: int) -> float:
        """Of the slots while work was queued; 1.0 where none ever was."""
        return self.busy_while_queued / (self.queued_seconds * slots) if self.queued_seconds else 1.0


def summarize(work: Work, worker: Worker, allowed: Limits, chance: Random) -> Result:
    """Until everything is done: each episode once, those of a conversation one after another."""
    return _Summarizer(work, worker, allowed, chance).run()


class _Summarizer:
    """Events are (moment, number, what to do, episode); the number keeps those of one moment in their order."""

    def __init__(self, work: Work, worker: Worker, allowed: Limits, chance: Random) -> None:
        self._work = work
        self._worker = worker
        self._allowed = allowed
        self._chance = chance
        self._events: list[tuple[float, int, Callable[[int], None], int]] = []
        self._numbers = itertools.count()
        self._now = 0.0
        self._core_free = 0.0
        partitions = range(int(work.partition.max(initial=-1)) + 1)
        self._unread: list[deque[int]] = [deque() for _ in partitions]
        self._in_hand = [0 for _ in partitions]
        self._lanes: dict[int, deque[int]] = {}
        self._for_a_slot: deque[int] = deque()
        self._calling = 0
        self._attempt = [0] * len(work.came)
        self._first_failure: dict[int, float] = {}
        self._done = np.full(len(work.came), np.nan)
        self._called = np.full(len(work.came), np.nan)
        self._answered_at = np.full(len(work.came), np.nan)
        self._fell_back = np.zeros(len(work.came), dtype=np.bool_)
        self._calls = 0
        self._slot_seconds = self._queued_seconds = self._busy_while_queued = 0.0

    def run(self) -> Result:
        for episode, came in enumerate(self._work.came.tolist()):
            self._at(came, self._read, episode)
        while self._events:
            moment, _, step, episode = heapq.heappop(self._events)
            self._pass_to(moment)
            step(episode)
        return Result(
            self._done,
            self._called,
            self._answered_at,
            self._fell_back,
            self._calls,
            self._slot_seconds,
            self._queued_seconds,
            self._busy_while_queued,
        )

    def _pass_to(self, moment: float) -> None:
        passed, self._now = moment - self._now, moment
        self._slot_seconds += passed * self._calling
        if self._for_a_slot:
            self._queued_seconds += passed
            self._busy_while_queued += passed * self._calling

    def _at(self, moment: float, step: Callable[[int], None], episode: int) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), step, episode))

    def _read(self, episode: int) -> None:
        partition = int(self._work.partition[episode])
        self._unread[partition].append(episode)
        self._hand_out(partition)

    def _hand_out(self, partition: int) -> None:
        while self._unread[partition] and self._in_hand[partition] < self._worker.in_flight:
            self._in_hand[partition] += 1
            self._submit(self._unread[partition].popleft())

    def _submit(self, episode: int) -> None:
        key = int(self._work.conversation[episode])
        if key in self._lanes:
            self._lanes[key].append(episode)
        else:
            self._lanes[key] = deque([episode])
            self._begin(episode)

    def _begin(self, episode: int) -> None:
        self._half(self._wait_for_slot, episode)

    def _half(self, then: Callable[[int], None], episode: int) -> None:
        """The core first, one episode after the other; then the stores, all at a time."""
        self._core_free = max(self._now, self._core_free) + self._worker.core_seconds / 2
        self._at(self._core_free + self._worker.store_seconds / 2, then, episode)

    def _wait_for_slot(self, episode: int) -> None:
        self._for_a_slot.append(episode)
        self._fill_slots()

    def _fill_slots(self) -> None:
        while self._for_a_slot and self._calling < self._worker.slots:
            self._call(self._for_a_slot.popleft())

    def _call(self, episode: int) -> None:
        self._calls += 1
        asked = self._allowed.refused(self._now, float(self._work.tokens[episode]))
        if asked > 0:
            self._failed(episode, asked)
            return
        self._calling += 1
        self._called[episode] = self._now
        self._at(
            self._now + self._worker.llm.draw(int(self._work.conversation[episode]), self._chance),
            self._answered,
            episode,
        )

    def _answered(self, episode: int) -> None:
        self._calling -= 1
        self._answered_at[episode] = self._now
        if self._worker.error_chance and self._chance.random() < self._worker.error_chance:
            self._failed(episode, 0.0)
        else:
            self._half(self._finish, episode)
        self._fill_slots()

    def _failed(self, episode: int, asked: float) -> None:
        """Another attempt, without a slot meanwhile; or none, and a fallback is stored."""
        wait = pause(self._attempt[episode], asked, self._chance)
        self._attempt[episode] += 1
        ends = self._first_failure.setdefault(episode, self._now) + self._worker.budget_seconds
        if self._attempt[episode] < self._worker.attempts and self._now + wait < ends:
            self._at(self._now + wait, self._wait_for_slot, episode)
        else:
            self._fell_back[episode] = True
            self._half(self._finish, episode)

    def _finish(self, episode: int) -> None:
        self._done[episode] = self._now
        partition, key = int(self._work.partition[episode]), int(self._work.conversation[episode])
        lane = self._lanes[key]
        lane.popleft()
        if lane:
            self._begin(lane[0])
        else:
            del self._lanes[key]
        self._in_hand[partition] -= 1
        self._hand_out(partition)
