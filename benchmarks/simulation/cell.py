"""One summarizer, and the segmenters whose partitions it reads: all others do the same with theirs.

Workers share nothing but the brokers, the stores and the provider's limits, of which each gets its part. So a part of a
large deployment shows what all of it does.
"""

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.simulation.arrivals import Load, Random, Times, arrivals, conversations
from benchmarks.simulation.capacity import Need, llm, tokens_per_call
from benchmarks.simulation.closing import Episodes, Rules, close
from benchmarks.simulation.parameters import Parameters
from benchmarks.simulation.provider import Lognormal, limits
from benchmarks.simulation.segmenting import Batching, Pause, commit_times
from benchmarks.simulation.summarizing import Result, Work, Worker, summarize

NOON = 43_200.0
UNLIMITED = float("inf")
EPISODES_WANTED = 4_000
SHORTEST_SECONDS, LONGEST_SECONDS = 900.0, 4 * 3600.0


@dataclass(frozen=True)
class Shape:
    """Of one cell."""

    load: Load
    segmenters: int
    partitions_each: int
    partitions_read: int
    """By the summarizer; no more than the segmenters have together."""
    share: float
    """Of the whole deployment's messages, that the summarizer sees."""


@dataclass(frozen=True)
class Seen:
    """Seconds."""

    messages: int
    episodes: int
    closing_p50: float
    """From what closes an episode to when it can be read on `episode.closed`."""
    closing_p99: float
    p50: float
    """From what closes an episode to its `summary.created`, the LLM included."""
    p99: float
    busy_share: float
    """Of the slots, while work was queued."""
    slots_used: float
    """Of the slots, over all the time."""
    fell_back: float
    """Share of the episodes."""


def shape(need: Need, p: Parameters) -> Shape:
    each = math.ceil(need.partitions / need.segmenters)
    read = math.ceil(need.partitions / need.summarizers)
    segmenters = math.ceil(read / each)
    rate = need.messages / p.peak_to_mean * segmenters * each / need.partitions
    load = Load(rate, p.peak_to_mean, p.burst_factor, p.burst_seconds, p.burst_every_seconds)
    return Shape(load, segmenters, each, read, read / need.partitions)


def window(shape: Shape, need: Need) -> float:
    """Seconds around noon, the top of the curve, in which enough episodes end."""
    rate = need.episodes * shape.share
    return min(LONGEST_SECONDS, max(SHORTEST_SECONDS, EPISODES_WANTED / rate))


def simulate(need: Need, p: Parameters, seed: int = 1) -> tuple[Seen, Seen]:
    """With a provider that refuses nothing, and with the limits of the parameters.

    The same numbers for the same arguments.
    """
    chance = np.random.default_rng(seed)
    cell = shape(need, p)
    length = window(cell, need)
    closed = [_segmenter(cell, NOON - length / 2, length, p, chance) for _ in range(cell.segmenters)]
    messages = sum(len(moments) for partitions, _ in closed for moments in partitions)
    partitions = [episodes for _, some in closed for episodes in some][: cell.partitions_read]
    work, due = merged(partitions, round(tokens_per_call(p)), p.hop_seconds)
    allowed = [
        limits(UNLIMITED, UNLIMITED),
        limits(p.requests_per_minute * cell.share, p.tokens_per_minute * cell.share),
    ]
    results = [summarize(work, worker(need, p), some, chance) for some in allowed]
    freely, limited = (seen(messages, work, due, result, need.slots_per_summarizer, p) for result in results)
    return freely, limited


def worker(need: Need, p: Parameters) -> Worker:
    """Of the calls of one episode, those beyond the first are one longer call: what counts is the time in the slot."""
    more = p.calls_per_episode
    latency = Lognormal(llm(p).median * more, llm(p).p99 * more)
    return Worker(
        slots=need.slots_per_summarizer,
        in_flight=need.in_flight,
        core_seconds=p.episode_core_seconds,
        store_seconds=p.store_seconds,
        llm=latency,
        error_chance=p.error_chance,
        attempts=int(p.attempts),
    )


def batching(p: Parameters, chance: Random) -> Batching:
    commit = Lognormal(p.commit_seconds, p.commit_p99_seconds)
    return Batching(
        message=p.message_core_seconds,
        transaction=p.transaction_core_seconds,
        commit=lambda: commit.draw(0, chance),
        linger=p.linger_seconds,
        max_batch=int(p.max_batch),
    )


def _segmenter(
    cell: Shape, begin: float, length: float, p: Parameters, chance: Random
) -> tuple[list[Times], list[Episodes]]:
    """Its messages and its episodes, by partition; it is restarted once, in the middle."""
    everything = arrivals(cell.load, begin, begin + length, chance) + p.hop_seconds
    at_a_time = round(cell.load.peak_rate * p.seconds_between_messages)
    whose = conversations(len(everything), at_a_time, int(p.messages_per_conversation), chance)
    where = whose % cell.partitions_each
    arrived = [everything[where == number] for number in range(cell.partitions_each)]
    middle = begin + length / 2
    committed = commit_times(arrived, batching(p, chance), [Pause(middle, middle + p.restart_seconds)])
    rules = Rules(int(p.trigger), p.idle_seconds, p.shift_chance)
    closed = [
        close(whose[where == number], arrived[number], committed[number], rules, chance)
        for number in range(cell.partitions_each)
    ]
    return arrived, closed


def merged(partitions: list[Episodes], tokens: int, hop: float) -> tuple[Work, Times]:
    """As one summarizer reads them, and when each became due. No conversation is in two partitions."""
    number = np.concatenate([np.full(len(some), at) for at, some in enumerate(partitions)])
    came = np.concatenate([some.closed for some in partitions]) + hop
    due = np.concatenate([some.due for some in partitions])
    conversation = np.concatenate([some.conversation for some in partitions]) * len(partitions) + number
    order = np.argsort(came, kind="stable")
    work = Work(came[order], number[order], conversation[order], np.full(len(order), tokens))
    return work, due[order]


def seen(messages: int, work: Work, due: Times, result: Result, slots: int, p: Parameters) -> Seen:
    """A message's own hop is in `due` already: it is added, for what was measured begins with the producer."""
    waited = result.done - due + 2 * p.hop_seconds
    closing = work.came - due + p.hop_seconds
    lasted = float(np.ptp(np.append(work.came, result.done))) if len(due) else 0.0
    return Seen(
        messages=messages,
        episodes=len(due),
        closing_p50=quantile(closing, 0.5),
        closing_p99=quantile(closing, 0.99),
        p50=quantile(waited, 0.5),
        p99=quantile(waited, 0.99),
        busy_share=result.busy_share(slots),
        slots_used=result.slot_seconds / (lasted * slots) if lasted else 0.0,
        fell_back=float(np.mean(result.fell_back)) if len(due) else 0.0,
    )


def quantile(values: Times, share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else float("nan")
