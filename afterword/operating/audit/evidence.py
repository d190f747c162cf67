"""A temporary SQLite database with everything that an audit needs from topics and stores.

Message contents are not kept. Messages are identified by the digest of their `message_key`. Contents, events and lists
of ids are only compared in pairs, so Python's hash identifies them. Times are milliseconds since 1970, 0 if unknown. A
scope is the prefix that the ids of all episodes of a conversation, or of one agent's part of it, have in common
(`scope_name`).
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from afterword.schemas.ids import episode_id, message_key
from afterword.streams.errors import AfterwordError

Row = tuple[Any, ...]
"""The values of a table's columns."""

DIGEST_BYTES: Final = 16
"""128 bits, so that no two of a billion messages share a digest by chance."""
CACHE_KIB: Final = 64 * 1024
"""SQLite's page cache in memory; the rest is on disk."""
TABLES: Final = """
-- The offset that a worker's group has committed in a partition of its input. role: segmenter, archiver or summarizer
CREATE TABLE consumed (role, partition, offset, PRIMARY KEY (role, partition)) WITHOUT ROWID;

-- On messages: message.created; record_ms is the record's timestamp
CREATE TABLE message (
    partition, offset, conversation, scope, message, content, skipped, agent, tenant, record_ms, sent_ms
);
-- conversation.flush
CREATE TABLE flush (partition, offset, conversation, agent);
-- Edits and deletions. message: null for the whole conversation; content: the new one, if it is an edit that changed
-- it; excludes: the message must not be in an episode any longer
CREATE TABLE change (partition, offset, conversation, tenant, message, content, deletes, excludes);

-- Original positions of dead letters of messages (kind: message) and of episode.closed (episode). Those of the archiver
-- are not here, because their messages are in episodes anyway. quarantined: rejected because its conversation's state
-- was damaged, so that rebuilding the state reads it again
CREATE TABLE dead_letter (kind, partition, offset, quarantined);
CREATE VIEW dead_message AS SELECT partition, offset FROM dead_letter WHERE kind = 'message';
CREATE VIEW dead_episode AS SELECT partition, offset FROM dead_letter WHERE kind = 'episode';

-- In the segmenter's state: messages that wait for their episode to close. handed_over: it was waiting for an agent
-- when the state was first read, but not a moment later
CREATE TABLE pending (partition, offset, scope, conversation_scope, handed_over);
-- Rows that cannot be read. conversation: null if the key names none
CREATE TABLE damage (conversation, partition, problem);

-- Derived: the scopes that each message belongs to, by its rowid; none if it repeats an earlier one (see expected.py)
CREATE TABLE expected (message, scope, PRIMARY KEY (message, scope)) WITHOUT ROWID;

-- On episode.closed. recomputed: the fingerprint of the messages that it carries; message_ids: the hash of their ids;
-- first_offset and last_offset: of its core messages on messages; truncated: edits made it too large and its contents
-- were cut, so that they cannot be compared
CREATE TABLE closed (
    partition, offset, episode_id, revision, conversation, ordinal, fingerprint, recomputed, message_ids, scope,
    first_offset, last_offset, truncated, ended_ms
);
-- Its core messages. episode: its rowid
CREATE TABLE core (episode INTEGER, place, message, content, sent_ms, PRIMARY KEY (episode, place)) WITHOUT ROWID;
-- episode.amended, with the position of the change on messages
CREATE TABLE amended (partition, offset, conversation, message, change_partition, change_offset);

-- summary.created, with the hash of the whole event, and summary.deleted
CREATE TABLE announced (event_id, episode_id, revision, event, message_ids);
CREATE TABLE announced_deletion (event_id, episode_id);
-- The last record of each key in each partition of the compacted topics. name: an episode's id, or a conversation's
-- scope, which has no revision
CREATE TABLE compacted (kind, name, partition, is_gone, revision, PRIMARY KEY (kind, name, partition)) WITHOUT ROWID;
-- The last of these, because a key moves to a higher partition when the number of partitions is doubled
CREATE VIEW current AS
SELECT kind, name, is_gone, revision, MAX(partition) FROM compacted GROUP BY kind, name;
-- Invalid records of messages (kind: message), episode.closed (episode) and the topics of summaries (summary)
CREATE TABLE invalid (kind, partition, offset);

-- In the stores: episodes. messages: the digests of its core messages, one after the other; sourceless: a fact names a
-- message that is not among them
CREATE TABLE stored_episode (
    episode_id PRIMARY KEY, fingerprint, messages, has_facts, sourceless
) WITHOUT ROWID;
-- Messages that a summary was made from after they had changed, with the offset of the change
CREATE TABLE stored_change (episode_id, message, offset);
-- Tombstones, of which some may be newer than stored_episode. expired: deleted because it was past its retention
CREATE TABLE deleted_episode (episode_id PRIMARY KEY, expired) WITHOUT ROWID;
-- The archive's messages, with the position of the record that each was archived from. content: null for a tombstone;
-- changed: offset of the last change
CREATE TABLE document (message, episode_id, content, partition, offset, changed);

-- Episodes in the search index
CREATE TABLE indexed (episode_id PRIMARY KEY) WITHOUT ROWID;
"""
INDEXES: Final = """
CREATE INDEX message_id ON message (message, partition, offset);
CREATE INDEX dead_letter_position ON dead_letter (kind, partition, offset);
CREATE INDEX pending_position ON pending (partition, offset);
CREATE INDEX closed_id ON closed (episode_id, revision);
CREATE INDEX core_message ON core (message);
CREATE INDEX amended_change ON amended (change_partition, change_offset);
CREATE INDEX announced_episode ON announced (episode_id);
CREATE INDEX announced_event ON announced (event_id);
CREATE INDEX announced_deletion_episode ON announced_deletion (episode_id);
CREATE INDEX stored_change_message ON stored_change (episode_id, message);
CREATE INDEX document_message ON document (message);
"""


