"""Speed and memory of reading a large history: an export of ChatGPT.

python -m benchmarks.importing [MEGABYTES]

No Kafka: what comes before the producer. The peak is that of the whole process; before the reading it is Python and its
libraries.
"""

import argparse
import asyncio
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from afterword.importing.outcomes import ImportOptions
from afterword.importing.run import ImportPlan, count_history, read_history

DEFAULT = 200
TURNS = 40
BEGAN = 1_700_000_000
WORDS = "the lake was cold and clear in the morning and we walked along its northern shore until the rain began "
PLAN = ImportPlan("chatgpt", ImportOptions("ann"))


def conversation(number: int) -> dict[str, Any]:
    """40 turns of 500 to 2,000 characters, with the fields that an export has."""
    nodes: dict[str, Any] = {"root": {"id": "root", "message": None, "parent": None, "children": ["0"]}}
    parent = "root"
    for n in range(TURNS):
        node = f"{number:08}-{n:04}-4000-8000-000000000000"
        nodes[node] = {
            "id": node,
            "message": {
                "id": node,
                "author": {"role": ("user", "assistant")[n % 2], "name": None, "metadata": {}},
                "create_time": BEGAN + number * 3600 + n * 20.5,
                "update_time": None,
                "content": {"content_type": "text", "parts": [WORDS * (5 + (number + n) % 15)]},
                "status": "finished_successfully",
                "end_turn": True,
                "weight": 1.0,
                "metadata": {
                    "model_slug": "m",
                    "citations": [],
                    "finish_details": {"type": "stop", "stop_tokens": [1]},
                },
                "recipient": "all",
                "channel": None,
            },
            "parent": parent,
            "children": [],
        }
        parent = node
    return {
        "title": "A lake",
        "create_time": BEGAN,
        "conversation_id": f"c{number}",
        "mapping": nodes,
        "current_node": parent,
    }


def export(size: int) -> Iterator[bytes]:
    """Pieces of `conversations.json` of about so many bytes."""
    written, number = 0, 0
    while written < size:
        piece = (b"," if number else b"[") + json.dumps(conversation(number)).encode()
        yield piece
        written, number = written + len(piece), number + 1
    yield b"]"


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(path: Path) -> None:
    before, started, busy = peak_mb(), time.perf_counter(), time.process_time()
    with path.open("rb") as file:
        outcomes = read_history(PLAN, iter([(path.name, file)]))
        found = asyncio.run(count_history(PLAN, outcomes, lambda _: None, lambda rejected: print(rejected)))
    size = path.stat().st_size / 1e6
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    print(
        f"{path.name}: {size:,.0f} MB, {found.read:,} messages in {seconds:.1f} s, {busy:.1f} s of a core "
        f"({size / busy:.0f} MB/s); peak {peak_mb():.0f} MiB, before {before:.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("megabytes", nargs="?", type=int, default=DEFAULT)
    size = parser.parse_args().megabytes * 1_000_000
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "conversations.json")
        with path.open("wb") as file:
            file.writelines(export(size))
        measure(path)


if __name__ == "__main__":
    main()
