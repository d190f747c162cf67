"""One SQLite file that stores everything on one machine: its tables, and transactions on it.

Several processes read and write it at once. SQLite comes from apsw, whose version is newer than Python's own: FTS5
overwrites deleted text only from 3.42 on.
"""

import asyncio
import fcntl
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import apsw

from afterword.streams.errors import StoreUnavailable
from afterword.streams.private import OWNER_FILE, private_directory

STORE = "sqlite"
TIMEOUT_SECONDS = 10.0
LOOK_SECONDS = 0.01
CACHE_KIB = 16 * 1024
"""Maximum memory for the file's pages, in each process."""
PRAGMAS = (
    "synchronous = FULL",  # an offset is committed after the write, so the write must survive a loss of power
    "secure_delete = ON",
    "temp_store = MEMORY",
    f"cache_size = -{CACHE_KIB}",
)

SCHEMA = """
CREATE TABLE messages (
    key TEXT NOT NULL UNIQUE, conversation_id TEXT, tenant_id TEXT, user_id TEXT, agent_id TEXT, role TEXT,
    sent_at INTEGER, partition INTEGER, offset INTEGER, changed INTEGER NOT NULL,
    metadata_offset INTEGER NOT NULL DEFAULT -1, is_whole INTEGER NOT NULL DEFAULT TRUE,
    deleted INTEGER NOT NULL DEFAULT FALSE, skipped INTEGER, tokens INTEGER, episode_id TEXT, content TEXT,
    message TEXT);
CREATE INDEX messages_of_conversation ON messages (conversation_id, offset);
CREATE INDEX messages_unsummarized ON messages (conversation_id, offset) WHERE episode_id IS NULL;
CREATE INDEX messages_of_user ON messages (user_id, tenant_id, conversation_id);
CREATE INDEX messages_by_age ON messages (sent_at);
CREATE TABLE message_scopes (key TEXT, scope TEXT, PRIMARY KEY (key, scope)) WITHOUT ROWID;
CREATE TABLE episodes (
    id TEXT NOT NULL UNIQUE, scope TEXT NOT NULL, conversation_id TEXT NOT NULL, ordinal INTEGER NOT NULL,
    revision INTEGER NOT NULL, attempt INTEGER NOT NULL, deleted INTEGER NOT NULL, ended_at INTEGER, due_at INTEGER,
    document TEXT NOT NULL);
CREATE INDEX episodes_of_scope ON episodes (scope, ordinal);
CREATE INDEX episodes_of_conversation ON episodes (conversation_id, id);
CREATE INDEX episodes_by_age ON episodes (ended_at);
CREATE INDEX episodes_due ON episodes (due_at) WHERE due_at IS NOT NULL;
CREATE TABLE episode_messages (
    conversation_id TEXT, message_id TEXT, episode_id TEXT,
    PRIMARY KEY (conversation_id, message_id, episode_id)) WITHOUT ROWID;
CREATE TABLE participants (episode_id TEXT, tenant_id TEXT, user_id TEXT, conversation_id TEXT);
CREATE INDEX participants_of_episode ON participants (episode_id);
CREATE INDEX participants_by_user ON participants (user_id, tenant_id, conversation_id);
CREATE TABLE facts (
    user_id TEXT, tenant_id TEXT, statement TEXT, kind TEXT, attribute TEXT, about TEXT, said_by TEXT, episode_id TEXT,
    conversation_id TEXT, ordinal INTEGER, message_ids TEXT, ended_at INTEGER);
CREATE INDEX facts_of_episode ON facts (episode_id);
CREATE INDEX facts_of_user ON facts (user_id, tenant_id, ended_at DESC);
CREATE TABLE rolling_rows (
    scope TEXT, row INTEGER, revision INTEGER NOT NULL, last_ordinal INTEGER NOT NULL, document TEXT NOT NULL,
    PRIMARY KEY (scope, row));
CREATE TABLE conversations (
    scope TEXT NOT NULL UNIQUE, revision INTEGER NOT NULL, tenant_id TEXT, user_id TEXT, episode_count INTEGER NOT NULL,
    updated_at INTEGER NOT NULL, document TEXT NOT NULL);
CREATE INDEX conversations_of_user ON conversations (user_id, tenant_id, updated_at, scope) WHERE episode_count > 0;
CREATE TABLE budgets (key TEXT PRIMARY KEY, tokens INTEGER NOT NULL, expires_at INTEGER NOT NULL);
CREATE TABLE api_keys (digest TEXT PRIMARY KEY, key_id TEXT NOT NULL, document TEXT NOT NULL);
CREATE TABLE erasures (key TEXT UNIQUE, id TEXT NOT NULL UNIQUE, document TEXT NOT NULL);
CREATE TABLE points (
    id INTEGER PRIMARY KEY, episode_id TEXT NOT NULL UNIQUE, revision INTEGER NOT NULL,
    agent_id TEXT, conversation_id TEXT, ended_at INTEGER, model TEXT, signs BLOB, message_ids TEXT, packed BLOB);
CREATE TABLE finders (
    id INTEGER PRIMARY KEY, point INTEGER NOT NULL, user_id TEXT NOT NULL, tenant_id TEXT, started_at INTEGER);
CREATE INDEX finders_of_point ON finders (point);
CREATE INDEX finders_by_user ON finders (user_id, tenant_id, started_at, point);
CREATE TABLE vectors (id INTEGER PRIMARY KEY, model TEXT, size INTEGER NOT NULL, packed BLOB NOT NULL);
CREATE VIRTUAL TABLE words USING fts5 (text, tokenize = 'ascii');
INSERT INTO words (words, rank) VALUES ('secure-delete', 1);
"""
"""`points` has the indexed episodes, with times in microseconds. The row that keeps a removed episode out has no
`message_ids`. `model` made the vectors, `signs` has the signs of their coordinates, and `packed` has the words for the
ranking. `words` has those for the search, see `sqlite_index.py`. `vectors` has those of the messages, with their model
and dimension."""

