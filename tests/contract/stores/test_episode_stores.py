import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from afterword.schemas import SummaryDeleted
from afterword.schemas.ids import episode_id, scope_id
from afterword.streams.stores.episodes import (
    DeletedEpisode,
    EpisodeRef,
    EpisodeStore,
    EpisodeVersion,
    Revision,
    RollingRow,
    first_advance,
    scope_of,
)
from tests.samples import NOON, a_stored_episode, a_summary

ROW = RollingRow("c1", 1, "So far.", 3, first_ordinal=1, last_ordinal=1, updated_at=NOON)


async def test_nothing_is_found_in_an_empty_store(episodes: EpisodeStore) -> None:
    assert await episodes.find("c1:1") is None
    assert await episodes.latest_row("c1") is None
    assert await episodes.conversation("c1") is None
    assert [ref async for ref in episodes.all_episodes()] == []
    assert await episodes.count_all() == 0


async def test_an_episode_comes_back_equal_in_every_field(episodes: EpisodeStore) -> None:
    stored = a_stored_episode()
    assert await episodes.add(stored) == stored
    found = await episodes.find("c1:1")
    assert found == stored
    assert found is not None
    assert found.summary.to_json() == stored.summary.to_json()


async def test_the_first_writer_of_a_revision_wins_and_the_other_learns_what_is_stored(episodes: EpisodeStore) -> None:
    first = await episodes.add(a_stored_episode(title="First"))
    assert await episodes.add(a_stored_episode(title="Second", fingerprint="f2")) == first
    assert await episodes.find("c1:1") == first


async def test_of_many_writers_at_once_one_wins_and_all_learn_the_same(episodes: EpisodeStore) -> None:
    answers = await asyncio.gather(*(episodes.add(a_stored_episode(title=f"By {n}")) for n in range(20)))
    assert {answer.summary.title for answer in answers} == {answers[0].summary.title}
    assert await episodes.find("c1:1") == answers[0]


async def test_a_higher_revision_replaces_a_lower_one(episodes: EpisodeStore) -> None:
    await episodes.add(a_stored_episode(revision=1, agent_id="a1"))
    second = a_stored_episode(revision=2)
    assert await episodes.add(second) == second
    assert await episodes.find("c1:1") == second


async def test_a_lower_revision_never_replaces_a_higher_one(episodes: EpisodeStore) -> None:
    second = await episodes.add(a_stored_episode(revision=2))
    assert await episodes.add(a_stored_episode(revision=1)) == second
    assert await episodes.find("c1:1") == second


async def test_of_all_revisions_at_once_the_highest_stays(episodes: EpisodeStore) -> None:
    await asyncio.gather(*(episodes.add(a_stored_episode(revision=r)) for r in (3, 1, 5, 2, 4)))
    found = await episodes.find("c1:1")
    assert found is not None
    assert found.summary.revision == 5


@pytest.mark.parametrize("hostile", ['{"$gt": ""}', "$where", "a.b", "c%3A1:1", "\u0000", "💬"])
async def test_ids_are_data_whatever_they_look_like(episodes: EpisodeStore, hostile: str) -> None:
    await episodes.add(a_stored_episode())
    assert await episodes.find(hostile) is None
    await episodes.add(a_stored_episode(conversation_id=hostile))
    await episodes.advance(a_summary(conversation_id=hostile))
    row = replace(ROW, conversation_id=scope_id(hostile))
    assert await episodes.put_row(row, None)
    assert await episodes.latest_row(scope_id(hostile)) == row
    conversation = await episodes.conversation(scope_id(hostile))
    assert conversation is not None
    assert conversation.conversation_id == scope_id(hostile)


