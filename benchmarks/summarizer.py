"""The summarizer whose LLM answers at once, beside its steps by hand on the same stores; and with an LLM over HTTP."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from afterword.embedded import EmbeddedStack
from afterword.streams.settings import load_settings
from afterword.topics import ensure_topics
from benchmarks import topics
from benchmarks.closed import closed_episodes
from benchmarks.contest import Program, Results, python
from benchmarks.llm import StandIn
from benchmarks.measure import Round, Work, Worker, measure
from benchmarks.suite import Finding, Form, Line

PARTITIONS = 4
CONVERSATIONS = 100
EACH = 4
WARMING = 0.1
OURS, BY_HAND = Program("summarizer", python("summarizer")), Program("by hand", python("summarizer_by_hand"), 0.7)
WITH_LLM = Program("with an LLM over HTTP", (sys.executable, "-m", "afterword", "worker", "summarizer"))
"""The worker as its users start it: with prompts, HTTP, cached answers and the quality check."""
PROGRAMS = OURS, BY_HAND, WITH_LLM
SLOTS = 8
CLOSED = "episode.closed"


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    """Every round begins with empty stores: the embedded server reads all of a collection for some filters."""
    rounds = 2 if form.short else form.rounds
    results = Results({program.name: [] for program in PROGRAMS})
    async with EmbeddedStack(directory / "stack") as stack, StandIn() as llm:
        await ensure_topics(
            load_settings(
                kafka={
                    "bootstrap_servers": stack.bootstrap_servers,
                    "partitions": PARTITIONS,
                    "episodes_topic": "unused",
                }
            )
        )
        await topics.fill(stack.bootstrap_servers, CLOSED, PARTITIONS, closed_episodes(range(CONVERSATIONS), EACH))
        await topics.create(stack.bootstrap_servers, [f"{CLOSED}.dlq"], PARTITIONS)
        for number in range(rounds):
            for program in PROGRAMS:
                done = await one(stack, program, number, CONVERSATIONS * EACH, llm.environment(SLOTS))
                results.rounds[program.name].append(done)
    return [finding(results, rounds)]


async def one(stack: EmbeddedStack, program: Program, number: int, total: int, environment: Mapping[str, str]) -> Round:
    """Run one program, as a consumer group and on stores of its own."""
    name = f"{program.name.replace(' ', '-')}-{number}"
    directory = stack.directory.parent
    environment = {
        **stack.environment(),
        **environment,
        "AFTERWORD_HEALTH__PORT": "0",
        "BENCH_GROUP": name,
        "BENCH_SOURCE": CLOSED,
        "AFTERWORD_KAFKA__SUMMARIZER_ID": name,
        "AFTERWORD_KAFKA__SUMMARIES_TOPIC": "summary.created",
        "AFTERWORD_MONGO__DATABASE": name,
        "AFTERWORD_QDRANT__PATH": str(directory / f"qdrant-{name}"),
    }
    work = Work(stack.bootstrap_servers, name, CLOSED, total, int(total * WARMING))
    return await measure(work, [Worker(program.command, environment)], directory / f"{program.name}.log")


def finding(results: Results, rounds: int) -> Finding:
    title = f"summarizer, LLM of 0 ms, MongoDB and an index in a directory: medians of {rounds} alternating rounds"
    ratio = results.faster(OURS.name, BY_HAND.name)
    aim = BY_HAND.aim or 0.0
    lines = [
        Line(OURS.name, figures(results, OURS.name)),
        Line(BY_HAND.name, figures(results, BY_HAND.name), ratio, f"≥ {aim}", ratio >= aim),
        Line(WITH_LLM.name, figures(results, WITH_LLM.name)),
    ]
    return Finding(title, lines, ratios={"summarizer/by hand": ratio})


def figures(results: Results, program: str) -> dict[str, str]:
    return {"episodes/s": f"{results.rate(program):,.0f}", "CPU ms each": f"{results.cpu(program) / 1000:.1f}"}
