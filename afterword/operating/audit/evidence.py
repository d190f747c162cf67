"""What topics and stores say, in a temporary SQLite database with one table for each kind of row below.

Message contents are not kept. Messages are identified by the digest of their `message_key`, and contents and lists of
ids by their digests.
"""

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from afterword.schemas.ids import episode_id, message_key
from afterword.streams.errors import AfterwordError

DIGEST_BYTES: Final = 16
"""128 bits, so that no two of a billion messages share a digest by chance."""
ROWS_TOGETHER: Final = 5_000
"""Number of rows inserted with one statement."""
CACHE_KIB: Final = 64 * 1024
"""SQLite's page cache in memory; the rest is on disk."""


class NoRoom(AfterwordError):
    """the audit cannot store its data in a temporary file: {problem}; set TMPDIR to another directory"""


class Consumed(NamedTuple):
    """The committed offset of a worker's group in one partition of its input topic."""

    role: str
    """`segmenter`, `archiver` or `summarizer`."""
    partition: int
    offset: int


class Message(NamedTuple):
    """A `message.created` on `messages`."""

    partition: int
    offset: int
    conversation: str
    scope: str
    """The conversation's `scope_name`."""
    message: bytes
    content: bytes
    skipped: bool = False
    agent: str | None = None
    tenant: str | None = None
    record_ms: int = 0
    """The record's timestamp, in milliseconds since 1970."""
    sent_ms: int = 0
    """Its `sent_at`, milliseconds since 1970; 0: not known."""


class Flush(NamedTuple):
    """A `conversation.flush`."""

    partition: int
    offset: int
    conversation: str
    agent: str | None


class Change(NamedTuple):
    """An edit or a deletion on `messages`."""

    partition: int
    offset: int
    conversation: str
    tenant: str | None
    message: bytes | None
    """None for all messages of the conversation so far."""
    content: bytes | None = None
    """The new content, if it is an edit that changed it."""
    deletes: bool = True
    excludes: bool = True
    """Whether the message must not be in any episode."""


class Refused(NamedTuple):
    """An invalid record of `messages`."""

    partition: int
    offset: int


class DeadLetter(NamedTuple):
    """The original position of a dead letter, except for the archiver's, whose messages are in episodes anyway."""

    kind: str
    """`message` or `episode`, depending on the original's topic."""
    partition: int
    offset: int
    quarantined: bool = False
    """Whether it was rejected because its conversation's state was damaged. Rebuilding the state reads it again."""


class Pending(NamedTuple):
    """A message that is waiting in the segmenter's state for its episode to close."""

    partition: int
    offset: int
    scope: str
    conversation_scope: str
    """The `scope_name` without the agent."""
    handed_over: bool = False
    """Whether it was waiting for an agent when the state was first read, but not a moment later."""


class Damage(NamedTuple):
    """An unreadable row of the segmenter's state."""

    conversation: str | None
    """None if its key names no conversation."""
    partition: int
    problem: str


class Closed(NamedTuple):
    """An `episode.closed`."""

    partition: int
    offset: int
    episode_id: str
    revision: int
    conversation: str
    ordinal: int
    fingerprint: str
    recomputed: str
    """The fingerprint computed from the messages that it carries."""
    message_ids: bytes
    """Digest of the core messages' ids, in order."""
    scope: str
    number: int
    """`number_of` its position, by which its core messages are found."""
    first_offset: int = -1
    """Offset of its first core message on `messages`."""
    last_offset: int = -1
    truncated: bool = False
    """Whether edits made it too large and its contents were cut, so that they cannot be compared."""
    ended_ms: int = 0
    """Its `ended_at`, in milliseconds since 1970."""


class Core(NamedTuple):
    """A core message of an episode."""

    episode: int
    """The `number` of its `Closed`."""
    place: int
    message: bytes
    content: bytes
    sent_ms: int = 0
    """Its `sent_at`, milliseconds since 1970; 0: not known."""


