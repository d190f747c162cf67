"""Recall: the messages of a hit, the order of hits, and what is not shown."""

import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from afterword import Memory
from afterword.reading.memory import NOTHING_KNOWN, hits_as_text
from afterword.reading.search import ANSWER_TOKENS, MOST_PENDING
from afterword.schemas import MessageDeleted
from afterword.streams.errors import StoreUnavailable
from afterword.streams.stores.index import (
    DEPTH,
    MOST_QUERY_CHARACTERS,
    Candidate,
    Dense,
    Query,
    QueryVector,
    Recalled,
    SearchText,
)
from afterword.streams.stores.messages import ArchiveChange, ArchivedMessage
from afterword.streams.stores.packing import pack_words
from afterword_text.tokens import count_tokens
from tests.doubles.stores import MemoryMessages
from tests.rows import with_rows
from tests.samples import NOON
from tests.unit.afterword.reading.remembered import (
    NEWCOMERS_QUESTIONS,
    UNKNOWN_TO_NEWCOMERS,
    Remembered,
    newcomers_conversation,
)
from tests.vectors import query_vector

OWNER: dict[str, Any] = {"user_id": "u1", "tenant_id": "t1"}
TRIP = ("Hello there.", "Good morning.", "We sail to Corsica in May.", "In which boat?", "The blue boat.", "I see.")
TALK = ("The weather is fine.", "It is warm.", "May I ask you something?", "Of course.", "Is tea better than coffee?")


async def test_hit_shows_who_said_what_when_best_first(world: Remembered) -> None:
    said = await world.say(*TRIP)
    await world.summarise(said)
    await world.summarise(await world.say(*TALK, conversation_id="c2"))
    (best, *_) = await world.memory.recall("sailing to Corsica in a blue boat", **OWNER)
    assert best.conversation_id == "c1"
    shown = {(m.message_id, m.role, m.sent_at, m.content) for m in best.matches}
    beside = (1, 3, 5)
    assert shown == {(said[n].id, said[n].role, said[n].sent_at, TRIP[n]) for n in (2, 4, *beside)}
    assert [m.score for m in best.matches] == sorted((m.score for m in best.matches), reverse=True)
    assert {m.content for m in best.matches[:2]} == {TRIP[2], TRIP[4]}
    assert best.title == world.episodes.episodes["c1:1"].summary.title
    assert 0 < best.scores.passage <= 1
    assert best.scores.cosine is None


async def test_question_may_name_the_speaker(world: Remembered) -> None:
    said = await world.say("On Sunday I would like to eat pizza.", author="Ada", role="user")
    said += await world.say("On Sunday I would like to eat sushi.", author="Ben Ong", role="user")
    await world.summarise(said)
    for name, wanted in {"Ada": said[0], "Ben": said[1]}.items():
        (best, *_) = await world.memory.recall(f"What would {name} like to eat on Sunday?", **OWNER)
        assert best.matches[0].message_id == wanted.id
        assert best.coverage > 0.9


async def test_group_is_found_by_all_its_members(world: Remembered) -> None:
    await world.summarise(await world.say("Shall we sail?", "Gladly.", user_id="u1"))
    said = await world.say("A boat to Corsica, please.", role="user", user_id="u2")
    said += await world.say("The blue boat is free.", role="assistant", user_id="u2")
    said += await world.say("Not a boat again!", role="user", user_id="u3")
    said += await world.say("The boat, then.", role="user", user_id="u1")
    await world.summarise(said)

    async def read(user: str) -> set[str]:
        hits = await world.memory.recall("boat to Corsica", user_id=user, tenant_id="t1")
        assert [hit.episode_id for hit in hits] == ["c1:2"]
        return {match.content for match in hits[0].matches}

    everything = {message.content for message in said}
    assert await world.memory.recall("boat to Corsica", user_id="u4", tenant_id="t1") == []
    assert await read("u1") == everything  # the conversation is theirs
    assert await read("u2") == everything  # the episode is
    assert await read("u3") == {"Not a boat again!"}


