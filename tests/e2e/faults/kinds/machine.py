"""The machine: its disk is full, its clock jumps."""

import asyncio
import os
import random
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import ClassVar

from afterword.embedded import Process
from tests.e2e.deployment import environment_of
from tests.e2e.faults.fault import Fault
from tests.e2e.faults.world import World

ROOT = Path(__file__).parents[4]
DISK_MEGABYTES = 24
JUMP_SECONDS = 3600


class DiskFull(Fault):
    name = "disk full in the state directory"
    company = "workers"
    share = 30.0
    at_least = 3

    async def skip(self) -> str:
        if os.geteuid() != 0 or not shutil.which("mount"):
            return "only root can mount a small disk"
        return "" if "tmpfs" in filesystems() else "no tmpfs on this machine"

    async def inject(self, world: World, chance: random.Random) -> None:
        disk = world.deployment.state("small")
        if "small" not in world.deployment.workers:
            for name in world.running("segmenter"):
                await world.stop(name)
            disk.mkdir(parents=True)
            run("mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m", "tmpfs", str(disk))
            world.mounts.append(disk)
            world.start("segmenter", "small")
            await world.progress()
        filler = disk / "filler"
        async with world.ending("small", "StoreFailed", "the local state in"):
            fill(filler)
        filler.unlink()
        await world.progress()


class ClockJumps(Fault):
    name = "clock jumps of an hour, forth and back"
    company = "clocks"
    exact = False  # a conversation that seems silent for an hour is closed
    settings: ClassVar = {"episodes": {"idle_seconds": 300}}
    share = 30.0
    times = 2
    at_least = 8

    async def inject(self, world: World, chance: random.Random) -> None:
        jump = world.deployment.directory / "clock"
        if "shifted" not in world.deployment.workers:
            for name in world.running("segmenter"):
                await world.stop(name)
            jump.write_text("0")
            world.start_as("segmenter", "shifted", partial(shifted_segmenter, world, jump))
            await world.progress()
        jump.write_text(str(chance.choice([JUMP_SECONDS, -JUMP_SECONDS, 0])))
        await world.progress()
        await asyncio.sleep(1)


def shifted_segmenter(world: World, jump: Path) -> Process:
    """Return the command of a segmenter whose clock is ahead by the number of seconds in a file."""
    environment = {
        **environment_of(world.deployment.settings),
        "AFTERWORD_STATE_DIR": str(world.deployment.state("shifted")),
        "CLOCK_AHEAD": str(jump),
    }
    command = [sys.executable, "-m", "tests.e2e.faults.shifted_clock"]
    log = world.deployment.directory / "logs" / "shifted.log"
    return Process("shifted", command, log, environment=environment, directory=ROOT)


def filesystems() -> str:
    """Return the file systems that Linux supports."""
    listed = Path("/proc/filesystems")
    return listed.read_text() if listed.exists() else ""


def fill(file: Path) -> None:
    """Fill the rest of the file's disk."""
    with file.open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(64 * 1024))
        except OSError:
            pass


def run(*command: str) -> None:
    subprocess.run(command, check=True)
