"""Edits, deletions, assignments and redo requests of stored episodes: their revisions, and what follows from them."""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import (
    ConversationDeleted,
    EpisodeClosed,
    EpisodeRedo,
    InvalidRecord,
    MessageDeleted,
    MessageEdited,
    SummaryCreated,
    SummaryDeleted,
    fingerprint,
)
from afterword.schemas.base import message_key
from afterword.streams.errors import AnswerInvalid, BudgetExhausted, ProviderUnavailable, StoreUnavailable
from afterword.streams.stores.episodes import MOST_REVISIONS, find_conversation
from afterword.streams.stores.messages import ArchiveChange, ArchivedMessage, DeletedMessage, key_of
from afterword.streams.stores.sqlite import SqliteMessages
from afterword.streams.summarizer.conversations import MOST_BEFORE
from afterword.streams.summarizer.reconciler import archived as archived_message
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import Summary, SummaryRequest, SummaryRules
from tests.doubles.provider import ScriptedProvider
from tests.samples import (
    NOON,
    Changed,
    a_cause,
    a_closed_episode,
    a_fact,
    an_amendment,
    an_assignment,
    an_episode_message,
)
from tests.summarizer_world import NO_FAULTS, TODAY, Crash, Fault, Faults, World, cancelled, crash, outage

CLOSED = tuple(a_closed_episode(ordinal) for ordinal in (1, 2, 3))
"""m0 m1 m2 · m3 m4 m5 · m6 m7 m8; the overlap of each has the last two of the one before."""
LATER = NOON + timedelta(hours=2)


def archived(episodes: Iterable[EpisodeClosed]) -> list[ArchivedMessage]:
    """Their core messages, at the offsets 0, 1, …"""
    return [
        archived_message(message.model_copy(update={"offset": int(message.id.removeprefix("m"))}), episode)
        for episode in episodes
        for message in episode.messages
    ]


async def a_world(rules: SummaryRules | None = None) -> World:
    """Three episodes, summarized, and their messages in the archive."""
    world = World()
    await world.messages.put_many(archived(CLOSED))
    await world.run(CLOSED, **({"rules": rules} if rules else {}))
    world.topic.published.clear()
    world.provider.requests.clear()
    return world


def edit(message_id: str, content: str = "edited", **fields: Any) -> MessageEdited:
    return MessageEdited(id=message_id, conversation_id="c1", tenant_id="t1", content=content, **fields)


def skip(n: int) -> MessageEdited:
    return MessageEdited(id=f"m{n}", conversation_id="c1", tenant_id="t1", skip_summarization=True)


def delete(message_id: str, tenant_id: str = "t1") -> MessageDeleted:
    return MessageDeleted(id=message_id, conversation_id="c1", tenant_id=tenant_id)


DELETE_ALL = ConversationDeleted(conversation_id="c1", tenant_id="t1")


async def archive(world: World, event: Changed, offset: int) -> None:
    await world.messages.change(ArchiveChange(event, 0, offset))


async def amend(world: World, event: Changed, offset: int = 100, faults: Faults = NO_FAULTS, **fields: Any) -> None:
    await world.reconciler(faults, **fields).handle(an_amendment(event, offset, LATER), a_cause(offset))


def announced(world: World) -> list[str]:
    return [event.event_id for event in world.topic.events]


def contents(episode: EpisodeClosed) -> list[str]:
    return [message.content for message in episode.messages]


def everything(world: World) -> str:
    """Return all texts and ids of summaries in the stores."""
    return repr((world.episodes.episodes, world.episodes.all_rows, world.episodes.known, world.index.points))


def ended_at(world: World) -> dict[str, int | None]:
    """Offsets at which deleted episodes ended: with them state is rebuilt."""
    return {name: gone.last_offset for name, gone in world.episodes.deleted.items()}


def check(world: World) -> None:
    """Check that everything derives from the current messages, and that rows, counts, index and last events agree."""
    living = {m.message.id: m for m in world.messages.messages.values() if not m.message.skip_summarization}
    stored = world.episodes.episodes
    assert {i for e in stored.values() for i in e.summary.message_ids} == set(living)
    for episode in stored.values():
        own = [i for i in (*episode.core_ids, *episode.overlap_ids) if i in living]
        assert episode.inputs == tuple((i, living[i].changed) for i in own)
        assert world.index.points[episode.summary.episode_id].summary == episode.summary
    assert set(world.index.points) == set(stored)
    for row in world.episodes.all_rows.get("c1", ()):
        left = sorted(e.ordinal for e in stored.values() if row.first_ordinal <= e.ordinal <= row.last_ordinal)
        assert row.inputs == tuple((n, stored[f"c1:{n}"].summary.revision) for n in left)
        assert bool(row.content) == bool(left)
    conversation = world.episodes.known.get("c1")
    if conversation:
        assert (conversation.episode_count, conversation.message_count) == (len(stored), len(living))
    for last in (*stored.values(), *world.episodes.deleted.values()):
        if last.event.revision > 1:
            assert last.event in world.topic.events
    assert all(len(found) == 1 for found in world.contents_by_event_id().values())


