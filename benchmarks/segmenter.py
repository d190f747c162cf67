"""The segmenter with all its rules, beside the same rules by hand and on stock Faust."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from afterword.embedded import EmbeddedStack
from benchmarks.load import messages
from benchmarks.measure import Round, measure
from benchmarks.suite import Finding, Form, Line
from streams.segmenter.tables import TABLES

PARTITIONS = 4
PROGRAMS = ("engine", "by_hand", "stock_faust")
AIMS = {"by_hand": 1.2, "stock_faust": 5.0}
"""At least so many times as fast as."""
SLOW = {"stock_faust": 3}
"""Takes a part of the messages, or a round would last minutes."""
COMPACTED = {"cleanup.policy": "compact"}


@dataclass
class Row:
    rounds: dict[str, list[Round]] = field(default_factory=lambda: {program: [] for program in PROGRAMS})

    def rate(self, program: str) -> float:
        return statistics.median(done.rate for done in self.rounds[program])

    def cpu(self, program: str) -> float:
        return statistics.median(done.cpu_microseconds for done in self.rounds[program])

    def ratio(self, other: str) -> float:
        """Median over the rounds: what drifts, drifts for both."""
        pairs = zip(self.rounds["engine"], self.rounds[other], strict=True)
        return statistics.median(ours.rate / theirs.rate for ours, theirs in pairs)


async def compare(stack: EmbeddedStack, directory: Path, rounds: int, count: int, conversations: int) -> Row:
    counts = {program: count // SLOW.get(program, 1) for program in PROGRAMS}
    topics = {total: f"messages-{total}" for total in counts.values()}
    for total, topic in topics.items():
        await _fill(stack.bootstrap_servers, topic, total, conversations)
    row = Row()
    for number in range(rounds):
        for program in PROGRAMS:
            total = counts[program]
            done = await _round(stack.bootstrap_servers, directory, program, number, topics[total], total)
            row.rounds[program].append(done)
    return row


async def _round(bootstrap: str, directory: Path, program: str, number: int, topic: str, total: int) -> Round:
    group = f"{program}-{number}"
    episodes = f"episodes-{group}"
    await _create(bootstrap, [episodes, f"{topic}.dlq"], {})
    await _create(bootstrap, [f"{group}-{table}-changelog" for table in TABLES], COMPACTED)
    environment = {
        "BENCH_BOOTSTRAP": bootstrap,
        "BENCH_GROUP": group,
        "BENCH_MESSAGES": topic,
        "BENCH_EPISODES": episodes,
        "BENCH_STATE": str(directory / group),
        "BENCH_PARTITIONS": str(PARTITIONS),
    }
    log = directory / f"{program}.log"
    return await measure(program, environment, log, bootstrap=bootstrap, group=group, topic=topic, total=total)


async def _fill(bootstrap: str, topic: str, count: int, conversations: int) -> None:
    await _create(bootstrap, [topic], {})
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20, max_batch_size=1 << 18) as producer:
        for key, value in messages(count, conversations):
            await producer.send(topic, value, key=key)


async def _create(bootstrap: str, names: Iterable[str], configs: Mapping[str, str]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, PARTITIONS, 1, topic_configs=dict(configs)) for name in names])
    finally:
        await admin.close()


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    """Of each round: this many messages for every program, and a third of them for the slow one."""
    rounds, count, conversations = (3, 20_000, 2_000) if form.short else (form.rounds, 60_000, 5_000)
    async with EmbeddedStack(directory / "stack") as stack:
        row = await compare(stack, directory, rounds, count, conversations)
    return [finding(row, rounds)]


def finding(row: Row, rounds: int) -> Finding:
    title = f"segmenter, all rules, {PARTITIONS} partitions, medians of {rounds} alternating rounds"
    ratios = {f"segmenter/{program}": row.ratio(program) for program in AIMS}
    return Finding(title, [_line(row, program) for program in PROGRAMS], ratios=ratios)


def _line(row: Row, program: str) -> Line:
    figures = {"messages/s": f"{row.rate(program):,.0f}", "CPU µs each": f"{row.cpu(program):.0f}"}
    if program not in AIMS:
        return Line(program, figures)
    ratio, aim = row.ratio(program), AIMS[program]
    return Line(program, figures, ratio, f"≥ {aim}", ratio >= aim)
