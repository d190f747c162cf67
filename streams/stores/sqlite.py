"""Everything on one machine in one SQLite file: its tables, transactions on it, and the stores of documents.

Several processes read and write the file at once. SQLite comes from apsw, whose version is newer than Python's own:
FTS5 overwrites deleted text only from 3.42 on. A record is a row: its JSON, and the columns by which it is found. Times
are in milliseconds.
"""

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import apsw
import orjson

from afterword.schemas import MessageCreated
from afterword.schemas.base import EPOCH, milliseconds, moment_at, scope_id
from afterword.streams.errors import StoreUnavailable
from afterword.streams.private import OWNER_FILE, private_directory
from afterword.streams.stores.bookkeeping import RecordKind, Records
from afterword.streams.stores.episodes import (
    EPISODES,
    Conditions,
    DeletedEpisode,
    Episode,
    EpisodeQueries,
    EpisodeTotals,
    FactOfUser,
    Kind,
    StoredEpisode,
    UsageBy,
    UsageTotals,
    UserTotals,
    parts,
)
from afterword.streams.stores.messages import (
    MOST_READ,
    ArchivedMessage,
    Counted,
    Decide,
    DeletedMessage,
    Kept,
    MessageArchive,
    MessageText,
    PendingMessage,
    Selection,
    StoredMessage,
    Whose,
    agent_scope,
)
from afterword.streams.tasks import Batches
from afterword_text.tokens import message_tokens

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

SCAN_SIZE = 500
"""Number of rows that are read together when a whole table is read; in between, others may write."""

LISTED = "(SELECT value FROM json_each(?))"
"""Selects the values of a JSON array."""
COLUMNS_WITHOUT_METADATA = "key, deleted, changed, partition, offset, content, json_remove(message, '$.metadata')"
COLUMNS = "key, deleted, changed, partition, offset, content, message"
TEXT_COLUMNS = """role, sent_at, CASE role WHEN 'user' THEN user_id WHEN 'assistant' THEN agent_id END,
    message ->> 'author', user_id"""

SCHEMA = (files(__package__) / "schema.sql").read_text(encoding="utf-8")
"""`points` has the indexed episodes. The row that keeps a removed episode out has no
`message_ids`. `model` made the vectors and `stemmer` the words, `signs` has the signs of the vectors' coordinates, and
`packed` has the words for the ranking. `words` has those for the search, see `sqlite_index.py`. `vectors` has those of
the messages, with their model and dimension."""

T = TypeVar("T")
Call = Callable[[apsw.Connection], Any]

MOST_TOGETHER = 50
"""Maximum number of calls that share a transaction, in which other processes cannot write."""
READ, WRITE, NO_TRANSACTION = "BEGIN", "BEGIN IMMEDIATE", ""