async def test_edit_makes_its_episodes_next_revision() -> None:
    world = await a_world()
    await amend(world, edit("m8"))
    [request] = world.provider.requests
    assert contents(request.episode) == ["Text of m6.", "Text of m7.", "edited"]
    [event] = world.topic.events
    assert isinstance(event, SummaryCreated)
    assert (event.event_id, event.reason, event.revision) == ("c1:3:2", "edited", 2)
    assert event.message_ids == ("m6", "m7", "m8")
    assert world.episodes.episodes["c1:3"].summary == event
    assert world.index.points["c1:3"].summary == event
    assert "edited" in world.index.points["c1:3"].raw_text


async def test_edit_without_effect_makes_no_revision() -> None:
    world = await a_world()
    before = world.state
    for offset, event in enumerate((edit("m0", CLOSED[0].messages[0].content), edit("m4", "new"), edit("m4", "new"))):
        await amend(world, event, 100 + offset)
    assert announced(world)[:1] == ["c1:2:2"]
    assert "c1:2:3" not in announced(world)
    assert len(world.provider.requests) == 2  # the episode, and the next one, whose overlap has the message
    for ordinal, revision in ((1, 1), (2, 2)):
        assert world.episodes.episodes[f"c1:{ordinal}"].summary.revision == revision
    assert before != world.state
    check(world)


async def test_replaced_answer_counts_once_the_later_one_is_deleted() -> None:
    world, answer = World(), {"role": "assistant", "reply_to": "m0"}
    messages = (an_episode_message("m0"), *(an_episode_message(f"m{n}", n, **answer) for n in (1, 2)))
    closed = a_closed_episode(1, messages=messages, fingerprint=fingerprint(messages))
    await world.messages.put_many(archived([closed]))
    await world.run([closed])
    await amend(world, delete("m2"))
    asked = [contents(request.episode) for request in world.provider.requests]
    assert asked == [["Text of m0.", "Text of m2."], ["Text of m0.", "Text of m1."]]
    assert world.episodes.episodes["c1:1"].summary.message_ids == ("m0", "m1")
    assert "m1" in world.index.points["c1:1"].raw_text
    check(world)


async def test_next_episode_follows_if_its_overlap_held_the_message() -> None:
    world = await a_world()
    await amend(world, edit("m3"))
    assert announced(world) == ["c1:2:2"]
    world = await a_world()
    await amend(world, edit("m4"))
    assert announced(world) == ["c1:2:2", "c1:3:2"]
    asked = {request.episode.episode_id: request.episode for request in world.provider.requests}
    assert [message.content for message in asked["c1:3"].overlap] == ["edited", "Text of m5."]


async def test_edit_costs_two_answers_and_three_events() -> None:
    rules, world = SummaryRules(rolling_max_tokens=200), World()
    world.provider.repeats = True
    closed = tuple(a_closed_episode(ordinal) for ordinal in range(1, 401))
    await world.run(closed, rules=rules)
    assert len(world.episodes.all_rows["c1"]) > 10
    for number, message_id in enumerate(["m1", "m2", f"m{3 * 200 + 2}", "m1199"]):
        world.topic.published.clear()
        world.provider.requests.clear()
        await amend(world, edit(message_id), 5000 + number, rules=rules)
        assert len(world.provider.requests) <= 2
        assert len(world.topic.published) <= 3


async def test_change_at_a_rows_end_costs_no_more() -> None:
    rules, world = SummaryRules(rolling_max_tokens=30), World()
    closed = tuple(a_closed_episode(ordinal) for ordinal in range(1, 13))
    await world.run(closed, rules=rules)
    ends = [row.last_ordinal for row in world.episodes.all_rows["c1"][:-1]]
    assert len(ends) > 1
    for number, ordinal in enumerate(ends):
        before = {row.row: row.revision for row in world.episodes.all_rows["c1"]}
        world.topic.published.clear()
        world.provider.requests.clear()
        await amend(world, edit(f"m{3 * ordinal - 1}"), 5000 + number, rules=rules)
        assert announced(world) == [f"c1:{ordinal}:2", f"c1:{ordinal + 1}:2"]
        [event] = world.topic.conversations
        assert [row.first_ordinal <= ordinal <= row.last_ordinal for row in event.rolling] == [True, False]
        after = {row.row: row.revision for row in world.episodes.all_rows["c1"]}
        assert after == before | {row.row: before[row.row] + 1 for row in event.rolling}, "another row was written"
        assert len(world.provider.requests) <= 2