async def test_an_agents_part_and_a_conversation_of_that_name_share_nothing(episodes: EpisodeStore) -> None:
    diagnosis = a_summary(1, "a", agent_id="b", episode_id="a/b:1", tenant_id="X", title="Diagnosis")
    await episodes.advance(diagnosis)
    await episodes.put_row(replace(ROW, conversation_id=scope_of(diagnosis), content="Diagnosis."), None)
    others = [a_summary(1, name, tenant_id="Y", title="Other") for name in ("a/b", "a//b", "a%2Fb", "a%2F%2Fb")]
    for other in others:
        assert await episodes.latest_row(scope_of(other)) is None
        await episodes.advance(other)
        assert await episodes.put_row(replace(ROW, conversation_id=scope_of(other), content="Other."), None)
    for summary in (diagnosis, *others):
        found = await episodes.conversation(scope_of(summary))
        assert found is not None
        assert (found.tenant_id, found.title, found.episode_count) == (summary.tenant_id, summary.title, 1)
        row = await episodes.latest_row(scope_of(summary))
        assert row is not None
        assert row.content == f"{summary.title}."


async def test_the_audit_sees_which_messages_every_episode_took(episodes: EpisodeStore) -> None:
    await episodes.add(a_stored_episode(1))
    await episodes.add(a_stored_episode(2, revision=4, episode_revision=3))
    refs = sorted([ref async for ref in episodes.all_episodes()], key=lambda ref: ref.ordinal)
    assert refs == [
        EpisodeRef("c1:1", 1, "c1", 1, "f1", ("m0", "m1", "m2"), made_from=1, tenant_id="t1"),
        EpisodeRef("c1:2", 4, "c1", 2, "f1", ("m3", "m4", "m5"), made_from=3, tenant_id="t1"),
    ]
    assert await episodes.count_all() == 2


async def test_episodes_are_paged_from_the_newest(episodes: EpisodeStore) -> None:
    for ordinal in range(1, 13):
        await episodes.add(a_stored_episode(ordinal))
    await episodes.add(a_stored_episode(13, conversation_id="c12"))
    first = await episodes.latest("c1", 5)
    assert [stored.summary.ordinal for stored in first] == [12, 11, 10, 9, 8]
    assert first[0] == a_stored_episode(12)
    assert [stored.summary.ordinal for stored in await episodes.latest("c1", 5, before=3)] == [2, 1]
    assert await episodes.latest("c1", 5, before=1) == []
    assert await episodes.latest("c2", 5) == []


async def test_episodes_of_an_agent_are_apart_from_those_of_the_conversation(episodes: EpisodeStore) -> None:
    own = {"agent_id": "a", "episode_id": "c1/a:1"}
    for stored in (a_stored_episode(1, agent_id="a"), a_stored_episode(1, **own)):
        await episodes.add(stored)
        await episodes.advance(stored.summary)
    assert [stored.summary.episode_id for stored in await episodes.latest("c1", 5)] == ["c1:1"]
    assert [stored.summary.episode_id for stored in await episodes.latest("c1", 5, agent_id="a")] == ["c1/a:1"]
    for scope in (scope_id("c1"), scope_id("c1", "a")):
        found = await episodes.conversation(scope)
        assert found is not None
        assert (found.conversation_id, found.episode_count) == (scope, 1)


async def test_all_episodes_are_walked_through_in_the_order_of_their_ids(episodes: EpisodeStore) -> None:
    ids = sorted(f"{conversation}:{n}" for conversation in ("b", "c1", "ü") for n in range(1, 4))
    for i in ids:
        conversation, _, ordinal = i.partition(":")
        await episodes.add(a_stored_episode(int(ordinal), conversation_id=conversation))
    assert [await episodes.count_following(i) for i in (None, ids[0], ids[-1])] == [len(ids), len(ids) - 1, 0]
    found, after = [], None
    while page := await episodes.following(after, 2):
        after = page[-1].summary.episode_id
        found += [stored.summary.episode_id for stored in page]
    assert found == ids


async def test_tokens_are_counted_with_each_episode(episodes: EpisodeStore) -> None:
    for ordinal in (1, 2, 2):
        await episodes.add(a_stored_episode(ordinal))
        await episodes.advance(a_summary(ordinal))
    found = await episodes.conversation("c1")
    assert found is not None
    assert found.token_count == 200


