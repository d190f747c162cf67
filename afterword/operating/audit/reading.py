"""Reads a deployment into the tables, in an order in which work in progress never looks like a loss, and judges it.

Before that it can wait until the workers have finished what is on their topics.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from aiokafka import ConsumerRecord

from afterword.operating.audit.evidence import (
    Circumstances,
    Evidence,
    Row,
    digest,
    digest_of_message,
    open_evidence,
    scope_in,
    scope_name,
)
from afterword.operating.audit.expected import CLOCKS_APART_MS
from afterword.operating.audit.judge import Report, judge
from afterword.schemas import (
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
from afterword.schemas.base import milliseconds
from afterword.schemas.dead_letters import ARCHIVE, is_offset, read_dead_letter
from afterword.schemas.decoding import validate
from afterword.schemas.episodes import fingerprint
from afterword.schemas.headers import CE_ID, header
from afterword.schemas.ids import conversation_of_scope
from afterword.streams.errors import RowUnreadable, TopicMissing
from afterword.streams.kafka.clients import broker_errors
from afterword.streams.kafka.log_reader import Log, ReadProgress, Take, open_log
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
    from afterword.streams.redaction.redactor import RecordRedaction

INDEX_PAGE = 2000
"""Number of episodes that are looked up in the index at a time."""
POLL_SECONDS = 0.2


async def run(settings: Settings, wait_seconds: float = 0, progress: ReadProgress = lambda *_: None) -> Report:
    """Audit a deployment.

    `wait_seconds` limits the wait until the workers have finished what is on their topics; 0 judges at once. The
    report's `missing` says what was left by then. Pending messages are not waited for. `progress` is called with what
    is being done, how much of it is done, and the total.

    Raises: BrokerUnavailable, StoreUnavailable, TopicMissing, TopicStalled, NoRoom.
    """
    with broker_errors(settings.kafka.bootstrap_servers), open_evidence() as evidence:
        async with open_log(settings.kafka) as log:
            topics = await log.topics()
            if settings.kafka.messages_topic not in topics:
                raise TopicMissing(topic=settings.kafka.messages_topic)
            missing = await until_finished(log, settings.kafka, wait_seconds, progress) if wait_seconds else None
            evidence.circumstances = await _read(settings, log, topics, evidence, progress)
        report = judge(evidence)
    report.missing = missing
    return report


async def _read(
    settings: Settings, log: Log, topics: set[str], evidence: Evidence, progress: ReadProgress
) -> Circumstances:
    """Read everything into the tables, and return what else the verdict depends on.

    Topics, groups and stores are not read at one instant. The groups' offsets come first, then the segmenter's state,
    the ends of `episode.closed`, `summary.created` and `messages`, and finally the stores and those topics up to their
    ends. Messages only ever move in this direction, so the stores may have more than the topics show, but never less.
    """
    kafka, episodes, retention = settings.kafka, settings.episodes, settings.retention
    changelogs = {table: kafka.changelog(table) for table in (MESSAGES, CONVERSATIONS)}  # read in this order
    takes = TopicReader(evidence, kafka, settings.redaction.of_records()).takes()
    outputs = [topic for topic in (kafka.episodes_topic, *changelogs.values()) if topic in topics]

    async def work_done() -> tuple[object, object]:
        ends = (await log.extent(outputs)).ends if outputs else None
        return await log.committed(kafka.segmenter_id, kafka.messages_topic), ends

    before = await work_done()
    for role, (group, topic) in inputs_of(kafka).items():
        for partition, offset in (await log.committed(group, topic)).items():
            evidence.add("consumed", role, partition, offset)
    # Compaction removes old values from the changelogs, so they are read now, before the events; see SegmenterState.
    state = SegmenterState()
    for table, changelog in changelogs.items():
        if changelog in topics:
            await log.read(changelog, partial(state.take, table), progress)
    state.add_to(evidence)
    extent = await log.extent([topic for topic in takes if topic in topics])
    async with open_stores(settings) as stores:
        what = "reading topics and stores"
        await gather_or_cancel(log.read_all(extent, takes, what, progress), read_stores(stores, evidence))
        # edits and deletions that the stores may already have
        await log.read_all(extent.before(await log.extent([kafka.messages_topic])), takes, what, progress)
        quiet = before == await work_done()
        await _read_index(stores, evidence, progress)

    # A worker removes what has expired by its own clock.
    soon = datetime.now(UTC) + timedelta(milliseconds=CLOCKS_APART_MS)
    oldest_message, oldest_episode = retention.messages_before(soon), retention.episodes_before(soon)
    notes = [f"topic {topic} does not exist" for topic in (*changelogs.values(), *takes) if topic not in topics]
    truncated = [
        topic
        for topic in (kafka.messages_topic, kafka.episodes_topic, kafka.summaries_topic)
        if topic in extent.truncated
    ]
    notes += [f"the oldest records of {one} were deleted, so what depends on them is not judged" for one in truncated]
    return Circumstances(
        dedupe_window=episodes.dedupe_window,
        forget_after_ms=episodes.forget_after_ms,
        max_agents=episodes.max_agents if episodes.scope == "agent" else None,
        messages_before_ms=milliseconds(oldest_message) if oldest_message else 0,
        episodes_before_ms=milliseconds(oldest_episode) if oldest_episode else 0,
        quiet=quiet,
        messages_truncated=kafka.messages_topic in truncated,
        episodes_truncated=kafka.episodes_topic in truncated,
        summaries_truncated=kafka.summaries_topic in truncated,
        has_current=kafka.current_state and topics.issuperset(kafka.current_topics),
        notes=notes,
    )


async def _read_index(stores: Stores, evidence: Evidence, progress: ReadProgress) -> None:
    wanted = [name for (name,) in evidence.rows("SELECT DISTINCT episode_id FROM closed ORDER BY 1")]
    for start in range(0, len(wanted), INDEX_PAGE):
        progress("reading the index", start, len(wanted))
        page = wanted[start : start + INDEX_PAGE]
        indexed = await stores.index.revisions(page)
        for name in indexed:
            evidence.add("indexed", name)
        # the others may have been deleted since the stores were read
        for name, version in (await stores.episodes.versions([one for one in page if one not in indexed])).items():
            if version.ended:
                evidence.add("deleted_episode", name, version.ended == "expired")


async def until_finished(log: Log, kafka: Kafka, seconds: float, progress: ReadProgress) -> dict[str, int] | None:
    """Wait until the workers have finished what is on their topics.

    Returns how many records each has left after `seconds`, or None if all have finished. Raises: TopicStalled.
    """
    deadline, inputs = time.monotonic() + seconds, inputs_of(kafka)
    for role in (*inputs, "summarizer"):  # again, because timers have closed more episodes meanwhile
        group, topic = inputs[role]
        ends, most = await log.ends(topic), 0
        while left := await log.left(group, topic, ends):
            most = max(most, left)
            progress(f"waiting for the {role}", most - left, most)
            if time.monotonic() > deadline:
                return {role: await log.left(*one, await log.ends(one[1])) for role, one in inputs.items()}
            await asyncio.sleep(POLL_SECONDS)
    return None


def inputs_of(kafka: Kafka) -> dict[str, tuple[str, str]]:
    """Return the group and the input topic of each worker. The summarizer reads the topic that the segmenter writes."""
    return {
        "segmenter": (kafka.segmenter_id, kafka.messages_topic),
        "archiver": (kafka.archiver_id, kafka.messages_topic),
        "summarizer": (kafka.summarizer_id, kafka.episodes_topic),
    }


class TopicReader:
    """Adds the records of each topic. `redaction` is what segmenter and archiver apply to messages."""

    def __init__(self, evidence: Evidence, kafka: Kafka, redaction: "RecordRedaction | None" = None) -> None:
        self._add = evidence.add
        self._kafka = kafka
        self._redaction = redaction

    def takes(self) -> dict[str, Take]:
        """Return the function that reads each topic's records, in the order in which the topics' ends are queried.

        Messages come last, so that every message of an episode is among them. The compacted topics come after the
        events they were written with.
        """
        kafka = self._kafka
        currents = zip(kafka.current_topics, (self._current_episode, self._current_conversation), strict=False)
        return {
            kafka.dead_letters(kafka.messages_topic): partial(self._dead_letter, "message", kafka.messages_topic),
            kafka.episodes_topic: partial(self._event, "episode", self._episode),
            kafka.dead_letters(kafka.episodes_topic): partial(self._dead_letter, "episode", kafka.episodes_topic),
            kafka.summaries_topic: partial(self._event, "summary", self._summary),
            kafka.deletions_topic: partial(self._event, "summary", self._deletion),
            **{topic: partial(self._event, "summary", take) for topic, take in currents},
            kafka.messages_topic: partial(self._event, "message", self._message),
        }

    def _event(self, kind: str, take: Take, record: ConsumerRecord) -> None:
        try:
            take(record)
        except InvalidRecord:
            self._add("invalid", kind, record.partition, record.offset)

    def _dead_letter(self, kind: str, topic: str, record: ConsumerRecord) -> None:
        found = read_dead_letter(record)
        # A message that only the archiver rejected is in an episode anyway.
        if found.origin and found.origin.topic == topic and found.stage != ARCHIVE:
            _, partition, offset = found.origin
            self._add("dead_letter", kind, partition, offset, found.error_type == "state_unreadable")

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
            number = self._add("closed", *where, *about, *made, *covers, event.truncated, milliseconds(event.ended_at))
            for place, said in enumerate(event.messages):
                key = digest_of_message(event.conversation_id, said.id, event.tenant_id)
                self._add("core", number, place, key, hash(said.content), milliseconds(said.sent_at))

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
    async for episode in all_episodes(stores.episodes):
        if isinstance(episode, DeletedEpisode):
            deletion = episode.deletion
            evidence.add("deleted_episode", deletion.episode_id, deletion.reason == "expired")
            continue
        summary = episode.summary
        changes = [(one, offset) for one, offset in episode.inputs if offset != NEVER]
        keys = {
            one: digest_of_message(summary.conversation_id, one, summary.tenant_id)
            for one in (*summary.message_ids, *dict(changes))
        }
        named = {one for fact in summary.facts for one in fact.message_ids}
        messages = b"".join(keys[one] for one in summary.message_ids)
        facts = bool(named), not named.issubset(summary.message_ids)
        evidence.add("stored_episode", summary.episode_id, episode.fingerprint, messages, *facts)
        for one, offset in changes:
            evidence.add("stored_change", summary.episode_id, keys[one], offset)
    async for key, episode_id, content, *where in stores.messages.all_messages():
        said = (None, None) if content is None else (episode_id, hash(content))
        evidence.add("document", digest(key), *said, *where)


class SegmenterState:
    """The pending messages of the segmenter, and its damaged rows.

    The messages must be read before the conversations, so that a message can only move from pending to closed.
    """

    def __init__(self) -> None:
        self._bodies: dict[bytes, tuple[Scope, int, int, int]] = {}
        """Messages' rows, each with its seq, partition and offset. A changelog has the partitions of its source."""
        self._conversations: dict[bytes, ConsumerRecord] = {}
        self._damage: dict[bytes, Row] = {}

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
        """Add what is pending and what is damaged. The overlap is not pending: it is in an episode already.

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


def _damage(table: str, record: ConsumerRecord, error: RowUnreadable) -> Row:
    try:
        scope = parse_scope(record.key) if table == CONVERSATIONS else parse_key(record.key)[0]
    except RowUnreadable:
        return None, record.partition, error.problem
    return scope.conversation_id, record.partition, error.problem