@pytest.mark.parametrize("rules", [SummaryRules(500), SummaryRules(20)])
async def test_deletion_reaches_stores_before_the_llm_is_asked(rules: SummaryRules) -> None:
    class Looking(ScriptedProvider):
        """Records what is stored whenever it is asked."""

        seen: list[str]

        async def summarize(self, request: SummaryRequest) -> Summary:
            self.seen.append(everything(world))
            return await super().summarize(request)

    world, provider = World(), Looking()
    world.provider.repeats = True
    await world.run(CLOSED, rules=rules)
    assert "Text of m7." in everything(world)
    provider.seen = []
    await amend(world, delete("m7"), provider=provider, rules=rules)
    assert provider.seen
    assert not any("Text of m7." in seen for seen in provider.seen)


@pytest.mark.parametrize("late", [False, True], ids=["before the effect", "after the effect"])
@pytest.mark.parametrize("at", range(1, 25))
async def test_interrupted_deletion_finishes_before_the_llm_is_asked(at: int, late: bool) -> None:
    world = World()
    world.provider.repeats = True
    await world.run(CLOSED, rules=SummaryRules(500))
    with contextlib.suppress(Crash):
        await amend(world, delete("m7"), faults=Faults(at, late, crash), rules=SummaryRules(500))
    world.topic.published.clear()
    world.provider.outage = ProviderUnavailable(problem="away")
    waits = asyncio.create_task(amend(world, delete("m7"), rules=SummaryRules(500)))
    for _ in range(200):
        await asyncio.sleep(0)
    assert "Text of m7." not in everything(world)
    world.provider.outage = None
    await waits
    check(world)


async def test_last_core_message_takes_its_episode_along() -> None:
    world = await a_world()
    for offset, message_id in enumerate(("m6", "m7", "m8"), 100):
        await amend(world, delete(message_id), offset)
    last = world.topic.events[-1]
    assert isinstance(last, SummaryDeleted)
    assert (last.reason, last.ordinal) == ("deleted", 3)
    assert ended_at(world) == {"c1:3": CLOSED[2].source.last_offset}
    assert "c1:3" not in world.index.points
    conversation = world.episodes.known["c1"]
    assert (conversation.episode_count, conversation.title) == (2, "Episode 1")
    check(world)
    await world.run(CLOSED[2:])
    assert world.episodes.episodes.keys() == {"c1:1", "c1:2"}, "it came back"
    check(world)


async def test_several_archived_changes_are_summarized_once() -> None:
    world = await a_world()
    changes = [edit("m6", "one"), edit("m6", "two"), edit("m7", "three")]
    for offset, change in enumerate(changes, 100):
        await archive(world, change, offset)
    for offset, change in enumerate(changes, 100):
        await amend(world, change, offset)
    assert len(world.provider.requests) == 1
    assert contents(world.provider.requests[0].episode) == ["two", "three", "Text of m8."]
    check(world)


async def test_change_archived_first_is_in_the_first_revision() -> None:
    world = World()
    await world.messages.put_many(archived(CLOSED))
    await archive(world, edit("m0"), 100)
    await archive(world, delete("m1"), 101)
    await world.run(CLOSED[:1])
    [request] = world.provider.requests
    assert contents(request.episode) == ["edited", "Text of m2."]
    await amend(world, edit("m0"), 100)
    await amend(world, delete("m1"), 101)
    assert len(world.provider.requests) == 1


async def test_emptied_episode_is_never_shown_to_the_llm() -> None:
    world = World()
    await world.messages.put_many(archived(CLOSED))
    await archive(world, DELETE_ALL, 100)
    await world.run(CLOSED[:1])
    assert world.provider.requests == []
    [event] = world.topic.events
    assert isinstance(event, SummaryDeleted)
    assert event.revision == 1
    assert ended_at(world) == {"c1:1": CLOSED[0].source.last_offset}
    await amend(world, DELETE_ALL)
    assert [type(one) for one in world.topic.events] == [SummaryDeleted] * 2, "the deletion announces its own"