async def test_the_first_row_is_taken_once(episodes: EpisodeStore) -> None:
    assert await episodes.put_row(ROW, None)
    assert not await episodes.put_row(replace(ROW, content="Other."), None)
    assert await episodes.latest_row("c1") == ROW


async def test_a_row_is_replaced_by_whoever_saw_it_last(episodes: EpisodeStore) -> None:
    await episodes.put_row(ROW, None)
    second, third = (replace(ROW, content=f"Up to {n}.", last_ordinal=n) for n in (2, 3))
    assert await episodes.put_row(second, after=ROW)
    assert await episodes.put_row(third, after=second)
    assert not await episodes.put_row(second, after=ROW)
    assert await episodes.latest_row("c1") == third


async def test_a_row_is_revised_once_by_whoever_saw_its_last_revision(episodes: EpisodeStore) -> None:
    await episodes.put_row(ROW, None)
    second, third = (replace(ROW, content=f"Revision {n}.", last_revision=n) for n in (2, 3))
    assert await episodes.put_row(second, after=ROW)
    assert not await episodes.put_row(second, after=ROW)
    assert await episodes.put_row(third, after=second)
    assert await episodes.latest_row("c1") == third


async def test_the_latest_row_is_the_highest_also_past_nine(episodes: EpisodeStore) -> None:
    rows = [replace(ROW, row=n, first_ordinal=n, last_ordinal=n) for n in range(1, 13)]
    for before, row in zip([None, *rows], rows, strict=False):
        assert await episodes.put_row(row, after=before)
    assert not await episodes.put_row(replace(rows[-1], content="Late."), after=rows[-2])
    assert await episodes.latest_row("c1") == rows[-1]


async def test_rows_of_conversations_are_apart(episodes: EpisodeStore) -> None:
    await episodes.put_row(ROW, None)
    assert await episodes.latest_row("c2") is None


async def test_a_conversation_counts_each_ordinal_once(episodes: EpisodeStore) -> None:
    for ordinal in (1, 1, 2, 1, 2, 3, 3):
        await episodes.advance(a_summary(ordinal))
    found = await episodes.conversation("c1")
    assert found is not None
    assert (found.episode_count, found.message_count, found.last_ordinal) == (3, 9, 3)
    assert (found.title, found.updated_at) == ("Title 3", NOON + timedelta(minutes=3))


async def test_a_higher_revision_changes_the_title_and_counts_nothing(episodes: EpisodeStore) -> None:
    for ordinal in (1, 2):
        await episodes.advance(a_summary(ordinal))
    before = await episodes.conversation("c1")
    assert before is not None
    for ordinal, revision in ((2, 2), (2, 1), (1, 2)):
        await episodes.advance(a_summary(ordinal, revision=revision, title=f"Revision {revision} of {ordinal}"))
    assert await episodes.conversation("c1") == replace(before, title="Revision 2 of 2", last_revision=2)


async def test_a_conversation_keeps_the_user_and_the_tenant_it_began_with(episodes: EpisodeStore) -> None:
    await episodes.advance(a_summary(1))
    await episodes.advance(a_summary(2, user_id="u2", tenant_id=None))
    found = await episodes.conversation("c1")
    assert found is not None
    assert (found.user_id, found.tenant_id) == ("u1", "t1")


async def test_writers_of_one_ordinal_at_once_count_it_once(episodes: EpisodeStore) -> None:
    for ordinal in (1, 2, 3):
        await asyncio.gather(*(episodes.advance(a_summary(ordinal)) for _ in range(10)))
    found = await episodes.conversation("c1")
    assert found is not None
    assert (found.episode_count, found.message_count) == (3, 9)


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_that_mongodb_takes_for_none_is_refused(episodes: EpisodeStore, limit: int) -> None:
    for ordinal in (1, 2):
        await episodes.add(a_stored_episode(ordinal))
    with pytest.raises(ValueError, match="limit must be at least 1"):
        await episodes.latest("c1", limit)
    with pytest.raises(ValueError, match="limit must be at least 1"):
        await episodes.following(None, limit)


