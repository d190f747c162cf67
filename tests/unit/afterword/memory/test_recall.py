"""Recall: what was said in a hit, in which order hits are, and what is not shown."""

import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from afterword import Memory
from afterword.recalling.episode_texts import EpisodeTexts
from afterword.recalling.matches import ANSWER_TOKENS, EXCERPT_CHARACTERS
from afterword.recalling.search import CANDIDATES, MOST_MESSAGES, MOST_SEARCHED
from afterword.schemas import MessageDeleted, MessageEdited
from afterword.streams.stores.index import MOST_QUERY_CHARACTERS, Match, Query, Recalled
from afterword.streams.stores.messages import ArchiveChange
from afterword.streams.tokens import count_tokens
from tests.unit.afterword.memory.remembered import Remembered

OWNER: dict[str, Any] = {"user_id": "u1", "tenant_id": "t1"}
TRIP = ("Hello there.", "Good morning.", "We sail to Corsica in May.", "In which boat?", "The blue boat.", "I see.")
TALK = ("The weather is fine.", "It is warm.", "May I ask you something?", "Of course.", "Is tea better than coffee?")


@pytest.fixture
def world() -> Remembered:
    return Remembered()


async def test_a_hit_shows_what_was_said_by_whom_and_when_best_first(world: Remembered) -> None:
    said = await world.say(*TRIP)
    await world.summarise(said)
    await world.summarise(await world.say(*TALK, conversation_id="c2"))
    (best, *_) = await world.memory.recall("sailing to Corsica in a blue boat", **OWNER)
    assert best.conversation_id == "c1"
    shown = {(m.message_id, m.role, m.sent_at, m.content) for m in best.matches}
    assert shown == {(said[n].id, said[n].role, said[n].sent_at, TRIP[n]) for n in (2, 3, 4)}
    assert [m.score for m in best.matches] == sorted((m.score for m in best.matches), reverse=True)
    assert best.matches[-1].content == "In which boat?"
    assert best.title == world.episodes.episodes["c1:1"].summary.title
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
    assert [hit.conversation_id for hit in await in_this_order(Query(text=question, **OWNER))] == [*said]
    both = await _memory(world, in_this_order).recall(question, **OWNER)
    assert [hit.conversation_id for hit in both[:2]] == ["together", "apart"]


async def test_messages_of_an_episode_are_read_once_for_each_of_its_revisions(world: Remembered) -> None:
    said = await world.say(*TRIP)
    await world.summarise(said)
    for _ in range(2):
        (hit,) = await world.memory.recall("blue boat", **OWNER)
        assert ids(hit) == {said[3].id, said[4].id}
    read, world.messages.loaded = world.messages.loaded, 0
    assert read == len(said) + 2 * len(hit.matches), "what is shown is read anew: it may be deleted"
    edited = MessageEdited(conversation_id="c1", id=said[4].id, tenant_id="t1", content="The red one.")
    await world.messages.change(ArchiveChange(edited, 0, 100))
    point = world.index.points["c1:1"]
    world.index.points["c1:1"] = replace(point, summary=point.summary.model_copy(update={"revision": 2}))
    (hit,) = await world.memory.recall("blue boat", **OWNER)
    assert ids(hit) == {said[3].id}
    assert world.messages.loaded == len(said) + 1


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
    assert ids(hit) == {said[3].id}
    world.messages.messages[key] = archived
    (hit,) = await world.memory.recall("blue boat", **OWNER)
    assert ids(hit) == {said[3].id, said[4].id}


async def test_a_deleted_message_matches_nothing(world: Remembered) -> None:
    said = await world.say(*TRIP)
    await world.summarise(said)
    deleted = MessageDeleted(conversation_id="c1", id=said[4].id, tenant_id="t1")
    await world.messages.change(ArchiveChange(deleted, 0, 100))
    for pending in list(world.messages.pending.values()):
        await world.messages.settle(pending)  # as if its next revision were made, and the index had the one before
    (hit,) = await world.memory.recall("blue boat", **OWNER)
    assert ids(hit) == {said[3].id}


async def test_a_later_revision_does_not_name_messages_that_it_has_no_more(world: Remembered) -> None:
    said = await world.say(*TRIP)
    await world.summarise(said)
    stored = world.episodes.episodes["c1:1"]
    kept = tuple(message_id for message_id in stored.summary.message_ids if message_id != said[4].id)
    later = stored.summary.model_copy(update={"revision": 2, "message_ids": kept})
    world.episodes.episodes["c1:1"] = replace(stored, summary=later)
    (hit,) = await world.memory.recall("blue boat", **OWNER)
    assert (hit.revision, ids(hit)) == (2, {said[3].id})


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
    assert ids(hit) == {"m0"}


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
    assert world.messages.loaded <= MOST_MESSAGES + MOST_SEARCHED + 3 * len(hits)
    assert all(hit.matches for hit in hits), "in the last one too, although its passages were not compared"


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