async def test_late_archive_undoes_no_edit() -> None:
    """The message was edited twice before its episode closed; the archive has the first edit."""
    world = World()
    edited = CLOSED[0].messages[0].model_copy(update={"content": "edited", "changed": 50})
    await world.messages.put_many(archived(CLOSED[:1]))
    await archive(world, edit("m0", "at first"), 40)
    await world.run((CLOSED[0].model_copy(update={"messages": (edited, *CLOSED[0].messages[1:])}),))
    assert contents(world.provider.requests[0].episode) == ["edited", "Text of m1.", "Text of m2."]
    await amend(world, edit("m1", "also"), 100)
    assert contents(world.provider.requests[-1].episode) == ["edited", "also", "Text of m2."]


async def test_deleted_message_edited_again_stays_deleted() -> None:
    world = World()
    await world.messages.put_many(archived(CLOSED[:1]))
    await archive(world, delete("m0"), 40)
    edited = CLOSED[0].messages[0].model_copy(update={"content": "edited", "changed": 50})
    await world.run((CLOSED[0].model_copy(update={"messages": (edited, *CLOSED[0].messages[1:])}),))
    assert contents(world.provider.requests[0].episode) == ["Text of m1.", "Text of m2."]


async def test_older_revisions_are_named_without_texts() -> None:
    world = await a_world()
    for count in range(1, MOST_REVISIONS + 3):
        await amend(world, edit("m7", f"edited {count}"), offset=100 + count)
    stored = world.episodes.episodes["c1:3"]
    assert [one.revision for one in stored.earlier] == [*range(3, MOST_REVISIONS + 3)]
    assert stored.summary.revision == MOST_REVISIONS + 3
    fields = {"revision", "event_id", "reason", "source", "created_at"}
    assert {name for one in stored.earlier for name in one.model_dump()} == fields


async def test_edit_that_excludes_a_message_keeps_it_archived() -> None:
    world = await a_world()
    await amend(world, skip(7))
    [event] = world.topic.events
    assert isinstance(event, SummaryCreated)
    assert (event.message_ids, event.reason) == (("m6", "m8"), "edited")
    assert message_key("c1", "m7", "t1") in world.messages.messages


async def test_stub_of_a_deleted_conversation_keeps_it_deleted() -> None:
    world = await a_world()
    await amend(world, DELETE_ALL)
    assert [type(event) for event in world.topic.events] == [SummaryDeleted] * 3
    [event] = world.topic.conversations
    assert (event.title, event.user_id, event.episode_count) == ("", "", 0)
    assert {row.text for row in event.rolling} == {""}
    assert world.episodes.episodes == {}
    assert await find_conversation(world.episodes, "c1") is None
    assert {row.content for row in world.episodes.all_rows["c1"]} == {""}
    assert (world.index.points, world.messages.messages) == ({}, {})
    assert ended_at(world) == {one.episode_id: one.source.last_offset for one in CLOSED}
    await amend(world, DELETE_ALL, 200)
    assert len(world.topic.events) == 3, "a second deletion finds nothing"
    await amend(world, delete("m1"), 201)
    assert len(world.topic.events) == 3, "nor does one of a message"


async def test_deleted_conversation_restarts_with_the_next_ordinal() -> None:
    world = await a_world()
    await amend(world, DELETE_ALL)
    fourth = a_closed_episode(4, overlap=())
    fourth = fourth.model_copy(update={"source": fourth.source.model_copy(update={"last_offset": 120})})
    await world.reconciler().handle(fourth, a_cause(110))
    assert world.provider.requests[-1].previous_rolling == ""
    await amend(world, DELETE_ALL)  # as after a crash
    assert list(world.episodes.episodes) == ["c1:4"]
    conversation = world.episodes.known["c1"]
    assert (conversation.episode_count, conversation.last_ordinal) == (1, 4)
    assert [row.last_ordinal for row in world.episodes.all_rows["c1"] if row.content] == [4]


@pytest.mark.parametrize(
    ("change", "offset", "error_type"),
    [
        (edit("nobody"), 100, "unknown_message"),
        (edit("m7"), 3, "unknown_message"),
        (delete("m7", tenant_id="t2"), 100, "tenant_mismatch"),
        (ConversationDeleted(conversation_id="c1", tenant_id="t2"), 100, "tenant_mismatch"),
        (an_assignment(tenant_id="t2"), 100, "tenant_mismatch"),
    ],
)
async def test_unknown_foreign_and_early_changes_are_refused(change: Changed, offset: int, error_type: str) -> None:
    world = await a_world()
    before = world.state
    with pytest.raises(InvalidRecord, match=error_type):
        await amend(world, change, offset)
    assert world.state == before


