"""Reads everything that an audit needs from topics and stores into a temporary SQLite database.

Message contents are not kept. Messages are identified by the digest of their `message_key`. Contents, events and lists
of ids are only compared in pairs, so Python's hash identifies them. Times are milliseconds since 1970, 0 if unknown. A
scope is the prefix that the ids of all episodes of a conversation, or of one agent's part of it, have in common
(`scope_name`).
"""

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import blake2b
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from aiokafka import ConsumerRecord

from afterword.schemas import (
    ConversationAssigned,
    ConversationDeleted,
    ConversationFlush,
    EpisodeAmended,
    EpisodeClosed,
    InvalidRecord,
    MessageCreated,
    MessageEdited,
    SummaryCreated,
    SummaryDeleted,
    decode_closed,
    decode_input,
)
from afterword.schemas.base import conversation_of_scope, episode_id, message_key, milliseconds, user_digest
from afterword.schemas.dead_letters import ARCHIVE, is_offset, read_dead_letter
from afterword.schemas.episodes import fingerprint
from afterword.schemas.records import CE_ID, header, validate
from afterword.streams.errors import AfterwordError, RowUnreadable
from afterword.streams.kafka.clients import require_topics
from afterword.streams.kafka.log_reader import Log, ReadProgress, Take
from afterword.streams.roles import inputs_of
from afterword.streams.segmenter.state import (
    CONVERSATIONS,
    DIGEST_BYTES,
    MESSAGES,
    NOBODY,
    Scope,
    decode_body,
    decode_state,
    parse_key,
    parse_scope,
)
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.episodes import DeletedEpisode, all_episodes
from afterword.streams.stores.messages import NEVER
from afterword.streams.stores.opening import Stores, open_stores
from afterword.streams.tasks import gather_or_cancel
from faust_eos.changelog import BOOKMARK_KEY

if TYPE_CHECKING:
    from afterword.streams.redactor import RecordRedaction

CACHE_KIB: Final = 64 * 1024
"""SQLite's page cache in memory; the rest is on disk."""
CLOCKS_APART_MS = 3_600_000
INSERTED_TOGETHER = 1000
"""Number of rows that are inserted at a time. Inserting each one by itself takes more than half as long again."""
INDEX_PAGE = 2000
"""Number of episodes that are looked up in the index at a time."""
POLL_SECONDS = 0.2


def script(name: str) -> str:
    """Return one of the scripts in the folder `sql`."""
    return (files(__package__) / "sql" / f"{name}.sql").read_text(encoding="utf-8")


TABLES: Final = script("tables")
INDEXES: Final = script("indexes")


class NoRoom(AfterwordError):
    """the audit cannot store its data in a temporary file: {problem}; set TMPDIR to another directory"""


@dataclass
class Circumstances:
    """Other facts that the verdict depends on. The queries refer to the fields by their names."""

    dedupe_window: int = 10_000
    repeats_edit: bool = True
    """Whether a message with a known id and another text edits the earlier one."""
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
    notes: list[str] = field(default_factory=list)


