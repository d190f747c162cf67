"""What the segmenter is given, and what it gives back."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from afterword.schemas.headers import Headers


class Outgoing(NamedTuple):
    """A record to be sent."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(slots=True)
class Outcome:
    """What a batch led to; `outgoing` is in order."""

    outgoing: list[Outgoing] = field(default_factory=list)
    messages: int = 0
    """Taken: each is pending or in one episode."""
    duplicates: int = 0
    skipped: int = 0
    flushes: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)
    """By error type."""
    episodes: Counter[str] = field(default_factory=Counter)
    """By close reason."""


@dataclass(slots=True)
class Totals:
    """Of all batches that this worker handled; one that had to be run again counts again."""

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        for name in ("messages", "duplicates", "skipped", "flushes"):
            self.counts[name] += getattr(outcome, name)
        self.counts.update({f"dead_letters_{error_type}": n for error_type, n in outcome.dead_letters.items()})
        self.counts.update({f"episodes_{reason}": n for reason, n in outcome.episodes.items()})