async def test_repeated_record_announces_the_same_and_changes_nothing() -> None:
    world = await a_world()
    for change in (edit("m7"), delete("m4"), DELETE_ALL):
        await amend(world, change)
        before, asked = world.state, len(world.provider.requests)
        told = list(world.topic.published)
        world.topic.published.clear()
        await amend(world, change)
        assert world.state[:-1] == before[:-1]
        assert world.topic.published == told
        assert len(world.provider.requests) == asked
        world = await a_world()


async def test_change_already_applied_gets_its_own_revision() -> None:
    """A worker that has lost the partition may have made it, but can no longer announce it."""
    world = await a_world()
    await archive(world, edit("m8"), 101)
    await amend(world, edit("m7"), 100)
    assert announced(world) == ["c1:3:2"]
    asked = len(world.provider.requests)
    await amend(world, edit("m8"), 101)
    assert announced(world) == ["c1:3:2", "c1:3:3"]
    assert len(world.provider.requests) == asked
    check(world)


async def test_later_change_of_a_deleted_message_announces_nothing() -> None:
    world = await a_world()
    for offset, change in enumerate([delete("m4"), delete("m4"), edit("m4", "too late")], 100):
        await amend(world, change, offset)
    assert announced(world) == ["c1:2:2", "c1:2:3", "c1:3:2", "c1:3:3"][1::2]


async def test_deletion_rejected_by_the_segmenter_works_when_resent() -> None:
    """The archiver has taken it the first time: then the archive has an earlier deletion than the record."""
    world = await a_world()
    await archive(world, delete("m4"), 100)
    await amend(world, delete("m4"), 200)
    second, third = world.episodes.episodes["c1:2"], world.episodes.episodes["c1:3"]
    assert second.summary.message_ids == ("m3", "m5")
    assert "m4" not in dict(third.inputs)
    check(world)


async def test_edits_with_many_flows_and_tools_fit_their_topic() -> None:
    world = await a_world()
    for n in range(3):
        flows = tuple(f"flow {n} {number}" for number in range(20_000))
        await amend(world, edit(f"m{n}", flows=flows, tools=(f"tool {n} " + 100_000 * "x",)), 100 + n)
    told = world.topic.events[-2]
    assert isinstance(told, SummaryCreated)
    assert len(told.to_json()) < 800_000
    assert told.metrics.flows_activated == told.metrics.tools_invoked == ()


async def test_knowledge_before_deleted_episodes_stays_in_the_summary() -> None:
    gone = MOST_BEFORE + 2
    closed = tuple(a_closed_episode(ordinal, size=1, overlap=()) for ordinal in range(1, gone + 5))
    rules = SummaryRules(rolling_max_tokens=2000)
    world = World()
    await world.run(closed[: gone + 3], rules=rules)
    for ordinal in range(4, gone + 4):
        await amend(world, delete(f"m{ordinal - 1}"), 100 + ordinal, rules=rules)
    await world.reconciler(rules=rules).handle(closed[gone + 3], a_cause(300))
    before = world.provider.requests[-1].previous_rolling
    assert [f"Episode {ordinal} has" in before for ordinal in (1, 2, 3, 4)] == [True, True, True, False]


CHANGES = st.lists(
    st.one_of(
        st.integers(0, 8).map(lambda n: edit(f"m{n}", f"edited {n}")),
        st.integers(0, 8).map(lambda n: delete(f"m{n}")),
        st.integers(0, 8).map(skip),
        st.just(DELETE_ALL),
    ),
    min_size=1,
    max_size=6,
)
RULES = st.sampled_from([SummaryRules(rolling_max_tokens=20), SummaryRules(rolling_max_tokens=200)])


@pytest.mark.parametrize("later", [edit("m1"), delete("m4"), edit("m6"), delete("m8"), DELETE_ALL])
@pytest.mark.parametrize("at", range(1, 60, 2))
async def test_former_owner_makes_nothing_its_successor_would_not(at: int, later: Changed) -> None:
    """The former owner was suspended in a change; what it announces is aborted, and its successor does it all again."""
    world = await a_world()
    with contextlib.suppress(Crash):
        await amend(world, edit("m0"), 100)
        await amend(world, later, 300, Faults(at, False, crash))
    world.topic.published.clear()
    await amend(world, edit("m0"), 100)
    await amend(world, later, 300)
    check(world)


class WithoutMetadata(SqliteMessages):
    async def states(
        self, keys: Sequence[str], *, with_metadata: bool = True
    ) -> dict[str, ArchivedMessage | DeletedMessage]:
        assert not with_metadata, "the metadata of one episode may take a hundred megabytes"
        return await super().states(keys, with_metadata=False)