async def test_participant_reads_nothing_made_from_words_of_others(world: Remembered) -> None:
    said = await world.say("My salary is 5000 euros.", role="user", user_id="u1")
    said += await world.say("A boat for me, please.", role="user", user_id="u3")
    await world.summarise(said)
    (own,) = await world.memory.recall("salary", user_id="u1", tenant_id="t1")
    assert "salary" in own.title.lower() + own.short_summary.lower()
    (hit,) = await world.memory.recall("boat", user_id="u3", tenant_id="t1")
    assert (hit.title, hit.short_summary) == ("", "")
    assert "salary" not in hits_as_text([hit])
    assert await world.memory.recall("salary", user_id="u3", tenant_id="t1") == [], "not even that others spoke of it"
    (hit,) = await world.memory.recall("What did we talk about last?", user_id="u3", tenant_id="t1")
    assert (hit.title, [match.content for match in hit.matches]) == ("", ["A boat for me, please."])


async def test_only_shown_messages_are_read_from_the_archive(world: Remembered) -> None:
    for n in range(20):
        await world.summarise(await world.say(*TRIP, conversation_id=f"c{n}"))
    world.messages.loaded = 0
    hits = await world.memory.recall("blue boat", **OWNER, k=2)
    assert world.messages.loaded <= 2 * sum(len(hit.matches) for hit in hits), "once more for what corrects the first"


async def test_deleted_message_matches_nothing(world: Remembered) -> None:
    said = await world.say(*TRIP)
    await world.summarise(said)
    deleted = MessageDeleted(conversation_id="c1", id=said[4].id, tenant_id="t1")
    await world.messages.change(ArchiveChange(deleted, 0, 100))
    (hit,) = await world.memory.recall("blue boat", **OWNER)
    assert said[3].id in ids(hit)
    assert said[4].id not in ids(hit)


async def test_later_revision_omits_removed_messages(world: Remembered) -> None:
    said = await world.say(*TRIP)
    await world.summarise(said)
    stored = world.episodes.episodes["c1:1"]
    kept = tuple(message_id for message_id in stored.summary.message_ids if message_id != said[4].id)
    later = stored.summary.model_copy(update={"revision": 2, "message_ids": kept})
    world.episodes.episodes["c1:1"] = replace(stored, summary=later)
    (hit,) = await world.memory.recall("blue boat", **OWNER)
    assert hit.revision == 2
    assert said[3].id in ids(hit)
    assert said[4].id not in ids(hit)


@pytest.mark.parametrize(
    "asked",
    [{"user_id": "u2"}, {"tenant_id": "t2"}, {"tenant_id": None}, {"agent_id": "a2"}, {"conversation_id": "c2"}],
)
async def test_recall_hides_index_hits_of_other_owners(world: Remembered, asked: dict[str, Any]) -> None:
    await world.summarise(await world.say(*TRIP))
    hits = await world.index.search(Query(text="blue boat", **OWNER))

    async def everything(_: Query, __: Dense | None = None) -> list[Candidate]:
        return hits

    memory = Memory(world.episodes, world.messages, everything)
    assert len(await memory.recall("blue boat", **OWNER)) == 1
    assert await memory.recall("blue boat", **{**OWNER, **asked}) == []


async def test_other_tenants_message_of_equal_id_is_not_read(world: Remembered) -> None:
    await world.summarise(await world.say("We talked about a kite.", "Yes."))
    await world.say("The blue boat is a secret.", tenant_id="t2")
    hits = await world.index.search(Query(text="kite", **OWNER))
    texts = "We talked about a kite.", "Yes.", "The blue boat is a secret."
    found = [
        one._replace(message_ids=(*one.message_ids, "m2"), words=pack_words([*map(SearchText, texts)], ""))
        for one in hits
    ]

    async def with_foreign_ids(_: Query, __: Dense | None = None) -> list[Candidate]:
        return found

    (hit,) = await Memory(world.episodes, world.messages, with_foreign_ids).recall("kite boat", **OWNER)
    assert ids(hit) == {"m0", "m1"}


async def test_number_of_hits_is_as_requested(world: Remembered) -> None:
    for n in range(DEPTH + 10):
        await world.summarise(await world.say(f"A boat, number {n}.", "Aye.", conversation_id=f"c{n}"))
    assert len(await world.memory.recall("boat", **OWNER, k=3)) == 3
    assert len(await world.memory.recall("boat", **OWNER, k=DEPTH + 10)) == DEPTH + 10


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize(
    ("later", "first"),
    [
        (("Our book club meets at the Lion now.", "I see."), "later"),
        (("And now?", "Your book club meets at the Mitre, how nice and warm."), "earlier"),
        (("Does the book club still meet at the Mitre? ", "I suppose so."), "earlier"),
    ],
)
async def test_users_latest_statement_comes_first(world: Remembered, later: Sequence[str], first: str, k: int) -> None:
    await world.summarise(await world.say("The book club meets at the Mitre.", "I see.", conversation_id="earlier"))
    await world.summarise(await world.say("I read a book about Rome.", "Nice.", conversation_id="other"))
    await world.summarise(await world.say(*later, conversation_id="later"))
    hits = await world.memory.recall("Where does the book club meet?", **OWNER, k=k)
    assert hits[0].conversation_id == first


