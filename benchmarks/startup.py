"""Duration from a worker's start until it is ready, and from a command's until its output."""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from afterword.dev import ROLES
from afterword.embedded import EmbeddedStack
from afterword.streams.settings import load_settings
from afterword.topics import ensure_topics
from benchmarks.processes import worker
from benchmarks.suite import Finding, Form, Line

READY_SECONDS = 2.0
IMPORT_SECONDS = 0.8
IMPORTS = ("afterword.streams.app", "afterword.streams.summarizer_app", "afterword.consumers.archiver")
CACHED = {"PYTHONDONTWRITEBYTECODE": ""}
"""Has Python keep the bytecode of a checkout, as an installation does: to compile it takes 0.2 s each time."""
IMPORT = "import time; began = time.perf_counter(); import {}; print(time.perf_counter() - began, time.process_time())"


@dataclass(frozen=True)
class Took:
    """`cpu_seconds` of the process, from its beginning."""

    seconds: float
    cpu_seconds: float


@dataclass
class Series:
    """Repeated start of one thing, and the aim of its median."""

    name: str
    aim_seconds: float | None
    took: list[Took] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return statistics.median(took.seconds for took in self.took)

    def line(self) -> Line:
        cpu = statistics.median(took.cpu_seconds for took in self.took)
        most = max(took.seconds for took in self.took)
        figures = {"seconds": f"{self.seconds:.2f}", "longest": f"{most:.2f}", "CPU seconds": f"{cpu:.2f}"}
        if self.aim_seconds is None:
            return Line(self.name, figures)
        return Line(self.name, figures, None, f"< {self.aim_seconds} s", self.seconds < self.aim_seconds)


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    """Nothing for the guard: there is no second program, and seconds alone are the machine's."""
    if form.short:
        return []
    commands = [command_line(form.rounds)] + [imports(module, form.rounds) for module in IMPORTS]
    return [
        Finding(
            f"start-up: medians of {form.rounds} starts, one after the other, all files cached",
            [*(one.line() for one in await roles(form.rounds, directory)), *(one.line() for one in commands)],
            notes=["`until ready`: from the start of the process to the first 200 of /readyz, topics and state empty."],
        )
    ]


async def roles(rounds: int, directory: Path) -> list[Series]:
    """The roles in turn; each start has a directory of its own, and follows a stop that left the group in order."""
    async with EmbeddedStack(directory / "stack") as stack:
        environment = stack.environment()
        await ensure_topics(load_settings(kafka={"bootstrap_servers": stack.bootstrap_servers}))
        series = {role: Series(f"{role} until ready", READY_SECONDS) for role in ROLES}
        for number in range(-1, rounds):
            for role in ROLES:
                own = directory / f"{role}-{number}"
                paths = {"AFTERWORD_STATE_DIR": str(own / "state"), "AFTERWORD_QDRANT__PATH": str(own / "qdrant")}
                took = await start(role, own, {**environment, **paths, **CACHED})
                if number >= 0:  # the first of all finds no bytecode, and groups and indexes that are yet to be made
                    series[role].took.append(took)
        return list(series.values())


async def start(role: str, directory: Path, environment: dict[str, str]) -> Took:
    began = time.monotonic()
    async with worker(role, directory, environment) as started:
        await started.until_ready()
        return Took(time.monotonic() - began, started.cpu_seconds)


def imports(module: str, rounds: int) -> Series:
    """Import of the module alone, without the interpreter's own start; the aim is the composition root's."""
    aim = IMPORT_SECONDS if module == IMPORTS[0] else None
    return Series(f"import {module}", aim, repeated(lambda: imported(module), rounds))


def imported(module: str) -> Took:
    command = [sys.executable, "-c", IMPORT.format(module)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **CACHED})
    wall, cpu = done.stdout.split()
    return Took(float(wall), float(cpu))


def command_line(rounds: int) -> Series:
    return Series("afterword --help", IMPORT_SECONDS, repeated(helped, rounds))


def helped() -> Took:
    began, before = time.monotonic(), children_cpu_seconds()
    command = [sys.executable, "-m", "afterword", "--help"]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **CACHED})
    return Took(time.monotonic() - began, children_cpu_seconds() - before)


def children_cpu_seconds() -> float:
    """CPU time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def repeated(once: Callable[[], Took], rounds: int) -> list[Took]:
    """The first time is not counted: it may have to write bytecode."""
    return [once() for _ in range(rounds + 1)][1:]