class SqliteFile:
    """A file, which is created on first use, or a database in memory.

    The calls of a file run in a thread of its own, because the disk blocks. Waiting calls share a transaction, so many
    small writes wait for the disk once. A database in memory runs calls directly, without a thread.
    """

    def __init__(self, path: Path | None, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """`timeout_seconds` is how long a write waits for another process."""
        self.path = path
        self._timeout_seconds = timeout_seconds
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqlite") if path else None
        self._connection: apsw.Connection | None = None
        self._batches = Batches(self._called_in_thread, MOST_TOGETHER)

    async def read(self, call: Callable[[apsw.Connection], T]) -> T:
        """Call with a connection that sees one state of the file. Raises: StoreUnavailable."""
        return await self._run(call, READ)

    async def select(self, select: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return all rows that a query finds. Raises: StoreUnavailable."""
        return await self.read(lambda connection: rows(connection, select, values))

    async def write(self, call: Callable[[apsw.Connection], T]) -> T:
        """Call in a transaction, which is on disk afterwards. If the call raises, nothing is written.

        It may be called twice, but only one of the two transactions is committed. Raises: StoreUnavailable.
        """
        return await self._run(call, WRITE)

    async def ping(self) -> None:
        """Check that the file can be read and written. Raises: StoreUnavailable."""
        await self.write(lambda connection: connection.pragma("user_version", connection.pragma("user_version")))

    async def empty_log(self) -> None:
        """Overwrite what earlier writes replaced or deleted, because the write-ahead log keeps a copy of it.

        Calls that wait at the same time share one run.

        Raises: StoreUnavailable if a reader does not end in time; then the write must be repeated.
        """
        if self.path is not None:
            await self._run(self._empty_log, NO_TRANSACTION)

    async def close(self) -> None:
        if self._connection is not None:
            await self._run(lambda connection: connection.close(), None)
            self._connection = None
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    async def _run(self, call: Callable[[apsw.Connection], T], begin: str | None) -> T:
        """Call in a transaction that begins like this, if any. With None, nothing else is called with it."""
        if self._thread is None:
            results: list[T] = self._called(begin, [call])
            return results[0]
        result: T = await self._batches.result(call, begin)
        return result

    async def _called_in_thread(
        self, begin: str | None, calls: Sequence[Callable[[apsw.Connection], Any]]
    ) -> list[Any]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._called, begin, calls)

    def _called(self, begin: str | None, calls: Sequence[Call]) -> list[Any]:
        with sqlite_errors(self.path):
            if self._connection is None:
                self._connection = _connected(self.path, self._timeout_seconds)
            if not begin:  # one call for all who wait for the same
                results_of = {call: call(self._connection) for call in dict.fromkeys(calls)}
                return [results_of[call] for call in calls]
            self._connection.execute(begin)
            try:
                results = [call(self._connection) for call in calls]
                self._connection.execute("COMMIT")
            finally:
                # SQLite rolls back by itself only after some failures, such as a full disk
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            return results

    def _empty_log(self, connection: apsw.Connection) -> None:
        until = time.monotonic() + self._timeout_seconds
        while rows(connection, "PRAGMA wal_checkpoint(TRUNCATE)")[0][0]:
            if time.monotonic() >= until:
                raise StoreUnavailable(store=STORE, problem="a reader keeps its log from being emptied")
            # SQLite waits for readers itself, but not for another process that empties the log
            time.sleep(LOOK_SECONDS)


def rows(
    connection: apsw.Connection, select: str, values: Sequence[Any] | Mapping[str, Any] = ()
) -> list[tuple[Any, ...]]:
    """Return all rows that a statement returns."""
    return connection.execute(select, values).fetchall()


def insert(connection: apsw.Connection, table: str, row: Mapping[str, Any], otherwise: str = "") -> int:
    """Insert a row, given by its columns; return its rowid. `otherwise` is the clause for a row that exists."""
    values = ", ".join(f":{name}" for name in row)
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values}) {otherwise}", row)
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


class SqliteEpisodes(EpisodeQueries):
    """The EpisodeQueries of SQLite."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def _find(self, kind: Kind[T], wanted: Conditions, order: str = "", limit: int = 0) -> list[T]:
        condition, values = where(wanted)
        by = ", ".join(f"{name.lstrip('-')} {'DESC' if name[0] == '-' else ''}" for name in order.split())
        select = f"""SELECT document, {"deleted" if kind.tombstones else "FALSE"} FROM {kind.name}
            WHERE {condition} {f"ORDER BY {by}" if by else ""} LIMIT ?"""
        found = await self._file.select(select, *values, limit or -1)
        return [kind.adapter({"deleted": deleted}).validate_json(document) for document, deleted in found]

    async def _replace(self, kind: Kind[T], record: T, before: T | None) -> bool:
        fields = kind.fields(record)
        document = kind.adapter(fields).dump_json(record).decode()
        row = {name: stored(value) for name, value in fields.items()} | {"document": document}
        version = {name: kind.fields(before)[name] for name in kind.version} if before else None

        def write(connection: apsw.Connection) -> bool:
            is_replaced = _replaced(connection, kind.name, {"id": row["id"]}, row, version)
            if is_replaced and isinstance(record, StoredEpisode | DeletedEpisode):
                _relate(connection, record, row["ended_at"])
            return is_replaced

        if not await self._file.write(write):
            return False
        # additions stay in the log, because a later deletion empties it
        if before is not None and kind.removes_words(record, before):
            await self._file.empty_log()
        return True

    async def holding(self, conversation_id: str, message_id: str) -> list[Episode]:
        held = "SELECT episode_id FROM episode_messages WHERE conversation_id = ? AND message_id = ?"
        ids = await self._file.select(held, conversation_id, message_id)
        return await self._find(EPISODES, {"id in": [name for (name,) in ids]}, "ordinal")

    async def totals(self, conversation_id: str, agent_id: str | None = None) -> EpisodeTotals:
        select = """SELECT count(*), sum(document ->> '$.summary.message_count'),
            sum(document ->> '$.summary.compression.tokens_before'), min(ordinal), max(ordinal)
            FROM episodes WHERE scope = ? AND NOT deleted"""
        [sums] = await self._file.select(select, scope_id(conversation_id, agent_id))
        return EpisodeTotals(*sums) if sums[0] else EpisodeTotals()

    async def conversations_of(self, user_id: str, tenant_id: str | None, after: str | None, limit: int) -> list[str]:
        return await _conversations(self._file, "participants", user_id, tenant_id, after, limit)

    async def facts_of(self, user_id: str, tenant_id: str | None, limit: int) -> list[FactOfUser]:
        select = f"""SELECT {", ".join(FactOfUser._fields)} FROM facts
            WHERE tenant_id IS ? AND user_id = ? ORDER BY ended_at DESC, rowid LIMIT ?"""
        facts = await self._file.select(select, tenant_id, user_id, limit)
        return [FactOfUser._make((*own, orjson.loads(ids), moment_at(ended))) for *own, ids, ended in facts]

    async def usage(self, by: UsageBy) -> list[UsageTotals]:
        key = {
            "tenant": "document ->> '$.summary.tenant_id'",
            "user": "document ->> '$.summary.user_id'",
            "model": "coalesce(calls.value ->> '$.model', document ->> '$.summary.model')",
            "outcome": "calls.value ->> '$.outcome'",
            "day": "substr(document ->> '$.summary.created_at', 1, 10)",
        }[by]
        names = UsageTotals._fields[2:]
        sums = ", ".join(f"coalesce(sum(calls.value ->> '$.usage.{name}'), 0)" for name in names)
        select = f"""SELECT {key} AS grouped, count(DISTINCT episodes.id), {sums}
            FROM episodes LEFT JOIN json_each(document, '$.calls') AS calls
            WHERE NOT deleted GROUP BY grouped ORDER BY grouped"""
        return [UsageTotals(*group) for group in await self._file.select(select)]

    async def users(
        self, tenant_id: str | None, prefix: str, before: tuple[datetime, str] | None, limit: int
    ) -> list[UserTotals]:
        of_calls = "(SELECT sum(value ->> '$.usage.{}_tokens') FROM json_each(document, '$.calls'))"
        sums = ", ".join(f"coalesce(sum({of_calls.format(name)}), 0)" for name in ("prompt", "cached", "completion"))
        select = f"""SELECT user_id, count(DISTINCT p.conversation_id), count(*), max(ended_at) AS last,
            sum(document ->> '$.summary.compression.tokens_before'), {sums}
            FROM participants AS p JOIN episodes ON id = episode_id
            WHERE p.tenant_id IS ?1 AND substr(user_id, 1, length(?2)) = ?2 AND user_id > ''
            GROUP BY user_id HAVING ?3 IS NULL OR (last, user_id) < (?3, ?4)
            ORDER BY last DESC, user_id DESC LIMIT ?5"""
        last_at, user_id = before or (None, None)
        totals = await self._file.select(select, tenant_id, prefix, last_at and milliseconds(last_at), user_id, limit)
        return [
            UserTotals(user, conversations, episodes, moment_at(last), *counts)
            for user, conversations, episodes, last, *counts in totals
        ]

    async def count(self) -> int:
        [(number,)] = await self._file.select("SELECT count(*) FROM episodes")
        return int(number)


def _relate(connection: apsw.Connection, episode: Episode, ended_at: int | None) -> None:
    """Store which messages, users and facts an episode has."""
    event = episode.event
    held = [
        (event.conversation_id, message_id, event.episode_id)
        for message_id in (*episode.core_ids, *episode.overlap_ids)
    ]
    connection.executemany("INSERT OR IGNORE INTO episode_messages VALUES (?, ?, ?)", held)
    connection.execute("DELETE FROM participants WHERE episode_id = ?", (event.episode_id,))
    connection.execute("DELETE FROM facts WHERE episode_id = ?", (event.episode_id,))
    if isinstance(episode, StoredEpisode):
        users = [(event.episode_id, event.tenant_id, user, event.conversation_id) for user in episode.participants]
        connection.executemany("INSERT INTO participants VALUES (?, ?, ?, ?)", users)
        places = ("episode_id", "conversation_id", "ordinal", "tenant_id")
        own = {name: getattr(event, name) for name in places} | {"ended_at": ended_at}
        for fact in episode.summary.facts:
            insert(connection, "facts", vars(fact) | {"message_ids": _json(fact.message_ids)} | own)


class SqliteMessages(MessageArchive):
    """The MessageArchive of SQLite, with one row per message, under its `message_key`.

    `changed` is the offset of the last change. `is_whole` is false until the archiver has written the metadata.
    """

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self.records = SqliteRecords(file)

    async def _revise(self, keys: Sequence[str], decide: Decide) -> None:
        def write(connection: apsw.Connection) -> bool:
            is_replaced = False
            for key in keys:
                known = _known(connection, key)
                kept = decide(key, known)
                if kept is not None and kept != known:
                    _keep(connection, key, kept)
                    is_replaced |= known is not None
            return is_replaced

        if await self._file.write(write):
            await self._file.empty_log()

    async def _label(self, episode_id: str, keys: Sequence[str]) -> None:
        def write(connection: apsw.Connection) -> None:
            change = f"UPDATE messages SET episode_id = ? WHERE key IN {LISTED}"
            connection.execute(change, (episode_id, _json(keys)))
            if scope := agent_scope(episode_id):  # a user's message may be in an episode of each agent
                label = f"SELECT key, ? FROM messages WHERE key IN {LISTED} AND NOT deleted"
                connection.execute(f"INSERT OR IGNORE INTO message_scopes (key, scope) {label}", (scope, _json(keys)))

        await self._file.write(write)

    async def _keys(self, selection: Selection) -> list[str]:
        wanted, values = _selected(selection)
        select = f"SELECT key FROM messages WHERE {wanted} LIMIT {SCAN_SIZE}"
        return [key for (key,) in await self._file.select(select, *values)]

    async def _page(self, selection: Selection) -> list[ArchivedMessage]:
        wanted, values = _selected(selection)
        messages = await self._where(f"{wanted} ORDER BY offset DESC LIMIT {MOST_READ}", *values)
        return list(messages.values())  # type: ignore[arg-type]  # a tombstone has no conversation

    async def count(self, selection: Selection) -> Counted:
        wanted, values = _selected(selection)
        select = f"SELECT count(*), ifnull(sum(tokens), 0), ifnull(sum(skipped), 0) FROM messages WHERE {wanted}"
        [counts] = await self._file.select(select, *values)
        return Counted(*counts)

    async def total(self) -> int:
        [(number,)] = await self._file.select("SELECT count(*) FROM messages WHERE sent_at NOT NULL")
        return int(number)

    async def conversations_of(self, user_id: str, tenant_id: str | None, after: str | None, limit: int) -> list[str]:
        return await _conversations(self._file, "messages", user_id, tenant_id, after, limit)

    async def owners(self, conversation_ids: Sequence[str]) -> dict[str, Whose]:
        first = "SELECT rowid FROM messages WHERE conversation_id = value ORDER BY offset LIMIT 1"
        select = f"SELECT value, user_id, tenant_id FROM json_each(?) JOIN messages ON messages.rowid = ({first})"
        owners = await self._file.select(select, _json(conversation_ids))
        return {conversation_id: Whose(*whose) for conversation_id, *whose in owners}

    async def texts(self, keys: Sequence[str], characters: int) -> dict[str, MessageText]:
        select = f"SELECT key, content, {TEXT_COLUMNS} FROM messages WHERE key IN {LISTED} AND NOT deleted"
        texts = await self._file.select(select, _json(keys))
        return {key: _text(content[:characters], *text) for key, content, *text in texts}

    async def pending(
        self, user_id: str, tenant_id: str | None, limit: int, characters: int, since: datetime | None = None
    ) -> list[PendingMessage]:
        select = f"""SELECT conversation_id, message ->> 'id', agent_id, message ->> 'reply_to', offset,
            substr(content, 1, ?1), {TEXT_COLUMNS} FROM messages
            WHERE user_id = ?2 AND tenant_id IS ?3 AND sent_at >= ?4 AND episode_id IS NULL
            AND NOT skipped ORDER BY sent_at DESC, offset DESC LIMIT ?5"""
        values = characters, user_id, tenant_id, milliseconds(since or EPOCH), limit
        messages = await self._file.select(select, *values)
        return [
            PendingMessage(conversation_id, name, agent_id, reply_to, offset, _text(*text))
            for conversation_id, name, agent_id, reply_to, offset, *text in messages
        ]

    async def states(
        self, keys: Sequence[str], *, with_metadata: bool = True
    ) -> dict[str, ArchivedMessage | DeletedMessage]:
        columns = COLUMNS if with_metadata else COLUMNS_WITHOUT_METADATA
        return await self._where(f"key IN {LISTED}", _json(keys), columns=columns)

    async def expire(self, before: datetime, limit: int) -> int:
        older = "SELECT rowid FROM messages WHERE sent_at < ? ORDER BY sent_at LIMIT ?"

        def delete(connection: apsw.Connection) -> int:
            values = (milliseconds(before), limit)
            keys = rows(connection, f"DELETE FROM messages WHERE rowid IN ({older}) RETURNING key", values)
            connection.executemany("DELETE FROM message_scopes WHERE key = ?", keys)
            return len(keys)

        if expired := await self._file.write(delete):
            await self._file.empty_log()
        return expired

    async def all_messages(self) -> AsyncIterator[StoredMessage]:
        select = f"""SELECT rowid, {", ".join(StoredMessage._fields)} FROM messages
            WHERE rowid > ? ORDER BY rowid LIMIT {SCAN_SIZE}"""
        last = 0
        while page := await self._file.select(select, last):
            for _, *fields in page:
                yield StoredMessage._make(fields)
            last = page[-1][0]

    async def _where(
        self, wanted: str, *values: Any, columns: str = COLUMNS
    ) -> dict[str, ArchivedMessage | DeletedMessage]:
        select = f"SELECT {columns} FROM messages WHERE {wanted}"
        return {row[0]: _message(row) for row in await self._file.select(select, *values)}


def _text(content: str, role: Any, sent_at: int, *who: Any) -> MessageText:
    return MessageText(content, role, moment_at(sent_at), *who)


def _message(row: Sequence[Any]) -> ArchivedMessage | DeletedMessage:
    _, deleted, changed, partition, offset, content, message = row[:7]
    if deleted:
        return DeletedMessage(changed)
    fields = {**orjson.loads(message), "content": content}
    return ArchivedMessage(MessageCreated.model_validate(fields, strict=False), partition, offset, changed)


def _known(connection: apsw.Connection, key: str) -> Kept | None:
    select = f"SELECT {COLUMNS}, is_whole, metadata_offset, said FROM messages WHERE key = ?"
    existing = rows(connection, select, (key,))
    if not existing:
        return None
    *_, is_whole, metadata_offset, said = existing[0]
    return Kept(_message(existing[0]), bool(is_whole), metadata_offset, said)


def _keep(connection: apsw.Connection, key: str, kept: Kept) -> None:
    if isinstance(kept.state, DeletedMessage):
        for table in ("messages", "message_scopes"):
            connection.execute(f"DELETE FROM {table} WHERE key = ?", (key,))
        insert(connection, "messages", {"key": key, "deleted": True, "changed": kept.state.changed})
        return
    message = kept.state.message
    names = ("conversation_id", "tenant_id", "user_id", "agent_id", "role", "content")
    row = {
        **{name: getattr(message, name) for name in names},
        "sent_at": message.sent_at and milliseconds(message.sent_at),
        "partition": kept.state.partition,
        "offset": kept.state.offset,
        "changed": kept.state.changed,
        "metadata_offset": kept.metadata_offset,
        "is_whole": kept.is_whole,
        "said": kept.said,
        "skipped": message.skip_summarization,
        "tokens": message_tokens(message.content),
        "message": message.model_dump_json(exclude={"content"}),
    }
    changed = ", ".join(f"{name} = excluded.{name}" for name in row)
    insert(connection, "messages", {"key": key, **row}, f"ON CONFLICT (key) DO UPDATE SET {changed}")


def _selected(selection: Selection) -> tuple[str, list[Any]]:
    """Return a selection's condition and its values."""
    wanted = selection.conditions()
    scope = wanted.pop("agent_scopes !=", None)
    condition, values = where(wanted)
    if scope is None:
        return condition, values
    in_scope = "SELECT 1 FROM message_scopes s WHERE s.key = messages.key AND s.scope = ?"
    return f"{condition} AND NOT EXISTS ({in_scope})", [*values, scope]


def where(wanted: Conditions) -> tuple[str, list[Any]]:
    """Return a condition and its values."""
    asked, values = list[str](), list[Any]()
    for field, operator, value in parts(wanted):
        if value is None:
            asked.append(f"{field} IS NULL")  # not as a value, so that a partial index is used
            continue
        compared = {"": "= ?", "in": f"IN {LISTED}", "or none": f"= ? OR {field} IS NULL"}.get(
            operator, f"{operator} ?"
        )
        asked.append(f"({field} {compared})")
        values.append(_json(value) if operator == "in" else stored(value))
    return " AND ".join(asked), values


def stored(value: Any) -> Any:
    """Return a value as it is stored."""
    return milliseconds(value) if isinstance(value, datetime) else value


class SqliteRecords(Records):
    """The Records of SQLite."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def read_some(self, kind: RecordKind, keys: Sequence[str]) -> dict[str, str]:
        select = f"SELECT key, document FROM records WHERE kind = ? AND key IN {LISTED}"
        return dict(await self._file.select(select, kind, _json(keys)))

    async def read_all(self, kind: RecordKind) -> dict[str, str]:
        return dict(await self._file.select("SELECT key, document FROM records WHERE kind = ?", kind))

    async def replace(self, kind: RecordKind, key: str, before: str | None, after: str | None) -> bool:
        own, known = {"kind": kind, "key": key}, None if before is None else {"document": before}
        if after is not None:
            row = own | {"document": after}
            return await self._file.write(lambda connection: _replaced(connection, "records", own, row, known))
        delete = "DELETE FROM records WHERE kind = ? AND key = ? AND document = ? RETURNING 1"
        is_deleted = bool(await self._file.write(lambda connection: rows(connection, delete, (kind, key, before))))
        await self._file.empty_log()
        return is_deleted


def _replaced(
    connection: apsw.Connection,
    table: str,
    key: Mapping[str, Any],
    row: Mapping[str, Any],
    version: Mapping[str, Any] | None,
) -> bool:
    """Replace the row with this version, or insert one if `version` is None; return False if that fails."""
    if version is None:
        insert(connection, table, row, "ON CONFLICT DO NOTHING")
        return connection.changes() > 0
    was = {f"was_{name}": value for name, value in {**key, **version}.items()}
    own = " AND ".join(f"{name} = :was_{name}" for name in (*key, *version))
    changed = ", ".join(f"{name} = :{name}" for name in row)
    return bool(rows(connection, f"UPDATE {table} SET {changed} WHERE {own} RETURNING 1", {**row, **was}))


async def _conversations(
    file: SqliteFile, table: str, user_id: str, tenant_id: str | None, after: str | None, limit: int
) -> list[str]:
    """Return a page of the conversations of rows that name the user, each once."""
    select = f"""SELECT DISTINCT conversation_id FROM {table} WHERE tenant_id IS ? AND user_id = ?
        AND conversation_id > ? ORDER BY conversation_id LIMIT ?"""
    return [name for (name,) in await file.select(select, tenant_id, user_id, after or "", limit)]


def _json(values: Sequence[Any]) -> str:
    return orjson.dumps(values).decode()