def deleted(ordinal: int = 1, revision: int = 2) -> DeletedEpisode:
    before = a_summary(ordinal)
    deletion = SummaryDeleted(
        event_id=f"{before.episode_id}:{revision}",
        episode_id=before.episode_id,
        revision=revision,
        supersedes=before.event_id,
        reason="deleted",
        conversation_id="c1",
        tenant_id="t1",
        ordinal=ordinal,
        deleted_at=NOON,
    )
    return DeletedEpisode(deletion, (("m1", 7),), 7, announced_by="a/0/1", last_offset=5)


async def test_what_an_episode_knows_of_changes_comes_back(episodes: EpisodeStore) -> None:
    changes = (("m1", 7), ("$a.b", 8))
    stored = replace(
        a_stored_episode(),
        changes=changes,
        as_of=8,
        last_offset=3,
        made_by=8,
        built_on=("c1:0:1",),
        announced_by="a/0/1",
        earlier=(Revision.of(a_summary(1)), Revision.of(a_summary(1, revision=2))),
    )
    await episodes.add(stored)
    assert await episodes.find("c1:1") == stored
    await episodes.mark(stored, 11)
    await episodes.mark(stored, 12)  # by another who has read it before
    await episodes.mark(stored, 10)
    assert await episodes.find("c1:1") == replace(stored, as_of=12)
    [ref] = [ref async for ref in episodes.all_episodes()]
    assert (ref.changes, ref.as_of) == (stored.changes, 12)


async def test_a_removed_episode_is_not_found_and_does_not_come_back(episodes: EpisodeStore) -> None:
    await episodes.add(a_stored_episode())
    gone = deleted()
    assert await episodes.remove(gone) == gone
    assert await episodes.remove(deleted(revision=5)) == gone
    assert await episodes.add(a_stored_episode(revision=9)) == gone
    assert await episodes.find("c1:1") is None
    assert await episodes.lookup("c1:1") == gone
    assert await episodes.latest("c1", 5) == await episodes.following(None, 5) == []
    assert [found async for found in episodes.all_episodes()] == [gone]
    assert await episodes.count_all() == 1


async def test_a_late_removal_does_not_remove_a_higher_revision(episodes: EpisodeStore) -> None:
    stored = a_stored_episode(revision=3)
    await episodes.add(stored)
    assert await episodes.remove(deleted(revision=2)) == stored


async def test_episodes_are_found_by_the_messages_that_they_have_or_had(episodes: EpisodeStore) -> None:
    for ordinal in (1, 2, 3):
        await episodes.add(replace(a_stored_episode(ordinal), overlap_ids=("m1",) if ordinal == 2 else ()))
    await episodes.remove(replace(deleted(3), changes=(("m1", 7),)))
    assert [e.ordinal for e in await episodes.holding("c1", "m1")] == [1, 2, 3]
    assert [e.ordinal for e in await episodes.holding("c1", "m5")] == [2]
    assert await episodes.holding("c2", "m1") == []
    assert [e.ordinal for e in await episodes.of_conversation("c1", None, 2)] == [1, 2]
    assert [e.ordinal for e in await episodes.of_conversation("c1", "c1:2", 2)] == [3]
    assert [e.ordinal for e in await episodes.later(a_summary(1), 5, 0)] == [1, 2]
    assert [e.ordinal for e in await episodes.later(a_summary(1), 5, 1)] == [2]


async def test_rows_are_read_from_an_ordinal_on(episodes: EpisodeStore) -> None:
    rows = [replace(ROW, row=n, first_ordinal=n, last_ordinal=n) for n in (1, 2, 3)]
    for before, row in zip([None, *rows], rows, strict=False):
        assert await episodes.put_row(row, after=before)
    assert await episodes.rows_from("c1", 2) == rows[1:]
    renewed = replace(rows[1], content="New.", last_revision=2, as_of=7)
    assert await episodes.put_row(renewed, after=rows[1])
    assert not await episodes.put_row(replace(renewed, content="Newer."), after=rows[1]), (
        "another writer has changed it"
    )
    assert not await episodes.put_row(rows[1], after=rows[0]), "it is there"
    assert await episodes.rows_from("c1", 2) == [renewed, rows[2]]


