"""The oracle for a segmenter's history: it repeats the committed transactions with the pure rules."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from aiokafka import TopicPartition

from afterword.schemas import EpisodeAmended, EpisodeClosed, decode_closed
from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.segmenter.state import parse_scope
from afterword_text.tokens import count_tokens
from distributions.engine.tests.simulation.broker import Transaction
from faust_eos.changelog import BOOKMARK_KEY, decode_bookmark, row_key
from tests.model.segmenting import DEAD_LETTERS, ENGINE, EPISODES, SOURCE, Work, Worker, World, as_sent, changelogs
from tests.unit.segmenter.chat import due, episodes
from tests.unit.segmenter.oracle import Name, Oracle

Rows = dict[bytes, bytes]


@dataclass
class Story:
    """Processes the log once, in the same portions as the committed transactions."""

    world: World
    conversations: Rows = field(default_factory=dict)
    messages: Rows = field(default_factory=dict)
    oracle: Oracle = field(init=False)
    """An independent implementation of the rules."""
    source: int = 0
    expired: int = 0
    """Number of offsets that were deleted before they were read."""
    episodes: list[EpisodeClosed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.world.limits, count_tokens)

    def tell(self, transaction: Transaction) -> None:
        assert SOURCE in transaction.offsets, "a transaction without the source offset"
        work, end = transaction.note, transaction.offsets[SOURCE].offset
        outgoing = self._tick(work, end) if work.records is None else self._records(work, end)
        self.source = end
        for topic in (EPISODES, DEAD_LETTERS):
            written = [(r.key, r.value, list(r.headers)) for r in transaction.written if r.topic == topic.topic]
            assert written == [(o.key, o.value, o.headers) for o in outgoing if o.topic == topic.topic], (
                "other outputs than the rules"
            )
        self.episodes += episodes(outgoing)

    def _records(self, work: Work, end: int) -> Iterable[Any]:
        assert end > self.source, "the offset went back, or stood still"
        unread = [r for r in self.world.broker.log(SOURCE).history(self.source) if r.offset < end]
        taken = list(work.records or ())
        passed = unread[: len(unread) - len(taken)]
        assert passed + taken == unread, "a transaction of other records than those between its offsets"
        if passed:
            self._expire(passed[-1].offset, taken[0].offset)
        for record in taken:
            self.oracle.hear(as_sent(record), work.now_ms)
        return self._segmenter.process(taken, work.now_ms).outgoing

    def _expire(self, last: int, next_offset: int) -> None:
        """Check that the records up to `last` had been deleted at some time, and that their loss was reported."""
        starts = [start for start in self.world.broker.log(SOURCE).starts if last < start <= next_offset]
        assert starts, "records were passed over that were there"
        if self.source:  # otherwise the group is new, and begins with the first existing record
            self.expired += starts[0] - self.source
        assert self.world.counted_as_expired() >= self.expired, "records were passed over without a word"

    def _tick(self, work: Work, end: int) -> Iterable[Any]:
        assert end == self.source, "a tick moved the offset"
        after = self.world.ends_seen[work.worker, work.now_ms]
        unread = [r for r in self.world.broker.log(SOURCE).read(end) if r.offset < after]
        assert not unread, "a tick while records were unread"
        due = list(work.due)  # after a failure of the agent, batches are smaller
        assert due == self._due(work.now_ms)[: ENGINE["tick_keys"]][: len(due)], "a tick of other keys than are due"
        self._wait(due, work.now_ms)
        return self._segmenter.tick(due, work.now_ms, SOURCE.topic, SOURCE.partition).outgoing

    def _due(self, now_ms: int) -> list[bytes]:
        return [key for _, _, key in due(self.conversations, self.world.limits.forget_after_ms, now_ms)]

    def _wait(self, due: Iterable[bytes], now_ms: int) -> None:
        for name in [tuple(parse_scope(key)) for key in due]:
            assert self.oracle.expire(name, now_ms), "closed or forgotten before its silence was over"

    def name_of(self, episode: EpisodeClosed) -> Name:
        return episode.conversation_id, (episode.agent_id or "") if self.world.limits.scope == "agent" else None

    @property
    def _segmenter(self) -> Segmenter:
        return Segmenter(
            self.world.limits,
            EPISODES.topic,
            DEAD_LETTERS.topic,
            self.conversations,
            self.messages,
            count_tokens=count_tokens,
        )


def check(world: World, owner: Worker) -> None:
    """Check the history. By now everything is read, nothing is due, and only `owner` has the partition."""
    story = told(world)
    _everything_was_read(world, story, owner)
    _episodes_are_the_oracles(story)
    _every_message_is_in_one_place(story)
    _state_is_the_same_everywhere(world, story, owner)


def told(world: World) -> Story:
    """Raises: AssertionError if a transaction was committed that does not follow from the earlier ones."""
    story = Story(world)
    for transaction in world.broker.committed:
        story.tell(transaction)
    return story


def _everything_was_read(world: World, story: Story, owner: Worker) -> None:
    assert story.source == world.source_end(), "records were left unread"
    committed = world.broker.offsets.get(SOURCE)
    assert (committed.offset if committed else 0) == story.source, "the group's offset is another"
    assert max(owner.partition.session.database.position.source, 0) == story.source, "the owner is elsewhere"


def _episodes_are_the_oracles(story: Story) -> None:
    def as_found(e: EpisodeClosed) -> Any:
        said = tuple((m.id, m.content) for m in e.messages), tuple((m.id, m.content) for m in e.overlap)
        return (story.name_of(e), e.ordinal, e.close_reason, *said)

    assert sorted(map(as_found, story.episodes)) == sorted(story.oracle.found)
    read = [decode_closed(r.key, r.value, r.headers) for r in story.world.broker.log(EPISODES).read(0)]
    committed = [event for event in read if isinstance(event, EpisodeClosed)]
    assert committed == story.episodes, "readers see other episodes than were committed"
    passed_on = [(event.conversation_id, event.message_id) for event in read if isinstance(event, EpisodeAmended)]
    assert passed_on == story.oracle.amended, "a changed repeat was not passed on, or twice"
    assert len({e.episode_id for e in committed}) == len(committed), "an episode was committed twice"


def _every_message_is_in_one_place(story: Story) -> None:
    placed: dict[Name, list[str]] = defaultdict(list)
    for episode in story.episodes:
        placed[story.name_of(episode)] += [m.id for m in episode.messages]
    for name, talk in story.oracle.talks.items():
        placed[name] += [t.message.id for t in talk.pending]
        assert len(placed[name]) == talk.placed
    for conversation, room in story.oracle.rooms.items():
        everywhere = {i for name, found in placed.items() if name[0] == conversation for i in found}
        assert everywhere == {t.message.id for t in room.taken}


def _state_is_the_same_everywhere(world: World, story: Story, owner: Worker) -> None:
    database = owner.partition.session.database
    told = {"conversations": story.conversations, "messages": story.messages}
    for table, changelog in changelogs().items():
        held = {key: database.get(table, key) for key in database.keys(table)}
        assert held == told[table], "the owner's state is not that of the log"
        assert rows_of(world, changelog) == told[table], "the changelog is not the state"
        if story.source:
            assert bookmark_of(world, changelog) == story.source, "the changelog's bookmark is another"


def rows_of(world: World, changelog: TopicPartition) -> Rows:
    rows: Rows = {}
    for record in world.broker.log(changelog).read(0):
        if record.key == BOOKMARK_KEY:
            continue
        if record.value is None:
            rows.pop(row_key(record.key), None)
        else:
            rows[row_key(record.key)] = record.value
    return rows


def bookmark_of(world: World, changelog: TopicPartition) -> int:
    marks = [record.value for record in world.broker.log(changelog).read(0) if record.key == BOOKMARK_KEY]
    return decode_bookmark(marks[-1]).source