async def test_topics_never_mentioned_have_no_hits(world: Remembered) -> None:
    await world.summarise(await world.say(*TRIP))
    for n in range(5):
        await world.summarise(await world.say(*TALK, conversation_id=f"talk-{n}"))
    unknown = "Which volcano erupted while the boat of my sister was in the harbour of Naples?"
    assert await world.memory.recall(unknown, **OWNER) == []
    (hit, *_) = await world.memory.recall(unknown, **OWNER, min_coverage=0)
    assert 0 < hit.coverage < 0.2
    (hit, *_) = await world.memory.recall("the blue boat to Corsica", **OWNER, min_coverage=0.9)
    assert hit.coverage > 0.9


async def test_hits_far_behind_the_best_are_omitted(world: Remembered) -> None:
    await world.summarise(await world.say(*TRIP))
    await world.summarise(await world.say("A blue sky.", "Indeed.", conversation_id="c2"))
    query = "sailing to Corsica in a blue boat"
    assert [hit.conversation_id for hit in await world.memory.recall(query, **OWNER)] == ["c1"]
    every = await world.memory.recall(query, **OWNER, min_score_ratio=0)
    assert [hit.conversation_id for hit in every] == ["c1", "c2"]
    assert every[1].score < every[0].score <= 1


async def test_recall_by_vector_finds_what_shares_no_word(world: Remembered) -> None:
    said = await world.say("We got a puppy.", "How nice.")
    await world.summarise(said)
    point = world.index.points["c1:1"]
    world.index.points["c1:1"] = replace(point, vectors={said[0].id: [1.0, 0.0], said[1].id: [0.0, 1.0]})

    async def embed(text: str) -> QueryVector:
        assert text.split() == ["Did", "I", "my", "dog?"], "to mention is no subject"
        return query_vector([0.9, 0.1])

    assert await world.memory.recall("Did I mention my dog?", **OWNER) == []
    (hit,) = await _memory(world, embed=embed).recall("Did I mention my dog?", **OWNER)
    assert hit.matches[0].content == "We got a puppy."


async def embed_puppies(_: str) -> QueryVector:
    """Embed a query that only texts about a puppy are near to."""

    async def passages(texts: Sequence[str]) -> list[Sequence[float]]:
        return [[1.0, 0.0] if "puppy" in text else [0.0, 1.0] for text in texts]

    return query_vector([1.0, 0.0])._replace(passages=passages)


async def test_excerpt_shows_the_sentence_nearest_to_the_query(world: Remembered) -> None:
    filling = [f"Line {n} of a long story about nothing much at all, told once more." for n in range(40)]
    story = " ".join([*filling[:30], "We got a puppy.", *filling[30:]])
    said = await world.say(story, "How nice.")
    await world.summarise(said)
    point = world.index.points["c1:1"]
    world.index.points["c1:1"] = replace(point, vectors={said[0].id: [1.0, 0.0]})

    (hit,) = await _memory(world, embed=embed_puppies).recall("my dog", **OWNER)
    assert "We got a puppy." in hit.matches[0].content


async def test_episodes_of_the_asked_time_come_first(world: Remembered) -> None:
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


SATURDAY = datetime(2026, 11, 28, 12, tzinfo=UTC)


async def _said_on(world: Remembered, days: dict[int, tuple[str, ...]]) -> Memory:
    """Let each text be a conversation, named after the number of days that it is ago."""
    for ago, texts in days.items():
        at = SATURDAY - timedelta(days=ago)
        await world.summarise(await world.say(*texts, conversation_id=str(ago), sent_at=at))
    return _memory(world, now=lambda: SATURDAY + timedelta(hours=3))


async def _days_found(memory: Memory, question: str) -> list[int]:
    return [int(hit.conversation_id) for hit in await memory.recall(question, **OWNER)]


