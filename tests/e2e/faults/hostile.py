"""Hostile input at random into one deployment at work, and a table of what became of it."""

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
from pathlib import Path

import structlog

from tests.e2e.faults.kinds.hostile import HOSTILE, Hostile
from tests.e2e.faults.nonsense import faithful
from tests.e2e.faults.run import Form, Result, run
from tests.e2e.faults.world import serving

HEAD = ("input", "times", "records", "dead letters", "worst memory", "worst event loop", "worst partition", "")

RATE = 15.0
"""Ordinary messages a second."""


def main() -> None:
    given = arguments()
    directory = Path(tempfile.mkdtemp(prefix="hostile-"))
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    kinds = [kind for kind in HOSTILE if given.only.lower() in kind.name.lower()]
    seconds = None if given.short else 60 * given.minutes
    form = Form(given.seed, given.rate, seconds, hostile=True)
    result = asyncio.run(attacked(directory, kinds, form))
    sys.stdout.write("\n".join([*table(result), "", *details(result), ""]))
    if not result.clean:
        sys.stdout.write(f"NOT CLEAN: seed {given.seed}, logs in {directory}\n")
        sys.exit(1)
    shutil.rmtree(directory)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.faults.hostile", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=20, help="of injections")
    parser.add_argument("--only", metavar="WORD", default="", help="kinds whose name has this word in it")
    parser.add_argument("--rate", type=float, default=RATE, help="ordinary messages a second")
    parser.add_argument("--short", action="store_true", help="each kind once, as the tests run it")
    return parser.parse_args()


async def attacked(directory: Path, kinds: "list[type[Hostile]]", form: Form) -> Result:
    place = directory / "hostile"
    place.mkdir()
    async with serving(directory / "stack") as servers:
        servers.llm.usual = faithful
        return await run(servers, place, kinds, form)


def table(result: Result) -> list[str]:
    """Markdown."""
    return [
        _line(HEAD),
        _line(("---",) * len(HEAD)),
        *(row(fault) for fault in result.faults if isinstance(fault, Hostile)),
    ]


def row(kind: Hostile) -> str:
    megabytes, loop, stall = kind.cost.megabytes, kind.cost.loop, kind.cost.stall
    dead = [f"{number:,} {error_type}" for error_type, number in kind.dead.most_common() if number]
    refused = [f"{number:,} refused by the broker ({error})" for error, number in kind.refused.most_common()]
    return _line(
        (
            kind.name,
            f"{kind.injected:,}",
            f"{kind.records:,}",
            ", ".join([*dead, *refused]) or "–",
            f"{megabytes[0]} MB {megabytes[1]}",
            f"{loop[0]:.2f} s {loop[1]}".strip(),
            f"{stall[0]:.1f} s {stall[1]}".strip(),
            "BEYOND BOUNDS" if kind.cost.beyond_bounds() else "",
        )
    )


def details(result: Result) -> list[str]:
    lost = f"{result.lost} lost, {result.duplicated} duplicated"
    return [f"{result.messages:,} messages, {result.episodes:,} episodes, {lost}", *result.notes, *result.problems]


def _line(cells: "list[str] | tuple[str, ...]") -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