class Amended(NamedTuple):
    """An `episode.amended`."""

    partition: int
    offset: int
    conversation: str
    message: bytes | None
    change_partition: int
    """Position of the change on `messages`."""
    change_offset: int


class Announced(NamedTuple):
    """A `summary.created`."""

    event_id: str
    episode_id: str
    revision: int
    event: bytes
    """Digest of the whole event."""
    message_ids: bytes


class AnnouncedDeletion(NamedTuple):
    """A `summary.deleted`."""

    event_id: str
    episode_id: str


class Current(NamedTuple):
    """A record of the compacted topic of episodes, or of conversations if it has no revision."""

    name: str
    """The episode's id, or the conversation's `scope_name`."""
    partition: int
    offset: int
    is_gone: bool
    revision: int | None = None


class Unreadable(NamedTuple):
    """An invalid record of `episode.closed` (`episode`), `summary.created` or `summary.deleted` (`summary`)."""

    kind: str


class StoredEpisode(NamedTuple):
    """An episode in the store."""

    episode_id: str
    fingerprint: str


class StoredMessage(NamedTuple):
    """A core message of a stored episode."""

    episode_id: str
    message: bytes


class StoredFact(NamedTuple):
    """A message named by a fact of a stored episode."""

    episode_id: str
    message: bytes


class StoredChange(NamedTuple):
    """A message that a stored episode's summary was made from, and the offset of the message's last change."""

    episode_id: str
    message: bytes
    offset: int


class DeletedEpisode(NamedTuple):
    """What remains in the store of a deleted episode."""

    episode_id: str
    expired: bool = False
    """Whether it was deleted because it was past its retention."""


class Document(NamedTuple):
    """A message in the archive, or only its label if the summarizer has written it before the archiver."""

    message: bytes
    episode_id: str | None
    archived: bool
    """False while the document only has an `episode_id`."""
    content: bytes | None = None
    partition: int | None = None
    """Position on `messages` of the record that it was archived from."""
    offset: int | None = None
    deleted: bool = False
    changed: int = -1
    """Offset of its last change."""


class Indexed(NamedTuple):
    """An episode that is in the search index."""

    episode_id: str


class Vanished(NamedTuple):
    """An episode that is not in the index because it was deleted after the stores were read."""

    episode_id: str


TABLES: Final[Mapping[type[tuple[Any, ...]], tuple[str, ...]]] = {
    Consumed: (),
    Message: ("message",),
    Flush: (),
    Change: ("message", "conversation"),
    Refused: (),
    DeadLetter: ("kind, partition, offset",),
    Pending: ("partition, offset",),
    Damage: (),
    Closed: ("episode_id, revision", "number"),
    Core: ("message", "episode, message, place"),
    Amended: ("change_partition, change_offset",),
    Announced: ("episode_id", "event_id"),
    AnnouncedDeletion: ("episode_id",),
    Current: (),
    Unreadable: (),
    StoredEpisode: ("episode_id",),
    StoredMessage: ("episode_id, message",),
    StoredFact: ("episode_id, message",),
    StoredChange: ("episode_id, message",),
    DeletedEpisode: ("episode_id",),
    Document: ("message",),
    Indexed: ("episode_id",),
    Vanished: ("episode_id",),
}
"""The kinds of rows, and the columns by which each table is searched."""


@dataclass
class Circumstances:
    """What else the verdict depends on. The queries refer to the fields by their names."""

    dedupe_window: int = 10_000
    forget_after_ms: int = 0
    """Silence after which the segmenter forgets a conversation; 0 means never."""
    max_agents: int | None = None
    """Maximum number of active agents, if `scope = agent`."""
    messages_before_ms: int = 0
    """Messages sent before this time may have expired in the archive; 0 means none."""
    episodes_before_ms: int = 0
    """Episodes that ended before this time may have expired; 0 means none."""
    quiet: bool = True
    """Whether nothing was consumed or closed while topics and stores were read."""
    messages_truncated: bool = False
    """Whether the oldest records of the topic were deleted."""
    episodes_truncated: bool = False
    summaries_truncated: bool = False
    has_current: bool = False
    """Whether the compacted topics exist."""
    notes: list[str] = field(default_factory=list)

    def values(self) -> dict[str, object]:
        names = (one.name for one in fields(Circumstances) if one.name != "notes")
        return {name: getattr(self, name) for name in names}


