"""The SQLite file: what was acknowledged outlives its writer, and what failed leaves nothing."""

import asyncio
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
import pytest_asyncio

from afterword.schemas import MessageDeleted
from afterword.streams.errors import StoreUnavailable
from afterword.streams.stores.index import Query, SearchText
from afterword.streams.stores.messages import ArchiveChange, ArchivedMessage
from afterword.streams.stores.sqlite import SqliteEpisodes, SqliteFile, SqliteMessages, insert
from afterword.streams.stores.sqlite_index import SqliteIndex
from afterword.streams.tasks import Batches
from tests.samples import NOON, a_conversation, a_message, a_row, a_summary
from tests.vectors import episode_of

WRITER = """
import asyncio, sys
from pathlib import Path
from afterword.streams.stores.sqlite import SqliteFile, insert

async def write():
    file, number = SqliteFile(Path(sys.argv[1])), 0
    while True:
        row = {"kind": sys.argv[2], "key": str(number), "document": str(number)}
        await file.write(lambda connection: insert(connection, "records", row))
        print(number, flush=True)
        number += 1

asyncio.run(write())
"""
EMPTIER = """
import fcntl, sys

CHECKPOINT = 121  # the byte that SQLite locks; see https://www.sqlite.org/walformat.html
with open(sys.argv[1] + "-shm", "r+b") as shared:
    fcntl.lockf(shared, fcntl.LOCK_EX, 1, CHECKPOINT)
    print("locked", flush=True)
    sys.stdin.read()
"""
ROWS = 20
EPISODES = 300
WRITERS = 16
NEEDLE = "A needle in a haystack"


@pytest_asyncio.fixture
async def file(tmp_path: Path) -> AsyncIterator[SqliteFile]:
    opened = SqliteFile(tmp_path / "file.sqlite")
    yield opened
    await opened.close()


def test_acknowledged_writes_outlive_kill_9(tmp_path: Path) -> None:
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
    """Return the written numbers, in order."""
    file = SqliteFile(path)
    found = await file.select("SELECT document FROM records WHERE kind = ?", name)
    await file.close()
    return sorted(int(number) for (number,) in found)


@pytest.mark.parametrize("error", [apsw.FullError, ZeroDivisionError])
async def test_failed_write_leaves_nothing_and_delays_no_other(error: type[Exception]) -> None:
    file = SqliteFile(None)

    def fail(connection: apsw.Connection) -> None:
        put_number(connection, 1)
        raise error

    with pytest.raises(StoreUnavailable if error is apsw.FullError else error):
        await file.write(fail)
    assert await file.select("SELECT * FROM records") == []
    await file.write(lambda connection: put_number(connection, 2))
    assert await file.select("SELECT key FROM records") == [("2",)]


async def test_time_bounded_search_costs_nothing_for_other_episodes() -> None:
    """SQLite would otherwise run the match once for each episode of the span, taking seconds for a question with a
    date."""
    file = SqliteFile(None)
    index = SqliteIndex(file)
    for number in range(EPISODES):
        summary = a_summary(1, f"c{number}", started_at=NOON + timedelta(minutes=number))
        await index.put(episode_of(summary), {"m1": SearchText("the refund of the broken kettle")})
    everywhere = await instructions(file, index, Query(text="broken kettle refund", user_id="u1", tenant_id="t1"))
    later = Query(text="broken kettle refund", user_id="u1", tenant_id="t1", started_after=NOON + timedelta(minutes=1))
    assert await instructions(file, index, later) < 3 * everywhere


async def instructions(file: SqliteFile, index: SqliteIndex, query: Query) -> int:
    """Count the instructions of SQLite's virtual machine that a search takes."""
    counted = 0

    def count() -> bool:
        nonlocal counted
        counted += 1
        return False

    await file.read(lambda connection: connection.set_progress_handler(count, 1))
    assert await index.search(query)
    await file.read(lambda connection: connection.set_progress_handler(None))
    return counted


async def test_ping_fails_while_the_file_cannot_be_written(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "afterword.sqlite")
    await file.ping()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(StoreUnavailable):
            await file.ping()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    await file.ping()
    await file.close()


async def test_concurrent_writers_share_one_checkpoint(file: SqliteFile, tmp_path: Path) -> None:
    """It takes tens of milliseconds, and many records are in progress."""
    emptied = 0

    def count(_: object, statement: str, __: object) -> bool:
        nonlocal emptied
        emptied += "wal_checkpoint" in statement
        return True

    await file.read(lambda connection: setattr(connection, "exec_trace", count))

    async def change(number: int) -> None:
        await file.write(lambda connection: put_number(connection, number))
        await file.empty_log()

    await asyncio.gather(*map(change, range(WRITERS)))
    assert 1 <= emptied < WRITERS
    assert (tmp_path / "file.sqlite-wal").stat().st_size == 0


