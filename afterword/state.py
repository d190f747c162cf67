"""The segmenter's state in its changelogs: conversations in quarantine, one rebuilt, and all rebuilt.

What is rebuilt goes on after the last episode that `episode.closed` or the store has, so that no id is given twice.
Opening the producer of a partition fences its segmenter, which then reads the state again.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import IllegalOperation, KafkaError, ProducerFenced

from afterword.audit.log import Log, open_log
from afterword.audit.snapshot import (
    Position,
    Positions,
    SegmenterState,
    conversation_of,
    position_of,
    take_dead_letter,
)
from afterword.dlq import DeadLetterQueue, Filters
from afterword.last_episodes import Seed, last_episodes
from afterword.streams.app import configured_sealing
from afterword.streams.errors import AfterwordError, BrokerUnavailable
from afterword.streams.kafka import admin_client, client_options, require_topics
from afterword.streams.runtime.batch import Output
from afterword.streams.runtime.changelog import (
    BOOKMARK_KEY,
    Bookmark,
    Link,
    decode_bookmark,
    new_lineage,
    row_key,
)
from afterword.streams.runtime.database import RowChange
from afterword.streams.runtime.options import Clients, Options, wall_clock_ms
from afterword.streams.runtime.transaction import TransactionalProducer, transactional_id
from afterword.streams.segmenter.agent import owners_of
from afterword.streams.segmenter.processor import Outcome, Segmenter
from afterword.streams.segmenter.state import (
    CONVERSATIONS,
    MESSAGES,
    TABLES,
    decode_state,
    encode_state,
    record_key,
    scope_key,
)
from afterword.streams.settings import Kafka, Settings
from afterword.streams.tokens import count_tokens
from afterword.topics import layouts_of_messages

if TYPE_CHECKING:
    from afterword.streams.sealing.opening import SealingWithKeys

UNREADABLE = "state_unreadable"
OPTIONS = Options(transaction_timeout_seconds=300)
BATCH = 500
"""Records of a conversation that the rules are given at once."""

Tables = dict[str, dict[bytes, bytes]]
"""Rows of each table, by key."""


class NoSuchState(AfterwordError):
    """conversation {conversation_id} has no state: there is nothing to reset"""


class SegmenterCameBack(AfterwordError):
    """a segmenter took partition {partition} over meanwhile, and nothing was changed there: stop segmenters first"""


@dataclass
class Quarantined:
    """A conversation with a damaged row, as its row or its dead letters say."""

    conversation_id: str | None
    """None: the row names none."""
    partition: int
    problem: str
    dead_letters: int = 0
    """Dead letters that wait to be replayed."""


class Reset(NamedTuple):
    """A conversation that was rebuilt in one partition."""

    partition: int
    last_ordinal: int
    """The highest of its episodes before that, whichever agent it is of."""
    pending: int
    """Messages that were read again and wait for their episode."""
    episodes: int
    """Episodes that closed with those before."""


class RebuiltPartition(NamedTuple):
    """A partition whose state was rebuilt, or was left because there is some."""

    partition: int
    conversations: int
    source: int
    """Offset of `messages` with which the segmenter goes on."""
    left: bool = False


async def quarantined(settings: Settings) -> list[Quarantined]:
    """Find conversations with damaged rows, or with dead letters that say so.

    Raises: BrokerUnavailable, TopicMissing, StateUnreadable for state of a later release.
    """
    kafka, state = settings.kafka, SegmenterState()
    found: dict[tuple[str | None, int], Quarantined] = {}
    async with _log(kafka) as log:
        for table in (MESSAGES, CONVERSATIONS):
            await log.read(kafka.changelog(table), partial(state.take, table))
        for damage in state.damaged:
            found.setdefault((damage.conversation_id, damage.partition), Quarantined(*damage))
        letters = DeadLetterQueue(kafka, log)
        async for letter in letters.unresolved(
            kafka.dead_letters(kafka.messages_topic), Filters(error_type=UNREADABLE)
        ):
            where = letter.conversation_id, letter.origin.partition if letter.origin else letter.partition
            found.setdefault(where, Quarantined(*where, letter.problem)).dead_letters += 1
    return sorted(found.values(), key=lambda one: (one.partition, one.conversation_id or ""))


async def reset(settings: Settings, conversation_id: str) -> list[Reset]:
    """Rebuild one conversation's state from its last episode and its records that are in none.

    What became a dead letter is left to `afterword dlq replay`. Raises: NoSuchState, SegmenterCameBack,
    BrokerUnavailable, StoreUnavailable, TopicMissing.
    """
    async with _log(settings.kafka) as log:
        partitions = (await _rows(log, settings.kafka, conversation_id)).partitions
        if not partitions:
            raise NoSuchState(conversation_id=conversation_id)
        return [await _reset(log, settings, conversation_id, partition) for partition in sorted(partitions)]


async def rebuild_state(settings: Settings) -> list[RebuiltPartition]:
    """Rebuild the state of all partitions whose changelogs are empty, one transaction for each.

    The segmenter reads `messages` again from the first record; what is in an episode already is passed over.
    Raises: SegmenterCameBack, BrokerUnavailable, StoreUnavailable, TopicMissing.
    """
    kafka = settings.kafka
    async with _log(kafka) as log:
        async with log.reader(kafka.messages_topic, isolation_level="read_committed") as consumer:
            starts = await consumer.beginning_offsets(list(consumer.assignment()))
        seeds = _by_partition((await last_episodes(log, settings)).seeds())
        layout = await _layout(kafka)
        return [
            await _rebuilt(log, kafka, source, start, layout, seeds[source.partition])
            for source, start in sorted(starts.items())
            if source.partition < layout
        ]


async def _rebuilt(
    log: Log, kafka: Kafka, source: TopicPartition, start: int, layout: int, seeds: Sequence[Seed]
) -> RebuiltPartition:
    left = RebuiltPartition(source.partition, 0, start, left=True)
    if await _has_state(log, kafka, source.partition):  # its segmenter is not fenced for nothing
        return left
    async with owned(kafka, source.partition) as producer:
        if await _has_state(log, kafka, source.partition):  # another rebuild was faster
            return left
        tables: Tables = {CONVERSATIONS: rows_of(seeds), MESSAGES: {}}
        bookmark = Bookmark(start, new_lineage(), sorted(TABLES))
        await _commit(producer, kafka, source, layout, bookmark, tables)
    return RebuiltPartition(source.partition, len({seed.scope.conversation_id for seed in seeds}), start)


async def _has_state(log: Log, kafka: Kafka, partition: int) -> bool:
    """Return whether a changelog has anything that was committed: what a killed rebuild has left is nothing."""
    for table in TABLES:
        where = TopicPartition(kafka.changelog(table), partition)
        async with log.reader(where.topic, isolation_level="read_committed") as consumer:
            end = (await consumer.end_offsets([where]))[where]  # before the first open transaction
        async with aclosing(log.records_of(where, end)) as records:
            if await anext(records, None) is not None:
                return True
    return False


async def _layout(kafka: Kafka) -> int:
    """Number of partitions of `messages` of which the state was made, also where there are more now."""
    async with admin_client(kafka) as admin:
        return (await layouts_of_messages(admin, kafka))[kafka.segmenter_id].partitions


def rows_of(seeds: Iterable[Seed]) -> dict[bytes, bytes]:
    """Rows of the table of conversations."""
    return {scope_key(seed.scope): encode_state(seed.state) for seed in seeds}


def _by_partition(seeds: Iterable[Seed]) -> dict[int, list[Seed]]:
    found: dict[int, list[Seed]] = defaultdict(list)
    for seed in seeds:
        found[seed.partition].append(seed)
    return found


@dataclass
class ConversationRows:
    """Keys of one conversation's rows, and the bookmarks, by partition."""

    conversation_id: str
    keys: dict[tuple[int, str], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    bookmarks: dict[tuple[int, str], tuple[Bookmark, int]] = field(default_factory=dict)

    @property
    def partitions(self) -> set[int]:
        return {partition for (partition, _), keys in self.keys.items() if keys}

    def take(self, table: str, record: ConsumerRecord) -> None:
        where = record.partition, table
        if record.key == BOOKMARK_KEY:
            self.bookmarks[where] = decode_bookmark(record.value), record.offset
        elif conversation_of(table, row_key(record.key)) == self.conversation_id:
            (self.keys[where].discard if record.value is None else self.keys[where].add)(row_key(record.key))


async def _rows(log: Log, kafka: Kafka, conversation_id: str) -> ConversationRows:
    found = ConversationRows(conversation_id)
    for table in TABLES:
        await log.read(kafka.changelog(table), partial(found.take, table))
    return found


async def _reset(log: Log, settings: Settings, conversation_id: str, partition: int) -> Reset:
    kafka = settings.kafka
    async with owned(kafka, partition) as producer:
        rows = await _rows(log, kafka, conversation_id)
        bookmark = max((rows.bookmarks[partition, table][0] for table in TABLES), key=lambda mark: mark.source)
        last = await last_episodes(log, settings, only=conversation_id)
        seeds = [seed for seed in last.seeds() if seed.partition == partition]
        tables: Tables = {CONVERSATIONS: rows_of(seeds), MESSAGES: {}}
        outcome = await _replayed(log, settings, tables, Position(partition, bookmark.source), conversation_id)
        links = {table: rows.bookmarks[partition, table][1] for table in TABLES}
        gone = {table: rows.keys[partition, table] - tables[table].keys() for table in TABLES}
        source = TopicPartition(kafka.messages_topic, partition)
        layout = await _layout(kafka)
        await _commit(producer, kafka, source, layout, bookmark, tables, outcome, gone, links)
    ordinal = max((seed.state.last_ordinal for seed in seeds), default=0)
    pending = sum(decode_state(row).pending_messages for row in tables[CONVERSATIONS].values())
    return Reset(partition, ordinal, pending, outcome.episodes.total())


async def _replayed(log: Log, settings: Settings, tables: Tables, end: Position, conversation_id: str) -> Outcome:
    """Give the rules the conversation's records before `end`, except those that are dead letters."""
    kafka, dead, done = settings.kafka, Positions(), Outcome()
    dead_letters = kafka.dead_letters(kafka.messages_topic)
    await log.read(dead_letters, partial(take_dead_letter, dead, kafka.messages_topic))
    records: list[ConsumerRecord] = []
    async with configured_sealing(settings) as sealing:
        segmenter = Segmenter(
            limits=settings.episodes,
            episodes_topic=kafka.episodes_topic,
            dead_letters_topic=dead_letters,
            conversations=tables[CONVERSATIONS],
            messages=tables[MESSAGES],
            count_tokens=count_tokens,
            redaction=settings.redaction.of_records(),
            sealing=sealing,
        )
        async for record in log.records(kafka.messages_topic):
            where = position_of(record)
            mine = record.key == record_key(conversation_id) and where.partition == end.partition
            if mine and where.offset < end.offset and where not in dead:
                records.append(record)
            if len(records) == BATCH:
                await _process(segmenter, sealing, records, done)
                records.clear()
        await _process(segmenter, sealing, records, done)
    return done


async def _process(
    segmenter: Segmenter, sealing: "SealingWithKeys | None", records: list[ConsumerRecord], total: Outcome
) -> None:
    """Give the rules these records, and the keys that they ask for."""
    left = records
    while left:
        outcome = segmenter.process(left, wall_clock_ms())
        _add(total, outcome)
        left = left[outcome.done :] if outcome.needed else []
        if outcome.needed and sealing:
            await sealing.fetch(outcome.needed, owners_of(left))


def _add(total: Outcome, more: Outcome) -> None:
    total.outgoing += more.outgoing
    total.episodes += more.episodes


async def _commit(
    producer: TransactionalProducer,
    kafka: Kafka,
    source: TopicPartition,
    layout: int,
    bookmark: Bookmark,
    tables: Tables,
    outcome: Outcome | None = None,
    gone: dict[str, set[bytes]] | None = None,
    links: dict[str, int] | None = None,
) -> None:
    """Write rows and outputs in one transaction, as the segmenter does.

    `layout`: as `_layout` has it. `links`: offsets of the bookmarks before.
    """
    changelogs = {table: TopicPartition(kafka.changelog(table), source.partition) for table in TABLES}
    rows: dict[TopicPartition, list[RowChange]] = {}
    for table, changelog in changelogs.items():
        deleted: list[RowChange] = [(key, None) for key in sorted((gone or {}).get(table, ()))]
        rows[changelog] = [*deleted, *tables[table].items()]
    marks = {
        changelog: Link((links or {}).get(table, -1), len(rows[changelog]) + 1)
        for table, changelog in changelogs.items()
    }
    outputs = (
        [Output(topic, key, value, None, None, headers) for topic, key, value, headers in outcome.outgoing]
        if outcome
        else []
    )
    await producer.commit(outputs, rows, bookmark, source, kafka.segmenter_id, marks, layout=layout)


@asynccontextmanager
async def owned(kafka: Kafka, partition: int) -> AsyncIterator[TransactionalProducer]:
    """Own the partition, as its segmenter would. Raises: SegmenterCameBack, BrokerUnavailable."""
    name = transactional_id(kafka.segmenter_id, TopicPartition(kafka.messages_topic, partition))
    producer = TransactionalProducer(name, Clients(client_options(kafka)), OPTIONS)
    try:
        await producer.open(OPTIONS.start_timeout_seconds)
        yield producer
    except (ProducerFenced, IllegalOperation):  # what aiokafka raises depends on where it was fenced
        raise SegmenterCameBack(partition=partition) from None
    finally:
        await producer.close()


@asynccontextmanager
async def _log(kafka: Kafka) -> AsyncIterator[Log]:
    """Open the log. Raises: BrokerUnavailable, TopicMissing."""
    changelogs = [kafka.changelog(table) for table in TABLES]
    await require_topics(kafka, kafka.messages_topic, kafka.dead_letters(kafka.messages_topic), *changelogs)
    try:
        async with open_log(kafka) as log:
            yield log
    except (KafkaError, TimeoutError) as error:
        raise BrokerUnavailable(servers=kafka.bootstrap_servers, problem=str(error) or type(error).__name__) from error
