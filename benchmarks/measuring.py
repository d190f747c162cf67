"""Shared by the benchmarks: processes and their resource use, quantiles, topics, and tables."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.partitioner import DefaultPartitioner

from afterword.embedded import EmbeddedStack, Process
from afterword.embedded.claims import HOST, free_ports
from afterword.local.dev import SERVER, start_worker
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.settings import Kafka, Settings, load_settings

PARTITIONS = 4
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
READY_SECONDS = 300.0
STOP_SECONDS = 60.0
LOOK_SECONDS = 0.02
BATCH_BYTES = 256 * 1024
COMPACTED = {"cleanup.policy": "compact"}


class Form(NamedTuple):
    """The thoroughness of a run."""

    rounds: int = 3
    short: bool = False
    """True for a run that only shows whether the benchmark works."""
    loads: tuple[float, ...] = ()
    """Messages/s for `latency`, to compare two versions at the same load, instead of fractions of the capacity."""
    messages: tuple[int, ...] = ()
    """Sizes for `sizes`, `bulk`, and `memory`, which has one conversation per message."""
    keep: Path | None = None
    """Directory in which `sizes` keeps the deployments that it fills, for the next run."""


# Tables


def show(title: str, rows: Sequence[Mapping[str, str]], *notes: str) -> None:
    """Print a Markdown table. Its columns are the keys of the rows; the first one is ""."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, *([row.get(name, "") for name in columns] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    lines.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    texts = []
    for first, *others in lines:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        texts.append(f"| {' | '.join(cells)} |")
    print("\n".join([f"### {title}", "", *texts, "", *(f"{note}\n" for note in notes)]), flush=True)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed; NaN if there are none."""
    if not values:
        return float("nan")
    rank = -(-len(values) * round(share * 1000) // 1000)  # rounded up
    return sorted(values)[max(rank, 1) - 1]


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


def percentiles(seconds: Sequence[float]) -> dict[str, str]:
    return {"p50": milliseconds(quantile(seconds, 0.5)), "p99": milliseconds(quantile(seconds, 0.99))}


def megabytes(count: float) -> str:
    return f"{count / 1e6:,.0f} MB"


def ratio(value: float) -> str:
    return f"{value:.2f} ×"


# Processes


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # the process's name may contain spaces
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def memory_bytes(pid: int, name: str = "VmRSS", file: str = "status") -> int:
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # a process may end in the meantime
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    members = [pid]
    for one in members:
        members += children.get(one, [])
    return members


def proportional_bytes(pid: int) -> int:
    """Return a process's memory, with its share of the pages that it shares with others (PSS); 0 if it has ended."""
    with suppress(OSError):
        return memory_bytes(pid, "Pss", "smaps_rollup")
    return 0


def family_bytes(pid: int) -> int:
    return sum(map(proportional_bytes, family(pid)))


@dataclass(frozen=True)
class Running:
    """A process that answers HTTP on a port of this machine."""

    process: Process
    port: int

    @property
    def pid(self) -> int:
        return self.process.pid

    async def until_ready(self, path: str = "/readyz") -> None:
        """Wait until the path answers successfully. Raises: TimeoutError, ProcessExited."""
        async with asyncio.timeout(READY_SECONDS), httpx.AsyncClient(trust_env=False) as client:
            while True:
                self.process.check()
                with suppress(httpx.TransportError):
                    if (await client.get(f"http://{HOST}:{self.port}{path}")).is_success:
                        return
                await asyncio.sleep(LOOK_SECONDS)


@asynccontextmanager
async def worker(role: str, directory: Path, environment: Mapping[str, str]) -> AsyncIterator[Running]:
    """Run `afterword worker ROLE` or `afterword serve`, ready when the block begins and drained when it ends."""
    (port,) = free_ports(1)
    variable = "AFTERWORD_SERVE__PORT" if role == SERVER else "AFTERWORD_HEALTH__PORT"
    started = Running(start_worker(role, directory, {**environment, variable: str(port)}), port)
    try:
        await started.until_ready()
        yield started
    finally:
        code = await asyncio.to_thread(started.process.stop, STOP_SECONDS)
    if code:
        raise RuntimeError(f"{role} ended with {code}: {started.process.tail()}")


# Kafka


def settings_of(stack: EmbeddedStack, **sections: Any) -> Settings:
    return load_settings(kafka={"bootstrap_servers": stack.bootstrap_servers, "partitions": PARTITIONS}, **sections)


async def until_consumed(kafka: Kafka, group: str, topic: str, timeout_seconds: float = READY_SECONDS) -> None:
    """Wait until a group has committed everything in a topic. Raises: TimeoutError."""
    async with asyncio.timeout(timeout_seconds), open_log(kafka) as log:
        while await log.left(group, topic, await log.ends(topic)):  # noqa: ASYNC110 – commits set no event here
            await asyncio.sleep(0.1)


async def create_topics(bootstrap: str, names: Iterable[str], configs: Mapping[str, str] | None = None) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, PARTITIONS, 1, topic_configs=dict(configs or {})) for name in names])
    finally:
        await admin.close()


async def fill(bootstrap: str, topic: str, records: Iterable[tuple[bytes, bytes]]) -> None:
    """Produce keys and values in batches, which is three times as fast as record by record."""
    numbers, choose = list(range(PARTITIONS)), DefaultPartitioner()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_batch_size=BATCH_BYTES) as producer:
        batches: dict[int, Any] = {}
        for key, value in records:
            number = choose(key, numbers, numbers)
            batch = batches.get(number) or batches.setdefault(number, producer.create_batch())
            if batch.append(key=key, value=value, timestamp=None) is None:
                await (await producer.send_batch(batch, topic, partition=number))
                batch = batches[number] = producer.create_batch()
                batch.append(key=key, value=value, timestamp=None)
        for number, batch in batches.items():
            await (await producer.send_batch(batch, topic, partition=number))
