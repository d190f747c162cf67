"""The last episode of each conversation, or agent, by `episode.closed` and by the store, and where its messages end.

With it the segmenter's state can be rebuilt: the next episode gets the next ordinal, and what is read again of the
messages is known to be in an episode already.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from aiokafka import ConsumerRecord
from aiokafka.partitioner import DefaultPartitioner

from afterword.audit.log import Log
from afterword.audit.snapshot import Position, digest, position_of
from afterword.schemas import InvalidRecord, MessageCreated, decode_episode, decode_input
from afterword.schemas.ids import message_key
from afterword.streams.segmenter.state import NOBODY, Scope, State, record_key
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import DeletedEpisode
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.opening import open_stores

ASKED_AT_ONCE = 1000
"""Messages in one question to the archive."""


class Last(NamedTuple):
    """The last episode of a scope."""

    ordinal: int
    tenant_id: str | None
    message: str
    """The `message_key` of its last core message, or of the last episode before it if it was deleted; empty if there
    is none."""
    position: Position | None = None
    """Position of that message according to `episode.closed`."""
    offset: int | None = None
    """Offset at which a later episode ended that was deleted, according to its tombstone."""


class Seed(NamedTuple):
    """A state to begin with, in one partition."""

    partition: int
    scope: Scope
    state: State


@dataclass
class LastEpisodes:
    """Collects episodes, then the messages that they end with. `agents`: with `scope = agent`."""

    agents: bool = False
    only: str | None = None
    """The one conversation that is looked at; None: all."""
    last: dict[Scope, Last] = field(default_factory=dict)
    partitions: dict[str, set[int]] = field(default_factory=dict)
    """Partitions of conversations, as far as they are known."""
    _wanted: dict[bytes, Last] = field(default_factory=dict)
    """Last episodes by the digest of their last message."""
    _first: dict[bytes, Position] = field(default_factory=dict)
    _confirmed: set[Position] = field(default_factory=set)
    _ended: set[tuple[str, Position]] = field(default_factory=set)
    """Conversations, and where tombstones say that their episodes ended, as far as there is such a record."""
    _tombstones: set[tuple[str, int]] = field(default_factory=set)

    def take_episode(self, record: ConsumerRecord) -> None:
        """Add a record of `episode.closed`; one that is invalid has no successor."""
        try:
            episode = decode_episode(record.key, record.value)
        except InvalidRecord:
            return
        last = message_key(episode.conversation_id, episode.messages[-1].id, episode.tenant_id)
        where = Position(episode.source.partition, episode.source.last_offset)
        self.add(episode.conversation_id, episode.agent_id, Last(episode.ordinal, episode.tenant_id, last, where))

    def add(self, conversation_id: str, agent_id: str | None, last: Last) -> None:
        """Add an episode. `agent_id`: of the scope."""
        if self.only not in (None, conversation_id):
            return
        scope = Scope(conversation_id, agent_id or NOBODY if self.agents else None)
        known = self.last.get(scope)
        if known is None or known.ordinal < last.ordinal:
            if known and not last.message:  # it was deleted: what is in those before it must not be taken again
                offset = known.offset if last.offset is None else last.offset
                last = last._replace(message=known.message, position=known.position, offset=offset)
            self.last[scope] = last
            self.partitions.setdefault(conversation_id, set())

    def expect(self) -> None:
        """Look for the last messages from here on."""
        self._wanted = {digest(last.message): last for last in self.last.values()}
        self._tombstones = {(s.conversation_id, one.offset) for s, one in self.last.items() if one.offset is not None}

    def take_message(self, record: ConsumerRecord) -> None:
        """Note where a record of `messages` is, if a last episode ends with it."""
        try:
            event = decode_input(record.key, record.value, record.headers, record.timestamp)
        except InvalidRecord:
            return
        known = self.partitions.get(event.conversation_id)
        if known is None or not isinstance(event, MessageCreated):
            return
        known.add(record.partition)
        if (event.conversation_id, record.offset) in self._tombstones:
            self._ended.add((event.conversation_id, position_of(record)))
        name = digest(message_key(event.conversation_id, event.id, event.tenant_id))
        if last := self._wanted.get(name):
            self._first.setdefault(name, position_of(record))
            if last.position == position_of(record):
                self._confirmed.add(last.position)

    def homeless(self) -> Mapping[str, Last]:
        """Conversations, with an episode of each, of which `messages` has nothing any more."""
        return {
            scope.conversation_id: last
            for scope, last in self.last.items()
            if not self.partitions.get(scope.conversation_id)
        }

    def seeds(self) -> Iterable[Seed]:
        """The state that each scope begins with, in each partition that has its conversation."""
        roots = set()
        for scope, last in self.last.items():
            for partition in self.partitions[scope.conversation_id]:
                yield Seed(partition, scope, self._state(scope, last, partition))
                if self.agents and (partition, scope.conversation_id) not in roots:
                    roots.add((partition, scope.conversation_id))
                    yield Seed(partition, Scope(scope.conversation_id), State(last.tenant_id, agents=[]))

    def _state(self, scope: Scope, last: Last, partition: int) -> State:
        found = self._end(last)
        taken_to = found.offset + 1 if found and found.partition == partition else 0
        if last.offset is not None and (scope.conversation_id, Position(partition, last.offset)) in self._ended:
            taken_to = max(taken_to, last.offset + 1)
        return State(last.tenant_id, last_ordinal=last.ordinal, taken_to=taken_to)

    def _end(self, last: Last) -> Position | None:
        """Position of the episode's last message: as in its record if confirmed, else that of its first record."""
        return last.position if last.position in self._confirmed else self._first.get(digest(last.message))


