"""Programs that take turns on the same topic, and the table of how they did."""

import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from afterword.embedded import EmbeddedStack
from benchmarks import topics
from benchmarks.measure import Round, Work, Worker, measure
from benchmarks.suite import Finding, Line

TAIL = 1.25
"""The topic has so many times the messages that are timed: whoever commits once a second has not run out of them
before the last commit."""


def python(module: str, interpreter: str = sys.executable) -> tuple[str, ...]:
    """The command line of a program in benchmarks/programs."""
    return (interpreter, "-m", f"benchmarks.programs.{module}")


@dataclass(frozen=True)
class Program:
    """Participant of a contest."""

    name: str
    command: Sequence[str]
    aim: float | None = None
    """Ours is to be at least so many times as fast."""
    share: float = 1.0
    """The part of the messages that it takes: a round of a slow one would last minutes."""
    topic: str | None = None
    """Topic with the same messages in another form; None: the course's."""


@dataclass(frozen=True)
class Course:
    """Input of a contest."""

    topic: str
    count: int
    """Messages that the fastest takes."""
    partitions: int
    tables: Sequence[str]
    """Tables whose changelogs, `{group}-{table}-changelog`, are made beforehand."""
    workers: int = 1
    after: float = 0.0
    """The part of the messages before the clock starts."""


@dataclass
class Results:
    """Rounds by program."""

    rounds: dict[str, list[Round]] = field(default_factory=dict)

    def rate(self, program: str) -> float:
        """Messages a second."""
        return statistics.median(done.rate for done in self.rounds[program])

    def cpu(self, program: str) -> float:
        """Microseconds for each message."""
        return statistics.median(done.cpu_microseconds for done in self.rounds[program])

    def faster(self, ours: str, theirs: str) -> float:
        """Our rate to theirs, as the median over the rounds: what drifts, drifts for both."""
        pairs = zip(self.rounds[ours], self.rounds[theirs], strict=True)
        return statistics.median(a.rate / b.rate for a, b in pairs)

    def leaner(self, ours: str, theirs: str) -> float:
        """Messages for each CPU second, ours to theirs, likewise."""
        pairs = zip(self.rounds[ours], self.rounds[theirs], strict=True)
        return statistics.median(b.cpu_microseconds / a.cpu_microseconds for a, b in pairs)


async def lay(stack: EmbeddedStack, course: Course, records: Iterable[tuple[bytes, bytes]]) -> None:
    """Fills its topic; `records` are at least `TAIL` times those that are timed."""
    await topics.fill(stack.bootstrap_servers, course.topic, course.partitions, records)


async def compete(stack: EmbeddedStack, course: Course, programs: Sequence[Program], rounds: int) -> Results:
    """Each program once a round, with a group, topics and state of its own."""
    results = Results({program.name: [] for program in programs})
    for number in range(rounds):
        for program in programs:
            ground = course if program.topic is None else replace(course, topic=program.topic)
            results.rounds[program.name].append(await run_once(stack, ground, program, number))
    return results


async def run_once(stack: EmbeddedStack, course: Course, program: Program, number: int) -> Round:
    """One round of one program."""
    bootstrap, group = stack.bootstrap_servers, group_id(program.name, course.topic, number)
    episodes = f"episodes-{group}"
    await topics.create(bootstrap, [episodes, f"{course.topic}.dlq"], course.partitions)
    changelogs = [f"{group}-{table}-changelog" for table in course.tables]
    await topics.create(bootstrap, changelogs, course.partitions, topics.COMPACTED)
    directory = stack.directory.parent
    workers = [
        Worker(program.command, _environment(course, bootstrap, group, episodes, directory / f"{group}-{worker}"))
        for worker in range(course.workers)
    ]
    total = int(course.count * program.share)
    work = Work(bootstrap, group, course.topic, total, max(1, int(total * course.after)))
    return await measure(work, workers, directory / f"{program.name}.log")


def group_id(*parts: object) -> str:
    """Name of letters, digits and dashes: names of topics are made of it."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(map(str, parts)).lower())


def _environment(course: Course, bootstrap: str, group: str, episodes: str, state: Path) -> Mapping[str, str]:
    return {
        "BENCH_BOOTSTRAP": bootstrap,
        "BENCH_GROUP": group,
        "BENCH_MESSAGES": course.topic,
        "BENCH_EPISODES": episodes,
        "BENCH_STATE": str(state),
        "BENCH_PARTITIONS": str(course.partitions),
    }


def table(name: str, title: str, results: Results, programs: Sequence[Program], notes: Sequence[str] = ()) -> Finding:
    """The first program is ours. The ratios of CPU time are for the guard: a busy machine hardly moves them."""
    ours = programs[0].name
    ratios = {f"{name}/{one.name}": results.faster(ours, one.name) for one in programs[1:]}
    ratios |= {f"{name}/{one.name}, CPU": results.leaner(ours, one.name) for one in programs[1:]}
    return Finding(title, [_line(results, ours, program) for program in programs], notes, ratios)


def _line(results: Results, ours: str, program: Program) -> Line:
    rate, cpu = results.rate(program.name), results.cpu(program.name)
    figures = {"messages/s": f"{rate:,.0f}", "CPU µs each": f"{cpu:.0f}"}
    if program.name == ours:
        return Line(program.name, figures)
    ratio = results.faster(ours, program.name)
    if program.aim is None:
        return Line(program.name, figures, ratio)
    return Line(program.name, figures, ratio, f"≥ {program.aim}", ratio >= program.aim)