async def test_question_about_a_time_alone_gets_its_episodes(world: Remembered) -> None:
    days = {
        1: ("The dishwasher leaks below the left hinge.", "Order the seal kit 7781."),
        3: ("My cousin Edda arrives at the harbour at noon.", "Shall I remind you?"),
        10: ("I planted two quince trees behind the shed.", "Water them weekly."),
        45: ("The notary wants the old deed.", "It is in the blue folder."),
    }
    memory = await _said_on(world, days)
    for question, wanted in {
        "What did we discuss yesterday?": [1],
        "was habe ich dir gestern erzählt": [1],
        "What did I tell you three days ago?": [3],
        "What did I complain about on the 25th?": [3],
        "¿Qué dije en octubre?": [45],
        "What did I do in November?": [1, 3, 10],
        "What did we talk about last week?": [10],
        "what was our last conversation about?": [1, 3, 10, 45],
        "what was the first thing I ever told you?": [45, 10, 3, 1],
        "Where was I?": [1, 3, 10, 45],
        "What did we talk about today?": [],
    }.items():
        hits = await memory.recall(question, **OWNER)
        assert [int(hit.conversation_id) for hit in hits] == wanted, question
        assert all(hit.coverage == 1 for hit in hits), question
        assert all(hit.matches[0].content == days[int(hit.conversation_id)][0] for hit in hits), question


async def test_day_named_beside_stop_words_may_be_the_subject(world: Remembered) -> None:
    memory = await _said_on(world, {2: ("I have a rehearsal on Monday.",), 5: ("The rent is due.",)})
    assert await _days_found(memory, "What do I have on Monday?") == [2]
    assert await _days_found(memory, "What was on Tuesday?") == []


async def test_named_day_comes_before_the_days_after(world: Remembered) -> None:
    memory = await _said_on(world, {ago: (f"I ran {km} km along the river.",) for ago, km in enumerate((8, 5, 12, 3))})
    for when, day in {
        "yesterday": 1,
        "two days ago": 2,
        "on Wednesday": 3,
        "on 26 November": 2,
        "on the 26th": 2,
        "on 11/26": 2,
    }.items():
        assert (await _days_found(memory, f"how many km along the river {when}?"))[0] == day, when


@with_rows
async def test_number_that_may_be_a_day_finds_its_statement(
    world: Remembered, question: str, right: str, other: str, ago: int
) -> None:
    memory = await _said_on(world, {2: (right,), ago: (other,)})
    assert (await _days_found(memory, question))[0] == 2


async def test_asked_day_counts_in_the_callers_zone(world: Remembered) -> None:
    await _said_on(world, {0: ("A leek pie.",), 1: ("A soup.",)})  # at one in the morning of the next day in Auckland
    memory = _memory(world, now=lambda: SATURDAY + timedelta(hours=20))
    for zone, wanted in {"Pacific/Auckland": [1], "UTC": [0]}.items():
        hits = await memory.recall("What did we discuss yesterday?", **OWNER, time_zone=zone)
        assert [int(hit.conversation_id) for hit in hits] == wanted, zone


async def test_days_are_shown_in_the_callers_zone(world: Remembered) -> None:
    at = datetime(2026, 11, 28, 8, tzinfo=UTC)  # the evening in Auckland, midnight in Los Angeles
    await world.summarise(await world.say("I cooked leek pie for dinner.", "Nice.", sent_at=at))
    memory = _memory(world, now=lambda: datetime(2026, 11, 28, 18, tzinfo=UTC), time_zone="Pacific/Auckland")
    asked = "What did I cook yesterday?"
    for zone in (None, "America/Los_Angeles"):
        (hit,) = await memory.recall(asked, **OWNER, time_zone=zone)
        assert "2026-11-28, user: I cooked leek pie" in hits_as_text([hit]), zone
    assert "2026-11-27, user:" in hits_as_text([hit], "Pacific/Honolulu")
    with pytest.raises(ValueError, match="Europe/Nowhere"):
        await memory.recall(asked, **OWNER, time_zone="Europe/Nowhere")


