"""The search index in a directory: an SQLite file in WAL mode, which other processes read while one writes.

An inverted index for each user and tenant, so that a search reads only what its owner has: the postings of a word are
the numbers of the owner's episodes that have it, with the word's BM25 weight in messages and in summary. A word's
inverse document frequency is that among the owner's episodes.

What is removed or replaced is in no file afterwards: SQLite overwrites it, and the log is emptied.
"""

import asyncio
import fcntl
import math
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import numpy as np
import orjson
from numpy.typing import NDArray

from afterword.schemas import SummaryCreated
from afterword.schemas.base import EPOCH
from afterword.streams.errors import ConfigurationError, StoreUnavailable
from afterword.streams.private import OWNER_FILE, private_directory
from afterword.streams.settings import EmbedderSettings, Qdrant
from afterword.streams.stores.arguments import require_texts
from afterword.streams.stores.index import (
    DENSE,
    DEPTH,
    SUMMARY,
    TEXT,
    Dense,
    Query,
    RankingScores,
    Recalled,
    collection_name,
    fused,
    payload,
    recalled,
    summary_text,
)
from afterword.streams.stores.sparse import SparseVector, document_vector, query_vector

STORE = "index"
PAGE_SIZE = 500
ENTRY = np.dtype([("number", "<u4"), (TEXT, "<f4"), (SUMMARY, "<f4")])
"""A posting: the episode's number among its owner's, and the word's weights."""
CHUNK_BYTES = 256 * ENTRY.itemsize
"""Postings of a word in one row, so that a new episode rewrites little, and a row fits into a page of 4 KiB."""
TERM = np.dtype("<u4")
COORDINATE = np.dtype("<f4")
WRITING_CACHE_KIB = 4 * 1024
READING_CACHE_KIB = 32 * 1024
"""Pages of the file in memory at most, which fill up: of a process that only writes, and from its first search on."""
MOST_WRITES = 64
"""Episodes that are committed together: others who write to the file wait no longer than that."""
DAMAGED = {"SQLITE_CORRUPT", "SQLITE_NOTADB"}

SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE owners (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, episodes INTEGER NOT NULL, next INTEGER NOT NULL);
CREATE TABLE episodes (
    id INTEGER PRIMARY KEY, episode_id TEXT NOT NULL UNIQUE, revision INTEGER NOT NULL,
    owner INTEGER, number INTEGER, conversation_id TEXT, agent_id TEXT, started_at INTEGER, ended_at INTEGER,
    payload BLOB, terms BLOB);
CREATE INDEX episodes_by_owner ON episodes (owner, number, conversation_id, agent_id, started_at, ended_at);
CREATE TABLE postings (
    id INTEGER PRIMARY KEY, owner INTEGER NOT NULL, term INTEGER NOT NULL, first INTEGER NOT NULL,
    entries BLOB NOT NULL, UNIQUE (owner, term, first));
CREATE TABLE vectors (
    id INTEGER PRIMARY KEY, owner INTEGER NOT NULL, number INTEGER NOT NULL, vector BLOB NOT NULL,
    UNIQUE (owner, number));
