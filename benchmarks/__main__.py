"""Measures speed, size and memory: python -m benchmarks [NAME …] [--short]"""

import argparse
import asyncio
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path

from aiokafka.errors import KafkaError
from httpx import HTTPError
from pymongo.errors import PyMongoError

from afterword.streams.errors import AfterwordError
from benchmarks import context, latency, memory, serve, sizes, stores, throughput
from benchmarks.measuring import Form

BENCHMARKS: Mapping[str, Callable[[Form, Path], Coroutine[None, None, None]]] = {
    "engine": throughput.engine,
    "segmenter": throughput.segmenter,
    "ingest": throughput.ingest,
    "latency": latency.run,
    "bulk": latency.bulk,
    "context": context.run,
    "memory": memory.run,
    "serve": serve.run,
    "sizes": sizes.run,
    "stores": stores.run,
}
FAILURES = (RuntimeError, TimeoutError, KafkaError, PyMongoError, AfterwordError, HTTPError)
"""If a benchmark fails with one of these, mostly because the machine is too busy, the others continue."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed, size and memory: tables.")
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="of engine and segmenter")
    parser.add_argument("--short", action="store_true", help="only long enough to see that the benchmarks work")
    parser.add_argument("--load", metavar="RATE", type=float, action="append", default=[], help="messages/s of latency")
    parser.add_argument(
        "--messages",
        metavar="COUNT",
        type=int,
        action="append",
        default=[],
        help="of bulk, sizes, memory; episodes of stores",
    )
    parser.add_argument("--keep", metavar="DIRECTORY", type=Path, help="where sizes keeps deployments for the next run")
    given = parser.parse_args()
    rounds = 1 if given.short else given.rounds
    form = Form(rounds, given.short, tuple(given.load), tuple(given.messages), given.keep)
    failed = []
    for name in given.names or BENCHMARKS:
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="afterword-bench-") as directory:
                asyncio.run(BENCHMARKS[name](form, Path(directory)))
        except FAILURES as error:
            failed.append(name)
            traceback.print_exception(error)
        print(f"{name} took {time.monotonic() - began:.0f} s\n", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