async def test_episode_that_mentions_the_asked_time_comes_forward(world: Remembered) -> None:
    said = {
        "planned": ("The wedding of my cousin is in September 2025.", datetime(2025, 6, 10, tzinfo=UTC)),
        "other": ("The wedding was rainy, and my cousin was late.", datetime(2025, 7, 10, tzinfo=UTC)),
        "at the time": ("My cousin likes tea.", datetime(2025, 9, 10, tzinfo=UTC)),
        "another subject": ("In September 2025 the office moves.", datetime(2025, 6, 12, tzinfo=UTC)),
    }
    for name, (text, at) in said.items():
        await world.summarise(await world.say(text, "I see.", conversation_id=name, sent_at=at))
    beside = "My cousin's wedding!", "In September 2025 the office moves."
    await world.summarise(await world.say(*beside, conversation_id="beside", sent_at=datetime(2025, 6, 14, tzinfo=UTC)))
    memory = _memory(world, now=lambda: datetime(2025, 10, 2, tzinfo=UTC))
    hits = await memory.recall("Where was my cousin's wedding in September 2025?", **OWNER)
    assert hits[0].conversation_id == "planned"
    assert "another subject" not in {hit.conversation_id for hit in hits}


async def test_answer_is_bounded_with_best_messages_first(world: Remembered) -> None:
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


async def test_sample_questions_are_answered_and_unknown_ones_not(world: Remembered) -> None:
    await newcomers_conversation(world)
    for question, answer in NEWCOMERS_QUESTIONS.items():
        hits = await world.memory.recall(question, **OWNER)
        assert any(answer in match.content for match in hits[0].matches), question
        assert answer in hits_as_text(hits)
    hits = await world.memory.recall(UNKNOWN_TO_NEWCOMERS, **OWNER)
    assert hits_as_text(hits) == NOTHING_KNOWN


async def test_fresh_words_of_another_conversation_are_recalled(world: Remembered) -> None:
    await world.summarise(await world.say("My sister sails to Corsica.", "How nice."))
    said = await world.say("By the way, I am allergic to walnuts.", conversation_id="open", role="user")
    said += await world.say("I will keep that in mind.", conversation_id="open", role="assistant")
    await world.say("The walnuts of others.", conversation_id="foreign", user_id="u2")
    (hit,) = await world.memory.recall("what am I allergic to?", **OWNER)
    assert (hit.conversation_id, hit.pending, hit.title, hit.short_summary) == ("open", True, "", "")
    assert [match.message_id for match in hit.matches] == [one.id for one in said]
    assert "(from a conversation that is still open)" in hits_as_text([hit])
    hits = await world.memory.recall("What did we talk about last time?", **OWNER)
    assert [(each.conversation_id, each.pending) for each in hits] == [("open", True), ("c1", False)]
    for narrowed in ({"current_conversation_id": "open"}, {"conversation_id": "c1"}, {"ended_before": NOON}):
        assert await world.memory.recall("Which walnuts?", **OWNER, **narrowed) == [], narrowed
    await world.summarise(said)
    (hit,) = await world.memory.recall("what am I allergic to?", **OWNER)
    assert (hit.episode_id, hit.pending) == ("open:1", False)


@pytest.mark.parametrize("is_summarized", [False, True])
async def test_replaced_answer_is_not_recalled(world: Remembered, is_summarized: bool) -> None:
    said = await world.say("Which hotel is near the walnut market?")
    said += await world.say("The Walnut Inn.", "The Walnut Palace.", role="assistant", reply_to="m0")
    said += await world.say("Book it.", role="user")
    if is_summarized:
        await world.summarise(said)
    (hit,) = await world.memory.recall("walnut hotel", **OWNER)
    assert hit.pending is not is_summarized
    assert {match.message_id for match in hit.matches} & {"m1", "m2"} == {"m2"}


async def test_pending_message_is_recalled_by_meaning(world: Remembered) -> None:
    await world.say("We got a puppy.", conversation_id="open", role="user")
    await world.say("How nice.", conversation_id="open", role="assistant")
    memory = _memory(world, embed=embed_puppies)
    (hit,) = await memory.recall("my dog", **OWNER)
    assert (hit.pending, hit.matches[0].content) == (True, "We got a puppy.")


async def test_misspelt_words_find_what_was_said(world: Remembered) -> None:
    await world.summarise(await world.say("My dentist appointment is on Tuesday at nine.", "Noted."))
    await world.say("The hospital called.", conversation_id="open")
    for query, found in {"denist apointment": "c1", "my hospitl": "open", "denist hospital": "open"}.items():
        hits = await world.memory.recall(query, **OWNER)
        assert [hit.conversation_id for hit in hits] == [found], query


async def test_question_itself_is_not_recalled(world: Remembered) -> None:
    await world.say("What is my parcel number?", "I do not know.", conversation_id="asked")
    await world.say("Where is my parcel today?", conversation_id="waiting", role="user")
    hits = await world.memory.recall("what is my parcel number", **OWNER, min_coverage=0)
    assert not any("?" in match.content for hit in hits for match in hit.matches)