async def test_a_deletion_that_is_pending_or_newer_than_the_words_that_are_kept_shows_nothing(
    world: Remembered,
) -> None:
    said = await world.say(*TRIP)
    await world.summarise(said)
    (hit,) = await world.memory.recall("blue boat", **OWNER)
    assert TRIP[4] in {match.content for match in hit.matches}
    await world.messages.change(
        ArchiveChange(MessageDeleted(conversation_id="c1", id=said[4].id, tenant_id="t1"), 0, 100)
    )
    assert await world.memory.recall("blue boat", **OWNER) == []
    for pending in list(world.messages.pending.values()):
        await world.messages.settle(pending)  # the index and the words that are kept are those before the deletion
    (hit,) = await world.memory.recall("blue boat", **OWNER)
    assert [match.content for match in hit.matches] == [TRIP[3]]


async def test_of_a_long_message_the_sentences_around_the_words_are_shown(world: Remembered) -> None:
    about = [f"This is sentence number {n} of a long message about boats." for n in range(200)]
    about[120] = "The blue boat leaves for Corsica at nine."
    await world.summarise(await world.say(" ".join(about)))
    (hit,) = await world.memory.recall("the blue boat to Corsica", **OWNER)
    (match,) = hit.matches
    assert about[120] in match.content
    assert match.content.startswith("… This is")
    assert match.content.endswith(" …")
    assert len(match.content) <= EXCERPT_CHARACTERS + 4


async def test_what_an_answer_shows_is_bounded_and_each_hit_has_its_best_message_first(world: Remembered) -> None:
    for n in range(40):
        filling = " and on" * 40
        texts = f"A blue boat, number {n}{filling}.", f"A boat{filling}.", f"The boat{filling}."
        await world.summarise(await world.say(*texts, conversation_id=f"c{n}"))
    hits = await world.memory.recall("blue boat", **OWNER, k=100)
    shown = [match.content for hit in hits for match in hit.matches]
    assert 0.9 * ANSWER_TOKENS <= sum(map(count_tokens, shown)) <= ANSWER_TOKENS
    assert all("blue" in content for content in shown), "no hit has a second message where others have none"
    few = await world.memory.recall("blue boat", **OWNER, k=3)
    assert [len(hit.matches) for hit in few] == [3, 3, 3]


async def test_a_newcomers_bot_is_given_every_answer() -> None:
    """Seven things are told in one conversation, among small talk; five questions are asked in another."""
    world, told = Remembered(), (
        "I'm planning a trip to Rome in May, can you help?",
        "Of course! Rome is lovely in May. When do you leave?",
        "We leave on the 14th, from Hamburg.",
        "Noted, the 14th of May from Hamburg.",
        "Please remember that my daughter is allergic to nuts.",
        "I will keep that in mind for restaurants.",
        "Our hotel is the Albergo Sole, near the Pantheon.",
        "A charming place, right in the centre.",
        "My wife Clara will join us two days later.",
        "How nice, then you can pick her up at the airport.",
        "Our budget is 2400 euros for everything.",
        "That is comfortable for a week.",
        "Also, I never fly with Skyfast again, they lost my suitcase.",
        "I understand, I will not suggest Skyfast.",
        "And my passport expires in August.",
        "Then you are fine for May.",
    )  # fmt: skip
    await world.summarise(await world.say(*told), size=8)
    answers = {
        "Who is allergic to what?": "my daughter is allergic to nuts",
        "At which hotel do we stay?": "Albergo Sole",
        "What is our budget?": "2400 euros",
        "When does my passport expire?": "August",
        "Which airline do I never want to fly with?": "Skyfast",
    }
    for question, answer in answers.items():
        hits = await world.memory.recall(question, **OWNER)
        assert any(answer in match.content for match in hits[0].matches), question


def ids(hit: Recalled) -> set[str]:
    return {match.message_id for match in hit.matches}


def _memory(world: Remembered, search: Any = None, **given: Any) -> Memory:
    return Memory(world.episodes, world.messages, search or world.index.search, **given)


async def test_a_query_is_cut_where_it_is_too_long_after_normalization(world: Remembered) -> None:
    """One character may become eighteen, and what is searched for is normalized."""
    asked: list[Query] = []

    async def search(query: Query) -> list[Match]:
        asked.append(query)
        return await world.index.search(query)

    memory = Memory(world.episodes, world.messages, search)
    await memory.recall("\N{ARABIC LIGATURE SALLALLAHOU ALAYHE WASALLAM}" * MOST_QUERY_CHARACTERS, **OWNER)
    assert asked
    assert all(len(unicodedata.normalize("NFKC", query.text)) <= MOST_QUERY_CHARACTERS for query in asked)