"""
"""`owner` is null in the row that stays of a removed episode, with its id and revision. Times are microseconds."""

Numbers = NDArray[np.intp]
Scores = NDArray[np.float64]
T = TypeVar("T")


IndexChange = Callable[[sqlite3.Connection], bool]
"""Makes a change in the transaction that is open; tells whether it has taken something out."""


class Write(NamedTuple):
    """A change that waits to be committed."""

    call: IndexChange
    done: "asyncio.Future[None]"
    alone: bool = False
    """It has a transaction of its own, as the one that it shared has failed."""


def _settle(waited: "asyncio.Future[None]", done: "asyncio.Future[None]") -> None:
    """Answer as `done` was answered."""
    if done.cancelled():
        waited.cancel()
    elif error := done.exception():
        waited.set_exception(error)
    else:
        waited.set_result(None)


class SqliteIndex:
    """An EpisodeIndex; the first write creates the file, and reading never does.

    Every call runs in one thread of its own: SQLite blocks, and a search computes.
    """

    def __init__(
        self, directory: Path, collection: str, embedder_model: str | None = None, timeout_seconds: float = 10.0
    ) -> None:
        self._file = IndexFile(directory, collection_name(collection, embedder_model), timeout_seconds)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="index")
        self._waiting: deque[Write] = deque()
        self._writing: asyncio.Future[None] | None = None
        self._closed = False

    async def put(self, summary: SummaryCreated, raw_text: str, dense: Dense | None = None) -> None:
        words = await asyncio.to_thread(_words, summary, raw_text)  # stemming a long episode takes a while
        point = Point(payload(summary), words, dense)
        await self._write(lambda connection: _put(connection, point))

    async def remove(self, episode_id: str, revision: int) -> None:
        await self._write(lambda connection: _remove(connection, episode_id, revision))

    async def search(self, query: Query, dense: Dense | None = None) -> list[Recalled]:
        def find() -> list[tuple[bytes, float, RankingScores | None]] | None:
            words = query_vector(query.text).indices
            return self._file.read(lambda connection: _search(connection, query, words, dense))

        return [recalled(orjson.loads(kept), score, scores) for kept, score, scores in await self._run(find) or ()]

    async def revisions(self, episode_ids: Sequence[str]) -> dict[str, int]:
        require_texts(episode_ids=episode_ids)
        return await self._run(lambda: self._file.read(lambda c: _revisions(c, episode_ids))) or {}

    async def ping(self) -> None:
        await self._run(lambda: self._file.read(lambda c: c.execute("SELECT count(*) FROM facts").fetchone()))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._run(self._file.close)
            self._thread.shutdown(wait=False)

    async def _write(self, call: IndexChange) -> None:
        """Commit the change, with all that come while the disk is busy with those before: it takes long, not they."""
        mine = Write(call, asyncio.get_running_loop().create_future())
        self._waiting.append(mine)
        if self._writing is None:
            self._commit()
        await mine.done

    def _commit(self) -> None:
        taken = [self._waiting.popleft()]
        while self._waiting and len(taken) < MOST_WRITES and not (taken[0].alone or self._waiting[0].alone):
            taken.append(self._waiting.popleft())
        calls = [write.call for write in taken]
        self._writing = asyncio.ensure_future(self._run(lambda: self._file.write(calls)))
        self._writing.add_done_callback(lambda done: self._committed(taken, done))

    def _committed(self, taken: Sequence[Write], writing: "asyncio.Future[None]") -> None:
        """Answer; writes that failed together are made one by one, so that only the one that fails does."""
        self._writing = None
        error = None if writing.cancelled() else writing.exception()
        living = [write for write in taken if not write.done.done()]  # the others' tasks were cancelled
        if error and len(taken) > 1:
            self._waiting.extendleft(write._replace(alone=True) for write in reversed(living))
        else:
            for write in living:
                _settle(write.done, writing)
        self._waiting = deque(write for write in self._waiting if not write.done.done())
        if self._waiting:
            self._commit()

    async def _run(self, call: Callable[[], T]) -> T:
        with _errors(self._file.path):
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def open_directory(settings: Qdrant, embedder: EmbedderSettings) -> SqliteIndex:
    """The configured index in a directory. Opens its file at its first use."""
    if settings.path is None:
        raise ValueError("no path is configured")
    return SqliteIndex(settings.path, settings.collection, embedder.vectors_model, settings.timeout_seconds)


async def check_directory(settings: Qdrant, embedder: EmbedderSettings) -> str:
    """Describe the directory. Raises: StoreUnavailable."""
    index = open_directory(settings, embedder)
    try:
        await index.ping()
    finally:
        await index.close()
    return str(settings.path)


class IndexFile:
    """One thread's connection to the file; opened anew when the file was deleted or made again meanwhile."""

    def __init__(self, directory: Path, collection: str, timeout_seconds: float) -> None:
        self.path = directory / f"{quote(collection, safe='')}.sqlite"
        self._timeout_seconds = timeout_seconds
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None

    def read(self, call: Callable[[sqlite3.Connection], T]) -> T | None:
        """Call with a connection that sees one state of the file; None if there is no file."""
        connection = self._current(create=False)
        if connection is None:
            return None
        with connection:
            connection.execute("BEGIN")
            return call(connection)

    def write(self, changes: Sequence[IndexChange]) -> None:
        """Make all changes in one transaction; what they have taken out is in no file when this returns."""
        connection = self._current(create=True)
        if connection is None:
            raise StoreUnavailable(store=STORE, problem="its file was removed just now")
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            gone = [change(connection) for change in changes]
        if any(gone):
            (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                raise StoreUnavailable(store=STORE, problem="a search keeps its log from being emptied")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._opened = None

    def _current(self, create: bool) -> sqlite3.Connection | None:
        found = _identity(self.path)
        if self._connection is None or found != self._opened:
            self.close()
            if create and found is None:
                self._make()
            self._opened = _identity(self.path)
            if self._opened is not None:
                self._connection = self._connect(self.path)
        return self._connection

    def _make(self) -> None:
        """Create the file, whole or not at all."""
        private_directory(self.path.parent)
        with _alone(self.path.with_suffix(".lock")):
            if not self.path.exists():
                unfinished = self.path.with_suffix(".new")
                _unlink(unfinished)
                os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_FILE))
                with closing(self._connect(unfinished)) as connection:
                    connection.execute("PRAGMA journal_mode = WAL")
                    connection.executescript(SCHEMA)
                _unlink(self.path)  # the log of a file that was deleted
                os.replace(unfinished, self.path)  # noqa: PTH105 – the atomic one, by its name

    def _connect(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=self._timeout_seconds, isolation_level=None, check_same_thread=False)
        for pragma in (
            "synchronous = FULL",
            "secure_delete = ON",
            "temp_store = MEMORY",
            f"cache_size = -{WRITING_CACHE_KIB}",
        ):
            connection.execute(f"PRAGMA {pragma}").close()
        return connection


