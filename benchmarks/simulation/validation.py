"""The model beside what `make bench` measured on one machine, as build/bench.json has it.

Service times are taken from the run; what the queues make of them is predicted, and compared.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.simulation.arrivals import Load, Random, arrivals, conversations
from benchmarks.simulation.cell import UNLIMITED, batching, merged, quantile
from benchmarks.simulation.closing import Rules, close
from benchmarks.simulation.parameters import Parameters, changed
from benchmarks.simulation.provider import Lognormal, Uneven, limits
from benchmarks.simulation.segmenting import commit_times
from benchmarks.simulation.summarizing import Work, Worker, summarize

Figures = Mapping[str, str]
NUMBER = re.compile(r"-?[\d,]+(?:\.\d+)?")
LEVEL_SECONDS = 30.0
PARTITIONS = 4
"""Of the benchmarks `segmenter` and `latency`."""
READ = (
    ("message_core_seconds", 0, "segmenter", "CPU µs each", 1e-6),
    ("episode_core_seconds", -1, "slots", "CPU each", 1e-3),
    ("archiver_messages_per_second", 0, "archiver", "messages/s", 1.0),
    ("recovery_rows_per_second", -1, "memory", "recovery", 1.0),
)
"""Parameter, which line, benchmark, heading, factor. The benchmark of the summarizer alone has no LLM to talk to."""


@dataclass(frozen=True)
class Compared:
    what: str
    measured: float
    model: float
    unit: str

    @property
    def ratio(self) -> float:
        """Model to measured."""
        return self.model / self.measured if self.measured else math.nan


def number(text: str) -> float:
    """The first number of a figure, `12,345 ms` or `98.5 %`. Raises: ValueError when there is none."""
    found = NUMBER.search(text)
    if not found:
        raise ValueError(f"no number in {text!r}")
    return float(found.group().replace(",", ""))


def lines(bench: Mapping[str, Any], benchmark: str) -> Iterator[tuple[str, Figures]]:
    """Program and figures, of every table of a benchmark; none where it was not run."""
    for finding in bench["findings"].get(benchmark, []):
        for line in finding["lines"]:
            yield line["program"], line["figures"]


def notes(bench: Mapping[str, Any], benchmark: str) -> list[str]:
    return [note for finding in bench["findings"].get(benchmark, []) for note in finding["notes"]]


def calibrated(parameters: Parameters, bench: Mapping[str, Any]) -> Parameters:
    """With the service times of this machine, as far as the run has them."""
    return changed(parameters, dict(_measured(bench)))


def _measured(bench: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Of each row the first line, which is ours; of recovery the last, which has the most records, and so of slots."""
    for name, at, benchmark, heading, factor in READ:
        found = [number(figures[heading]) for _, figures in lines(bench, benchmark) if heading in figures]
        if found:
            yield name, found[at] * factor


def episode_seconds(bench: Mapping[str, Any]) -> float | None:
    """Of a machine that has everything on it, stores too: the reciprocal of the capacity that `latency` found."""
    found = [re.search(r"([\d,.]+) episodes/s", note) for note in notes(bench, "latency")]
    return next((1 / number(one.group(1)) for one in found if one), None)


def validate(parameters: Parameters, bench: Mapping[str, Any], seed: int = 1) -> list[Compared]:
    chance = np.random.default_rng(seed)
    p = calibrated(parameters, bench)
    return [*_backlog(bench, p, chance), *_latencies(bench, p, chance), *_slots(bench, p, chance)]


def _backlog(bench: Mapping[str, Any], p: Parameters, chance: Random) -> Iterator[Compared]:
    for _, figures in list(lines(bench, "segmenter"))[:1]:
        rate = backlog_rate(60_000, PARTITIONS, p, chance)
        yield Compared("segmenter, a full topic", number(figures["messages/s"]), rate, "messages/s")


