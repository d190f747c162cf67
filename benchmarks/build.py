"""Compares two checkouts with their own `afterword dev`, in turns: python -m benchmarks.build OLD NEW

Each has a `.venv` (`make venv`). The same real dialogues, one after the other and again until there are enough, are
imported into an empty directory with the default settings, without an LLM; an episode ends where the topic changes.
CPU is what the processes use from being ready until the audit is clean.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Any

from afterword.embedded import Process
from afterword.local.dev import CONFIG_FILE
from afterword.streams.roles import ALL, ALWAYS_RUN
from afterword.streams.settings import CONFIG_FILE_VARIABLE
from benchmarks.data import STARTED_AT, task_dialogues, topic_shifts
from benchmarks.measuring import Running, cpu_seconds, family, proportional_bytes, ratio, show
from benchmarks.serve import cpu_of_recall
from benchmarks.sizes import HEALTH, STOP_SECONDS, until_told

SUM, WORKERS = "sum", "workers and server"
PARTS = (SUM, WORKERS, "kafka", "dev")
AUDIT_SECONDS = 3600
SAMPLE_SECONDS = 1.0
DIALOGUES_OF_A_USER = 10
EPISODES = re.compile(r"^episodes\n +total +([\d,]+)", re.MULTILINE)
"""In an audit's report, the number of closed episodes: the same for both checkouts, or the work differed."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.build", description=__doc__)
    parser.add_argument("checkouts", nargs=2, type=Path, metavar="CHECKOUT", help="the old one, then the new one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=20_000)
    given = parser.parse_args()
    rounds: list[tuple[dict[str, float], ...]] = []
    for _ in range(given.rounds):
        rounds.append(tuple(asyncio.run(measured(one.absolute(), given.messages)) for one in given.checkouts))
        print(rounds[-1], file=sys.stderr)
    rows = [
        {
            "": name,
            "old": f"{median(old[name] for old, _ in rounds):,.2f}",
            "new": f"{median(new[name] for _, new in rounds):,.2f}",
            "ratio": ratio(median(new[name] / old[name] for old, new in rounds)),
        }
        for name in rounds[0][0]
    ]
    show(f"build: {given.messages:,} messages imported into `afterword dev`, {given.rounds} rounds in turns", rows)


def messages() -> Iterator[dict[str, Any]]:
    dialogues, number = list(zip(task_dialogues(), topic_shifts(), strict=True)), 0
    for at in count():
        (_, turns), shifts = dialogues[at % len(dialogues)]
        for place, turn in enumerate(turns):
            yield {
                "id": f"m{number}",
                "conversation_id": f"c{at}",
                "user_id": f"u{at // DIALOGUES_OF_A_USER}",
                "role": turn.role,
                "content": turn.text,
                "sent_at": (STARTED_AT + timedelta(seconds=number)).isoformat(),
                "is_continuation": place not in shifts,
            }
            number += 1


async def measured(checkout: Path, number: int) -> dict[str, float]:
    """Import this many messages with a checkout's code. Raises: RuntimeError, TimeoutError, ProcessExited."""
    with tempfile.TemporaryDirectory(prefix="afterword-bench-") as name:
        directory = Path(name)
        with (file := directory / "messages.jsonl").open("w") as lines:
            lines.writelines(json.dumps(message) + "\n" for message in islice(messages(), number))
        run = [str(checkout / ".venv/bin/python"), "-m", "afterword"]
        data = directory / "data"
        started = time.monotonic()
        dev = Process("dev", [*run, "dev", "--data-dir", str(data)], directory / "dev.log", directory=checkout)
        try:
            await until_told(dev, dev.log, "page ")
            served = time.monotonic()
            logs = [data / "logs" / f"{role}.log" for role in (*ALWAYS_RUN, ALL)]  # the old one may have three
            for log in filter(Path.exists, logs):
                port = int(await until_told(dev, log, HEALTH))
                await Running(dev, port).until_ready()
            before, began = by_role(dev.pid, cpu_seconds), time.monotonic()
            memory: dict[str, float] = defaultdict(float)
            for command in (["import", "jsonl", str(file)], ["audit", "--wait", str(AUDIT_SECONDS)]):
                environment = {CONFIG_FILE_VARIABLE: str(data / CONFIG_FILE)}
                log = directory / "command.log"
                process = Process(command[0], [*run, *command], log, environment=environment, directory=checkout)
                while process.running:
                    for role, used in by_role(dev.pid, proportional_bytes).items():
                        memory[role] = max(memory[role], used)
                    await asyncio.sleep(SAMPLE_SECONDS)
                if process.returncode:
                    raise RuntimeError(f"{command[0]} ended with {process.returncode}: {process.tail()}")
            seconds, after = time.monotonic() - began, by_role(dev.pid, cpu_seconds)
            episodes = await until_told(process, log, EPISODES)
        finally:
            await asyncio.to_thread(dev.stop, STOP_SECONDS)
        recall = await cpu_of_recall({CONFIG_FILE_VARIABLE: str(data / CONFIG_FILE)}, run[0], checkout)
    cpu = {part: after[part] - before[part] for part in PARTS}
    return {
        "closed episodes": float(episodes.replace(",", "")),
        "seconds until the page is served": served - started,
        "seconds until the audit is clean": seconds,
        **{f"CPU seconds: {part}": cpu[part] for part in PARTS[:-1]},  # that of `dev` itself is next to nothing
        "CPU ms of all a message": cpu[SUM] * 1000 / number,
        "CPU seconds of `afterword recall` alone": recall,
        **{f"most memory in MB: {part}": memory[part] / 1e6 for part in PARTS},
    }


def by_role(pid: int, read: Callable[[int], float]) -> dict[str, float]:
    """Return a figure of a process and its descendants by the parts that they are of, and the sum."""
    figures: dict[str, float] = defaultdict(float)
    for one in family(pid):
        with suppress(OSError):  # it may end in the meantime
            arguments = Path(f"/proc/{one}/cmdline").read_text().split("\0")
            is_java = arguments[0].endswith("java")
            is_worker = "worker" in arguments or "serve" in arguments
            figure = read(one)
            figures["kafka" if is_java else WORKERS if is_worker else "dev"] += figure
            figures[SUM] += figure
    return figures


if __name__ == "__main__":
    main()
