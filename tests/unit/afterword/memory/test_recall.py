"""The second stage of recall: which messages match, and that it shows no more than the first."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from afterword import Memory
from afterword.recalling.reranking import CANDIDATES, MOST_MESSAGES, EpisodeTexts
from afterword.schemas import MessageDeleted, MessageEdited
from afterword.streams.stores.index import Query, Recalled
from afterword.streams.stores.messages import ArchiveChange
from tests.unit.afterword.memory.remembered import Remembered

OWNER: dict[str, Any] = {"user_id": "u1", "tenant_id": "t1"}
TRIP = ("Hello there.", "Good morning.", "We sail to Corsica in May.", "In which boat?", "The blue boat.", "I see.")
TALK = ("The weather is fine.", "It is warm.", "May I ask you something?", "Of course.", "Is tea better than coffee?")


@pytest.fixture
def world() -> Remembered:
    return Remembered()


async def test_a_hit_says_which_messages_match(world: Remembered) -> None:
    said = await world.say(*TRIP)
    await world.summarise(said)
    await world.summarise(await world.say(*TALK, conversation_id="c2"))
    (best, *_) = await world.memory.recall("sailing to Corsica in a blue boat", **OWNER)
    assert best.conversation_id == "c1"
    assert best.matching_ids == tuple(said[n].id for n in (2, 3, 4))
    assert best.scores is None
    (explained, *_) = await world.memory.recall("sailing to Corsica in a blue boat", **OWNER, explain=True)
    assert explained.scores is not None
    assert explained.scores.passages is not None
    assert explained.scores.passages > 0


async def test_the_episode_whose_words_stand_together_comes_first(world: Remembered) -> None:
    said = {
        "apart": ("A red kite.", "Aha.", "Oh.", "The harbour is large.", "Yes.", "No.", "A kite.", "Hm.", "Oh."),
        "together": ("Well.", "Aha.", "Oh.", "The red kite fell into the harbour.", "Yes.", "No."),
        "other": ("A kite, and a harbour.", "Yes."),
        "another": ("The harbour and the kite.", "No."),
    }
    for conversation_id, texts in said.items():
        await world.summarise(await world.say(*texts, conversation_id=conversation_id))

    async def in_this_order(query: Query) -> list[Recalled]:
        return sorted(await world.index.search(query), key=lambda hit: [*said].index(hit.conversation_id))

    question = "the kite that fell into the harbour"
    first_stage = await _memory(world, in_this_order, rerank="none").recall(question, **OWNER)
    assert [hit.conversation_id for hit in first_stage] == [*said]
    both = await _memory(world, in_this_order).recall(question, **OWNER)
    assert [hit.conversation_id for hit in both[:2]] == ["together", "apart"]


async def test_without_a_second_stage_no_message_is_read(world: Remembered) -> None:
    await world.summarise(await world.say(*TRIP))
    world.messages.loaded = 0
    hits = await _memory(world, rerank="none").recall("blue boat", **OWNER)
    assert [hit.matching_ids for hit in hits] == [()]
    assert world.messages.loaded == 0


async def test_messages_of_an_episode_are_read_once_for_each_of_its_revisions(world: Remembered) -> None:
    said = await world.say(*TRIP)
    await world.summarise(said)
    for _ in range(2):
        (hit,) = await world.memory.recall("blue boat", **OWNER)
        assert hit.matching_ids == (said[3].id, said[4].id)
    read, world.messages.loaded = world.messages.loaded, 0
    assert read == len(said)
    edited = MessageEdited(conversation_id="c1", id=said[4].id, tenant_id="t1", content="The red one.")
    await world.messages.change(ArchiveChange(edited, 0, 100))
    point = world.index.points["c1:1"]
    world.index.points["c1:1"] = replace(point, summary=point.summary.model_copy(update={"revision": 2}))
    (hit,) = await world.memory.recall("blue boat", **OWNER)
    assert hit.matching_ids == (said[3].id,)
    assert world.messages.loaded == len(said)


async def test_texts_that_are_kept_for_later_searches_are_few(world: Remembered) -> None:
    for n in range(20):
        await world.summarise(await world.say(f"A boat, number {n}.", "Aye.", conversation_id=f"c{n}"))
    query = Query(text="boat", **OWNER, k=100)
    hits, texts = await world.index.search(query), EpisodeTexts(world.messages, most_bytes=6 * 1500)
    assert [len(episode.ids) for episode in await texts.read(query, hits)] == [2] * 20
    world.messages.loaded = 0
    for hit in hits[-4:]:
        await texts.read(query, [hit])
    assert world.messages.loaded == 0
    await texts.read(query, hits[:1])
    assert world.messages.loaded == 2
    await texts.read(query.model_copy(update={"tenant_id": "t2"}), hits[:1])
    assert world.messages.loaded == 2


async def test_an_episode_that_the_archive_has_in_part_is_read_again(world: Remembered) -> None:
    said = await world.say(*TRIP)
    await world.summarise(said)
    (key, archived) = next((k, one) for k, one in world.messages.messages.items() if one.message.id == said[4].id)
    del world.messages.messages[key]
    (hit,) = await world.memory.recall("blue boat", **OWNER)
    assert hit.matching_ids == (said[3].id,)
    world.messages.messages[key] = archived
    (hit,) = await world.memory.recall("blue boat", **OWNER)
    assert hit.matching_ids == (said[3].id, said[4].id)


async def test_a_deleted_message_matches_nothing(world: Remembered) -> None:
    said = await world.say(*TRIP)
    await world.summarise(said)
    deleted = MessageDeleted(conversation_id="c1", id=said[4].id, tenant_id="t1")
    await world.messages.change(ArchiveChange(deleted, 0, 100))
    for pending in list(world.messages.pending.values()):
        await world.messages.settle(pending)  # as if its next revision were made, and the index had the one before
    (hit,) = await world.memory.recall("blue boat", **OWNER)
    assert hit.matching_ids == (said[3].id,)


async def test_a_later_revision_does_not_name_messages_that_it_has_no_more(world: Remembered) -> None:
    said = await world.say(*TRIP)
    await world.summarise(said)
    stored = world.episodes.episodes["c1:1"]
    kept = tuple(message_id for message_id in stored.summary.message_ids if message_id != said[4].id)
    later = stored.summary.model_copy(update={"revision": 2, "message_ids": kept})
    world.episodes.episodes["c1:1"] = replace(stored, summary=later)
    (hit,) = await world.memory.recall("blue boat", **OWNER)
    assert (hit.revision, hit.matching_ids) == (2, (said[3].id,))


@pytest.mark.parametrize(
    "asked",
    [{"user_id": "u2"}, {"tenant_id": "t2"}, {"tenant_id": None}, {"agent_id": "a2"}, {"conversation_id": "c2"}],
)
async def test_what_an_index_finds_by_mistake_is_not_shown(world: Remembered, asked: dict[str, Any]) -> None:
    await world.summarise(await world.say(*TRIP))
    hits = await world.index.search(Query(text="blue boat", **OWNER))

    async def everything(_: Query) -> Sequence[Recalled]:
        return hits

    memory = Memory(world.episodes, world.messages, everything)  # type: ignore[arg-type]  # it finds too much
    assert len(await memory.recall("blue boat", **OWNER)) == 1
    assert await memory.recall("blue boat", **{**OWNER, **asked}) == []


async def test_another_tenants_message_of_the_same_id_is_not_read(world: Remembered) -> None:
    await world.summarise(await world.say("We talked about a kite.", "Yes."))
    await world.say("The blue boat is a secret.", tenant_id="t2")
    hits = await world.index.search(Query(text="kite", **OWNER))
    found = [hit.model_copy(update={"message_ids": (*hit.message_ids, "m2")}) for hit in hits]

    async def with_foreign_ids(_: Query) -> list[Recalled]:
        return found

    (hit,) = await Memory(world.episodes, world.messages, with_foreign_ids).recall("kite boat", **OWNER)
    assert hit.matching_ids == ("m0",)


async def test_the_first_stage_is_asked_for_candidates_and_answers_with_as_many_as_are_wanted(
    world: Remembered,
) -> None:
    for n in range(60):
        await world.summarise(await world.say(f"A boat, number {n}.", "Aye.", conversation_id=f"c{n}"))
    asked: list[int] = []

    async def counted(query: Query) -> list[Recalled]:
        asked.append(query.k)
        return await world.index.search(query)

    memory = Memory(world.episodes, world.messages, counted)
    assert len(await memory.recall("boat", **OWNER, k=3)) == 3
    assert len(await memory.recall("boat", **OWNER, k=60)) == 60
    assert asked == [CANDIDATES, 60]


async def test_no_more_messages_are_read_than_the_limit(world: Remembered) -> None:
    for n in range(4):
        said = await world.say(*(f"A boat, number {at}." for at in range(MOST_MESSAGES // 3)), conversation_id=f"c{n}")
        await world.summarise(said, size=MOST_MESSAGES, rolling=False)
    world.messages.loaded = 0
    hits = await world.memory.recall("boat", **OWNER)
    assert len(hits) == 4
    assert world.messages.loaded <= MOST_MESSAGES
    assert [bool(hit.matching_ids) for hit in hits] == [True, True, True, False]


async def test_episodes_of_the_time_that_a_query_names_come_first(world: Remembered) -> None:
    months = ("March", "April", "May", "June")
    for n in range(60):  # more than there are candidates; the last ones are the worst for the first stage
        at = datetime(2025, 3 + n % 4, 10, tzinfo=UTC)
        filling = "And something else. " * n
        texts = f"We cooked dish number {n}. {filling}", "I see."
        await world.summarise(await world.say(*texts, conversation_id=f"{months[n % 4]}-{n}", sent_at=at))
    memory = _memory(world, now=lambda: datetime(2025, 7, 2, tzinfo=UTC))
    for question, month in (("in May 2025", "May"), ("last month", "June"), ("in April", "April")):
        hits = await memory.recall(f"What did we cook {question}?", **OWNER, k=3)
        assert {hit.conversation_id.partition("-")[0] for hit in hits} == {month}, question
    hits = await memory.recall(
        "What did we cook in May 2025?", **OWNER, k=5, ended_before=datetime(2025, 5, 1, tzinfo=UTC)
    )
    assert hits
    assert all(hit.ended_at < datetime(2025, 5, 1, tzinfo=UTC) for hit in hits), "a filter stays one"


async def test_an_episode_that_names_the_asked_time_comes_forward_too(world: Remembered) -> None:
    said = {
        "planned": ("The wedding of my cousin is in September 2025.", datetime(2025, 6, 10, tzinfo=UTC)),
        "other": ("The wedding was rainy, and my cousin was late.", datetime(2025, 7, 10, tzinfo=UTC)),
        "at the time": ("My cousin likes tea.", datetime(2025, 9, 10, tzinfo=UTC)),
        "another subject": ("In September 2025 the office moves.", datetime(2025, 6, 12, tzinfo=UTC)),
    }
    for name, (text, at) in said.items():
        await world.summarise(await world.say(text, "I see.", conversation_id=name, sent_at=at))
    memory = _memory(world, now=lambda: datetime(2025, 10, 2, tzinfo=UTC))
    hits = await memory.recall("Where was my cousin's wedding in September 2025?", **OWNER)
    assert hits[0].conversation_id == "planned"
    assert hits[-1].conversation_id == "another subject"


async def test_of_what_has_changed_the_latest_comes_first(world: Remembered) -> None:
    said = "My dentist in town is Dr. Amsel.", "My dentist in town is Dr. Boyle now, all the way over the old bridge."
    for number, text in enumerate(said):
        at = datetime(2025, 3 + number, 10, tzinfo=UTC)
        await world.summarise(await world.say(text, "I see.", conversation_id=f"c{number}", sent_at=at))
    hits = await world.memory.recall("Who is my dentist in town?", **OWNER)
    assert [hit.conversation_id for hit in hits] == ["c1", "c0"]


def _memory(world: Remembered, search: Any = None, **given: Any) -> Memory:
    return Memory(world.episodes, world.messages, search or world.index.search, **given)
