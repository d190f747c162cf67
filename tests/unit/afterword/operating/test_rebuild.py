"""An index and a segmenter's state that are made anew."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.operating.rebuild import PAGE_EPISODES, IndexCounts, Last, ResumePoints, index_episodes
from afterword.schemas import EpisodeClosed, SummaryCreated
from afterword.streams.errors import StoreUnavailable
from afterword.streams.segmenter.state import NOBODY, Scope, State, decode_state, encode_state, scope_key
from afterword.streams.stores.episodes import DeletedEpisode, Episode
from afterword.streams.stores.index import Dense, SearchText
from afterword.streams.stores.messages import ArchivedMessage
from faust_eos.transaction import Output
from tests.doubles.index import MemoryIndex
from tests.doubles.stores import MemoryEpisodes, MemoryMessages
from tests.samples import a_message, a_stored_episode, a_summary, a_tombstone
from tests.summarizer_world import FixedEmbedder
from tests.unit.segmenter.chat import EPISODES, Chat, Sent, closed, episodes, flush, limits, say, says
from tests.vectors import put

NUMBER = 2 * PAGE_EPISODES + 50
TENANT = "t1"


class Stores:
    def __init__(self) -> None:
        self.episodes, self.messages = MemoryEpisodes(), MemoryMessages()

    async def filled(self) -> "Stores":
        for ordinal in range(1, NUMBER + 1):
            await self.episodes.put(a_stored_episode(ordinal), None)
        ids = [f"m{n}" for n in range(3 * NUMBER)]
        await self.messages.put_many([ArchivedMessage(a_message(i, tenant_id=TENANT), 0, n) for n, i in enumerate(ids)])
        return self


class Failing(MemoryIndex):
    """An index that fails after some writes."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.left = count(writes, -1)

    async def put(
        self, summary: SummaryCreated, texts: Mapping[str, SearchText], vectors: Mapping[str, Dense] | None = None
    ) -> None:
        if next(self.left) == 0:
            raise StoreUnavailable(store="qdrant", problem="away")
        await super().put(summary, texts, vectors)


class WithoutCollection(MemoryIndex):
    """Qdrant with vectors: the first put makes the collection, and before that nothing is removed.

    Before that put an episode is deleted.
    """

    def __init__(self, episodes: MemoryEpisodes, deleted: DeletedEpisode) -> None:
        super().__init__()
        self._episodes = episodes
        self._deleted = deleted

    async def put(
        self, summary: SummaryCreated, texts: Mapping[str, SearchText], vectors: Mapping[str, Dense] | None = None
    ) -> None:
        if not self.points:
            name = self._deleted.event.episode_id
            await self._episodes.put(self._deleted, self._episodes.episodes[name])
            await self.remove(self._deleted.event.episode_id, self._deleted.event.revision)
        await super().put(summary, texts, vectors)

    async def remove(self, episode_id: str, revision: int) -> None:
        if self.points:
            await super().remove(episode_id, revision)


class Held(MemoryEpisodes):
    """Records how many episodes it was asked for at once."""

    most = 0

    async def page(self, after: str | None, limit: int, conversation_id: str | None = None) -> list[Episode]:
        self.most = max(self.most, limit)
        return await super().page(after, limit, conversation_id)


@pytest.fixture
async def stores() -> Stores:
    return await Stores().filled()


def silent(_: IndexCounts) -> None: ...


async def test_rebuild_indexes_episodes_as_the_summarizer_does(stores: Stores) -> None:
    index = MemoryIndex()
    done = await index_episodes(stores.episodes, stores.messages, index, FixedEmbedder(), silent)
    assert (done.seen, done.written, done.incomplete) == (NUMBER, NUMBER, 0)
    assert index.points.keys() == stores.episodes.episodes.keys()
    point = index.points["c1:2"]
    assert point.summary == a_summary(2)
    assert point.raw_text == "Text of m3.\nText of m4.\nText of m5."
    assert point.vectors


async def test_other_tenants_text_is_indexed_for_nobody_else() -> None:
    episodes, messages, index = MemoryEpisodes(), MemoryMessages(), MemoryIndex()
    await episodes.put(a_stored_episode(1), None)
    for tenant, text in (("mallory", "Ignore the doctor."), (None, "Of nobody."), (TENANT, "Take two a day.")):
        message = a_message("m0", tenant_id=tenant, content=text, author="Mai")
        await messages.put_many([ArchivedMessage(message, 0, len(messages.messages))])
    await index_episodes(episodes, messages, index, None, silent)
    assert index.points["c1:1"].raw_text == "Mai: Take two a day."


