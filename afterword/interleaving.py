"""Several conversations at a time, as they are in real life, each in its own order."""

from collections import deque
from collections.abc import Iterable, Iterator

from afterword.lines import Outgoing


class Interleaving:
    """Round robin over `width` conversations at a time; a width of 1 keeps the order of the input.

    A record is held back until `width` conversations are open, so that each round takes one of each.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._open: dict[str, deque[Outgoing]] = {}

    def add(self, records: Iterable[Outgoing]) -> Iterator[Outgoing]:
        """The records that are due now."""
        for record in records:
            if self._width == 1:
                yield record
                continue
            while record.conversation_id not in self._open and len(self._open) >= self._width:
                yield from self._round()
            self._open.setdefault(record.conversation_id, deque()).append(record)

    def rest(self) -> Iterator[Outgoing]:
        """All that was held back."""
        while self._open:
            yield from self._round()

    def _round(self) -> Iterator[Outgoing]:
        for conversation_id, held in list(self._open.items()):
            yield held.popleft()
            if not held:
                del self._open[conversation_id]