class Evidence:
    """The tables. They are in memory or in a private, unnamed file that disappears when the process ends."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._waiting: defaultdict[type[tuple[Any, ...]], list[tuple[Any, ...]]] = defaultdict(list)
        database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        for pragma in ("journal_mode = off", "synchronous = off", "locking_mode = exclusive"):
            database.execute(f"PRAGMA {pragma}")
        database.execute("BEGIN")  # a single transaction, because each one would write out its changes
        for row in TABLES:
            database.execute(f"CREATE TABLE {_table(row)} ({', '.join(_columns(row))})")

    def add(self, row: tuple[Any, ...]) -> None:
        """Insert a row into the table of its type."""
        waiting = self._waiting[type(row)]
        waiting.append(row)
        if len(waiting) >= ROWS_TOGETHER:
            self._insert(type(row))

    def index(self) -> None:
        """Insert the buffered rows and index the tables. It may be called again after more were added."""
        for row, indexes in TABLES.items():
            self._insert(row)
            for number, columns in enumerate(indexes):
                self.run(f"CREATE INDEX IF NOT EXISTS {_table(row)}_{number} ON {_table(row)} ({columns})")

    def run(self, sql: str, values: Mapping[str, object] | None = None) -> None:
        self._database.execute(sql, values or {})

    def run_all(self, script: str, values: Mapping[str, object]) -> None:
        """Run statements separated by `;` at the end of a line."""
        for statement in script.split(";\n"):
            self.run(statement, values)

    def run_many(self, sql: str, rows: Iterable[tuple[object, ...]]) -> None:
        self._database.executemany(sql, rows)

    def rows(self, sql: str, values: Mapping[str, object] | None = None) -> Iterator[Any]:
        yield from self._database.execute(sql, values or {})

    def count(self, sql: str, values: Mapping[str, object] | None = None) -> int:
        """Return the single number that a query yields."""
        found: int = self._database.execute(sql, values or {}).fetchone()[0]
        return found

    def _insert(self, row: type[tuple[Any, ...]]) -> None:
        places = ", ".join("?" * len(_columns(row)))
        statement = f"INSERT INTO {_table(row)} VALUES ({places})"  # noqa: S608 – names of our own classes
        self._database.executemany(statement, self._waiting.pop(row, ()))


@contextmanager
def open_evidence() -> Iterator[Evidence]:
    """Open empty tables. Raises: NoRoom, also inside the block."""
    database = sqlite3.connect("", isolation_level=None)
    try:
        yield Evidence(database)
    except sqlite3.OperationalError as error:
        raise NoRoom(problem=error) from error
    finally:
        database.close()


def _table(row: type[tuple[Any, ...]]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", row.__name__).lower()


def _columns(row: type[tuple[Any, ...]]) -> tuple[str, ...]:
    fields: tuple[str, ...] = row._fields  # type: ignore[attr-defined]  # every row is a NamedTuple
    return fields


def scope_name(conversation_id: str, agent_id: str | None = None) -> str:
    """Return the common prefix of the ids of all episodes in a scope."""
    return episode_id(conversation_id, 0, agent_id).rpartition(":")[0]


def scope_in(episode: str) -> str:
    """Return the scope of an `episode_id`, in the form of `scope_name`."""
    return episode.rpartition(":")[0]


def number_of(partition: int, offset: int) -> int:
    """Return a number that is unique to a position."""
    return offset << 16 | partition


def digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()


def digest_of_message(conversation_id: str, message_id: str, tenant_id: str | None = None) -> bytes:
    return digest(message_key(conversation_id, message_id, tenant_id))


def digest_of_all(ids: Iterable[str]) -> bytes:
    """Return a digest of ids in order. Different lists have different digests."""
    return digest("".join(f"{len(i)}:{i}" for i in ids))
