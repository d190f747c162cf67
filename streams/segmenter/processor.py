"""A batch of records → what to send, with the changes of both tables made. No Kafka, no Faust, no clock."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog

from schemas import ConversationFlush, InvalidRecord, MessageCreated, decode_input
from schemas.episodes import EPISODE_CLOSED
from schemas.headers import cloud_event
from schemas.ids import event_id
from streams.runtime import dead_letters
from streams.segmenter import keys
from streams.segmenter.conversation import Conversation
from streams.segmenter.episodes import Closed, build, carried, episode_bytes, milliseconds
from streams.segmenter.outcome import Outcome, Outgoing, Record
from streams.segmenter.rows import BufferedRows, Rows
from streams.segmenter.rules import Incoming
from streams.segmenter.state import decode_state, encode_state
from streams.settings import Episodes

STAGE = "segmenter"
CE_SOURCE = "afterword/segmenter"
MAX_MESSAGE_BYTES = 800_000
"""What one message may add to an episode; with overlap and envelope that stays below a megabyte."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Segmenter:
    """Keeps nothing between batches: what it knows is in the two tables.

    `conversations`: a row of counters for each, whose deadline `state.deadline_of` reads. `messages`: their bodies and
    the ids that were seen. `count_tokens`: of a text. A call changes the tables at its end or, when it raises, not at
    all, so that it can be run again.
    """

    limits: Episodes
    episodes_topic: str
    dead_letters_topic: str
    conversations: Rows
    messages: Rows
    count_tokens: Callable[[str], int]

    def process(self, records: Iterable[Record], now_ms: int) -> Outcome:
        """Records of one partition in order. `now_ms`: wall clock, milliseconds since 1970.

        Raises: StateUnreadable, never for what is in a record.
        """
        batch = _Batch(self, now_ms)
        for record in records:
            batch.take(record)
        return batch.finish()

    def tick(self, due: Sequence[bytes], now_ms: int, topic: str, partition: int) -> Outcome:
        """Closes what is pending in the conversations `due` (keys of their table), if its deadline has passed.

        `topic`, `partition`: where their messages were read. Raises: StateUnreadable.
        """
        batch = _Batch(self, now_ms)
        for key in due:
            batch.expire(key.decode(), topic, partition)
        return batch.finish()


class _Batch:
    def __init__(self, segmenter: Segmenter, now_ms: int) -> None:
        self._own = segmenter
        self._now_ms = now_ms
        self._messages = BufferedRows(segmenter.messages)
        self._open: dict[str, tuple[Conversation, bytes | None]] = {}
        """Conversations of this batch, and their rows before it."""
        self._outcome = Outcome()

    def take(self, record: Record) -> None:
        try:
            event = decode_input(record.key, record.value, record.headers, record.timestamp)
            self._apply(event, record)
        except InvalidRecord as error:
            self._refuse(record, error)

    def expire(self, conversation_id: str, topic: str, partition: int) -> None:
        conversation = self._conversation(conversation_id)
        if conversation.state and 0 < conversation.state.deadline_ms <= self._now_ms:
            self._send(conversation.close("idle"), topic, partition)

    def finish(self) -> Outcome:
        rows = {name: row for name, (conversation, old) in self._open.items() if (row := tidied(conversation)) != old}
        self._messages.flush()
        for name, row in rows.items():
            if row is not None:
                self._own.conversations[keys.conversation_key(name)] = row
        return self._outcome

    def _apply(self, event: MessageCreated | ConversationFlush, record: Record) -> None:
        if isinstance(event, ConversationFlush):
            self._outcome.flushes += 1
            self._send(self._conversation(event.conversation_id).close("flush"), record.topic, record.partition)
        elif event.skip_summarization:
            self._outcome.skipped += 1
        else:
            self._add(event, record)

    def _add(self, message: MessageCreated, record: Record) -> None:
        conversation = self._conversation(message.conversation_id)
        check_tenant(conversation, message.tenant_id)
        digest = keys.id_digest(message.id)
        if conversation.has(digest):
            self._outcome.duplicates += 1
            return
        json = carried(message)
        facts = self._facts(message, json, record.timestamp)
        closed = conversation.append(
            facts, json, digest, offset=record.offset, tenant_id=message.tenant_id, now_ms=self._now_ms
        )
        self._outcome.messages += 1
        self._send(closed, record.topic, record.partition)

    def _facts(self, message: MessageCreated, json: bytes, record_ms: int) -> Incoming:
        size = episode_bytes(message, json)
        if size > MAX_MESSAGE_BYTES:
            raise InvalidRecord("too_large", f"takes {size} bytes of an episode, at most {MAX_MESSAGE_BYTES} fit")
        assert message.sent_at is not None  # noqa: S101 – decoding fills it in
        tokens = self._own.count_tokens(message.content)
        return Incoming(milliseconds(message.sent_at), record_ms, tokens, size, message.is_continuation)

    def _conversation(self, conversation_id: str) -> Conversation:
        found = self._open.get(conversation_id)
        if found is None:
            row = self._own.conversations.get(keys.conversation_key(conversation_id))
            state = None if row is None else decode_state(row)
            found = Conversation(conversation_id, state, self._messages, self._own.limits), row
            self._open[conversation_id] = found
        return found[0]

    def _send(self, episodes: Iterable[Closed], topic: str, partition: int) -> None:
        for closed in episodes:
            event = build(closed, topic, partition, self._now_ms)
            ce_id = event_id(event.episode_id, event.revision)
            headers = cloud_event(EPISODE_CLOSED, ce_id, CE_SOURCE, event.closed_at)
            key = keys.conversation_key(closed.conversation_id)
            self._outcome.outgoing.append(Outgoing(self._own.episodes_topic, key, event.to_json(), headers))
            self._outcome.episodes[closed.reason] += 1

    def _refuse(self, record: Record, error: InvalidRecord) -> None:
        where = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        log.warning("record refused", stage=STAGE, error_type=error.error_type, problem=error.detail, **where)
        letter = dead_letters.dead_letter(
            record, stage=STAGE, error_type=error.error_type, message=error.detail, attempts=1, now_ms=self._now_ms
        )
        self._outcome.outgoing.append(Outgoing(self._own.dead_letters_topic, *letter))
        self._outcome.dead_letters[error.error_type] += 1


def check_tenant(conversation: Conversation, tenant_id: str | None) -> None:
    """Conversation ids are unique across tenants: nothing may leak through one id. Raises: InvalidRecord."""
    if not conversation.belongs_to(tenant_id):
        raise InvalidRecord("tenant_mismatch", "the conversation's first message has another tenant_id")


def tidied(conversation: Conversation) -> bytes | None:
    """The row to keep; rows of messages that are not needed any more are deleted. None: there is nothing to keep."""
    conversation.tidy()
    return conversation.state and encode_state(conversation.state)
