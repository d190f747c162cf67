"""One segmenter: its partitions share a core, each commits one batch after the other."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.simulation.arrivals import Times


class Pause(NamedTuple):
    """The worker does nothing: it starts again, or the group is rebalanced."""

    begin: float
    end: float


@dataclass(frozen=True)
class Batching:
    """Seconds. The core is busy for `transaction + n · message`; then the broker, for what `commit` draws."""

    message: float
    transaction: float
    commit: Callable[[], float]
    linger: float
    max_batch: int


def commit_times(arrived: Sequence[Times], costs: Batching, pauses: Sequence[Pause] = ()) -> list[Times]:
    """When each message of each partition is committed, in the order of the partition.

    `arrived`: sorted, one array for each partition. A batch that a pause meets is done again after it, whole, as the
    engine does it. `pauses`: sorted, apart from one another.
    """
    worker = _Worker(arrived, costs, pauses)
    return worker.run()


class _Worker:
    def __init__(self, arrived: Sequence[Times], costs: Batching, pauses: Sequence[Pause]) -> None:
        self._arrived = arrived
        self._costs = costs
        self._pauses = pauses
        self._done = [np.empty_like(moments) for moments in arrived]
        self._next = [0] * len(arrived)
        self._core_free = 0.0
        self._looks: list[tuple[float, int]] = []

    def run(self) -> list[Times]:
        self._looks = [(float(moments[0]), number) for number, moments in enumerate(self._arrived) if len(moments)]
        heapq.heapify(self._looks)
        while self._looks:
            ready, number = heapq.heappop(self._looks)
            self._batch(number, after(self._pauses, max(ready, self._core_free)))
        return self._done

    def _batch(self, number: int, start: float) -> None:
        count = min(self._waiting(number, start), self._costs.max_batch)
        core_free = start + self._costs.transaction + count * self._costs.message
        committed = core_free + self._costs.commit()
        cut = interrupted(self._pauses, start, committed)
        if cut is not None:
            heapq.heappush(self._looks, (cut.end, number))
            return
        self._core_free = core_free
        first = self._next[number]
        self._done[number][first : first + count] = committed
        self._next[number] = first + count
        self._look_again(number, committed)

    def _look_again(self, number: int, committed: float) -> None:
        position, moments = self._next[number], self._arrived[number]
        if position == len(moments):
            return
        behind = self._waiting(number, committed)
        lingering = self._costs.linger if 0 < behind < self._costs.max_batch else 0.0
        heapq.heappush(self._looks, (max(committed + lingering, float(moments[position])), number))

    def _waiting(self, number: int, now: float) -> int:
        return int(np.searchsorted(self._arrived[number], now, side="right")) - self._next[number]


def after(pauses: Sequence[Pause], moment: float) -> float:
    """The moment, or the end of the pause that it falls into."""
    return next((pause.end for pause in pauses if pause.begin <= moment < pause.end), moment)


def interrupted(pauses: Sequence[Pause], begin: float, end: float) -> Pause | None:
    """The first pause that begins in there."""
    return next((pause for pause in pauses if begin <= pause.begin < end), None)