async def test_episode_message_without_its_label_is_not_pending(world: Remembered) -> None:
    said = await world.say("The blue boat sails.", "Where to?")
    await world.summarise(said)
    unmarked = MemoryMessages()
    await unmarked.put_many([ArchivedMessage(message, 0, offset) for offset, message in enumerate(said)])
    (hit,) = await Memory(world.episodes, unmarked, world.index.search).recall("blue boat", **OWNER)
    assert not hit.pending


async def test_deleted_or_expired_pending_messages_are_not_recalled(world: Remembered) -> None:
    said = await world.say("My parcel number is 5581-K.", "Noted.", "The parcel is blue.", "Fine.")
    memory = _memory(world, messages_before=lambda now: NOON + timedelta(minutes=2))
    (hit,) = await memory.recall("Which parcel?", **OWNER)
    assert ids(hit) == {said[2].id, said[3].id}
    deleted = MessageDeleted(conversation_id="c1", id=said[2].id, tenant_id="t1")
    await world.messages.change(ArchiveChange(deleted, 0, 100))
    assert await memory.recall("Which parcel?", **OWNER) == []


async def test_at_most_200_pending_messages_are_read(world: Remembered) -> None:
    said = await world.say(*(f"Boat number {n}." for n in range(MOST_PENDING + 1)), role="user")
    (hit,) = await world.memory.recall("boat", **OWNER)
    assert hit.message_ids == tuple(one.id for one in said[1:])


def ids(hit: Recalled) -> set[str]:
    return {match.message_id for match in hit.matches}


def _memory(world: Remembered, search: Any = None, **given: Any) -> Memory:
    return Memory(world.episodes, world.messages, search or world.index.search, **given)


async def test_overlong_query_is_cut_after_normalization(world: Remembered) -> None:
    """Normalization may turn one character into eighteen."""
    asked: list[Query] = []

    async def search(query: Query, _: Dense | None = None) -> list[Candidate]:
        asked.append(query)
        return await world.index.search(query)

    memory = Memory(world.episodes, world.messages, search)
    await memory.recall("\N{ARABIC LIGATURE SALLALLAHOU ALAYHE WASALLAM}" * MOST_QUERY_CHARACTERS, **OWNER)
    assert asked
    assert all(len(unicodedata.normalize("NFKC", query.text)) <= MOST_QUERY_CHARACTERS for query in asked)


async def test_search_span_has_the_hit_count_without_the_query(
    world: Remembered, spans: InMemorySpanExporter, tracer: Tracer
) -> None:
    await world.summarise(await world.say(*TRIP))
    memory = Memory(world.episodes, world.messages, world.index.search, tracer=tracer)
    await memory.recall("Corsica", **OWNER)
    [span] = spans.get_finished_spans()
    assert (span.name, dict(span.attributes or {})) == (
        "search_memory",
        {"gen_ai.operation.name": "search_memory", "gen_ai.memory.record.count": 1},
    )


async def test_failed_search_span_has_its_error_type(
    world: Remembered, spans: InMemorySpanExporter, tracer: Tracer
) -> None:
    async def away(*_: object) -> list[Candidate]:
        raise StoreUnavailable(store="index", problem="secret")

    with pytest.raises(StoreUnavailable):
        await Memory(world.episodes, world.messages, away, tracer=tracer).recall("Corsica", **OWNER)
    [span] = spans.get_finished_spans()
    assert (span.attributes or {})["error.type"] == "store_unavailable"
    assert "secret" not in span.to_json()


@with_rows
async def test_korean_noun_is_found_with_another_particle(world: Remembered, one: str, other: str, query: str) -> None:
    for number, content in enumerate((one, other)):
        await world.summarise(await world.say(content, conversation_id=f"k{number}"))
    hits = await world.memory.recall(query, **OWNER)
    assert {hit.conversation_id for hit in hits} == {"k0", "k1"}


@with_rows
async def test_question_about_the_future_finds_what_was_said(world: Remembered, said: str, question: str) -> None:
    await world.summarise(await world.say("Hello there.", said, conversation_id="plans"))
    await world.summarise(await world.say(*TALK, conversation_id="c2"))
    hits = await world.memory.recall(question, **OWNER)
    assert "plans" in [hit.conversation_id for hit in hits]
