"""The tables that an audit reads topics and stores into."""

import os
import resource
from pathlib import Path

import pytest

from afterword.operating.evidence import INSERTED_TOGETHER, Evidence, NoRoom, open_evidence


def fill(evidence: Evidence) -> None:
    """Add more than SQLite holds in memory, so that it is on disk."""
    for number in range(100_000):
        evidence.add("indexed", f"{number}".zfill(1000), 1)


def files() -> list[Path]:
    """Open files of SQLite's."""
    opened = Path("/proc/self/fd").iterdir()
    return [file for file in opened if file.is_symlink() and "etilqs" in os.readlink(file)]  # noqa: PTH115 – mypy


def test_last_of_equal_rows_stays() -> None:
    with open_evidence() as evidence:
        evidence.add("compacted", "episode", "c:1", 0, False, 1)
        evidence.add("compacted", "conversation", "c:1", 0, False, None)
        evidence.add("compacted", "episode", "c:1", 0, True, 2)
        assert list(evidence.rows("SELECT kind, is_gone, revision FROM compacted ORDER BY 1")) == [
            ("conversation", False, None),
            ("episode", True, 2),
        ]


@pytest.mark.parametrize("number", [1, INSERTED_TOGETHER, INSERTED_TOGETHER + 1])
def test_query_sees_every_added_row_once(number: int) -> None:
    with open_evidence() as evidence:
        for offset in range(number):
            evidence.add("flush", 0, offset, "c", None)
        assert evidence.value("SELECT COUNT(*) FROM flush") == number
        assert evidence.value("SELECT COUNT(*) FROM flush") == number


def test_evidence_file_is_private_and_unlinked() -> None:
    with open_evidence() as evidence:
        fill(evidence)
        [file] = files()
        found = file.stat()
        assert found.st_size > 0
        assert (found.st_nlink, found.st_mode & 0o777) == (0, 0o600)
    assert not files()


def test_evidence_file_that_cannot_grow_is_named() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        with pytest.raises(NoRoom, match="set TMPDIR to another"), open_evidence() as evidence:
            fill(evidence)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