async def test_counts_and_title_are_those_of_the_living(episodes: EpisodeStore) -> None:
    for ordinal in (1, 2):
        await episodes.add(a_stored_episode(ordinal))
        await episodes.advance(a_summary(ordinal))
    await episodes.remove(deleted(2))
    for _ in range(2):
        await episodes.recount(deleted(2).deletion)
    found = await episodes.conversation("c1")
    assert found is not None
    assert (found.title, found.episode_count, found.message_count, found.token_count, found.last_ordinal) == (
        "Title 1", 1, 3, 100, 2,
    )  # fmt: skip
    await episodes.remove(deleted(1))
    await episodes.recount(deleted(1).deletion)
    await episodes.recount(deleted(1).deletion)
    assert await episodes.conversation("c1") is None


async def test_what_a_record_asked_for_is_not_stored_once_it_is_refused(episodes: EpisodeStore) -> None:
    first, position = a_stored_episode(1), "episode.closed/0/7"
    await episodes.add(first)
    late = replace(first, summary=a_summary(1, revision=2), announced_by=position)
    gone = replace(deleted(1), announced_by=position)
    for _ in range(2):
        assert await episodes.refuse("c1:1", position) == first
    assert await episodes.add(late) == first
    assert await episodes.remove(gone) == first
    other = replace(late, announced_by="episode.closed/0/8")
    assert await episodes.add(other) == other
    assert await episodes.refuse("c1:1", "episode.closed/0/8") == other, "it was stored before"
    assert await episodes.refuse("c9:1", position) is None


async def test_a_conversation_of_which_nothing_is_left_is_not_counted_again(episodes: EpisodeStore) -> None:
    for ordinal in (1, 2):
        await episodes.add(a_stored_episode(ordinal))
        await episodes.advance(a_summary(ordinal))
    for ordinal in (1, 2):
        await episodes.remove(deleted(ordinal))
    await episodes.recount(deleted(2).deletion)
    for late in (a_summary(1), a_summary(2), a_summary(2, revision=2)):
        await episodes.advance(late)
        assert await episodes.conversation("c1") is None
    assert await episodes.conversations("u1", None, 10) == await episodes.conversations("", None, 10) == []
    await episodes.advance(a_summary(3))
    assert await episodes.conversation("c1") == first_advance(a_summary(3))
    await episodes.advance(a_summary(4))
    found = await episodes.conversation("c1")
    assert found is not None
    assert (found.title, found.episode_count, found.last_ordinal) == ("Title 4", 2, 4)


async def test_conversations_are_found_by_everybody_who_takes_part(episodes: EpisodeStore) -> None:
    others = {"c1": ("u1", "u2"), "c2": ("u3",), "c3": (), "c4": ("u2",)}
    for name, participants in others.items():
        await episodes.add(replace(a_stored_episode(conversation_id=name), participants=participants))
    await episodes.add(replace(a_stored_episode(2, conversation_id="c4"), participants=("u2",)))
    foreign = a_stored_episode(conversation_id="c5", tenant_id="t2", user_id="u2")
    await episodes.add(replace(foreign, participants=("u2",)))
    await episodes.add(a_stored_episode(conversation_id="c6", tenant_id=None, user_id="u2"))
    assert await episodes.conversations_of("u2", "t1", None, 100) == ["c1", "c4"]
    assert await episodes.conversations_of("u2", "t1", None, 1) == ["c1"]
    assert await episodes.conversations_of("u2", "t1", "c1", 1) == ["c4"]
    assert await episodes.conversations_of("u2", "t1", "c4", 1) == []
    assert await episodes.conversations_of("u1", "t1", None, 100) == ["c1", "c2", "c3", "c4"]
    assert await episodes.conversations_of("u2", None, None, 100) == ["c6"]
    assert await episodes.conversations_of("U2", "t1", None, 100) == []
    assert await episodes.find("c1:1") == replace(a_stored_episode(), participants=("u1", "u2"))


