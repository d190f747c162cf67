"""Who is told how the engine fares; nobody, unless somebody asks to be."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one source partition stands, at one look."""

    topic: str
    partition: int
    ready: bool
    """Open: its records are being handled."""
    lag_records: int
    """Not done yet: unread, in hand, or not committed. Of a source written in transactions, their markers count."""
    lag_seconds: float | None
    """Age of the oldest of these records; see `Backlog` for how it is known. None where records are held back."""
    state_bytes: int | None = None
    """What the local state takes on disk; None where there is none."""
    scheduled: int | None = None
    """Rows in the index of deadlines."""
    next_deadline_ms: int | None = None
    """The earliest in that index, in milliseconds since 1970."""


class Observer:
    """Does nothing; override what is of interest. None of it is called for each record, and none of it may raise."""

    def recovered(self, records: int, seconds: float) -> None:
        """One partition's state was brought up to date from so many records of its changelogs."""

    def rebalanced(self, seconds: float) -> None:
        """From giving up the partitions that there were to taking the new ones; the first assignment too."""

    def stalled(self) -> None:
        """The watchdog is about to end the worker."""

    def stands(self, partitions: Sequence[Standing]) -> None:
        """Every partition that is assigned, some seconds after the last time."""