async def test_archive_metadata_is_not_read() -> None:
    world = World()
    await world.messages.put_many(archived(CLOSED))
    messages = WithoutMetadata(world.messages.file)
    await world.run(CLOSED, messages=messages)
    await amend(world, edit("m1"), messages=messages)
    check(world)


FACT = a_fact(message_ids=("m0",))


async def handed_over(world: World, faults: Faults = NO_FAULTS) -> None:
    await amend(world, an_assignment(), faults=faults)


async def a_world_with_facts() -> World:
    world = await a_world()
    for name, episode in world.episodes.episodes.items():
        summary = episode.summary.model_copy(update={"facts": (FACT,)})
        world.episodes.episodes[name] = replace(episode, summary=summary)
    return world


def check_users(world: World, user_id: str = "u2") -> None:
    """Check that everything is this user's and nothing the earlier one's."""
    assert {one.message.user_id for one in world.messages.messages.values()} == {user_id}
    for episode in world.episodes.episodes.values():
        assert (episode.summary.user_id, episode.participants, episode.writers) == (user_id, (user_id,), (user_id,))
        assert [fact.user_id for fact in episode.summary.facts] in ([], [user_id])
        assert world.index.points[episode.summary.episode_id].episode.writers == (user_id,)
    assert world.episodes.known["c1"].user_id == user_id
    assert '"u1"' not in "".join(event.to_json().decode() for event in world.topic.events[-3:])


async def test_assignment_gives_episodes_facts_and_index_to_the_user() -> None:
    world = await a_world_with_facts()
    texts = [episode.summary.long_summary for episode in world.episodes.episodes.values()]
    await handed_over(world)
    assert world.provider.requests == []
    assert announced(world) == ["c1:1:2", "c1:2:2", "c1:3:2"]
    assert [episode.summary.long_summary for episode in world.episodes.episodes.values()] == texts
    assert "Text of m8." in world.index.points["c1:3"].raw_text
    assert world.topic.conversations[-1].user_id == "u2"
    check(world)
    check_users(world)


@pytest.mark.parametrize("late", [False, True], ids=["before the effect", "after the effect"])
@pytest.mark.parametrize("at", range(1, 40))
async def test_interrupted_assignment_is_finished_and_announced(at: int, late: bool) -> None:
    world = await a_world_with_facts()
    with contextlib.suppress(Crash):
        await handed_over(world, Faults(at, late, crash))
    await handed_over(world)
    check(world)
    check_users(world)


@pytest.mark.parametrize("is_archived", [True, False], ids=["archived", "archiver is behind"])
async def test_late_episode_has_the_users_of_the_archive(is_archived: bool) -> None:
    """Two people signed in after one guest, the second of whom may have said the last message only."""
    closed, world = CLOSED[0], World()
    core = tuple(one.model_copy(update={"offset": at}) for at, one in zip((1, 3, 5), closed.messages, strict=True))
    source = closed.source.model_copy(update={"first_offset": 1, "last_offset": 5})
    closed = closed.model_copy(update={"messages": core, "source": source})
    said = [archived_message(one, closed) for one in core]
    for one, offset, user in zip(said, (2, 4), ("ann", "bob"), strict=False):
        await world.messages.put_many([one] if is_archived else [])
        await archive(world, an_assignment("u1", user), offset)
    await world.run([closed])
    await world.messages.put_many(said)
    users = [state.message.user_id for state in (await world.messages.get_many(list(map(key_of, said)))).values()]
    [episode] = world.episodes.episodes.values()
    assert (users, episode.participants, episode.summary.user_id) == (["ann", "ann", "bob"], ("ann", "bob"), "ann")
    await amend(world, an_assignment("ann", "cleo"), 6)
    assert world.episodes.episodes["c1:1"].participants == ("cleo", "bob")


async def test_message_archived_under_its_earlier_user_is_the_present_ones() -> None:
    world = await a_world()
    await handed_over(world)
    late = replace(archived_message(CLOSED[0].messages[0], CLOSED[0]), changed=50)
    await world.messages.assign("c1:1", [late])  # by a worker that had not seen the assignment
    await amend(world, edit("m1"), 101)
    episode = world.episodes.episodes["c1:1"]
    assert (episode.summary.revision, episode.participants, episode.summary.user_id) == (3, ("u2",), "u2")


async def test_episode_with_expired_messages_is_assigned() -> None:
    world = await a_world_with_facts()
    await world.messages.expire(LATER, 100)
    await handed_over(world)
    assert {one.summary.user_id for one in world.episodes.episodes.values()} == {"u2"}
    assert {fact.user_id for one in world.episodes.episodes.values() for fact in one.summary.facts} == {"u2"}