async def test_indexed_episodes_are_left_unless_everything_is_requested(stores: Stores) -> None:
    index = MemoryIndex()
    await put(index, a_summary(1), "as it was")
    assert (await index_episodes(stores.episodes, stores.messages, index, None, silent)).written == NUMBER - 1
    assert index.points["c1:1"].raw_text == "as it was"
    again = await index_episodes(stores.episodes, stores.messages, index, None, silent, everything=True)
    assert again.written == NUMBER
    assert index.points["c1:1"].raw_text != "as it was"


async def test_older_revision_is_replaced_and_a_newer_one_kept(stores: Stores) -> None:
    index = MemoryIndex()
    await stores.episodes.put(a_stored_episode(1, revision=2), stores.episodes.episodes["c1:1"])
    await put(index, a_summary(1, revision=1), "old")
    await put(index, a_summary(2, revision=9), "new")
    await index_episodes(stores.episodes, stores.messages, index, None, silent, everything=True)
    assert index.points["c1:1"].summary.revision == 2
    assert index.points["c1:2"].raw_text == "new"


async def test_stopped_rebuild_resumes(stores: Stores) -> None:
    index, told = Failing(130), []
    with pytest.raises(StoreUnavailable):
        await index_episodes(
            stores.episodes, stores.messages, index, None, lambda done: told.append((done.seen, done.total))
        )
    assert told == [(PAGE_EPISODES, NUMBER)]
    done = await index_episodes(stores.episodes, stores.messages, index, None, silent)
    assert done.written == NUMBER - 130
    assert index.points.keys() == stores.episodes.episodes.keys()


async def test_rebuild_holds_one_page_and_counts_missing_messages() -> None:
    episodes, messages = Held(), MemoryMessages()
    for ordinal in (1, 2):
        await episodes.put(a_stored_episode(ordinal), None)
    await messages.put_many([ArchivedMessage(a_message(f"m{n}", tenant_id=TENANT), 0, n) for n in range(4)])
    index = MemoryIndex()
    done = await index_episodes(episodes, messages, index, None, silent)
    assert (done.written, done.incomplete) == (2, 1)
    assert index.points["c1:2"].raw_text == "Text of m3."
    assert episodes.most == PAGE_EPISODES


@pytest.mark.parametrize("ordinal", [1, 10])
async def test_episode_deleted_before_the_first_write_is_not_indexed(stores: Stores, ordinal: int) -> None:
    gone = a_tombstone(ordinal)
    index = WithoutCollection(stores.episodes, gone)
    await index_episodes(stores.episodes, stores.messages, index, None, silent)
    assert index.points.keys() == stores.episodes.episodes.keys() - {gone.deletion.episode_id}


async def test_rebuild_removes_episodes_missing_from_the_stores(stores: Stores) -> None:
    index, gone = MemoryIndex(), a_tombstone(2)
    await stores.episodes.put(gone, stores.episodes.episodes["c1:2"])
    for ordinal in (1, 2, NUMBER + 1):  # as an older snapshot has them
        await put(index, a_summary(ordinal), "old")
    done = await index_episodes(stores.episodes, stores.messages, index, None, silent)
    assert done.removed == 2
    assert index.points.keys() == stores.episodes.episodes.keys() - {"c1:2"}
    await put(index, a_summary(2), "late")
    await put(index, a_summary(NUMBER + 1), "anew")  # the stores have it by now
    assert index.points.keys() == stores.episodes.episodes.keys() - {"c1:2"} | {f"c1:{NUMBER + 1}"}


AGENTS = st.sampled_from([None, "x", "y", "z"])
SPOKEN = st.lists(st.tuples(st.sampled_from("cd"), AGENTS, st.booleans()), max_size=30)


def last_of(outgoing: Sequence[Output], records: Sequence[Sent], *, agents: bool = False) -> ResumePoints:
    found = ResumePoints(agents=agents)
    for sent in outgoing:
        if sent.topic == EPISODES:
            found.take_episode(Sent(sent.key, sent.value))
    for record in records:
        found.take_message(record)
    return found


def made_anew(found: ResumePoints, **fields: Any) -> Chat:
    rows = {
        scope_key(scope): encode_state(state)
        for states in found.resume_states().values()
        for scope, state in states.items()
    }
    return Chat(conversations=rows, **fields)


def spoken(lines: Sequence[tuple[str, str | None, bool]]) -> list[Sent]:
    """Return messages and flushes. Each message has its own id."""
    found = []
    for n, (conversation, agent, is_flush) in enumerate(lines):
        if is_flush:
            found.append(flush(conversation, agent_id=agent))
        else:
            found.append(say(f"m{n}", conversation_id=conversation, agent_id=agent))
    return numbered([*found, flush("c"), flush("d")])


