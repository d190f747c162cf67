"""An audit's findings, for people and for programs."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from afterword.operating.audit.findings import FINDINGS
from afterword.streams.text.visible import shown

EXAMPLES_NAMED = 10


@dataclass
class Finding:
    """The number of violations of one kind and the first examples in order: ids and positions, never contents."""

    count: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Missing:
    """The work that was left when the wait timed out."""

    after_seconds: float
    left: dict[str, int]
    """Number of records that each worker had not finished."""

    def line(self) -> str:
        found = ", ".join(f"{count:,} by the {role}" for role, count in self.left.items() if count)
        return f"records not finished after {self.after_seconds:g} s: {found or 'none left'}"


@dataclass
class Report:
    """Counts of `messages`, `episodes` and `summaries`. Anything in `findings` breaks the promise."""

    messages: dict[str, int] = field(default_factory=dict)
    episodes: dict[str, int] = field(default_factory=dict)
    summaries: dict[str, int] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: Missing | None = None

    @property
    def clean(self) -> bool:
        """Whether there are no findings and nothing that was waited for is missing."""
        return not self.findings and self.missing is None

    def as_dict(self) -> dict[str, Any]:
        return {"clean": self.clean, **asdict(self)}

    def lines(self) -> Iterator[str]:
        """Format the report for people.

        An id with a line break stays on one line and cannot pass for a line of the report.
        """
        for title, counts in (("messages", self.messages), ("episodes", self.episodes), ("summaries", self.summaries)):
            yield title
            yield from (f"  {name.replace('_', ' '):<20}{count:>12,}" for name, count in counts.items())
        yield from (shown(f"note: {note}") for note in self.notes)
        for kind, finding in self.findings.items():
            yield f"{kind}: {finding.count:,}: {FINDINGS[kind].meaning}"
            yield from (shown(f"  {example}") for example in finding.examples)
        if self.missing:
            yield self.missing.line()
        if self.findings:
            yield "NOT CLEAN"
        elif self.missing:
            yield "INCOMPLETE: nothing is lost, duplicated or conflicting in what has arrived"
        else:
            yield "clean: nothing is lost, duplicated or conflicting"