async def test_expired_messages_are_still_found_after_assignment() -> None:
    world = await a_world()
    before = world.index.points["c1:3"]
    assert await world.messages.expire(CLOSED[2].messages[1].sent_at, 100)
    await handed_over(world)
    after = world.index.points["c1:3"]
    assert "Text of m6." in before.raw_text
    assert (after.raw_text, after.vectors) == (before.raw_text, before.vectors)
    assert (after.summary.revision, after.episode.writers) == (2, ("u2",))


async def test_repeated_deletion_leaves_expired_messages_in_the_index() -> None:
    world = await a_world()
    await amend(world, delete("m8"))
    before = world.index.points["c1:3"].raw_text
    assert await world.messages.expire(CLOSED[2].messages[1].sent_at, 100)
    await amend(world, delete("m8"))
    assert "Text of m6." in before
    assert world.index.points["c1:3"].raw_text == before


async def test_assignment_of_a_deleted_conversation_changes_nothing() -> None:
    world = await a_world()
    await amend(world, DELETE_ALL)
    before = world.state
    await amend(world, an_assignment(), 101)
    assert world.state == before


ROOMY = SummaryRules(rolling_max_tokens=200)
AWAY = ProviderUnavailable(problem="away")


class Todays(ScriptedProvider):
    """An LLM that uses today's prompt, and says so."""

    def _answer(self, request: SummaryRequest) -> Summary:
        made = super()._answer(request)
        return replace(made, title=f"New {made.title}", prompt_version=TODAY.prompt_version)


def request(ordinal: int, revision: int = 1, **fields: Any) -> EpisodeRedo:
    given = {"conversation_id": "c1", "tenant_id": "t1", "episode_id": f"c1:{ordinal}", "revision": revision}
    return EpisodeRedo(**given | {"requested_at": LATER} | fields)


async def redo(world: World, asked: EpisodeRedo, offset: int = 50, faults: Faults = NO_FAULTS, **fields: Any) -> None:
    given = {"summarizer": Summarizer(Todays())} | fields
    await world.reconciler(faults, **given).handle(asked, a_cause(offset))


def summary_of(world: World, ordinal: int) -> SummaryCreated:
    return world.episodes.episodes[f"c1:{ordinal}"].summary


async def test_redo_makes_the_next_revision_from_the_archive() -> None:
    world, provider = await a_world(ROOMY), Todays()
    await redo(world, request(3), rules=ROOMY, summarizer=Summarizer(provider))
    assert [contents(asked.episode) for asked in provider.requests] == [["Text of m6.", "Text of m7.", "Text of m8."]]
    assert "Episode 2 has" in provider.requests[0].previous_rolling
    [event] = world.topic.events
    assert isinstance(event, SummaryCreated)
    assert (event.event_id, event.reason) == ("c1:3:2", "redone")
    assert (event.title, event.prompt_version) == ("New Episode 3", TODAY.prompt_version)
    assert summary_of(world, 3) == event
    assert world.index.points["c1:3"].summary == event
    check(world)


async def test_redone_conversation_has_todays_rows_title_and_counts() -> None:
    world = await a_world(ROOMY)
    before = world.episodes.known["c1"]
    for ordinal in (1, 2, 3):
        await redo(world, request(ordinal), 50 + ordinal, rules=ROOMY)
    assert announced(world) == ["c1:1:2", "c1:2:2", "c1:3:2"]
    after = world.episodes.known["c1"]
    assert after.title == "New Episode 1"
    assert (after.episode_count, after.message_count) == (before.episode_count, before.message_count)
    check(world)


async def test_repeated_redo_asks_the_llm_once() -> None:
    world = await a_world()
    await redo(world, request(3))
    before, told = world.state, list(world.topic.published)
    await world.reconciler().handle(request(3), a_cause(50))
    assert world.provider.requests == []
    assert world.state == before
    assert world.topic.published == told * 2


async def test_revision_is_announced_by_the_redo_that_made_it() -> None:
    world = await a_world()
    await redo(world, request(3))
    before = world.state
    await redo(world, request(3), 51)
    assert world.state == before
    assert announced(world) == ["c1:3:2"]


@pytest.mark.parametrize(
    "given", [request(3, revision=2), request(3, attempt=1), request(9), request(3, conversation_id="c2")]
)
async def test_redo_of_a_missing_episode_does_nothing(given: EpisodeRedo) -> None:
    world = await a_world()
    before = world.state
    await redo(world, given)
    assert world.state == before


async def test_redo_of_another_tenant_is_refused() -> None:
    world = await a_world()
    with pytest.raises(InvalidRecord) as refused:
        await redo(world, request(3, tenant_id="t2"))
    assert refused.value.error_type == "tenant_mismatch"