T = TypeVar("T")

MOST_TOGETHER = 50
"""Maximum number of calls that share a transaction, in which other processes cannot write."""
READ, WRITE, NO_TRANSACTION = "BEGIN", "BEGIN IMMEDIATE", ""


class Job(NamedTuple, Generic[T]):
    """A call that waits for the file's thread."""

    call: Callable[[apsw.Connection], T]
    begin: str
    """How its transaction begins."""
    result: asyncio.Future[T]


class SqliteFile:
    """A file, which is created on first use, or a database in memory.

    The calls of a file run in a thread of its own, because the disk blocks. Waiting calls share a transaction, so many
    small writes wait for the disk once. Calls in memory run directly.
    """

    def __init__(self, path: Path | None, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """`timeout_seconds` is how long a write waits for another process."""
        self.path = path
        self._timeout_seconds = timeout_seconds
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqlite") if path else None
        self._connection: apsw.Connection | None = None
        self._emptying: asyncio.Future[None] | None = None
        self._waiting: deque[Job[Any]] = deque()
        self._work: asyncio.Task[None] | None = None

    async def read(self, call: Callable[[apsw.Connection], T]) -> T:
        """Call with a connection that sees one state of the file. Raises: StoreUnavailable."""
        return await self._run(call, READ)

    async def select(self, select: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return all rows that a query finds. Raises: StoreUnavailable."""
        return await self.read(lambda connection: rows(connection, select, values))

    async def write(self, call: Callable[[apsw.Connection], T]) -> T:
        """Call in a transaction; afterwards what it wrote is on disk. If it raises, it has written nothing.

        It may be called twice, but only one of the two transactions is committed. Raises: StoreUnavailable.
        """
        return await self._run(call, WRITE)

    async def ping(self) -> None:
        """Check that the file can be read. Raises: StoreUnavailable."""
        await self.read(lambda connection: rows(connection, "SELECT count(*) FROM sqlite_schema"))

    async def empty_log(self) -> None:
        """Overwrite what earlier writes replaced or deleted, because the write-ahead log keeps a copy of it.

        Calls that wait at the same time share one run: all jobs have one thread, so it starts after their writes.

        Raises: StoreUnavailable if a reader does not end in time; then the write must be repeated.
        """
        if self.path is None:
            return
        if self._emptying is None or self._emptying.done():
            self._emptying = asyncio.ensure_future(
                self._run(lambda connection: _empty_log(connection, self._timeout_seconds), NO_TRANSACTION)
            )
        await asyncio.shield(self._emptying)

    async def close(self) -> None:
        if self._connection is not None:
            await self._run(lambda connection: connection.close(), NO_TRANSACTION)
            self._connection = None
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    async def _run(self, call: Callable[[apsw.Connection], T], begin: str) -> T:
        if self._thread is None:
            found: list[T] = self._called([call], begin)
            return found[0]
        job = Job[T](call, begin, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._run_waiting())  # calls that are made together share a transaction
        return await job.result

    async def _run_waiting(self) -> None:
        while self._waiting:
            jobs = [self._waiting.popleft()]
            most = MOST_TOGETHER if jobs[0].begin else 1
            while self._waiting and len(jobs) < most and self._waiting[0].begin == jobs[0].begin:
                jobs.append(self._waiting.popleft())
            if not await self._answered(jobs):
                for job in jobs:
                    await self._answered([job])

    async def _answered(self, jobs: Sequence[Job[Any]]) -> bool:
        """Run jobs in one transaction and answer them; return False if one of several made it fail."""
        calls, loop = [job.call for job in jobs], asyncio.get_running_loop()
        work = loop.run_in_executor(self._thread, self._called, calls, jobs[0].begin)
        await asyncio.wait([work])
        error = work.exception()
        if error is not None and len(jobs) > 1 and not isinstance(error, StoreUnavailable):
            return False
        for at, job in enumerate(jobs):
            if job.result.done():  # the caller was cancelled
                continue
            if error is None:
                job.result.set_result(work.result()[at])
            else:
                job.result.set_exception(error)
        return True

    def _called(self, calls: Sequence[Callable[[apsw.Connection], Any]], begin: str) -> list[Any]:
        with sqlite_errors(self.path):
            if self._connection is None:
                self._connection = _connected(self.path, self._timeout_seconds)
            if not begin:
                return [call(self._connection) for call in calls]
            self._connection.execute(begin)
            try:
                found = [call(self._connection) for call in calls]
                self._connection.execute("COMMIT")
            finally:
                if (
                    self._connection.in_transaction
                ):  # SQLite rolls back by itself only after some failures, such as a full disk
                    self._connection.execute("ROLLBACK")
            return found


def rows(
    connection: apsw.Connection, select: str, values: Sequence[Any] | Mapping[str, Any] = ()
) -> list[tuple[Any, ...]]:
    """Return all rows that a statement returns."""
    return connection.execute(select, values).fetchall()


def insert(connection: apsw.Connection, table: str, row: Mapping[str, Any], otherwise: str = "") -> int:
    """Insert a row, given by its columns; return its rowid. `otherwise` is the clause for a row that exists."""
    values = ", ".join(f":{name}" for name in row)
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values}) {otherwise}", row)  # noqa: S608 – only our own names are inserted
    return connection.last_insert_rowid()


def _connected(path: Path | None, timeout_seconds: float) -> apsw.Connection:
    if path is None:
        return _prepared(apsw.Connection(":memory:"), timeout_seconds)
    private_directory(path.parent)
    with _alone(path.parent):
        if not path.exists():
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_FILE))
        return _prepared(apsw.Connection(str(path)), timeout_seconds)


def _prepared(connection: apsw.Connection, timeout_seconds: float) -> apsw.Connection:
    connection.set_busy_timeout(int(timeout_seconds * 1000))
    for pragma in PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    if connection.pragma("user_version") == 0:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = 1; COMMIT")
    return connection


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Wait until no other process prepares a file in the directory: only one at a time can switch it to WAL mode."""
    held = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _empty_log(connection: apsw.Connection, timeout_seconds: float) -> None:
    until = time.monotonic() + timeout_seconds
    while rows(connection, "PRAGMA wal_checkpoint(TRUNCATE)")[0][0]:
        if time.monotonic() >= until:
            raise StoreUnavailable(store=STORE, problem="a reader keeps its log from being emptied")
        time.sleep(LOOK_SECONDS)  # SQLite waits for readers itself, but not for another process that empties the log


@contextmanager
def sqlite_errors(path: Path | None) -> Iterator[None]:
    """Turn errors of SQLite and the disk into StoreUnavailable."""
    try:
        yield
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise StoreUnavailable(store=STORE, problem=f"{path} is damaged") from error
    except apsw.Error as error:
        raise StoreUnavailable(store=STORE, problem=type(error).__name__) from error
    except OSError as error:
        raise StoreUnavailable(store=STORE, problem=f"{path}: {error.strerror}") from error