class NoRoom(AfterwordError):
    """the audit cannot store its data in a temporary file: {problem}; set TMPDIR to another directory"""


@dataclass
class Circumstances:
    """Other facts that the verdict depends on. The queries refer to the fields by their names."""

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


class Evidence:
    """The tables, and the circumstances, whose fields every query may name.

    The tables are in memory or in a private, unnamed file that disappears when the process ends.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self.circumstances = Circumstances()
        self._database = database
        for pragma in (f"cache_size = -{CACHE_KIB}", "journal_mode = off", "synchronous = off"):
            database.execute(f"PRAGMA {pragma}")
        database.execute("PRAGMA locking_mode = exclusive")
        database.create_function("named", 3, _named, deterministic=True)
        self.run_all("BEGIN;\n" + TABLES)  # a single transaction, because each one would write out its changes

    def add(self, table: str, *row: Any) -> int | None:
        """Insert a row, or replace the one with the same key. Returns its rowid, if the table has rowids."""
        places = ", ".join("?" * len(row))
        return self._database.execute(f"INSERT OR REPLACE INTO {table} VALUES ({places})", row).lastrowid  # noqa: S608 – names of our own tables

    def run_all(self, script: str) -> None:
        """Run statements, each of which ends with `;` at the end of a line."""
        for statement in script.split(";\n"):
            self.rows(statement)

    def rows(self, sql: str, **values: object) -> Iterator[Any]:
        return self._database.execute(sql, {**vars(self.circumstances), **values})

    def value(self, sql: str, **values: object) -> Any:
        """Return the single value that a query yields."""
        return next(self.rows(sql, **values))[0]


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


def scope_name(conversation_id: str, agent_id: str | None = None) -> str:
    """Return the common prefix of the ids of all episodes in a scope."""
    return scope_in(episode_id(conversation_id, 0, agent_id))


def scope_in(episode: str) -> str:
    """Return the scope of an `episode_id`, in the form of `scope_name`."""
    return episode.rpartition(":")[0]


def digest(key: str) -> bytes:
    """Return the digest of a `message_key`."""
    return blake2b(key.encode(), digest_size=DIGEST_BYTES).digest()


def digest_of_message(conversation_id: str, message_id: str, tenant_id: str | None = None) -> bytes:
    return digest(message_key(conversation_id, message_id, tenant_id))


def _named(conversation: str, partition: int, offset: int) -> str:
    return f"a message of {conversation}, partition {partition}, offset {offset}"
