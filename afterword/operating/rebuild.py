"""Rebuilds the segmenter's state after its changelogs were lost or damaged, and the search index.

With a rebuilt state, each conversation continues after the last episode that `episode.closed` or the store has of it:
the next episode gets the next ordinal, and messages that are read again are recognized as already being in an episode.
Opening a partition's producer fences its segmenter, which then reads the state again.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import IllegalOperation, ProducerFenced
from aiokafka.partitioner import DefaultPartitioner

from afterword.operating.topics import read_with
from afterword.schemas import EpisodeClosed, InvalidRecord, MessageCreated, decode_closed, decode_input
from afterword.schemas.base import message_key
from afterword.streams.errors import AfterwordError, BrokerUnavailable
from afterword.streams.kafka.clients import (
    Position,
    admin_client,
    broker_errors,
    client_options,
    position_of,
    require_topics,
)
from afterword.streams.kafka.log_reader import Log, open_log
from afterword.streams.segmenter.state import (
    CONVERSATIONS,
    MESSAGES,
    NOBODY,
    TABLES,
    Scope,
    State,
    encode_state,
    record_key,
    scope_key,
)
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.episodes import DeletedEpisode, EpisodeQueries, all_episodes, living
from afterword.streams.stores.index import EpisodeIndex, searchable
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.opening import open_stores
from afterword.streams.summarizer.embedders import Embedder, embed_messages, make_embedder
from faust_eos.changelog import Bookmark, new_lineage
from faust_eos.database import RowChange
from faust_eos.kafka import Clients
from faust_eos.options import Options
from faust_eos.transaction import TransactionalProducer, transactional_id

OPTIONS = Options(transaction_timeout_seconds=300)
ASKED_AT_ONCE = 1000
"""Number of messages per query to the archive."""
PAGE_EPISODES = 100
"""Number of episodes held in memory at a time. Their messages are loaded one episode after another."""


class MessagesGrown(AfterwordError):
    """{topic} has {found} partitions, but the segmenter has read it with {before}, so nothing was changed. See
    docs/how-to/scale.md"""


class SegmenterCameBack(AfterwordError):
    """a segmenter took over partition {partition} meanwhile, so nothing was changed there: stop the segmenters first"""


class RebuiltPartition(NamedTuple):
    """A partition whose state was rebuilt, or left unchanged because it has state."""

    partition: int
    conversations: int
    source: int
    """Offset on `messages` from which the segmenter continues."""
    left: bool = False


class Last(NamedTuple):
    """The last episode of a scope.

    It may have been deleted; even then, its ordinal must not be reused, nor its messages accepted again.
    """

    ordinal: int
    tenant_id: str | None
    message: str
    """The `message_key` of its last core message."""
    offset: int
    """Offset of that message."""


@dataclass
class ResumePoints:
    """Collects episodes, then the messages that they end with. `agents` is true if `scope = agent`."""

    agents: bool = False
    last: dict[Scope, Last] = field(default_factory=dict)
    partitions: dict[str, set[int]] = field(default_factory=dict)
    """The known partitions of each conversation."""
    _found: dict[str, Position] = field(default_factory=dict)
    """Position of each last message: at the offset that its episode names, or else of the first record that has it."""

    def take_episode(self, record: ConsumerRecord) -> None:
        """Add a record of `episode.closed`. Invalid ones are ignored."""
        try:
            episode = decode_closed(record.key, record.value, record.headers)
        except InvalidRecord:
            return
        if not isinstance(episode, EpisodeClosed):
            return
        message = message_key(episode.conversation_id, episode.messages[-1].id, episode.tenant_id)
        last = Last(episode.ordinal, episode.tenant_id, message, episode.source.last_offset)
        self.add(episode.conversation_id, episode.agent_id, last)
        self.partitions[episode.conversation_id].add(episode.source.partition)

    def add(self, conversation_id: str, agent_id: str | None, last: Last) -> None:
        """Add an episode. `agent_id` is the scope's."""
        scope = Scope(conversation_id, agent_id or NOBODY if self.agents else None)
        if scope not in self.last or self.last[scope].ordinal < last.ordinal:
            self.last[scope] = last
            self.partitions.setdefault(conversation_id, set())

    @cached_property
    def _wanted(self) -> dict[str, Last]:
        """Last episodes by the key of their last message."""
        return {last.message: last for last in self.last.values()}

    def take_message(self, record: ConsumerRecord) -> None:
        """Record the position of a message if a last episode ends with it."""
        try:
            event = decode_input(record.key, record.value, record.headers, record.timestamp)
        except InvalidRecord:
            return
        known = self.partitions.get(event.conversation_id)
        if known is None or not isinstance(event, MessageCreated):
            return
        known.add(record.partition)
        name = message_key(event.conversation_id, event.id, event.tenant_id)
        last = self._wanted.get(name)
        if last and (name not in self._found or last.offset == record.offset):
            self._found[name] = position_of(record)

    def resume_states(self) -> dict[int, dict[Scope, State]]:
        """Return the initial states of the scopes in each partition that has their conversation."""
        states: dict[int, dict[Scope, State]] = defaultdict(dict)
        for scope, last in self.last.items():
            place = self._found.get(last.message)
            for partition in self.partitions[scope.conversation_id]:
                taken_to = place.offset + 1 if place and place.partition == partition else 0
                states[partition][scope] = State(last.tenant_id, last_ordinal=last.ordinal, taken_to=taken_to)
                if self.agents:
                    states[partition].setdefault(Scope(scope.conversation_id), State(last.tenant_id, agents=[]))
        return states


