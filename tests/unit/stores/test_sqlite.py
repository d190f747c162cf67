"""The SQLite file: what was acknowledged outlives its writer, and what failed leaves nothing."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from afterword.streams.errors import StoreUnavailable
from afterword.streams.stores.sqlite import SqliteFile, insert

WRITER = """
import asyncio, sys
from pathlib import Path
from afterword.streams.stores.sqlite import SqliteFile, insert

async def write():
    file, number = SqliteFile(Path(sys.argv[1])), 0
    while True:
        row = {"key": f"{sys.argv[2]}-{number}", "tokens": number, "expires_at": 0}
        await file.write(lambda connection: insert(connection, "budgets", row))
        print(number, flush=True)
        number += 1

asyncio.run(write())
"""
ROWS = 20


def test_what_two_writers_were_told_is_written_outlives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "data" / "file.sqlite"
    writers = {
        name: subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], stdout=subprocess.PIPE, text=True)
        for name in ("one", "two")
    }
    told = dict.fromkeys(writers, 0)
    for name, writer in writers.items():
        assert writer.stdout is not None
        while told[name] < ROWS:
            told[name] = int(writer.stdout.readline())
    for name, writer in writers.items():
        writer.send_signal(signal.SIGKILL)
        rest = writer.communicate()[0].splitlines()
        told[name] = int(rest[-1]) if rest else told[name]
    for name, last in told.items():
        assert asyncio.run(numbers(path, name))[: last + 1] == list(range(last + 1))


async def numbers(path: Path, name: str) -> list[int]:
    """What the writer has written, in order."""
    file = SqliteFile(path)
    found = await file.select("SELECT tokens FROM budgets WHERE key LIKE ? ORDER BY tokens", f"{name}-%")
    await file.close()
    return [tokens for (tokens,) in found]


@pytest.mark.parametrize("error", [apsw.FullError, ZeroDivisionError])
async def test_a_write_that_fails_leaves_nothing_and_does_not_hinder_the_next(error: type[Exception]) -> None:
    file = SqliteFile(None)

    def fail(connection: apsw.Connection) -> None:
        insert(connection, "budgets", {"key": "a", "tokens": 1, "expires_at": 0})
        raise error

    with pytest.raises(StoreUnavailable if error is apsw.FullError else error):
        await file.write(fail)
    assert await file.select("SELECT * FROM budgets") == []
    await file.write(lambda connection: insert(connection, "budgets", {"key": "b", "tokens": 2, "expires_at": 0}))
    assert await file.select("SELECT key FROM budgets") == [("b",)]
