"""The long form: each kind into a deployment of its own, and a table of what became of the messages."""

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
from tests.e2e.faults.run import Form, Result, run
from tests.e2e.faults.world import serving

HEAD = ("fault", "times", "messages", "episodes", "lost", "duplicated", "longest stall", "")


def main() -> None:
    given = arguments()
    directory = Path(tempfile.mkdtemp(prefix="faults-"))
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    form = "short form" if given.short else f"{given.minutes:g} minutes"
    tell(f"seed {given.seed}, {form}, logs in {directory}")
    results, skipped = asyncio.run(run_all(directory, given))
    tell("\n".join(table(results, skipped)))
    if not all(result.clean for result in results):
        tell(f"NOT CLEAN: seed {given.seed}, logs in {directory}")
        sys.exit(1)
    shutil.rmtree(directory)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=20, help="of injections, over all kinds")
    parser.add_argument("--only", metavar="WORD", default="", help="kinds whose name has this word in it")
    parser.add_argument("--from", dest="first", metavar="WORD", default="", help="go on with the first such kind")
    parser.add_argument("--rate", type=float, default=30, help="records a second")
    parser.add_argument("--standbys", type=int, default=0, help="of each partition, where segmenters are several")
    parser.add_argument("--short", action="store_true", help="the short form of each kind, as the tests run it")
    return parser.parse_args()


async def run_all(directory: Path, given: argparse.Namespace) -> tuple[list[Result], dict[str, str]]:
    kinds = [kind for kind in FAULTS if given.only.lower() in kind.name.lower()]
    skipped = {kind.name: why for kind in kinds if (why := await kind().skip())}
    wanted = [kind for kind in kinds if kind.name not in skipped]
    total, results = sum(kind.share for kind in wanted), []
    wanted = list(dropwhile(lambda kind: given.first.lower() not in kind.name.lower(), wanted))
    by_size: dict[int, list[type[Fault]]] = defaultdict(list)
    for kind in wanted:
        by_size[kind.brokers].append(kind)
    for brokers, some in by_size.items():
        async with serving(directory / f"stack-{brokers}", brokers) as servers:
            for kind in some:
                seconds = None if given.short else 60 * given.minutes * kind.share / total
                place = directory / kind.__name__.lower()
                place.mkdir()
                began = time.monotonic()
                result = await run(
                    servers, place, [kind], Form(given.seed, given.rate, seconds, standbys=given.standbys)
                )
                results.append(result)
                # at once, so that a run that is cut off has shown what it found
                tell("\n".join([*rows(result), *details(result), f"  took {time.monotonic() - began:.0f} s"]))
    return results, skipped


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def table(results: list[Result], skipped: dict[str, str]) -> list[str]:
    """Markdown."""
    injected = [row for result in results for row in rows(result)]
    not_injected = [_line((name, "0", "", "", "", "", "", f"skipped: {why}")) for name, why in skipped.items()]
    return [_line(HEAD), _line(["---"] * len(HEAD)), *injected, *not_injected]


def rows(result: Result) -> list[str]:
    return [
        _line(
            (
                fault.name,
                f"{fault.injected:,}",
                f"{result.messages:,}",
                f"{result.episodes:,}",
                f"{result.lost}",
                f"{result.duplicated}",
                f"{result.longest_stall:.1f} s",
                "" if result.clean else "NOT CLEAN",
            )
        )
        for fault in result.faults
    ]


def details(result: Result) -> list[str]:
    return [f"  {line}" for line in [*result.notes, *result.problems]]


def _line(cells: "list[str] | tuple[str, ...]") -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