async def resume_points(log: Log, settings: Settings) -> ResumePoints:
    """Read the last episodes from the topics and the stores. Raises: TopicStalled, StoreUnavailable."""
    kafka, episodes = settings.kafka, settings.episodes
    points = ResumePoints(agents=episodes.scope == "agent")
    await log.read(kafka.episodes_topic, points.take_episode)
    async with open_stores(settings) as stores:
        async for episode in all_episodes(stores.episodes):
            event = episode.event
            message = message_key(event.conversation_id, episode.core_ids[-1], event.tenant_id)
            last = Last(episode.ordinal, event.tenant_id, message, episode.last_offset)
            points.add(event.conversation_id, event.agent_id, last)
        await log.read(kafka.messages_topic, points.take_message)
        await _place(points, stores.messages, list(range(len(await log.ends(kafka.messages_topic)))))
    return points


async def _place(points: ResumePoints, archive: MessageArchive, partitions: Sequence[int]) -> None:
    """Find the partitions of conversations that have no record left on the topics.

    A conversation goes to the partition of its last message or, if that is not archived, to the one that Kafka's
    partitioner chooses.
    """
    choose = DefaultPartitioner()
    placeless = {s.conversation_id: last for s, last in points.last.items() if not points.partitions[s.conversation_id]}
    names = list(placeless)
    for start in range(0, len(names), ASKED_AT_ONCE):
        page = names[start : start + ASKED_AT_ONCE]
        archived = await archive.get_many([placeless[name].message for name in page])
        for name in page:
            message = archived.get(placeless[name].message)
            where = message.partition if message else choose(record_key(name), partitions, partitions)
            points.partitions[name].add(int(where))


async def rebuild_state(settings: Settings) -> list[RebuiltPartition]:
    """Rebuild the state of all partitions with empty changelogs, in one transaction each.

    The segmenter then reads `messages` again from the first record and skips what is already in an episode. Raises:
    SegmenterCameBack, BrokerUnavailable, StoreUnavailable, TopicMissing; MessagesGrown if it has read fewer partitions.
    """
    kafka = settings.kafka
    changelogs = map(kafka.changelog, TABLES)
    await require_topics(kafka, kafka.messages_topic, kafka.dead_letters(kafka.messages_topic), *changelogs)
    with broker_errors(kafka.bootstrap_servers):
        async with open_log(kafka) as log:
            starts = (await log.extent([kafka.messages_topic])).first
            states = (await resume_points(log, settings)).resume_states()
            async with admin_client(kafka) as admin:
                before = await read_with(admin, kafka.group_of("segmenter"), kafka.messages_topic)
            if before is not None and before < len(starts):
                raise MessagesGrown(topic=kafka.messages_topic, found=len(starts), before=before)
            return [
                await _rebuilt(log, kafka, source, start, len(starts), states.get(source.partition, {}))
                for source, start in sorted(starts.items())
            ]


async def _rebuilt(
    log: Log, kafka: Kafka, source: TopicPartition, start: int, partitions: int, states: Mapping[Scope, State]
) -> RebuiltPartition:
    """Write a partition's rows in one transaction, as the segmenter does, to continue with the record at `start`."""
    left = RebuiltPartition(source.partition, 0, start, left=True)
    if await _has_state(log, kafka, source.partition):  # a producer would fence its segmenter needlessly
        return left
    changelogs = {table: TopicPartition(kafka.changelog(table), source.partition) for table in TABLES}
    first: list[RowChange] = [(scope_key(scope), encode_state(state)) for scope, state in states.items()]
    rows = {changelogs[CONVERSATIONS]: first, changelogs[MESSAGES]: []}
    bookmark = Bookmark(start, new_lineage(), sorted(TABLES))
    async with owned(kafka, source.partition) as producer:
        if await _has_state(log, kafka, source.partition):  # another rebuild was faster
            return left
        await producer.commit([], rows, bookmark, source, kafka.group_of("segmenter"), partitions=partitions)
    return RebuiltPartition(source.partition, len({scope.conversation_id for scope in states}), start)