async def last_episodes(log: Log, settings: Settings, only: str | None = None) -> LastEpisodes:
    """Read them from the topics and the stores. Raises: TopicStalled, StoreUnavailable.

    `only`: the one conversation that is wanted.
    """
    kafka, episodes = settings.kafka, settings.episodes
    found = LastEpisodes(agents=episodes.scope == "agent", only=only)
    await log.read(kafka.episodes_topic, found.take_episode)
    async with open_stores(settings) as stores:
        async for one in stores.episodes.all_episodes():
            if isinstance(one, DeletedEpisode):  # its ordinal is not used again
                ended = one.deletion
                last = Last(ended.ordinal, ended.tenant_id, "", offset=one.last_offset)
                found.add(ended.conversation_id, ended.agent_id, last)
            else:
                key = message_key(one.conversation_id, one.message_ids[-1], one.tenant_id)
                found.add(one.conversation_id, one.agent_id, Last(one.ordinal, one.tenant_id, key))
        found.expect()
        await log.read(kafka.messages_topic, found.take_message)
        await _place(found, stores.messages, partitioner(len(await log.ends(kafka.messages_topic))))
    return found


def partitioner(partitions: int) -> Callable[[str], int]:
    """Kafka's own: the partition of a conversation that is in no topic and no archive."""
    every, choose = list(range(partitions)), DefaultPartitioner()
    return lambda conversation_id: int(choose(record_key(conversation_id), every, every))


async def _place(found: LastEpisodes, archive: MessageArchive, partition_of: Callable[[str], int]) -> None:
    """Find the partitions of conversations whose records have expired. Raises: StoreUnavailable."""
    homeless = list(found.homeless().items())
    for start in range(0, len(homeless), ASKED_AT_ONCE):
        page = homeless[start : start + ASKED_AT_ONCE]
        archived = await archive.get_many([last.message for _, last in page if last.message])
        for conversation_id, last in page:
            known = archived.get(last.message)
            where = last.position.partition if last.position else known.partition if known else None
            found.partitions[conversation_id].add(partition_of(conversation_id) if where is None else where)
