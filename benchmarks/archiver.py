"""The archiver beside bulk upserts by hand, on the same server."""

from collections.abc import Sequence
from pathlib import Path

from afterword.embedded import EmbeddedStack
from benchmarks import topics
from benchmarks.contest import Program, Results, python, table
from benchmarks.load import messages
from benchmarks.measure import Round, Work, Worker, measure
from benchmarks.suite import Finding, Form

PARTITIONS = 4
CONVERSATIONS = 1_000
MESSAGES = 6_000
WARMING = 0.1
PROGRAMS = (Program("archiver", python("archiver")), Program("by hand", python("archiver_by_hand"), 0.9))
SOURCE = "messages"


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    """Every round writes into an empty database."""
    rounds, total = (2 if form.short else form.rounds), MESSAGES
    results = Results({program.name: [] for program in PROGRAMS})
    async with EmbeddedStack(directory / "stack") as stack:
        await topics.fill(stack.bootstrap_servers, SOURCE, PARTITIONS, messages(total, CONVERSATIONS))
        for number in range(rounds):
            for program in PROGRAMS:
                results.rounds[program.name].append(await one(stack, program, number, total))
    title = f"archiver, MongoDB: medians of {rounds} alternating rounds"
    return [table("archiver", title, results, PROGRAMS)]


async def one(stack: EmbeddedStack, program: Program, number: int, total: int) -> Round:
    """Run one program, as a consumer group and into a database of its own."""
    name = f"{program.name.replace(' ', '-')}-{number}"
    environment = {
        **stack.environment(),
        "BENCH_GROUP": name,
        "BENCH_SOURCE": SOURCE,
        "AFTERWORD_KAFKA__ARCHIVER_ID": name,
        "AFTERWORD_KAFKA__SUMMARIES_TOPIC": "summary.created",
        "AFTERWORD_MONGO__DATABASE": name,
    }
    work = Work(stack.bootstrap_servers, name, SOURCE, total, int(total * WARMING))
    return await measure(work, [Worker(program.command, environment)], stack.directory.parent / f"{program.name}.log")
