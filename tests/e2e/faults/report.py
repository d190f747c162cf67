"""Tables of what became of the load, in Markdown."""

from collections.abc import Iterable, Sequence

from tests.e2e.faults.kinds.hostile import Hostile
from tests.e2e.faults.run import Result

HEAD = ("fault", "times", "messages", "episodes", "lost", "duplicated", "longest stall", "")
HOSTILE_HEAD = ("input", "times", "records", "dead letters", "worst memory", "worst event loop", "worst partition", "")


def table(results: Sequence[Result]) -> list[str]:
    """Return a table with a row for each kind of fault."""
    return [_line(HEAD), _line(["---"] * len(HEAD)), *[row for result in results for row in rows(result)]]


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


def hostile_table(result: Result) -> list[str]:
    """Return a table with a row for each kind of hostile input and its cost for the workers."""
    costs = [_hostile_row(kind) for kind in result.faults if isinstance(kind, Hostile)]
    return [_line(HOSTILE_HEAD), _line(["---"] * len(HOSTILE_HEAD)), *costs]


def _hostile_row(kind: Hostile) -> str:
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
    return [f"  {line}" for line in [*result.notes, *result.problems]]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
