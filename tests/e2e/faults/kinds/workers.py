"""Workers that die."""

import random
from collections import Counter

from tests.e2e.faults.fault import Fault
from tests.e2e.faults.world import World

SESSION_SECONDS = 6.0
"""Shortest session that the broker allows."""
AT_WORK = 0.8
"""Share of kills that hit a working worker."""


class Kill(Fault):
    name = "kill -9 of any worker"
    company = "workers"
    share = 150.0
    times = 2
    at_least = 100
    pause_seconds = (0.5, 3.0)

    def __init__(self) -> None:
        super().__init__()
        self._killed = Counter[str]()

    async def inject(self, world: World, chance: random.Random) -> None:
        """Mostly kill a working worker; otherwise most kills would hit a process that is starting."""
        names = list(world.deployment.workers)
        name = chance.choice(await world.ready_ones(names) if chance.random() < AT_WORK else names)
        self._killed[name] += 1
        world.crash(name)

    async def check(self, world: World) -> None:
        self.notes.append(", ".join(f"{name} {count}" for name, count in sorted(self._killed.items())))