async def _has_state(log: Log, kafka: Kafka, partition: int) -> bool:
    """Return whether a changelog has anything committed. The remains of a killed rebuild do not count."""
    for table in TABLES:
        where = TopicPartition(kafka.changelog(table), partition)
        async with log.reader(where.topic) as consumer:
            end = (await consumer.end_offsets([where]))[where]  # excludes open transactions
        async with aclosing(log.records_of(where, end)) as records:
            if await anext(records, None) is not None:
                return True
    return False


@asynccontextmanager
async def owned(kafka: Kafka, partition: int) -> AsyncIterator[TransactionalProducer]:
    """Take ownership of a partition, as its segmenter would. Raises: SegmenterCameBack, BrokerUnavailable."""
    name = transactional_id(kafka.group_of("segmenter"), TopicPartition(kafka.messages_topic, partition))
    producer = TransactionalProducer(name, Clients(client_options(kafka)), OPTIONS)
    try:
        await producer.open()
        yield producer
    except (ProducerFenced, IllegalOperation):  # aiokafka raises one or the other, depending on where it was fenced
        raise SegmenterCameBack(partition=partition) from None
    except TimeoutError:
        raise BrokerUnavailable(servers=kafka.bootstrap_servers, problem="no answer in time") from None
    finally:
        await producer.close()


@dataclass
class IndexCounts:
    """Counts of episodes so far."""

    total: int
    """Number of episodes when the run started."""
    seen: int = 0
    written: int = 0
    incomplete: int = 0
    """Indexed episodes with messages that are not in the archive and cannot be searched for."""
    removed: int = 0
    """Indexed episodes that the stores do not have, as after the restore of an older index."""


async def index_episodes(
    episodes: EpisodeQueries,
    messages: MessageArchive,
    index: EpisodeIndex,
    embedder: Embedder | None,
    progress: Callable[[IndexCounts], None],
    *,
    everything: bool = False,
) -> IndexCounts:
    """Index stored episodes in the order of their ids: those whose revision is not indexed, or `everything`.

    Then remove what is indexed without being stored: deleted episodes, and those of an index that does not fit the
    stores.

    It may run beside the workers and be repeated: an older revision never replaces a newer one. `progress` is called
    after each page. Raises: StoreUnavailable.
    """
    done, last = IndexCounts(await episodes.count()), None
    while page := await episodes.page(last, PAGE_EPISODES):
        wanted = living(page)
        if not everything:
            indexed = await index.revisions(list(wanted))
            wanted = {name: s for name, s in wanted.items() if indexed.get(name, 0) < s.summary.revision}
        for stored in wanted.values():
            summary = stored.summary
            keys = [message_key(summary.conversation_id, each, summary.tenant_id) for each in summary.message_ids]
            found = await messages.get_many(keys)
            texts = searchable(found[key].message for key in keys if key in found)
            await index.put(stored, texts, await embed_messages(embedder, texts) if embedder else None)
            done.incomplete += len(found) < len(set(keys))
        last = page[-1].event.episode_id
        done.seen += len(page)
        done.written += len(wanted)
        progress(done)
    async for indexed in index.pages():
        known = await episodes.lookup(list(indexed))
        gone = {name: each for name, each in known.items() if isinstance(each, DeletedEpisode)}
        for name, each in gone.items():
            await index.remove(name, max(each.event.revision, indexed[name]))
        if strangers := indexed.keys() - known.keys():
            await index.forget(sorted(strangers))
        done.removed += len(gone) + len(strangers)
    return done


async def rebuild_index(settings: Settings, progress: Callable[[IndexCounts], None], everything: bool) -> IndexCounts:
    """Rebuild the index of these settings. Raises: StoreUnavailable, ConfigurationError."""
    async with AsyncExitStack() as closing:
        stores = await closing.enter_async_context(open_stores(settings))
        if embedder := make_embedder(settings.embedder, settings.redaction):
            closing.push_async_callback(embedder.close)
        return await index_episodes(
            stores.episodes, stores.messages, stores.index, embedder, progress, everything=everything
        )
