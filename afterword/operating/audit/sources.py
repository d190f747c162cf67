"""Reduces what topics, changelogs and stores hold to the rows that an audit keeps."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from aiokafka import ConsumerRecord

from afterword.operating.audit.evidence import (
    Evidence,
    digest,
    digest_of_all,
    digest_of_message,
    number_of,
    scope_in,
    scope_name,
)
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
from afterword.schemas.dead_letters import ARCHIVE, DEAD_LETTER_PREFIX, is_offset
from afterword.schemas.decoding import validate
from afterword.schemas.episodes import fingerprint
from afterword.schemas.headers import CE_ID, header
from afterword.schemas.ids import conversation_of_scope
from afterword.streams.errors import RowUnreadable
from afterword.streams.kafka.log_reader import Take
from afterword.streams.segmenter.arrival import milliseconds
from afterword.streams.segmenter.state import (
    CONVERSATIONS,
    MESSAGES,
    NOBODY,
    Scope,
    decode_body,
    decode_state,
    parse_key,
    parse_scope,
)
from afterword.streams.settings import Kafka
from afterword.streams.stores.episodes import DeletedEpisode, Episode, all_episodes
from afterword.streams.stores.messages import NEVER, DeletedMessage, StoredMessage
from afterword.streams.stores.opening import Stores
from faust_eos.changelog import BOOKMARK_KEY

if TYPE_CHECKING:
    from afterword.streams.redaction.records import RecordRedaction

COUNTED_AT_A_TIME = 200


class TopicReader:
    """Adds the records of each topic. `redaction` is what segmenter and archiver apply to messages."""

    def __init__(self, evidence: Evidence, kafka: Kafka, redaction: "RecordRedaction | None" = None) -> None:
        self._evidence = evidence
        self._kafka = kafka
        self._redaction = redaction

    def takes(self) -> dict[str, Take]:
        """Return the function that reads each topic's records, in the order in which the topics' ends are queried.

        Messages come last, so that every message of an episode is among them. The compacted topics come after the
        events they were written with.
        """
        kafka = self._kafka
        current = zip(kafka.current_topics, (self._current_episode, self._current_conversation), strict=False)
        return {
            kafka.dead_letters(kafka.messages_topic): self._dead_letter("dead_message", kafka.messages_topic),
            kafka.episodes_topic: self._or_invalid("episode", self.episode),
            kafka.dead_letters(kafka.episodes_topic): self._dead_letter("dead_episode", kafka.episodes_topic),
            kafka.summaries_topic: self._or_invalid("summary", self._summary),
            kafka.deletions_topic: self._or_invalid("summary", self._deletion),
            **{topic: self._or_invalid("summary", take) for topic, take in current},
            kafka.messages_topic: self._or_invalid("message", self._message),
        }

    def _or_invalid(self, kind: str, take: Take) -> Take:
        def taken(record: ConsumerRecord) -> None:
            try:
                take(record)
            except InvalidRecord:
                self._evidence.add("invalid", kind, record.partition, record.offset)

        return taken

    def _dead_letter(self, table: str, topic: str) -> Take:
        def taken(record: ConsumerRecord) -> None:
            if found := original_of(record, topic):
                partition, offset, error = found
                quarantined = (error == "state_unreadable",) if table == "dead_message" else ()
                self._evidence.add(table, partition, offset, *quarantined)

        return taken

    def _message(self, record: ConsumerRecord) -> None:
        event = decode_input(record.key, record.value, record.headers, record.timestamp)
        if self._redaction:
            event = self._redaction.event(event)
        add, conversation = self._evidence.add, event.conversation_id
        where = record.partition, record.offset, conversation
        if isinstance(event, ConversationFlush):
            add("flush", *where, event.agent_id or None)
        elif isinstance(event, ConversationDeleted):
            add("change", *where, event.tenant_id, None, None, True, True)
        elif isinstance(event, MessageCreated):
            message = digest_of_message(conversation, event.id, event.tenant_id)
            who = event.skip_summarization, event.agent_id or None, event.tenant_id
            sent_ms = milliseconds(event.sent_at) if event.sent_at else 0
            content = digest(event.content)
            add("message", *where, scope_name(conversation), message, content, *who, record.timestamp, sent_ms)
        else:
            message = digest_of_message(conversation, event.id, event.tenant_id)
            content, deletes, excludes = None, True, True
            if isinstance(event, MessageEdited):
                content = None if event.content is None else digest(event.content)
                deletes, excludes = False, bool(event.skip_summarization)
            add("change", *where, event.tenant_id, message, content, deletes, excludes)

    def episode(self, record: ConsumerRecord) -> None:
        """Add a record of `episode.closed`. Raises: InvalidRecord."""
        event = decode_closed(record.key, record.value, record.headers)
        where = record.partition, record.offset
        if isinstance(event, EpisodeClosed):
            self._closed(where, event)
        elif isinstance(event, EpisodeAmended):
            of, conversation = event.message_id, event.conversation_id
            message = None if of is None else digest_of_message(conversation, of, event.tenant_id)
            self._evidence.add("amended", *where, conversation, message, event.partition, event.offset)

    def _closed(self, where: tuple[int, int], episode: EpisodeClosed) -> None:
        number, conversation = number_of(*where), episode.conversation_id
        for place, message in enumerate(episode.messages):
            key = digest_of_message(conversation, message.id, episode.tenant_id)
            sent_ms = milliseconds(message.sent_at) if message.sent_at else 0
            self._evidence.add("core", number, place, key, digest(message.content), sent_ms)
        fingerprints = episode.fingerprint, fingerprint(episode.messages)
        message_ids, scope = digest_of_all(m.id for m in episode.messages), scope_in(episode.episode_id)
        offsets, ended_ms = (episode.source.first_offset, episode.source.last_offset), milliseconds(episode.ended_at)
        self._evidence.add(
            *("closed", *where, episode.episode_id, episode.revision, conversation, episode.ordinal, *fingerprints),
            *(message_ids, scope, number, *offsets, episode.truncated, ended_ms),
        )

    def _summary(self, record: ConsumerRecord) -> None:
        value = record.value or b""
        event = validate(SummaryCreated, value)
        whole, message_ids = digest(value), digest_of_all(event.message_ids)
        self._evidence.add("announced", event.event_id, event.episode_id, event.revision, whole, message_ids)

    def _deletion(self, record: ConsumerRecord) -> None:
        event = validate(SummaryDeleted, record.value or b"")
        self._evidence.add("announced_deletion", event.event_id, event.episode_id)

    def _current_episode(self, record: ConsumerRecord) -> None:
        name, _, revision = (header(record.headers, CE_ID) or "").rpartition(":")
        if not is_offset(revision) or name.encode() != record.key:
            raise InvalidRecord("invalid_header", f"{CE_ID} is not the key and a revision")
        self._evidence.add("current", name, record.partition, record.offset, record.value is None, int(revision))

    def _current_conversation(self, record: ConsumerRecord) -> None:
        scope = scope_name(*conversation_of_scope((record.key or b"").decode(errors="replace")))
        self._evidence.add("current", scope, record.partition, record.offset, record.value is None, None)


def original_of(record: ConsumerRecord, topic: str) -> tuple[int, int, str] | None:
    """Return the original position of a dead letter and its error, or None if it is not in `topic`.

    It is also None if only the archiver rejected the message, which is in an episode anyway.
    """
    names = ("stage", "topic", "partition", "offset", "type")
    stage, origin, partition, offset, error = (header(record.headers, DEAD_LETTER_PREFIX + one) or "" for one in names)
    if stage == ARCHIVE or origin != topic or not (is_offset(partition) and is_offset(offset)):
        return None
    return int(partition), int(offset), error


async def read_stores(stores: Stores, evidence: Evidence, read: Callable[[int], None]) -> None:
    """Add every episode and message. `read` is called with numbers of messages. Raises: StoreUnavailable, NoRoom."""
    async for episode in all_episodes(stores.episodes):
        _take_stored(evidence, episode)
    done = 0
    async for message in stores.messages.all_messages():
        _take_document(evidence, message)
        done += 1
        if done % COUNTED_AT_A_TIME == 0:
            read(COUNTED_AT_A_TIME)
    read(done % COUNTED_AT_A_TIME)


def _take_stored(evidence: Evidence, episode: Episode) -> None:
    if isinstance(episode, DeletedEpisode):
        evidence.add("deleted_episode", episode.deletion.episode_id, episode.deletion.reason == "expired")
        return
    summary = episode.summary

    def digest_of(message_id: str) -> bytes:
        return digest_of_message(summary.conversation_id, message_id, summary.tenant_id)

    messages = b"".join(map(digest_of, summary.message_ids))
    named = {one for fact in summary.facts for one in fact.message_ids}
    facts = bool(named), not named.issubset(summary.message_ids)
    evidence.add("stored_episode", summary.episode_id, episode.fingerprint, messages, *facts)
    for message_id, offset in episode.inputs:
        if offset != NEVER:
            evidence.add("stored_change", summary.episode_id, digest_of(message_id), offset)


def _take_document(evidence: Evidence, message: StoredMessage) -> None:
    key, state = digest(message.key), message.state
    if isinstance(state, DeletedMessage):
        evidence.add("document", key, None, False, None, None, None, True, state.changed)
    else:
        where, content = (state.partition, state.offset), digest(state.message.content)
        evidence.add("document", key, message.episode_id, True, content, *where, False, state.changed)


class Pending(NamedTuple):
    """A row of the table `pending`."""

    partition: int
    offset: int
    scope: str
    conversation_scope: str
    handed_over: bool = False


class Damage(NamedTuple):
    """A row of the table `damage`."""

    conversation: str | None
    partition: int
    problem: str


class Body(NamedTuple):
    """A message's row in the state, reduced to its position. A changelog has the partitions of its source."""

    scope: Scope
    seq: int
    partition: int
    offset: int