async def test_an_episode_that_is_gone_has_no_participants(episodes: EpisodeStore) -> None:
    await episodes.add(replace(a_stored_episode(), participants=("u1", "u2")))
    await episodes.remove(deleted())
    for user in ("u1", "u2"):
        assert await episodes.conversations_of(user, "t1", None, 100) == []


async def test_expired_episodes_are_found_by_their_end_the_oldest_first(episodes: EpisodeStore) -> None:
    for ordinal in (1, 2, 3, 4):
        ended = NOON + timedelta(minutes=10 - ordinal)
        await episodes.add(a_stored_episode(ordinal, ended_at=ended, conversation_id="c1" if ordinal > 1 else "c2"))
    await episodes.remove(deleted(4))
    found = await episodes.expired(NOON + timedelta(minutes=9), 5)
    assert [e.summary.episode_id for e in found] == ["c1:3", "c1:2"]
    assert found == await episodes.expired(NOON + timedelta(days=1), 2)
    with pytest.raises(ValueError, match="limit must be at least 1"):
        await episodes.expired(NOON, 0)


@pytest.mark.parametrize("agent_id", [None, "a1"])
async def test_a_conversation_ends_with_its_last_episode_only(episodes: EpisodeStore, agent_id: str | None) -> None:
    ids = {n: {"agent_id": agent_id, "episode_id": episode_id("c1", n, agent_id)} for n in (1, 2, 3)}
    first, second, third = (a_stored_episode(n, **ids[n]) for n in (1, 2, 3))
    other = a_stored_episode(1, agent_id="a2", episode_id=episode_id("c1", 1, "a2"))
    for stored in (first, second, other):
        await episodes.add(stored)
        await episodes.advance(stored.summary)
        row = replace(ROW, conversation_id=scope_of(stored.summary), row=stored.ordinal, last_ordinal=stored.ordinal)
        assert await episodes.put_row(row, after=None)
    scope = scope_of(first.summary)
    assert not await episodes.end_conversation(first)
    assert len(await episodes.rows_from(scope, 0)) == 2
    await episodes.remove(DeletedEpisode(deleted(1).deletion.model_copy(update=ids[1])))
    assert await episodes.end_conversation(second)
    assert await episodes.end_conversation(second)
    assert await episodes.rows_from(scope, 0) == []
    assert await episodes.conversation(scope) is None
    assert await episodes.conversation(scope_of(other.summary)) is not None
    assert len(await episodes.rows_from(scope_of(other.summary), 0)) == 1

    await episodes.remove(DeletedEpisode(deleted(2).deletion.model_copy(update=ids[2])))
    await episodes.advance(third.summary)  # a new episode, which is not stored yet, is not taken for the old one's
    await episodes.end_conversation(second)
    assert await episodes.conversation(scope) is not None


async def test_a_conversation_whose_first_user_is_gone_is_that_of_the_next(episodes: EpisodeStore) -> None:
    for ordinal, user in ((1, "u1"), (2, "u2"), (3, "u3")):
        stored = a_stored_episode(ordinal, user_id=user)
        await episodes.add(stored)
        await episodes.advance(stored.summary)
    await episodes.remove(deleted(1))
    await episodes.recount(deleted(1).deletion)
    found = await episodes.conversation("c1")
    assert found is not None
    assert found.user_id == "u2"


async def test_the_episodes_of_a_participant_are_counted_by_conversation(episodes: EpisodeStore) -> None:
    for ordinal, name, participants in ((1, "c1", ("u1", "u2")), (2, "c1", ("u2",)), (1, "c2", ("u1",)), (1, "c3", ())):
        stored = a_stored_episode(ordinal, conversation_id=name, user_id="u1" if ordinal == 1 else "u2")
        await episodes.add(replace(stored, participants=participants))
    assert await episodes.taken_part_in(["c1", "c2", "nobody's"], "u2", "t1") == {"c1": 2}
    assert await episodes.taken_part_in(["c1", "c2", "c3"], "u1", "t1") == {"c1": 1, "c2": 1, "c3": 1}
    assert await episodes.taken_part_in(["c1"], "u2", None) == await episodes.taken_part_in([], "u2", "t1") == {}


