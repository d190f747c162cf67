"""Workers that die, freeze, come, go, and lose or keep the wrong disk."""

import asyncio
import random
import shutil
import time

from tests.e2e.faults.fault import Fault
from tests.e2e.faults.world import World, until

SESSION_SECONDS = 6.0
"""As short as the broker allows."""
WORKERS = "workers"
MARGIN_SECONDS = 5.0


class Kill(Fault):
    name = "kill -9 of any worker"
    outcome = "audit clean"
    company = WORKERS
    share = 240.0
    times = 3
    pause_seconds = (0.3, 3.0)

    async def inject(self, world: World, chance: random.Random) -> None:
        world.crash(chance.choice(list(world.deployment.workers)))


class StateLost(Fault):
    name = "state directory deleted, or an older copy"
    outcome = "audit clean, recovery logged"
    company = WORKERS
    share = 40.0
    times = 2

    async def inject(self, world: World, chance: random.Random) -> None:
        name = chance.choice(world.running("segmenter"))
        deployment, copy = world.deployment, world.deployment.directory / "older-copy"
        world.deployment.kill(name)
        if self.injected % 2:
            shutil.copytree(deployment.state(name), copy)
            world.start("segmenter", name)
            await world.progress()
            deployment.kill(name)
        deployment.lose_state(name)
        if copy.exists():
            copy.rename(deployment.state(name))
        world.start("segmenter", name)
        await world.progress()

    async def check(self, world: World) -> None:
        assert '"event": "recovered"' in world.deployment.logs("segmenter")


class Membership(Fault):
    """One, two or three segmenters; the first one stays, so that a state directory goes on living."""

    name = "workers join and leave, TERM or KILL"
    outcome = "audit clean, pause measured"
    company = WORKERS
    share = 200.0
    times = 3
    pause_seconds = (2.0, 4.0)

    def __init__(self) -> None:
        super().__init__()
        self._pauses: list[float] = []

    async def inject(self, world: World, chance: random.Random) -> None:
        self._note_pause(world)
        joined = [name for name in world.running("segmenter") if name != "segmenter"]
        if not joined or (len(joined) < 2 and chance.random() < 0.5):
            free = next(name for name in ("segmenter-2", "segmenter-3") if name not in joined)
            world.start("segmenter", free)
        elif chance.random() < 0.5:
            await world.stop(chance.choice(joined))
        else:
            gone = chance.choice(joined)
            world.deployment.workers.pop(gone).kill()

    async def check(self, world: World) -> None:
        self._note_pause(world)
        pauses = sorted(self._pauses[1:])
        self.notes.append(f"pause of a partition for each change: median {pauses[len(pauses) // 2]:.1f} s")
        self.notes.append(f"longest {pauses[-1]:.1f} s, of {len(pauses)} changes")

    def _note_pause(self, world: World) -> None:
        self._pauses.append(world.stalls.lap())


class Freeze(Fault):
    name = "SIGSTOP past the session, another takes over, SIGCONT"
    outcome = "writes nothing that survives, audit clean"
    company = WORKERS
    share = 80.0

    async def inject(self, world: World, chance: random.Random) -> None:
        heir = "segmenter-heir"
        world.start("segmenter", heir)
        await until(lambda: "recovered" in world.worker(heir).tail(), "the heir gets no partition")
        frozen = [
            world.worker(chance.choice(["segmenter", heir])),
            world.worker(chance.choice(world.running("archiver"))),
        ]
        for worker in frozen:
            worker.suspend()
        await asyncio.sleep(SESSION_SECONDS + 2)
        await world.progress()
        for worker in frozen:
            worker.resume()
        await asyncio.sleep(chance.uniform(2, 4))
        await world.stop(heir)


class Sigterm(Fault):
    name = "SIGTERM under load"
    outcome = "exit 0 within drain_seconds + 5 s"
    company = WORKERS
    share = 60.0
    times = 2

    def __init__(self) -> None:
        super().__init__()
        self._longest = (0.0, "")

    async def inject(self, world: World, chance: random.Random) -> None:
        name = chance.choice(list(world.deployment.workers))
        await world.ready(name)
        began = time.monotonic()
        await world.stop(name)
        took = time.monotonic() - began
        self._longest = max(self._longest, (took, name))
        world.start(world.roles[name], name)
        assert took <= world.deployment.settings.drain_seconds + MARGIN_SECONDS, f"{name} takes {took:.1f} s to stop"

    async def check(self, world: World) -> None:
        seconds, name = self._longest
        self.notes.append(f"longest stop {seconds:.1f} s, of the {name}")