def backlog_rate(messages: int, partitions: int, p: Parameters, chance: Random) -> float:
    """Messages a second, from the first commit to the last, when all are there from the beginning."""
    waiting = [np.zeros(messages // partitions) for _ in range(partitions)]
    done = np.concatenate(commit_times(waiting, batching(p, chance)))
    first, last = float(done.min()), float(done.max())
    return float(np.sum(done > first)) / (last - first)


def _latencies(bench: Mapping[str, Any], p: Parameters, chance: Random) -> Iterator[Compared]:
    each = episode_seconds(bench)
    if each is not None:
        p = changed(p, {"episode_core_seconds": each})
    for level, figures in lines(bench, "latency"):
        if "messages/s" not in figures:
            continue
        p50, p99, closing = latency(number(figures["messages/s"]), p, chance)
        yield Compared(f"latency {level}, p50", number(figures["p50"]), p50 * 1000, "ms")
        yield Compared(f"latency {level}, p99", number(figures["p99"]), p99 * 1000, "ms")
        closed = figures.get("until episode.closed, p50")
        if closed:
            yield Compared(f"until episode.closed {level}, p50", number(closed), closing * 1000, "ms")


def latency(rate: float, p: Parameters, chance: Random) -> tuple[float, float, float]:
    """Seconds from an episode's last message: p50 and p99 of the summary, p50 of `episode.closed`; LLM of 0 ms."""
    came = arrivals(Load(rate, burst_every_seconds=UNLIMITED), 0, LEVEL_SECONDS, chance) + p.hop_seconds
    whose = conversations(len(came), 50, 10**9, chance)
    rules = Rules(int(p.trigger), 10 * LEVEL_SECONDS, 0.0)
    where = whose % PARTITIONS
    arrived = [came[where == number] for number in range(PARTITIONS)]
    done = commit_times(arrived, batching(p, chance))
    closed = [close(whose[where == n], arrived[n], done[n], rules, chance) for n in range(PARTITIONS)]
    work, due = merged(closed, 0, p.hop_seconds)
    worker = Worker(int(p.slots), int(p.in_flight), p.episode_core_seconds, p.store_seconds, Lognormal(1e-3, 1e-3))
    result = summarize(work, worker, limits(UNLIMITED, UNLIMITED), chance)
    by_trigger = due < 2 * LEVEL_SECONDS  # what silence closes is not measured
    waited = (result.done - due + 2 * p.hop_seconds)[by_trigger]
    return quantile(waited, 0.5), quantile(waited, 0.99), quantile((work.came - due + p.hop_seconds)[by_trigger], 0.5)


def _slots(bench: Mapping[str, Any], p: Parameters, chance: Random) -> Iterator[Compared]:
    for name, figures in lines(bench, "slots"):
        if "busy" in figures:
            slots, episodes = int(number(name)), int(number(figures["episodes"]))
            busy = slots_busy(slots, episodes, p, chance)
            yield Compared(f"slots busy, {slots} slots", number(figures["busy"]), 100 * busy, "%")


def slots_busy(slots: int, episodes: int, p: Parameters, chance: Random) -> float:
    """From the first call to the last of a quick conversation, as benchmarks/slots.py looks at them.

    A backlog, two episodes each; calls of 1 s ± 0.5 s, in every twentieth conversation 10 s.
    """
    whose = np.tile(np.arange(1, episodes // 2 + 1), 2)
    work = Work(np.zeros(len(whose)), whose % PARTITIONS, whose, np.zeros(len(whose), dtype=np.int64))
    worker = Worker(slots, int(p.in_flight), p.episode_core_seconds, p.store_seconds, Uneven(0.5, 1.5, 10.0, 20))
    done = summarize(work, worker, limits(UNLIMITED, UNLIMITED), chance)
    until = float(done.called[whose % 20 != 0].max())
    used = np.maximum(0.0, np.minimum(done.answered, until) - done.called).sum()
    return float(used / (slots * (until - done.called.min())))


def worst(compared: Sequence[Compared]) -> float:
    """The largest factor between model and measured, in either direction; 1.0 of none."""
    return max((max(one.ratio, 1 / one.ratio) for one in compared if one.ratio > 0), default=1.0)
