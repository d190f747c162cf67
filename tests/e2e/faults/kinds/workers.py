"""Workers that die, freeze, come, go, and lose or keep the wrong disk."""

import asyncio
import random
import shutil
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import orjson

from afterword.streams.segmenter.state import TABLES
from faust_eos.database import Database
from tests.e2e.faults.fault import Fault
from tests.e2e.faults.world import World
from tests.waiting import until

SESSION_SECONDS = 6.0
"""Shortest session that the broker allows."""
WORKERS, MEMBERS = "workers", "members"
MARGIN_SECONDS = 5.0
AT_WORK = 0.8
"""Share of kills that hit a working segmenter."""
MORE = 2
"""Maximum number of segmenters that join and leave."""


class Kill(Fault):
    name = "kill -9 of any worker"
    company = WORKERS
    share = 150.0
    times = 2
    at_least = 100
    pause_seconds = (0.5, 3.0)
    static = True  # otherwise most kills would hit a segmenter that waits for the session of the one before

    def __init__(self) -> None:
        super().__init__()
        self._killed = Counter[str]()

    async def inject(self, world: World, chance: random.Random) -> None:
        """Mostly kill a working segmenter; otherwise most kills would hit a process that is starting."""
        names = list(world.deployment.workers)
        name = chance.choice(await world.ready_ones(names) if chance.random() < AT_WORK else names)
        self._killed[name] += 1
        world.crash(name)

    async def check(self, world: World) -> None:
        self.notes.append(", ".join(f"{name} {count}" for name, count in sorted(self._killed.items())))
        self.notes.append(f"{len(recoveries(world))} recoveries of partitions")


class StateLost(Fault):
    name = "state directory deleted, older, or newer than the changelog"
    company = WORKERS
    share = 40.0
    times = 3
    at_least = 9

    async def inject(self, world: World, chance: random.Random) -> None:
        name = chance.choice(world.running("segmenter"))
        world.deployment.kill(name)
        await (self._deleted, self._older, self._newer)[self.injected % 3](world, name)
        world.start("segmenter", name)
        await world.progress()

    async def _deleted(self, world: World, name: str) -> None:
        world.deployment.lose_state(name)

    async def _older(self, world: World, name: str) -> None:
        deployment, copy = world.deployment, world.deployment.directory / "older-copy"
        shutil.copytree(deployment.state(name), copy)
        world.start("segmenter", name)
        await world.progress()
        deployment.kill(name)
        deployment.lose_state(name)
        copy.rename(deployment.state(name))

    async def _newer(self, world: World, name: str) -> None:
        """Make the local state newer than the changelogs, as if they had lost their ends."""
        paths = [file.parent for file in world.deployment.state(name).rglob("CURRENT")]
        assert paths, f"{name} has no state"
        for path in paths:
            ahead_of_its_changelogs(path)

    async def check(self, world: World) -> None:
        found = recoveries(world)
        rebuilt = sum(recovery["rebuilt"] for recovery in found)
        records, seconds = (max(recovery[name] for recovery in found) for name in ("records", "seconds"))
        self.notes.append(f"{len(found)} recoveries of partitions, {rebuilt} of them from nothing")
        self.notes.append(f"each of at most {records:,} records in {seconds:.1f} s")
        assert rebuilt >= self.injected // 3, "state from the future was kept"


def events(said: bytes, name: str) -> list[dict[str, Any]]:
    lines = [line for line in said.splitlines() if b'"event": "%s"' % name.encode() in line and line.startswith(b"{")]
    return [orjson.loads(line) for line in lines if line.endswith(b"}")]


def ahead_of_its_changelogs(path: Path) -> None:
    """Write rows that no changelog has, and a position beyond their ends."""
    database = Database(path, dict.fromkeys(TABLES))
    position = database.position
    marks = {table: offset + 100_000 for table, offset in position.bookmarks.items()}
    database.write({TABLES[0]: [(b"future", b"{}")]}, replace(position, source=position.source + 100, bookmarks=marks))
    database.close()


def recoveries(world: World) -> list[dict[str, Any]]:
    """Recoveries that the segmenters logged."""
    logs = [world.deployment.logs(name) for name, role in world.roles.items() if role == "segmenter"]
    lines = [line for log in logs for line in log.splitlines() if '"event": "recovered"' in line]
    return [orjson.loads(line) for line in lines]


class Membership(Fault):
    """A role has two, three, then one worker again. The first one stays, so that one state directory stays in use."""

    name = "segmenters join and leave, TERM or KILL"
    role: ClassVar = "segmenter"
    company = MEMBERS
    share = 200.0
    times = 4
    at_least = 50
    pause_seconds = (1.5, 3.5)

    def __init__(self) -> None:
        super().__init__()
        self._pauses: list[float] = []

    async def inject(self, world: World, chance: random.Random) -> None:
        self._note_pause(world)
        joined = [name for name in world.running(self.role) if name != self.role]
        if self.injected % 4 < MORE:
            free = next(name for name in (f"{self.role}-2", f"{self.role}-3") if name not in joined)
            world.start(self.role, free)
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


class ArchiversMembership(Membership):
    name = "archivers join and leave, TERM or KILL"
    role = "archiver"
    share = 120.0

    async def check(self, world: World) -> None:
        """Do nothing: the segmenter's pauses are expected."""


class SummarizersMembership(ArchiversMembership):
    name = "summarizers join and leave, TERM or KILL"
    role = "summarizer"


class Freeze(Fault):
    name = "SIGSTOP past the session, another takes over, SIGCONT"
    company = MEMBERS
    share = 60.0
    at_least = 3

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
    company = WORKERS
    share = 40.0
    at_least = 10

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