async def test_checkpoint_by_another_process_is_awaited(file: SqliteFile, tmp_path: Path) -> None:
    """SQLite says at once that it is busy, whatever its timeout."""
    await file.write(partial(put_number, number=1))
    command = (sys.executable, "-c", EMPTIER, str(file.path))
    other = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdin is not None
    assert other.stdout is not None
    assert await other.stdout.readline() == b"locked\n"
    emptying = asyncio.create_task(file.empty_log())
    done, _ = await asyncio.wait([emptying], timeout=0.2)
    assert not done
    other.stdin.close()
    await emptying
    await other.wait()
    assert (tmp_path / "file.sqlite-wal").stat().st_size == 0


async def test_concurrent_writes_share_a_transaction(file: SqliteFile) -> None:
    """Each of them would wait for the disk, and an episode has five."""
    committed = 0

    def count(_: object, statement: str, __: object) -> bool:
        nonlocal committed
        committed += statement == "COMMIT"
        return True

    await file.read(lambda connection: setattr(connection, "exec_trace", count))
    await asyncio.gather(*[file.write(partial(put_number, number=number)) for number in range(WRITERS)])
    assert committed < WRITERS / 2
    assert await file.select("SELECT document FROM records") == [(str(number),) for number in range(WRITERS)]


async def test_failed_write_spares_others_of_its_transaction(file: SqliteFile) -> None:
    await file.write(partial(put_number, number=0))

    def add(connection: apsw.Connection) -> None:
        connection.execute("UPDATE records SET document = document + 1")

    def fail(connection: apsw.Connection) -> None:
        add(connection)
        raise ZeroDivisionError

    writes = [file.write(call) for call in (add, fail, add, add)]
    ended = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(one) for one in ended] == [type(None), ZeroDivisionError, type(None), type(None)]
    assert await file.select("SELECT document FROM records") == [("3",)]


async def test_cancelled_caller_spares_those_that_wait_with_it(file: SqliteFile) -> None:
    writes = [asyncio.create_task(file.write(partial(put_number, number=number))) for number in range(WRITERS)]
    await asyncio.sleep(0)
    for task in writes[::2]:
        task.cancel()
    await asyncio.gather(*writes[1::2])
    found = {int(number) for (number,) in await file.select("SELECT document FROM records")}
    assert found >= set(range(1, WRITERS, 2))


def put_number(connection: apsw.Connection, number: int) -> None:
    insert(connection, "records", {"kind": "numbers", "key": f"{number}", "document": f"{number}"})


async def test_text_removed_from_a_growing_row_leaves_no_byte(file: SqliteFile, tmp_path: Path) -> None:
    episodes, messages = SqliteEpisodes(file), SqliteMessages(file)
    message = a_message(content=NEEDLE)
    await messages.put_many([ArchivedMessage(message, 0, 1)])
    begun = a_row(content=NEEDLE)
    grown = a_row(content="The rest.", revision=2, last_ordinal=2, inputs=((1, 1), (2, 1)))
    assert await episodes.put_row(begun, None)
    assert await episodes.put_row(grown, begun)
    assert NEEDLE.encode() in everything(tmp_path)
    deleted = MessageDeleted(id=message.id, conversation_id="c1", tenant_id=message.tenant_id)
    await messages.change(ArchiveChange(deleted, 0, 2))
    assert NEEDLE.encode() not in everything(tmp_path)


@pytest.mark.parametrize(
    "change", [{"inputs": ((1, 2),)}, {"inputs": ()}], ids=["another revision of an episode", "no episode left"]
)
async def test_changed_rows_old_text_leaves_no_byte(file: SqliteFile, tmp_path: Path, change: dict[str, Any]) -> None:
    episodes, row = SqliteEpisodes(file), a_row(content=NEEDLE)
    assert await episodes.put_row(row, None)
    assert await episodes.put_row(a_row(content="", revision=2, **change), row)
    assert NEEDLE.encode() not in everything(tmp_path)


async def test_conversations_old_title_leaves_no_byte(file: SqliteFile, tmp_path: Path) -> None:
    episodes, known = SqliteEpisodes(file), a_conversation(title=NEEDLE)
    assert await episodes.put_conversation(known, None)
    assert await episodes.put_conversation(a_conversation(revision=2, title=""), known)
    assert NEEDLE.encode() not in everything(tmp_path)


def everything(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.iterdir())


async def test_call_that_cancels_itself_leaves_no_job_waiting() -> None:
    async def cancel(_: object, jobs: list[int]) -> Sequence[int]:
        await asyncio.sleep(0)
        if 1 in jobs:
            raise asyncio.CancelledError
        return jobs

    batches = Batches[int](cancel, most=4)
    cancelled, done = (asyncio.create_task(batches.result(number, "kind")) for number in (1, 2))
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(cancelled, 5)
    assert await done == 2


async def test_jobs_of_one_kind_run_together_despite_others_between() -> None:
    ran: list[tuple[object, list[int]]] = []

    async def note(kind: object, jobs: list[int]) -> Sequence[int]:
        await asyncio.sleep(0)
        ran.append((kind, jobs))
        return jobs

    batches = Batches[int](note, most=2)
    kinds = ["read", "write", "read", "write", None, "read", None]
    assert await asyncio.gather(*map(batches.result, range(7), kinds)) == list(range(7))
    assert ran == [("read", [0, 2]), ("write", [1, 3]), (None, [4]), ("read", [5]), (None, [6])]