class Words(NamedTuple):
    """BM25 weights of an episode's words."""

    text: SparseVector
    summary: SparseVector


class Point(NamedTuple):
    """An episode as it is indexed."""

    payload: Mapping[str, Any]
    words: Words
    dense: Dense | None

    @property
    def owner(self) -> str:
        return _owner(self.payload.get("user_id"), self.payload.get("tenant_id"))


def _words(summary: SummaryCreated, raw_text: str) -> Words:
    return Words(document_vector(raw_text), document_vector(summary_text(summary)))


def _put(connection: sqlite3.Connection, point: Point) -> bool:
    """Write an episode, unless a later revision is there; returns whether it replaced one."""
    episode_id, revision = point.payload["episode_id"], point.payload["revision"]
    kept = _kept(connection, episode_id)
    if kept and (kept.revision > revision or (kept.owner is None and kept.revision == revision)):
        return False
    if kept:
        _take_out(connection, kept)
    owner, number = _new_number(connection, point.owner)
    entries = _entries(number, point.words)
    for term, entry in entries.items():
        _append(connection, owner, term, number, entry)
    if point.dense:
        _put_vector(connection, owner, number, point.dense)
    values = {
        **{name: point.payload.get(name) for name in ("episode_id", "revision", "conversation_id", "agent_id")},
        **{name: _microseconds(point.payload[name]) for name in ("started_at", "ended_at")},
        "owner": owner,
        "number": number,
        "payload": orjson.dumps(point.payload),
        "terms": np.fromiter(entries, TERM, len(entries)).tobytes(),
    }
    _write_row(connection, values)
    return kept is not None