@pytest.mark.parametrize("error", [AWAY, BudgetExhausted(whose="a tenant", limit=1), AnswerInvalid(problem="no JSON")])
async def test_redo_without_an_answer_keeps_the_summary(error: Any) -> None:
    """Otherwise a worker that has lost the partition could store a revision that nobody announces."""
    world = await a_world()
    before = summary_of(world, 3)
    await redo(world, request(3), summarizer=Summarizer(ScriptedProvider([error])))
    assert summary_of(world, 3) == before
    await redo(world, request(3))
    assert summary_of(world, 3) == before
    assert announced(world) == []
    await redo(world, request(3, attempt=1), 51)
    assert announced(world) == ["c1:3:2"]


async def test_redo_without_messages_keeps_the_summary() -> None:
    world = await a_world()
    world.messages.messages.clear()
    await redo(world, request(3))
    assert summary_of(world, 3).revision == 1


async def test_redo_of_a_deleted_episode_does_nothing() -> None:
    world = await a_world()
    deletions = list(enumerate(map(delete, ("m6", "m7", "m8")), 100))
    for offset, deletion in deletions:
        await archive(world, deletion, offset)
    await redo(world, request(3))  # nothing is left of it, though its deletion is still to come
    assert announced(world) == ["c1:3:2"]
    for offset, deletion in deletions:
        await amend(world, deletion, offset)
    await redo(world, request(3, attempt=1), 110)
    assert "c1:3" not in world.episodes.episodes
    check(world)


async def test_redo_applies_an_archived_change_once() -> None:
    world = await a_world()
    await archive(world, edit("m8"), 100)
    await redo(world, request(3))
    await amend(world, edit("m8"), 100)
    assert world.provider.requests == []
    assert announced(world) == ["c1:3:2", "c1:3:3"]
    check(world)


STEPS = st.lists(st.one_of(CHANGES.map(lambda changes: changes[0]), st.integers(1, 3)), min_size=1, max_size=8)
"""Changes, and ordinals of episodes that are to be made anew."""


async def taken(world: World, step: Changed | int, offset: int, faults: Faults, rules: SummaryRules) -> None:
    """`step`: a change, or the ordinal of an episode whose stored revision is to be made anew."""
    if not isinstance(step, int):
        await repeated(lambda f: amend(world, step, offset, f, rules=rules), faults)
        return
    stored = world.episodes.episodes.get(f"c1:{step}")
    if stored is not None:
        asked = request(step, stored.summary.revision)
        await repeated(lambda f: world.reconciler(f, rules=rules).handle(asked, a_cause(offset)), faults)


async def repeated(call: Any, faults: Faults) -> None:
    try:
        await call(faults)
    except (Crash, asyncio.CancelledError, StoreUnavailable):  # the next worker handles it again
        await call(NO_FAULTS)


@given(STEPS, RULES, st.integers(1, 80), st.booleans(), st.sampled_from([crash, cancelled, outage]))
def test_any_redos_among_changes_leave_every_revision_announced(
    steps: list[Changed | int], rules: SummaryRules, at: int, after: bool, fault: Fault
) -> None:
    async def scenario() -> None:
        world = World()
        await world.run(CLOSED, rules=rules)
        faults = Faults(at, after, fault)
        for offset, step in enumerate(steps, 100):
            await taken(world, step, offset, faults, rules)
        check(world)

    asyncio.run(scenario())


@given(CHANGES, st.lists(st.integers(1, 3), max_size=4), RULES, st.randoms(use_true_random=False))
def test_redo_among_archived_changes_leaves_no_old_text(
    changes: list[Changed], redone: list[int], rules: SummaryRules, random: Random
) -> None:
    async def scenario() -> None:
        world = World()
        await world.run(CLOSED, rules=rules)
        for offset, change in enumerate(changes, 100):
            await archive(world, change, offset)
        steps: list[Any] = list(changes)
        for ordinal in redone:
            steps.insert(random.randrange(len(steps) + 1), ordinal)
        offset = 100
        for place, step in enumerate(steps):
            if isinstance(step, int):
                stored = world.episodes.episodes.get(f"c1:{step}")
                if stored is not None:
                    asked = request(step, stored.summary.revision, attempt=stored.attempt)
                    await world.reconciler(rules=rules).handle(asked, a_cause(1000 + place))
            else:
                event = an_amendment(step, offset, LATER)
                await world.reconciler(rules=rules).handle(event, a_cause(1000 + place))
                offset += 1
        check(world)

    asyncio.run(scenario())
