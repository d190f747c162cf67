from collections.abc import Mapping
from itertools import count

import pytest

from afterword.operating.rebuild import PAGE_EPISODES, IndexCounts, index_episodes
from afterword.schemas import SummaryCreated
from afterword.streams.errors import StoreUnavailable
from afterword.streams.stores.episodes import DeletedEpisode, Episode
from afterword.streams.stores.index import Dense, SearchText
from afterword.streams.stores.messages import ArchivedMessage
from tests.doubles.index import MemoryIndex
from tests.doubles.stores import MemoryEpisodes, MemoryMessages
from tests.samples import a_message, a_stored_episode, a_summary, a_tombstone
from tests.summarizer_world import FixedEmbedder
from tests.vectors import put

EPISODES = 2 * PAGE_EPISODES + 50
TENANT = "t1"


class Stores:
    def __init__(self) -> None:
        self.episodes, self.messages = MemoryEpisodes(), MemoryMessages()

    async def filled(self) -> "Stores":
        for ordinal in range(1, EPISODES + 1):
            await self.episodes.put(a_stored_episode(ordinal), None)
        ids = [f"m{n}" for n in range(3 * EPISODES)]
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
    assert (done.seen, done.written, done.incomplete) == (EPISODES, EPISODES, 0)
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
    assert (await index_episodes(stores.episodes, stores.messages, index, None, silent)).written == EPISODES - 1
    assert index.points["c1:1"].raw_text == "as it was"
    again = await index_episodes(stores.episodes, stores.messages, index, None, silent, everything=True)
    assert again.written == EPISODES
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
    assert told == [(PAGE_EPISODES, EPISODES)]
    done = await index_episodes(stores.episodes, stores.messages, index, None, silent)
    assert done.written == EPISODES - 130
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
    for ordinal in (1, 2, EPISODES + 1):  # as an older snapshot has them
        await put(index, a_summary(ordinal), "old")
    done = await index_episodes(stores.episodes, stores.messages, index, None, silent)
    assert done.removed == 2
    assert index.points.keys() == stores.episodes.episodes.keys() - {"c1:2"}
    await put(index, a_summary(2), "late")
    await put(index, a_summary(EPISODES + 1), "anew")  # the stores have it by now
    assert index.points.keys() == stores.episodes.episodes.keys() - {"c1:2"} | {f"c1:{EPISODES + 1}"}
