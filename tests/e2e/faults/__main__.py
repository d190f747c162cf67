"""Inject faults, hostile input, or a long run under load, and print a table of what became of the messages."""

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from itertools import dropwhile
from pathlib import Path

import structlog

from tests.e2e.faults.fault import Fault
from tests.e2e.faults.kinds import FAULTS
from tests.e2e.faults.kinds.hostile import HOSTILE
from tests.e2e.faults.kinds.soak import ComingAndGoing
from tests.e2e.faults.report import details, hostile_table, rows, table
from tests.e2e.faults.run import Form, Result, run
from tests.e2e.faults.short import HOSTILE_RATE, attacked
from tests.e2e.faults.world import serving

RATE = 30.0


def main() -> None:
    given = arguments()
    directory = Path(tempfile.mkdtemp(prefix="faults-"))
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    form = "short form" if given.short else f"{given.minutes:g} minutes"
    tell(f"seed {given.seed}, {form}, logs in {directory}")
    results = asyncio.run(run_hostile(directory, given) if given.hostile else run_faults(directory, given))
    if not all(result.clean for result in results):
        tell(f"NOT CLEAN: seed {given.seed}, logs in {directory}")
        sys.exit(1)
    shutil.rmtree(directory)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.faults", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--hostile", action="store_true", help="hostile input, all kinds into one deployment")
    what.add_argument("--soak", action="store_true", help="workers come and go; does the memory of others grow?")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=20, help="of injections, over all kinds")
    parser.add_argument("--only", metavar="WORD", default="", help="kinds whose name has this word in it")
    parser.add_argument("--from", dest="first", metavar="WORD", default="", help="go on with the first such kind")
    parser.add_argument("--rate", type=float, help=f"records a second; {RATE:g}, of hostile input {HOSTILE_RATE:g}")
    parser.add_argument("--short", action="store_true", help="the short form of each kind, as the tests run it")
    parser.add_argument("--servers", action="store_true", help="everything in MongoDB and Qdrant, not only some kinds")
    return parser.parse_args()


async def run_hostile(directory: Path, given: argparse.Namespace) -> list[Result]:
    kinds = [kind for kind in HOSTILE if given.only.lower() in kind.name.lower()]
    seconds = None if given.short else 60 * given.minutes
    form = Form(given.seed, given.rate or HOSTILE_RATE, seconds, hostile=True, on_servers=given.servers)
    result = await attacked(directory, kinds, form)
    lost = f"{result.lost} lost, {result.duplicated} duplicated"
    counts = f"{result.messages:,} messages, {result.episodes:,} episodes, {lost}"
    tell("\n".join([*hostile_table(result), "", counts, *details(result)]))
    return [result]


async def run_faults(directory: Path, given: argparse.Namespace) -> list[Result]:
    """Inject each kind into its own deployment."""
    among = [ComingAndGoing] if given.soak else FAULTS
    kinds = [kind for kind in among if given.only.lower() in kind.name.lower()]
    total, results = sum(kind.share for kind in kinds), []
    wanted = list(dropwhile(lambda kind: given.first.lower() not in kind.name.lower(), kinds))
    by_size: dict[int, list[type[Fault]]] = defaultdict(list)
    for kind in wanted:
        by_size[kind.brokers].append(kind)
    for brokers, some in by_size.items():
        async with serving(directory / f"stack-{brokers}", brokers) as servers:
            for kind in some:
                seconds = None if given.short else 60 * given.minutes * kind.share / total
                form = Form(given.seed, given.rate or RATE, seconds, on_servers=given.servers)
                place = directory / kind.__name__.lower()
                place.mkdir()
                began = time.monotonic()
                result = await run(servers, place, [kind], form)
                results.append(result)
                # at once, so that an aborted run has printed its findings
                tell("\n".join([*rows(result), *details(result), f"  took {time.monotonic() - began:.0f} s"]))
    tell("\n".join(table(results)))
    return results


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