class Evidence:
    """The tables, and the circumstances, whose fields every query may name.

    The tables are in memory or in a private, unnamed file that disappears when the process ends.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self.circumstances = Circumstances()
        self._database = database
        self._added: dict[str, list[tuple[Any, ...]]] = {}
        """Rows of each table that are not inserted yet."""
        database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        database.execute("PRAGMA journal_mode = off")
        database.create_function("named", 3, _named, deterministic=True)
        self.run_all("BEGIN;\n" + TABLES)  # a single transaction, because each one would write out its changes

    def add(self, table: str, *row: Any) -> None:
        """Add a row, or replace the one with the same key."""
        added = self._added.setdefault(table, [])
        added.append(row)
        if len(added) == INSERTED_TOGETHER:
            self._insert()

    def _insert(self) -> None:
        for table, rows in self._added.items():
            places = ", ".join("?" * len(rows[0]))
            self._database.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({places})", rows)  # noqa: S608 – names of our own tables
        self._added.clear()

    def run_all(self, script: str) -> None:
        """Run statements, each of which ends with `;` at the end of a line."""
        for statement in script.split(";\n"):
            self.rows(statement)

    def rows(self, sql: str, **values: object) -> Iterator[Any]:
        self._insert()
        return self._database.execute(sql, {**vars(self.circumstances), **values})

    def value(self, sql: str, **values: object) -> Any:
        """Return the single value that a query yields."""
        return next(self.rows(sql, **values))[0]


@contextmanager
def open_evidence() -> Iterator[Evidence]:
    """Open empty tables. Raises: NoRoom, which the block may raise too."""
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


async def read_deployment(
    settings: Settings, log: Log, evidence: Evidence, wait_seconds: float, progress: ReadProgress
) -> dict[str, int]:
    """Read everything into the tables, in an order in which work in progress never looks like a loss.

    Before that, wait up to `wait_seconds` with `until_finished`, and return its result.

    Topics, groups and stores are not read at one instant. The groups' offsets come first, then the segmenter's state,
    the ends of `episode.closed`, `summary.created` and `messages`, and finally the stores and those topics up to their
    ends. Messages only ever move in this direction, so the stores may have more than the topics show, but never less.
    """
    kafka, episodes, retention = settings.kafka, settings.episodes, settings.retention
    changelogs = {table: kafka.changelog(table) for table in (MESSAGES, CONVERSATIONS)}  # read in this order
    takes = TopicReader(evidence, kafka, settings.redaction.of_records()).takes()
    await require_topics(kafka, *takes, *changelogs.values())
    missing = await until_finished(log, kafka, wait_seconds, progress) if wait_seconds else {}

    async def work_done() -> tuple[object, object]:
        ends = (await log.extent([kafka.episodes_topic, *changelogs.values()])).ends
        return await log.committed(kafka.group_of("segmenter"), kafka.messages_topic), ends

    before = await work_done()
    for role, (group, topic) in inputs_of(kafka).items():
        for partition, offset in (await log.committed(group, topic)).items():
            evidence.add("consumed", role, partition, offset)
    # Compaction removes old values from the changelogs, so they are read now, before the events; see SegmenterState.
    state = SegmenterState()
    for table, changelog in changelogs.items():
        await log.read(changelog, partial(state.take, table), progress)
    state.add_to(evidence)
    extent = await log.extent(list(takes))
    async with open_stores(settings) as stores:
        what = "reading topics and stores"
        await gather_or_cancel(log.read_all(extent, takes, what, progress), read_stores(stores, evidence))
        # edits and deletions that the stores may already have
        await log.read_all(extent.before(await log.extent([kafka.messages_topic])), takes, what, progress)
        quiet = before == await work_done()
        await _read_index(stores, evidence, progress)

    # A worker decides by its own clock what has expired.
    soon = datetime.now(UTC) + timedelta(milliseconds=CLOCKS_APART_MS)
    oldest_message, oldest_episode = retention.messages_before(soon), retention.episodes_before(soon)
    judged = kafka.messages_topic, kafka.episodes_topic, kafka.summaries_topic
    truncated = [topic for topic in judged if topic in extent.truncated]
    evidence.circumstances = Circumstances(
        dedupe_window=episodes.dedupe_window,
        repeats_edit=episodes.on_changed_repeat == "edit",
        forget_after_ms=episodes.forget_after_ms,
        max_agents=episodes.max_agents if episodes.scope == "agent" else None,
        messages_before_ms=milliseconds(oldest_message) if oldest_message else 0,
        episodes_before_ms=milliseconds(oldest_episode) if oldest_episode else 0,
        quiet=quiet,
        messages_truncated=kafka.messages_topic in truncated,
        episodes_truncated=kafka.episodes_topic in truncated,
        summaries_truncated=kafka.summaries_topic in truncated,
        notes=[f"the oldest records of {one} were deleted, so what depends on them is not judged" for one in truncated],
    )
    return missing


async def _read_index(stores: Stores, evidence: Evidence, progress: ReadProgress) -> None:
    wanted = [name for (name,) in evidence.rows("SELECT DISTINCT episode_id FROM closed ORDER BY 1")]
    for start in range(0, len(wanted), INDEX_PAGE):
        progress("reading the index", start, len(wanted))
        page = wanted[start : start + INDEX_PAGE]
        indexed = await stores.index.revisions(page)
        for entry in indexed.items():
            evidence.add("indexed", *entry)
        # the others may have been deleted since the stores were read
        for name, stored in (await stores.episodes.lookup([one for one in page if one not in indexed])).items():
            if isinstance(stored, DeletedEpisode):
                evidence.add("deleted_episode", name, stored.deletion.reason == "expired")


async def until_finished(log: Log, kafka: Kafka, seconds: float, progress: ReadProgress) -> dict[str, int]:
    """Wait until the workers have finished what is on their topics.

    Returns the number of records that each unfinished worker has left after `seconds`. Raises: TopicStalled.
    """
    deadline, inputs = time.monotonic() + seconds, inputs_of(kafka)
    # the summarizer last, and again, because timers have closed more episodes meanwhile
    for role in (*sorted(inputs, key="summarizer".__eq__), "summarizer"):
        group, topic = inputs[role]
        ends, most = await log.ends(topic), 0
        while left := await log.left(group, topic, ends):
            most = max(most, left)
            progress(f"waiting for the {role}", most - left, most)
            if time.monotonic() > deadline:
                counts = {role: await log.left(*one, await log.ends(one[1])) for role, one in inputs.items()}
                return {role: count for role, count in counts.items() if count}
            await asyncio.sleep(POLL_SECONDS)
    return {}


class TopicReader:
    """Adds the records of each topic. `redaction` is what segmenter and archiver apply to messages."""

    def __init__(self, evidence: Evidence, kafka: Kafka, redaction: "RecordRedaction | None" = None) -> None:
        self._add = evidence.add
        self._episodes = 0
        self._kafka = kafka
        self._redaction = redaction

    def takes(self) -> dict[str, Take]:
        """Return the function that reads each topic's records, in the order in which the topics' ends are queried.

        Messages come last, so that every message of an episode is among them. The compacted topics come after the
        events they were written with.
        """
        kafka = self._kafka
        return {
            kafka.dead_letters(kafka.messages_topic): partial(self._dead_letter, "message", kafka.messages_topic),
            kafka.episodes_topic: partial(self._event, "episode", self._episode),
            kafka.dead_letters(kafka.episodes_topic): partial(self._dead_letter, "episode", kafka.episodes_topic),
            kafka.summaries_topic: partial(self._event, "summary", self._summary),
            kafka.deletions_topic: partial(self._event, "summary", self._deletion),
            kafka.current_episodes_topic: partial(self._event, "summary", self._current_episode),
            kafka.current_conversations_topic: partial(self._event, "summary", self._current_conversation),
            kafka.messages_topic: partial(self._event, "message", self._message),
        }

    def _event(self, kind: str, take: Take, record: ConsumerRecord) -> None:
        try:
            take(record)
        except InvalidRecord:
            self._add("invalid", kind, record.partition, record.offset)

    def _dead_letter(self, kind: str, topic: str, record: ConsumerRecord) -> None:
        letter = read_dead_letter(record)
        # A message that only the archiver rejected is in an episode anyway.
        if letter.origin and letter.origin.topic == topic and letter.stage != ARCHIVE:
            _, partition, offset = letter.origin
            self._add("dead_letter", kind, partition, offset, letter.error_type == "state_unreadable")

    def _message(self, record: ConsumerRecord) -> None:
        event = decode_input(record.key, record.value, record.headers, record.timestamp)
        if self._redaction:
            event = self._redaction.event(event)
        conversation = event.conversation_id
        where = record.partition, record.offset, conversation
        if isinstance(event, MessageCreated):
            message = digest_of_message(conversation, event.id, event.tenant_id)
            who = event.skip_summarization, event.agent_id or None, event.tenant_id
            sent_ms = milliseconds(event.sent_at) if event.sent_at else 0
            scope, content = scope_name(conversation), hash(event.content)
            self._add("message", *where, scope, message, content, *who, record.timestamp, sent_ms)
        elif isinstance(event, ConversationFlush):
            self._add("flush", *where, event.agent_id or None)
        elif isinstance(event, ConversationDeleted):
            self._add("change", *where, event.tenant_id, None, None, True, True)
        elif isinstance(event, ConversationAssigned):
            self._add("assigned", *where, event.tenant_id, *map(user_digest, (event.from_user_id, event.user_id)))
        else:
            message = digest_of_message(conversation, event.id, event.tenant_id)
            content, deletes, excludes = None, True, True
            if isinstance(event, MessageEdited):
                content = None if event.content is None else hash(event.content)
                deletes, excludes = False, bool(event.skip_summarization)
            self._add("change", *where, event.tenant_id, message, content, deletes, excludes)

    def _episode(self, record: ConsumerRecord) -> None:
        event = decode_closed(record.key, record.value, record.headers)
        where = record.partition, record.offset
        if isinstance(event, EpisodeAmended):
            of, conversation = event.message_id, event.conversation_id
            message = None if of is None else digest_of_message(conversation, of, event.tenant_id)
            self._add("amended", *where, conversation, message, event.partition, event.offset)
        elif isinstance(event, EpisodeClosed):
            about = event.episode_id, event.revision, event.conversation_id, event.ordinal
            made = event.fingerprint, fingerprint(event.messages), hash(tuple(said.id for said in event.messages))
            covers = scope_in(event.episode_id), event.source.first_offset, event.source.last_offset
            self._episodes += 1
            ends = event.truncated, milliseconds(event.ended_at)
            self._add("closed", self._episodes, *where, *about, *made, *covers, *ends)
            for place, said in enumerate(event.messages):
                key = digest_of_message(event.conversation_id, said.id, event.tenant_id)
                self._add("core", self._episodes, place, key, hash(said.content), milliseconds(said.sent_at))

    def _summary(self, record: ConsumerRecord) -> None:
        value = record.value or b""
        event = validate(SummaryCreated, value)
        about = event.event_id, event.episode_id, event.revision
        self._add("announced", *about, hash(value), hash(tuple(event.message_ids)))

    def _deletion(self, record: ConsumerRecord) -> None:
        event = validate(SummaryDeleted, record.value or b"")
        self._add("announced_deletion", event.event_id, event.episode_id)

    def _current_episode(self, record: ConsumerRecord) -> None:
        name, _, revision = (header(record.headers, CE_ID) or "").rpartition(":")
        if not is_offset(revision) or name.encode() != record.key:
            raise InvalidRecord("invalid_header", f"{CE_ID} is not the key and a revision")
        self._add("compacted", "episode", name, record.partition, record.value is None, int(revision))

    def _current_conversation(self, record: ConsumerRecord) -> None:
        scope = scope_name(*conversation_of_scope((record.key or b"").decode(errors="replace")))
        self._add("compacted", "conversation", scope, record.partition, record.value is None, None)


async def read_stores(stores: Stores, evidence: Evidence) -> None:
    """Add every episode and message. Raises: StoreUnavailable, NoRoom."""
    async for stored in all_episodes(stores.episodes):
        if isinstance(stored, DeletedEpisode):
            deletion = stored.deletion
            evidence.add("deleted_episode", deletion.episode_id, deletion.reason == "expired")
            continue
        summary = stored.summary
        changes = [(message_id, offset) for message_id, offset in stored.inputs if offset != NEVER]
        keys = {
            message_id: digest_of_message(summary.conversation_id, message_id, summary.tenant_id)
            for message_id in (*summary.message_ids, *dict(changes))
        }
        named = {message_id for fact in summary.facts for message_id in fact.message_ids}
        messages = b"".join(keys[message_id] for message_id in summary.message_ids)
        facts = bool(named), not named.issubset(summary.message_ids)
        evidence.add("stored_episode", summary.episode_id, summary.revision, stored.fingerprint, messages, *facts)
        for user in stored.participants:
            evidence.add(
                *("stored_user", summary.episode_id, summary.conversation_id, summary.tenant_id, user_digest(user))
            )
        for message_id, offset in changes:
            evidence.add("stored_change", summary.episode_id, keys[message_id], offset)
    async for key, episode, content, *where in stores.messages.all_messages():
        said = (None, None) if content is None else (episode, hash(content))
        evidence.add("document", digest(key), *said, *where)


class SegmenterState:
    """The pending messages of the segmenter, and its damaged rows.

    The messages must be read before the conversations, so that a message can only move from pending to closed.
    """

    def __init__(self) -> None:
        self._bodies: dict[bytes, tuple[Scope, int, int, int]] = {}
        """Messages' rows, each with its seq, partition and offset. A changelog has the partitions of its source."""
        self._conversations: dict[bytes, ConsumerRecord] = {}
        self._damage: dict[bytes, tuple[Any, ...]] = {}

    def take(self, table: str, record: ConsumerRecord) -> None:
        """Apply a record of a table's changelog. Raises: StateUnreadable if a later release wrote it."""
        if record.key == BOOKMARK_KEY:
            return
        if table == CONVERSATIONS:  # only the last record of each key is decoded
            self._conversations[record.key] = record
            return
        self._damage.pop(record.key, None)
        self._bodies.pop(record.key, None)
        if record.value is None or len(record.value) == DIGEST_BYTES:  # its message is in an episode
            return
        try:
            scope, seq = parse_key(record.key)
            if seq is not None and (body := decode_body(record.value)) and not body.is_gone:
                self._bodies[record.key] = scope, seq, record.partition, body.offset
        except RowUnreadable as error:
            self._damage[record.key] = _damage(MESSAGES, record, error)

    def add_to(self, evidence: Evidence) -> None:
        """Add pending messages and damaged rows. The overlap is not pending: it is in an episode already.

        Raises: StateUnreadable if a later release wrote a conversation.
        """
        first_pending: dict[Scope, int] = {}
        damage = list(self._damage.values())
        for record in self._conversations.values():
            try:
                if record.value is not None:
                    first_pending[parse_scope(record.key)] = decode_state(record.value).first_pending
            except RowUnreadable as error:
                damage.append(_damage(CONVERSATIONS, record, error))
        for row in damage:
            evidence.add("damage", *row)
        damaged = {conversation for conversation, *_ in damage}
        for scope, seq, partition, offset in self._bodies.values():
            waits = scope.conversation_id not in damaged and seq >= first_pending.get(scope, 0)
            if waits or scope.agent_id == NOBODY:  # the message may have moved to an agent's rows since
                names = scope_name(scope.conversation_id, scope.named_agent), scope_name(scope.conversation_id)
                evidence.add("pending", partition, offset, *names, not waits)


def _damage(table: str, record: ConsumerRecord, error: RowUnreadable) -> tuple[Any, ...]:
    try:
        scope = parse_scope(record.key) if table == CONVERSATIONS else parse_key(record.key)[0]
    except RowUnreadable:
        return None, record.partition, error.problem
    return scope.conversation_id, record.partition, error.problem
