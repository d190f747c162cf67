"""Size of the next transaction, as part of what was read, or of what is finished: decisions, without I/O.

A slice on which the agent fails is halved until the failing record is alone. One whose commit timed out is retried at
half its size, in records and in bytes, and later slices grow again step by step.
"""

from collections.abc import Iterable

LEAST_BYTES = 64 * 1024
GROW_AFTER = 8
"""Commits after which slices are doubled; doubled itself whenever larger slices time out again."""
LONGEST_GROWTH = 1024


class Slices:
    """Sizes of the transactions of one partition; outlives its sessions.

    `most`: records, or keys that are due. `most_bytes`: of the records; of what they send, where they are finished
    before (at least once). `most_written`: bytes of what the agent writes, which it reads from `Batch.most_bytes`.
    """

    def __init__(self, most: int, most_bytes: int, most_written: int) -> None:
        self._limits = (most, most_bytes, most_written)
        self.most, self._most_bytes, self.most_written = self._limits
        self._suspects = 0
        """Next records among which one fails."""
        self._start = most
        """First size after a record failed alone: small, as more of them may follow."""
        self._good = 0
        self._grow_after = GROW_AFTER
        self._has_grown = False
        """True once slices have grown since the last commit that timed out."""

    def take(self, sizes: Iterable[int]) -> int:
        """Return how many of the next records make a slice, at least one. `sizes`: their bytes; not all are read."""
        most = min(self.most, self._start)
        if self._suspects:
            most = min(most, max(1, self._suspects // 2))
        number = total = 0
        for size in sizes:
            total += size
            if number and (number == most or total > self._most_bytes):
                break
            number += 1
        return number

    def committed(self, number: int) -> None:
        """Note a slice of so many records that is done."""
        self._suspects = max(0, self._suspects - number)
        self._start = min(self._limits[0], 2 * self._start)
        self._good += 1
        if not self._is_reduced:
            self._grow_after, self._has_grown = GROW_AFTER, False
        elif self._good >= self._grow_after:
            self._good, self._has_grown = 0, True
            sizes = zip(self._limits, (self.most, self._most_bytes, self.most_written), strict=True)
            self.most, self._most_bytes, self.most_written = (min(limit, 2 * size) for limit, size in sizes)

    def agent_failed(self, number: int) -> None:
        """Note a slice on which the agent failed: one of so many records is at fault. One record alone is passed."""
        if number > 1:
            self._suspects = number
        else:
            self._suspects, self._start = 0, 1

    def timed_out(self, number: int, read: int, written: int) -> None:
        """Note a slice whose commit timed out. `read`, `written`: its bytes."""
        if self._has_grown:
            self._grow_after = min(LONGEST_GROWTH, 2 * self._grow_after)
        self._good, self._has_grown = 0, False
        self.most = max(1, min(self.most, number) // 2)
        self._most_bytes = max(LEAST_BYTES, min(self._most_bytes, read) // 2)
        self.most_written = max(LEAST_BYTES, min(self.most_written, written) // 2)

    @property
    def _is_reduced(self) -> bool:
        return (self.most, self._most_bytes, self.most_written) != self._limits