async def test_episodes_are_read_by_their_ids(episodes: EpisodeStore) -> None:
    stored = [await episodes.add(a_stored_episode(ordinal)) for ordinal in (1, 2)]
    await episodes.remove(deleted(2))
    assert await episodes.find_many(["c1:1", "c1:2", "c1:3"]) == {"c1:1": stored[0]}
    assert await episodes.find_many([]) == {}


async def test_versions_tell_apart_what_has_changed(episodes: EpisodeStore) -> None:
    await episodes.add(replace(a_stored_episode(1), as_of=3, made_by=2))
    await episodes.add(a_stored_episode(2))
    await episodes.remove(deleted(2))
    gone = deleted(2)
    assert await episodes.versions(["c1:1", "c1:2", "c1:3"]) == {
        "c1:1": EpisodeVersion(1, as_of=3, made_by=2),
        "c1:2": EpisodeVersion(gone.deletion.revision, gone.as_of, gone.made_by, ended=gone.deletion.reason),
    }
    assert await episodes.versions([]) == {}


@pytest.mark.parametrize("agent_id", [None, "a1"])
async def test_a_scope_knows_which_messages_it_has_or_had(episodes: EpisodeStore, agent_id: str | None) -> None:
    ids = {n: {"agent_id": agent_id, "episode_id": episode_id("c1", n, agent_id)} for n in (1, 2)}
    await episodes.add(replace(a_stored_episode(1, **ids[1]), overlap_ids=("x",), changes=(("y", 7),)))
    await episodes.add(a_stored_episode(2, **ids[2]))
    await episodes.remove(DeletedEpisode(deleted(2).deletion.model_copy(update=ids[2]), (("z", 8),), 8))
    for name in ("m0", "x", "y", "z"):
        assert await episodes.has_any("c1", agent_id, ["nobody", name]), name
        assert not await episodes.has_any("c1", "another", [name])
        assert not await episodes.has_any("c2", agent_id, [name])
    assert not await episodes.has_any("c1", agent_id, ["m4", "nobody"])
    assert not await episodes.has_any("c1", agent_id, [])


async def test_a_scope_knows_what_it_has_of_before_a_deletion(episodes: EpisodeStore) -> None:
    await episodes.add(replace(a_stored_episode(1), last_offset=5))
    assert [await episodes.has_before("c1", None, offset, 1) for offset in (4, 5, 9)] == [False, True, True]
    await episodes.remove(deleted(1))
    found = {(o, n): await episodes.has_before("c1", None, o, n) for o in (6, 7, 8) for n in (1, 2)}
    assert [at for at, is_found in found.items() if is_found] == [(7, 1)]
    assert not await episodes.has_before("c1", "a1", 7, 1)


async def test_conversations_of_a_user_are_listed_by_their_last_summary(episodes: EpisodeStore) -> None:
    names = ("c1", "a/b", "c%", "c4")
    for minute, name in enumerate(names):
        await episodes.advance(a_summary(1, name, created_at=NOON + timedelta(minutes=min(minute, 2))))
    await episodes.advance(a_summary(1, "theirs", user_id="u2"))
    await episodes.advance(a_summary(1, "elsewhere", tenant_id="t2"))
    await episodes.advance(a_summary(1, "without", tenant_id=None))
    every = await episodes.conversations("u1", "t1", 10)
    assert [found.conversation_id for found in every] == ["c4", "c%25", "a%2Fb", "c1"]
    pages = []
    before = None
    while page := await episodes.conversations("u1", "t1", 1, before):
        pages += page
        before = (page[-1].updated_at, page[-1].conversation_id)
    assert pages == every
    assert [found.conversation_id for found in await episodes.conversations("u1", None, 10)] == ["without"]
    with pytest.raises(TypeError):
        await episodes.conversations({"$ne": None}, "t1", 10)  # type: ignore[arg-type]  # as of a request's JSON
