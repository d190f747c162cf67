"""The gate on the labelled set: what it refuses, and what it lets pass."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from afterword.streams.summarizer.quality import QualityRules, assess
from benchmarks.quality.pairs import Pair, Split, read

SPLITS: tuple[Split, ...] = ("dev", "test")
PASSED = "passed"
TWENTY_MESSAGES = range(16, 25)


@dataclass(frozen=True)
class Verdict:
    pair: Pair
    reason: str
    """Reason of the refusal, or PASSED."""

    @property
    def refused(self) -> bool:
        return self.reason != PASSED


@dataclass(frozen=True)
class Result:
    verdicts: tuple[Verdict, ...]

    @property
    def precision(self) -> float:
        """Share of refused summaries that deserved it."""
        refused = [verdict for verdict in self.verdicts if verdict.refused]
        return sum(not verdict.pair.faithful for verdict in refused) / len(refused)

    @property
    def recall(self) -> float:
        """Share of unfaithful summaries that were refused."""
        return refused_share(verdict for verdict in self.verdicts if not verdict.pair.faithful)


def run(split: Split) -> Result:
    """Run the gate with the default settings."""
    return Result(tuple(_verdict(pair) for pair in read() if pair.split == split))


def refused_share(verdicts: Iterable[Verdict]) -> float:
    refused = [verdict.refused for verdict in verdicts]
    return sum(refused) / len(refused)


def milliseconds(turns: range = TWENTY_MESSAGES) -> float:
    """Processor time for one summary, the median over conversations of that many messages."""
    took = []
    for pair in (pair for pair in read() if len(pair.turns) in turns):
        start = time.process_time()
        _verdict(pair)
        took.append(1000 * (time.process_time() - start))
    return median(took)


def show(console: Console) -> None:
    for split in SPLITS:
        result = run(split)
        console.print(_table(split, result))
        console.print(f"{split}: precision {result.precision:.3f}, recall {result.recall:.3f}\n")
    console.print(f"{TWENTY_MESSAGES[0]} to {TWENTY_MESSAGES[-1]} messages: {milliseconds():.1f} ms a summary\n")


def _verdict(pair: Pair) -> Verdict:
    problems = assess(pair.source, pair.texts, QualityRules()).problems
    return Verdict(pair, problems[0].reason if problems else PASSED)


def _table(split: Split, result: Result) -> Table:
    half = "limits were chosen on it" if split == "dev" else "held out"
    table = Table("summary", "made from", "pairs", "refused", "reasons", title=f"Quality gate, {split} ({half})")
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in result.verdicts:
        groups.setdefault((verdict.pair.kind, verdict.pair.origin), []).append(verdict)
    for (kind, origin), verdicts in sorted(groups.items()):
        reasons = Counter(verdict.reason for verdict in verdicts if verdict.refused)
        told = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
        table.add_row(kind, origin, str(len(verdicts)), f"{refused_share(verdicts):.0%}", told)
    return table