def _remove(connection: sqlite3.Connection, episode_id: str, revision: int) -> bool:
    """Take an episode out; True also if it was out: what came before may have been stopped on the way."""
    kept = _kept(connection, episode_id)
    if kept and kept.revision > revision:
        return False
    if kept:
        _take_out(connection, kept)
    gone = dict.fromkeys(("conversation_id", "agent_id", "started_at", "ended_at", "owner", "number"))
    _write_row(connection, {"episode_id": episode_id, "revision": revision, **gone, "payload": None, "terms": None})
    return True


class IndexedRow(NamedTuple):
    """A row of `episodes`."""

    revision: int
    owner: int | None
    number: int | None
    terms: bytes | None


def _kept(connection: sqlite3.Connection, episode_id: str) -> IndexedRow | None:
    select = "SELECT revision, owner, number, terms FROM episodes WHERE episode_id = ?"
    found = connection.execute(select, (episode_id,)).fetchone()
    return IndexedRow(*found) if found else None


def _write_row(connection: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    names = ", ".join(values)
    places = ", ".join(f":{name}" for name in values)
    changed = ", ".join(f"{name} = :{name}" for name in values if name != "episode_id")
    connection.execute(
        f"INSERT INTO episodes ({names}) VALUES ({places}) ON CONFLICT (episode_id) DO UPDATE SET {changed}",  # noqa: S608 – names of ours
        values,
    )


def _new_number(connection: sqlite3.Connection, owner: str) -> tuple[int, int]:
    """Count an episode of the owner; returns the owner's id, and a number that none of its episodes has."""
    count = """INSERT INTO owners (name, episodes, next) VALUES (?, 1, 1)
        ON CONFLICT (name) DO UPDATE SET episodes = episodes + 1, next = next + 1 RETURNING id, next - 1"""
    [(owner_id, number)] = connection.execute(count, (owner,)).fetchall()
    return owner_id, number


def _entries(number: int, words: Words) -> dict[int, bytes]:
    """The posting of each word."""
    text, summary = (dict(zip(vector.indices, vector.values, strict=True)) for vector in words)
    return {
        term: np.array([(number, text.get(term, 0.0), summary.get(term, 0.0))], ENTRY).tobytes()
        for term in text | summary
    }


def _append(connection: sqlite3.Connection, owner: int, term: int, number: int, entry: bytes) -> None:
    last = "SELECT id, entries FROM postings WHERE owner = ? AND term = ? ORDER BY first DESC LIMIT 1"
    found = connection.execute(last, (owner, term)).fetchone()
    if found and len(found[1]) < CHUNK_BYTES:
        connection.execute("UPDATE postings SET entries = ? WHERE id = ?", (found[1] + entry, found[0]))
    else:
        row = owner, term, number, entry
        connection.execute("INSERT INTO postings (owner, term, first, entries) VALUES (?, ?, ?, ?)", row)


def _take_out(connection: sqlite3.Connection, kept: IndexedRow) -> None:
    """Remove an episode's postings and vector, and its owner with the last episode."""
    if kept.owner is None or kept.number is None:
        return
    holding = """SELECT id, entries FROM postings WHERE owner = ? AND term = ? AND first <= ?
        ORDER BY first DESC LIMIT 1"""
    for term in np.frombuffer(kept.terms or b"", TERM).tolist():
        [(row, entries)] = connection.execute(holding, (kept.owner, term, kept.number)).fetchall()
        found = np.frombuffer(entries, ENTRY)
        if left := found[found["number"] != kept.number].tobytes():
            connection.execute("UPDATE postings SET entries = ? WHERE id = ?", (left, row))
        else:
            connection.execute("DELETE FROM postings WHERE id = ?", (row,))
    connection.execute("DELETE FROM vectors WHERE owner = ? AND number = ?", (kept.owner, kept.number))
    connection.execute("UPDATE owners SET episodes = episodes - 1 WHERE id = ?", (kept.owner,))
    connection.execute("DELETE FROM owners WHERE id = ? AND episodes = 0", (kept.owner,))


def _put_vector(connection: sqlite3.Connection, owner: int, number: int, dense: Dense) -> None:
    connection.execute("INSERT OR IGNORE INTO facts VALUES ('dimension', ?)", (len(dense),))
    _require_dimension(connection, dense)
    row = owner, number, _unit(dense).tobytes()
    connection.execute("INSERT INTO vectors (owner, number, vector) VALUES (?, ?, ?)", row)


def _require_dimension(connection: sqlite3.Connection, dense: Dense) -> None:
    """Raises: ConfigurationError."""
    found = connection.execute("SELECT value FROM facts WHERE name = 'dimension'").fetchone()
    if found and found[0] != len(dense):
        problem = f"the index has vectors of dimension {found[0]}, the embedder's have {len(dense)}"
        raise ConfigurationError(setting="AFTERWORD_EMBEDDER__MODEL", problem=problem)


def _unit(dense: Dense) -> NDArray[np.float32]:
    vector = np.asarray(dense, COORDINATE)
    length = float(np.linalg.norm(vector))
    return vector / np.float32(length) if length else vector


class Owned(NamedTuple):
    """An owner's row, and which of its episodes a query is kept to."""

    id: int
    episodes: int
    next: int
    allowed: NDArray[np.bool_] | None
    """A mask over the numbers; None: all."""


def _search(
    connection: sqlite3.Connection, query: Query, terms: Sequence[int], dense: Dense | None
) -> list[tuple[bytes, float, RankingScores | None]]:
    """Payloads and scores of the best episodes, best first; those in each ranking if the query asks for them."""
    connection.execute(f"PRAGMA cache_size = -{READING_CACHE_KIB}").close()
    select = "SELECT id, episodes, next FROM owners WHERE name = ?"
    found = connection.execute(select, (_owner(query.user_id, query.tenant_id),)).fetchone()
    if found is None or not (terms or dense):
        return []
    owner, episodes, following = found
    owned = Owned(owner, episodes, following, _allowed(connection, query, owner, following))
    count = max(DEPTH, query.k)
    scored = _by_words(connection, owned, terms)
    if dense:
        scored[DENSE] = _by_vector(connection, owned, dense)
    best = fused({name: _best(*scores, owned, count) for name, scores in scored.items()})[: query.k]
    explained = _explained(scored, [number for number, _ in best]) if query.explain else {}
    # the conditions once more: whatever the rankings have, no other user's episode gets out
    conditions, values = _conditions(query, owned.id)
    places = ", ".join("?" * len(best))
    kept = dict(
        connection.execute(
            f"SELECT number, payload FROM episodes WHERE {conditions} AND number IN ({places})",  # noqa: S608 – of ours
            (*values, *(number for number, _ in best)),
        )
    )
    return [(kept[number], score, explained.get(number)) for number, score in best if number in kept]


def _explained(scored: Mapping[str, tuple[Numbers, Scores]], numbers: Sequence[int]) -> dict[int, RankingScores]:
    """The scores of these episodes in each ranking, by number."""
    found = {name: dict(zip(held.tolist(), scores.tolist(), strict=True)) for name, (held, scores) in scored.items()}
    return {number: RankingScores(**{name: of.get(number) for name, of in found.items()}) for number in numbers}


def _by_words(connection: sqlite3.Connection, owned: Owned, terms: Sequence[int]) -> dict[str, tuple[Numbers, Scores]]:
    """BM25 over messages and over summaries: numbers of the episodes that share a word, ascending, and their scores.

    Inverse document frequency like Qdrant's: ln(1 + (N − n + ½) / (n + ½)), among the owner's episodes.
    """
    sums = {name: np.zeros(owned.next) for name in (TEXT, SUMMARY)}
    select = "SELECT entries FROM postings WHERE owner = ? AND term = ?"
    for term in terms:
        chunks = connection.execute(select, (owned.id, term))
        entries = np.frombuffer(b"".join(chunk for (chunk,) in chunks), ENTRY)
        numbers = entries["number"].astype(np.intp)
        for name, scores in sums.items():
            weights = entries[name]
            having = np.flatnonzero(weights > 0)
            idf = math.log(1 + (owned.episodes - len(having) + 0.5) / (len(having) + 0.5))
            # `scores[numbers] += weights` would copy what is there; numbers of other types take the slow way
            np.add.at(scores, numbers[having], (idf * weights[having]).astype(np.float64))
    found = {name: np.flatnonzero(scores > 0) for name, scores in sums.items()}
    return {name: (found[name], scores[found[name]]) for name, scores in sums.items()}


def _by_vector(connection: sqlite3.Connection, owned: Owned, dense: Dense) -> tuple[Numbers, Scores]:
    """Cosine similarities of all the owner's vectors, whose numbers ascend."""
    _require_dimension(connection, dense)
    select = "SELECT number, vector FROM vectors WHERE owner = ? ORDER BY number"
    rows = connection.execute(select, (owned.id,)).fetchall()
    vectors = np.frombuffer(b"".join(vector for _, vector in rows), COORDINATE).reshape(len(rows), len(dense))
    return np.array([number for number, _ in rows], np.intp), (vectors @ _unit(dense)).astype(np.float64)


def _best(numbers: Numbers, scores: Scores, owned: Owned, count: int) -> list[int]:
    """The best of the allowed numbers, best first; of equal ones, the earlier episode first."""
    if owned.allowed is not None:
        kept = owned.allowed[numbers]
        numbers, scores = numbers[kept], scores[kept]
    if len(numbers) > count:
        enough = scores >= np.partition(scores, -count)[-count]
        numbers, scores = numbers[enough], scores[enough]
    order = np.argsort(-scores, kind="stable")[:count]
    return [int(number) for number in numbers[order]]


def _allowed(connection: sqlite3.Connection, query: Query, owner: int, size: int) -> NDArray[np.bool_] | None:
    conditions, values = _conditions(query, owner)
    if len(values) == 1:
        return None
    found = connection.execute(f"SELECT number FROM episodes WHERE {conditions}", values)  # noqa: S608 – of ours
    allowed = np.zeros(size, np.bool_)
    allowed[[number for (number,) in found]] = True
    return allowed


def _conditions(query: Query, owner: int) -> tuple[str, list[Any]]:
    wanted = {
        "owner = ?": owner,
        "agent_id = ?": query.agent_id,
        "conversation_id = ?": query.conversation_id,
        "started_at >= ?": query.started_after and _microseconds(query.started_after),
        "ended_at < ?": query.ended_before and _microseconds(query.ended_before),
    }
    given = {condition: value for condition, value in wanted.items() if value is not None}
    return " AND ".join(given), list(given.values())


def _revisions(connection: sqlite3.Connection, episode_ids: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for start in range(0, len(episode_ids), PAGE_SIZE):
        page = episode_ids[start : start + PAGE_SIZE]
        select = f"""SELECT episode_id, revision FROM episodes
            WHERE owner IS NOT NULL AND episode_id IN ({", ".join("?" * len(page))})"""  # noqa: S608 – places only
        found.update(connection.execute(select, page))
    return found


def _owner(user_id: Any, tenant_id: Any) -> str:
    """The name of a user of a tenant; no tenant is another than one with an empty name."""
    return orjson.dumps([tenant_id, user_id]).decode()


def _microseconds(time: datetime | str) -> int:
    moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    return (moment - EPOCH) // timedelta(microseconds=1)


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode; None if there is no such file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _unlink(path: Path) -> None:
    """Delete a database with its log."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Wait until no other process makes the file."""
    with open(os.open(lock, os.O_WRONLY | os.O_CREAT, OWNER_FILE), "wb") as held:  # noqa: PTH123 – with a mode
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the disk into StoreUnavailable."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        damaged = any(name.startswith(one) for one in DAMAGED)
        problem = f"{path} is damaged: delete it, then run `afterword index rebuild`" if damaged else name
        raise StoreUnavailable(store=STORE, problem=problem) from error
    except OSError as error:
        raise StoreUnavailable(store=STORE, problem=f"{path}: {error.strerror}") from error
