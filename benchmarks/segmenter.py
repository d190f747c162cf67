"""The segmenter with all its rules, beside the same rules by hand and on stock Faust.

python -m benchmarks.segmenter [--rounds 5] [--messages 60000] [--json results.json]
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from afterword.embedded import EmbeddedStack
from benchmarks.load import messages
from benchmarks.measure import Round, measure
from streams.segmenter.tables import TABLES

PARTITIONS = 4
PROGRAMS = ("engine", "by_hand", "stock_faust")
AIMS = {"by_hand": 0.8, "stock_faust": 5.0}
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


async def run(stack: EmbeddedStack, directory: Path, rounds: int, count: int, conversations: int) -> Row:
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


def show(row: Row, rounds: int, console: Console) -> None:
    table = Table(title=f"segmenter, all rules, {PARTITIONS} partitions, medians of {rounds} alternating rounds")
    for heading in ("program", "messages/s", "CPU µs each", "engine is … × as fast", "aim"):
        table.add_column(heading, justify="left" if heading == "program" else "right")
    for program in PROGRAMS:
        ratio = "" if program == "engine" else f"{row.ratio(program):.2f}"
        aim = f"≥ {AIMS[program]}" if program in AIMS else ""
        table.add_row(program, f"{row.rate(program):,.0f}", f"{row.cpu(program):.0f}", ratio, aim)
    console.print(table)


def as_json(row: Row) -> str:
    return json.dumps(
        {
            program: {"rate": row.rate(program), "cpu_us": row.cpu(program), "ratio": row.ratio(program)}
            for program in PROGRAMS
        },
        indent=2,
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--conversations", type=int, default=5_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="afterword-bench-") as name:
        async with EmbeddedStack(Path(name) / "stack") as stack:
            row = await run(stack, Path(name), given.rounds, given.messages, given.conversations)
    show(row, given.rounds, Console())
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(as_json(row))


if __name__ == "__main__":
    asyncio.run(main())
