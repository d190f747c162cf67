"""Small made-up histories in memory."""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

from afterword.importing.outcomes import ImportOutcome, LeftOut, Rejected
from afterword.schemas import MessageCreated


class MemoryFiles:
    """Files, by name, of bytes or of what is to be JSON."""

    def __init__(self, files: Mapping[str, Any]) -> None:
        self._files = {n: v if isinstance(v, bytes) else json.dumps(v).encode() for n, v in files.items()}

    @property
    def names(self) -> Sequence[str]:
        return sorted(self._files)

    def open(self, name: str) -> BinaryIO:
        return io.BytesIO(self._files[name])


def messages_of(outcomes: Iterable[ImportOutcome]) -> list[MessageCreated]:
    return [outcome for outcome in outcomes if isinstance(outcome, MessageCreated)]


def reasons(outcomes: Iterable[ImportOutcome]) -> list[str]:
    """Reasons of what was left out, and texts of what was rejected."""
    return [o.reason if isinstance(o, LeftOut) else str(o) for o in outcomes if isinstance(o, LeftOut | Rejected)]
