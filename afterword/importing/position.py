"""Position of an import in a file, so that an interrupted one goes on where it was."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from afterword.importing.outcomes import HistoryRefused
from afterword.streams.private import write_private

VERSION = 1


@dataclass
class ImportCounts:
    """Outcome of a history so far, with the runs before this one."""

    messages: int = 0
    """Sent and acknowledged."""
    known: int = 0
    """Left out because the archive has them."""
    flushes: int = 0
    rejected: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Counts by reason."""


@dataclass
class ImportPosition:
    """Progress of an import. `done`: outcomes of the reader that were handled, in its order."""

    fingerprint: str
    """Digest of the history and of the options that decide what is made of it."""
    done: int = 0
    finished: bool = False
    counts: ImportCounts = field(default_factory=ImportCounts)
    open: dict[str, str | None] = field(default_factory=dict)
    """Conversations with messages that are not flushed yet, and their tenants; the longest idle first."""


def load_position(path: Path, fingerprint: str) -> ImportPosition | None:
    """Read the position of an import; None if there is none, or one of another history that is finished.

    Raises: HistoryRefused, for what is no position, and for that of another history.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = _from(orjson.loads(data))
    except (ValueError, TypeError, KeyError):
        raise HistoryRefused(
            file=path, problem="not a position of afterword import; name another with --position"
        ) from None
    if found.fingerprint == fingerprint:
        return found
    if found.finished:
        return None
    problem = "it is of another file, or of other options, and not finished; remove it to begin with this one"
    raise HistoryRefused(file=path, problem=problem)


def save_position(path: Path, position: ImportPosition) -> None:
    """Replace the file in one step. Raises: OSError."""
    write_private(path, orjson.dumps({"version": VERSION, **vars(position), "counts": vars(position.counts)}))


def _from(data: dict[str, Any]) -> ImportPosition:
    if data.pop("version") != VERSION:
        raise ValueError("another version")
    counts = data.pop("counts")
    return ImportPosition(**data, counts=ImportCounts(**{**counts, "left_out": Counter(counts["left_out"])}))