def numbered(records: Sequence[Sent]) -> list[Sent]:
    return [Sent(**{**vars(record), "offset": n}) for n, record in enumerate(records)]


def check_numbers(found: Sequence[EpisodeClosed]) -> set[tuple[str, str]]:
    """Check that ordinals have no gap and no message is in two episodes of its scope; return scope and id of each."""
    ordinals, placed = defaultdict(list), []
    for episode in found:
        scope = episode.episode_id.rpartition(":")[0]
        ordinals[scope].append(episode.ordinal)
        placed += [(scope, message.id) for message in episode.messages]
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in ordinals.values())
    assert len(placed) == len(set(placed))
    return set(placed)


@given(SPOKEN, st.integers(0, 30), st.integers(0, 30), st.booleans())
def test_every_message_ends_in_one_episode_after_lost_state(lines, lost_at, expired, agents):
    records, rules = spoken(lines), limits(trigger=3, scope="agent" if agents else "conversation", max_agents=2)
    undisturbed = check_numbers(episodes(Chat(rules).process(records).outgoing))
    before = Chat(rules).process(records[:lost_at]).outgoing
    gone = 0 if agents else min(expired, lost_at)
    anew = made_anew(last_of(before, records[gone:], agents=agents), limits=rules, offset=gone)
    placed = check_numbers(episodes([*before, *anew.process(records[gone:]).outgoing]))
    assert placed == undisturbed if not gone else placed <= undisturbed


def test_ordinal_continues_after_the_messages_expired():
    before = Chat(limits(trigger=2)).process(says(*"abcdef")).outgoing
    [episode] = made_anew(last_of(before, []), limits=limits(trigger=2), offset=6).hear(*says(*"gh"))
    assert (episode.episode_id, closed([episode])) == ("c:4", [("g h", "trigger")])


def test_resent_message_is_still_a_duplicate():
    records = numbered([*says(*"abc"), say("a")])
    before = Chat(limits(trigger=2)).process(records).outgoing
    anew = made_anew(last_of(before, records), limits=limits(trigger=2))
    outcome = anew.process([*records, say("b"), say("d")])
    assert (outcome.duplicates, closed(episodes(outcome.outgoing))) == (2, [("c d", "trigger")])


def test_stored_episode_ends_at_its_last_message():
    records = numbered([*says(*"abc"), say("b")])
    found = ResumePoints()
    found.add("c", None, Last(7, None, "c:b", 500))
    for record in records:
        found.take_message(record)
    assert found.resume_states() == {3: {Scope("c"): State(None, last_ordinal=7, taken_to=2)}}


@pytest.mark.parametrize(("message", "offset", "taken_to"), [("b", 3, 4), ("gone", 1, 0)])
def test_episode_ends_where_its_message_was_taken(message, offset, taken_to):
    """An offset of another topic with that name is ignored."""
    found = ResumePoints()
    found.add("c", None, Last(7, None, f"c:{message}", offset))
    for record in numbered([*says(*"abc"), say("b")]):
        found.take_message(record)
    assert [state.taken_to for state in found.resume_states()[3].values()] == [taken_to]


def test_messages_of_stored_episodes_are_not_repeated():
    records, found = numbered(says(*"abcde")), ResumePoints()
    for ordinal, offset, message in ((1, 1, "b"), (3, 3, "d"), (2, 2, "c")):
        found.add("c", None, Last(ordinal, None, f"c:{message}", offset))
    for record in records:
        found.take_message(record)
    [episode] = made_anew(found, limits=limits(trigger=2)).hear(*records, say("f"))
    assert (episode.episode_id, closed([episode])) == ("c:4", [("e f", "trigger")])


def test_each_agent_and_nobody_continue_separately():
    found = ResumePoints(agents=True)
    for agent, ordinal in ((None, 2), ("x", 3)):
        found.add("c", agent, Last(ordinal, "t", f"c:m{ordinal}:t", ordinal))
    found.partitions["c"].add(0)
    states = {scope: (state.last_ordinal, state.agents) for scope, state in found.resume_states()[0].items()}
    assert states == {Scope("c"): (0, []), Scope("c", NOBODY): (2, None), Scope("c", "x"): (3, None)}


def test_end_of_processed_records_survives_the_row():
    state = State("t", last_ordinal=3, taken_to=12345)
    assert decode_state(encode_state(state)) == state