class SegmenterState:
    """What is waiting in the segmenter, and which rows are damaged.

    The messages must be read before the conversations, so that a message can only move from pending to closed.
    """

    def __init__(self) -> None:
        self._bodies: dict[bytes, Body] = {}
        self._conversations: dict[bytes, ConsumerRecord] = {}
        self._damage: dict[bytes, Damage] = {}
        """Unreadable rows of messages."""

    def take(self, table: str, record: ConsumerRecord) -> None:
        """Apply a record of a table's changelog. Raises: StateUnreadable if a later release wrote it."""
        if record.key == BOOKMARK_KEY:
            return
        if table == CONVERSATIONS:  # only the last record of each key is decoded
            self._conversations[record.key] = record
            return
        self._damage.pop(record.key, None)
        self._bodies.pop(record.key, None)
        if record.value is None:
            return
        try:
            key = parse_key(record.key)
            if key.seq is not None and (body := decode_body(record.value)) and not body.is_gone:
                self._bodies[record.key] = Body(key.scope, key.seq, record.partition, body.offset)
        except RowUnreadable as error:
            self._damage[record.key] = _damage(MESSAGES, record, error)

    def found(self) -> tuple[list[Pending], list[Damage]]:
        """Return the pending messages and the unreadable rows. The overlap is not pending: it is in an episode already.

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
        damaged = {row.conversation for row in damage}
        pending = []
        for scope, seq, partition, offset in self._bodies.values():
            waits = scope.conversation_id not in damaged and seq >= first_pending.get(scope, 0)
            if waits or scope.agent_id == NOBODY:  # the message may have moved to an agent's rows meanwhile
                names = scope_name(scope.conversation_id, scope.named_agent), scope_name(scope.conversation_id)
                pending.append(Pending(partition, offset, *names, handed_over=not waits))
        return pending, damage


def _damage(table: str, record: ConsumerRecord, error: RowUnreadable) -> Damage:
    try:
        scope = parse_scope(record.key) if table == CONVERSATIONS else parse_key(record.key).scope
    except RowUnreadable:
        return Damage(None, record.partition, error.problem)
    return Damage(scope.conversation_id, record.partition, error.problem)
