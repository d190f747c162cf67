"""Workers that come and go for a long time, beside one of each role that lives throughout and must not grow."""

import random
import statistics
import time
from collections import defaultdict
from typing import ClassVar

from afterword.streams.roles import ALWAYS_RUN
from tests.e2e.faults.fault import Fault
from tests.e2e.faults.memory import resident
from tests.e2e.faults.run import note
from tests.e2e.faults.world import World

PARTITIONS = 32
MOST_GROWTH = 0.3
"""A worker may grow by this share of its memory in an hour, because caches and memtables fill at first."""
LEAST_SECONDS = 1200
"""A shorter run says nothing about growth."""


class ComingAndGoing(Fault):
    """Any worker but the first of its role is killed, leaves, or joins: at most one more or less than at the start."""

    name = "kill, join, leave, at random"
    brokers = 3
    settings: ClassVar = {"kafka": {"partitions": PARTITIONS, "replication_factor": 3, "min_insync_replicas": 2}}
    workers: ClassVar = {"segmenter": 2, "summarizer": 2, "archiver": 1}
    pause_seconds = (10.0, 30.0)

    def __init__(self) -> None:
        super().__init__()
        self._done: dict[str, int] = defaultdict(int)
        self._megabytes: dict[str, list[tuple[float, int]]] = defaultdict(list)

    async def inject(self, world: World, chance: random.Random) -> None:
        for role in ALWAYS_RUN:
            self._megabytes[role].append((time.monotonic(), resident(world.worker(role))))
        role = chance.choice(ALWAYS_RUN)
        others = [name for name in world.running(role) if name != role]
        wanted = self.workers[role]
        can = {
            "join": len(others) <= wanted - 1,
            "leave": len(others) > 0 and len(others) >= wanted - 1,
            "kill": len(others) > 0,
        }
        what = chance.choice([name for name, possible in can.items() if possible])
        if what == "join":
            name = next(one for n in range(2, wanted + 2) if (one := f"{role}-{n}") not in others)
            world.start(role, name)
        elif what == "kill":
            name = chance.choice(others)
            world.crash(name)
        else:
            name = chance.choice(others)
            await world.stop(name)
        note(world, f"{name}: {what}")
        self._done[what] += 1

    async def check(self, world: World) -> None:
        self.notes.append(", ".join(f"{count} times {what}" for what, count in self._done.items()))
        leaks = []
        for role, samples in self._megabytes.items():
            level, an_hour = growth(samples)
            self.notes.append(f"{role}: {level:.0f} MB in the last quarter, {an_hour:+.0f} MB an hour")
            if samples[-1][0] - samples[0][0] > LEAST_SECONDS and an_hour > MOST_GROWTH * level:
                leaks.append(role)
        assert not leaks, f"memory grows: {', '.join(leaks)}"


def growth(samples: list[tuple[float, int]]) -> tuple[float, float]:
    """Return the median of the last quarter, and how much it differs from that of the second quarter, per hour."""
    quarter = max(1, len(samples) // 4)
    second, last = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    (earlier, before), (later, after) = (
        (statistics.median(at for at, _ in some), statistics.median(value for _, value in some))
        for some in (second, last)
    )
    return after, (after - before) / max(1.0, later - earlier) * 3600
