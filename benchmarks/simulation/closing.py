"""From messages to episodes: the rules in short, for many conversations at a time."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulation.arrivals import Numbers, Random, Times


@dataclass(frozen=True)
class Rules:
    """The defaults of AFTERWORD_EPISODES__…; `shift_chance`: that a message begins another topic."""

    trigger: int
    idle_seconds: float
    shift_chance: float
    min_size: int = 2


@dataclass(frozen=True)
class Episodes:
    """Columns, in the order in which they are on `episode.closed`."""

    conversation: Numbers
    size: Numbers
    due: Times
    """When what closes it happened: its last message came, or its silence was long enough."""
    closed: Times
    """When a summarizer can see it."""

    def __len__(self) -> int:
        return len(self.closed)


def close(
    conversation: Numbers, arrived: Times, committed: Times, rules: Rules, chance: Random, tick_seconds: float = 0.5
) -> Episodes:
    """Messages of one partition, in its order, to its episodes.

    A group of `trigger` messages closes with its last one; what is left of a conversation when the messages end, with
    silence. Topic shifts cut a group into several episodes of at least `min_size`, closed together. The silence between
    two messages is not looked at: the load has no pauses of `idle_seconds`.
    """
    order = np.lexsort((np.arange(len(conversation)), conversation))
    groups = _groups(conversation[order], rules.trigger)
    firsts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]]) if len(groups) else np.empty(0, np.int64)
    sizes = np.diff(np.r_[firsts, len(order)])
    lasts = order[firsts + sizes - 1]
    by_trigger = sizes == rules.trigger
    silent = arrived[lasts] + rules.idle_seconds
    noticed = chance.uniform(0, tick_seconds, len(lasts))
    due = np.where(by_trigger, arrived[lasts], silent)
    closed = np.where(by_trigger, committed[lasts], np.maximum(silent, committed[lasts]) + noticed)
    return _cut(conversation[lasts], sizes, due, closed, rules, chance)


def _groups(conversation: Numbers, trigger: int) -> Numbers:
    """A number for each run of at most `trigger` messages of one conversation; `conversation` is sorted."""
    if not len(conversation):
        return conversation
    begins = np.flatnonzero(np.r_[True, conversation[1:] != conversation[:-1]])
    rank = np.arange(len(conversation)) - np.repeat(begins, np.diff(np.r_[begins, len(conversation)]))
    return np.cumsum(rank % trigger == 0)


def _cut(conversation: Numbers, sizes: Numbers, due: Times, closed: Times, rules: Rules, chance: Random) -> Episodes:
    shifts = chance.binomial(np.maximum(sizes - 1, 0), rules.shift_chance)
    parts = np.clip(1 + shifts, 1, np.maximum(1, sizes // rules.min_size))
    which = np.repeat(np.arange(len(sizes)), parts)
    share, rest = sizes // parts, sizes % parts
    place = np.arange(len(which)) - np.repeat(np.cumsum(parts) - parts, parts)
    size = share[which] + (place < rest[which])
    order: NDArray[np.int64] = np.argsort(closed[which], kind="stable")
    which = which[order]
    return Episodes(conversation[which], size[order], due[which], closed[which])
