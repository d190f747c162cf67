import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from afterword.schemas import Usage
from afterword.schemas.base import episode_id, scope_id
from afterword.schemas.summaries import Calls
from afterword.streams.stores.episodes import (
    Cause,
    EpisodeQueries,
    EpisodeTotals,
    Revision,
    StoredEpisode,
    UsageTotals,
    UserTotals,
    all_episodes,
    find_conversation,
    find_episode,
)
from tests.nasty_texts import IDS
from tests.samples import NOON, a_conversation, a_fact, a_row, a_stored_episode, a_summary, a_tombstone, of_user


async def stored(episodes: EpisodeQueries, ordinal: int = 1, **fields: Any) -> StoredEpisode:
    episode = a_stored_episode(ordinal, **fields)
    assert await episodes.put(episode, None)
    return episode


async def test_empty_store_finds_nothing(episodes: EpisodeQueries) -> None:
    assert await episodes.lookup(["c1:1"]) == await episodes.lookup([]) == {}
    assert await episodes.latest_row("c1") is None
    assert await episodes.rows("c1") == []
    assert await episodes.conversation("c1") is None
    assert await episodes.totals("c1") == EpisodeTotals()
    assert [ref async for ref in all_episodes(episodes)] == []
    assert await episodes.count() == 0


async def test_episode_survives_a_round_trip_in_every_field(episodes: EpisodeQueries) -> None:
    episode = await stored(
        episodes,
        cause=Cause("episode.closed", 3, 2**40),
        inputs=(("m1", 7), ("$a.b", -1)),
        participants=("u1", "u2"),
        writers=("u2",),
        earlier=(Revision.of(a_summary(1)), Revision.of(a_summary(1, revision=2))),
        calls=(Calls("m", "answer_invalid", Usage(prompt_tokens=5, seconds=1.5)),),
        attempt=4,
        unusable=2,
        due_at=NOON,
        facts=(a_fact(about="Ann", attribute="home_city", said_by="tool", message_ids=("m1", "$a.b")),),
    )
    found = await find_episode(episodes, "c1:1")
    assert found == episode
    assert found is not None
    assert found.summary.to_json() == episode.summary.to_json()


async def test_facts_are_found_by_their_user_and_tenant_only(episodes: EpisodeQueries) -> None:
    hers, his = a_fact(user_id="u1"), a_fact("hates tea", user_id="u2", kind="preference")
    await stored(episodes, 1, facts=(hers, his), user_id="u3")
    await stored(episodes, 1, conversation_id="c2", facts=(a_fact("likes tea"),), tenant_id="t2")
    await stored(episodes, 1, conversation_id="c3", facts=())
    ended_at = NOON + timedelta(minutes=2)
    assert await episodes.facts_of("u1", "t1", 10) == [of_user(hers, ended_at=ended_at)]
    assert await episodes.facts_of("u2", "t1", 10) == [of_user(his, ended_at=ended_at)]
    for user, tenant in (("u3", "t1"), ("u1", None), ("u1", ""), ("", "t1"), ("$user_id", "t1")):
        assert await episodes.facts_of(user, tenant, 10) == []


async def test_facts_are_those_of_the_stored_revision(episodes: EpisodeQueries) -> None:
    first = await stored(episodes, facts=(a_fact(),))
    second = a_stored_episode(revision=2, facts=(a_fact("lives in Rome"), a_fact("lives in Leeds")))
    assert await episodes.put(second, first)
    assert not await episodes.put(a_stored_episode(revision=2, facts=(a_fact("is late"),)), first)
    assert [one.statement for one in await episodes.facts_of("u1", "t1", 10)] == ["lives in Rome", "lives in Leeds"]
    assert await episodes.put(a_tombstone(1, 3), second)
    assert await episodes.facts_of("u1", "t1", 10) == []


async def test_facts_of_the_latest_episodes_are_read_first(episodes: EpisodeQueries) -> None:
    for ordinal in range(1, 6):
        facts = a_fact(), a_fact("likes tea", user_id="u2"), a_fact("likes tea")
        await stored(episodes, ordinal, facts=facts, ended_at=NOON - timedelta(days=ordinal))
    await stored(episodes, 6, facts=(), ended_at=NOON)
    assert sorted(one.ordinal for one in await episodes.facts_of("u1", "t1", 3)) == [1, 1, 2]


async def test_users_are_listed_with_what_they_took_part_in(episodes: EpisodeQueries) -> None:
    later = {"ended_at": NOON + timedelta(days=1), "usage": Usage(prompt_tokens=7, completion_tokens=1)}
    await stored(episodes, 1, participants=("u1", "u2"))
    await stored(episodes, 2, participants=("u1",), **later)
    await stored(episodes, 1, conversation_id="c2", participants=("u1", "é"))
    await stored(episodes, 1, conversation_id="c3", participants=("u4",), user_id="u4", tenant_id=None)
    assert await episodes.put(a_tombstone(9, 1), None)
    found = await episodes.users("t1", "", None, 10)
    assert found == [  # last active first
        UserTotals("u1", 2, 3, NOON + timedelta(days=1), 300, 27, 0, 11),
        UserTotals("é", 1, 1, NOON + timedelta(minutes=2), 100, 10, 0, 5),
        UserTotals("u2", 1, 1, NOON + timedelta(minutes=2), 100, 10, 0, 5),
    ]
    assert await episodes.users("t1", "", None, 2) == found[:2]
    assert await episodes.users("t1", "", (found[0].last_at, "u1"), 10) == found[1:]
    assert await episodes.users("t1", "", (found[1].last_at, "é"), 10) == found[2:]
    assert await episodes.users("t1", "u", (found[0].last_at, "u1"), 10) == found[2:]
    assert [one.user_id for one in await episodes.users(None, "", None, 10)] == ["u4"]
    assert await episodes.users("t2", "", None, 10) == []


async def test_tombstone_survives_a_round_trip_in_every_field(episodes: EpisodeQueries) -> None:
    gone = a_tombstone(1, 1, overlap_ids=("m7",), inputs=(("m1", 7),))
    assert await episodes.put(gone, None)
    assert await episodes.lookup(["c1:1"]) == {"c1:1": gone}
    assert await find_episode(episodes, "c1:1") is None


@pytest.mark.parametrize("revision", [1, 2])
async def test_one_of_many_concurrent_writers_wins(episodes: EpisodeQueries, revision: int) -> None:
    before = await stored(episodes) if revision > 1 else None
    written = [a_stored_episode(revision=revision, title=f"By {n}") for n in range(20)]
    won = await asyncio.gather(*(episodes.put(episode, before) for episode in written))
    assert won.count(True) == 1
    assert await find_episode(episodes, "c1:1") == written[won.index(True)]


async def test_version_is_replaced_once_by_who_read_it(episodes: EpisodeQueries) -> None:
    first = await stored(episodes)
    second, other = a_stored_episode(revision=2), a_stored_episode(revision=2, title="Other")
    assert await episodes.put(second, first)
    assert not await episodes.put(other, first)
    assert not await episodes.put(other, None)
    assert not await episodes.put(first, replace(second, attempt=1)), "another attempt is another version"
    assert await find_episode(episodes, "c1:1") == second
    tried = replace(second, attempt=1, due_at=NOON)
    assert await episodes.put(tried, second)
    assert not await episodes.put(a_stored_episode(revision=3), second)
    assert await episodes.put(a_stored_episode(revision=3), tried)


async def test_deleted_episode_does_not_come_back(episodes: EpisodeQueries) -> None:
    episode, gone = await stored(episodes), a_tombstone()
    assert await episodes.put(gone, episode)
    assert not await episodes.put(a_stored_episode(revision=9), episode)
    assert not await episodes.put(a_stored_episode(revision=9), None)
    assert await episodes.lookup(["c1:1"]) == {"c1:1": gone}
    assert await episodes.latest("c1", 5) == await episodes.conversations_of("u1", "t1", None, 9) == []
    assert [found async for found in all_episodes(episodes)] == await episodes.page(None, 5) == [gone]
    assert await episodes.count() == 1


@pytest.mark.parametrize("hostile", [*IDS, "c%3A1:1", "💬"])
async def test_ids_are_treated_as_data(episodes: EpisodeQueries, hostile: str) -> None:
    innocent = await stored(episodes)
    assert await episodes.lookup([hostile]) == {}
    await stored(episodes, conversation_id=hostile)
    scope = scope_id(hostile)
    assert await episodes.put_row(a_row(scope=scope), None)
    assert await episodes.latest_row(scope) == a_row(scope=scope)
    assert await episodes.put_conversation(a_conversation(scope), None)
    assert await episodes.conversation(scope) == a_conversation(scope)
    assert await find_episode(episodes, "c1:1") == innocent


async def test_agents_part_and_same_named_conversation_share_nothing(episodes: EpisodeQueries) -> None:
    scopes = [scope_id("a", "b"), *map(scope_id, ("a/b", "a//b", "a%2Fb", "a%2F%2Fb"))]
    for number, scope in enumerate(scopes):
        assert await episodes.put_row(a_row(scope=scope, content=f"{number}"), None)
        assert await episodes.put_conversation(a_conversation(scope, title=f"{number}"), None)
    for number, scope in enumerate(scopes):
        found, row = await episodes.conversation(scope), await episodes.latest_row(scope)
        assert found is not None
        assert row is not None
        assert (found.title, row.content) == (f"{number}", f"{number}")


async def test_episodes_are_paged_from_the_newest(episodes: EpisodeQueries) -> None:
    for ordinal in range(1, 13):
        await stored(episodes, ordinal)
    await stored(episodes, 13, conversation_id="c12")
    first = await episodes.latest("c1", 5)
    assert [one.summary.ordinal for one in first] == [12, 11, 10, 9, 8]
    assert first[0] == a_stored_episode(12)
    assert [one.summary.ordinal for one in await episodes.latest("c1", 5, before=3)] == [2, 1]
    assert await episodes.latest("c1", 5, before=1) == []
    assert await episodes.latest("c2", 5) == []


async def test_agents_episodes_are_separate_from_the_conversations(episodes: EpisodeQueries) -> None:
    await stored(episodes, 1, agent_id="a")
    await stored(episodes, 1, agent_id="a", episode_id="c1/a:1")
    assert [one.summary.episode_id for one in await episodes.latest("c1", 5)] == ["c1:1"]
    assert [one.summary.episode_id for one in await episodes.latest("c1", 5, agent_id="a")] == ["c1/a:1"]
    assert await episodes.totals("c1") == await episodes.totals("c1", "a") == EpisodeTotals(1, 3, 100, 1, 1)


async def test_all_episodes_are_walked_in_order_of_their_ids(episodes: EpisodeQueries) -> None:
    ids = sorted(f"{conversation}:{n}" for conversation in ("b", "c1", "ü") for n in range(1, 4))
    for i in ids:
        conversation, _, ordinal = i.partition(":")
        await stored(episodes, int(ordinal), conversation_id=conversation)
    assert await episodes.count() == len(ids)
    found, after = [], None
    while page := await episodes.page(after, 2):
        after = page[-1].event.episode_id
        found += [one.event.episode_id for one in page]
    assert found == ids
    assert [one.ordinal for one in await episodes.page(None, 2, "c1")] == [1, 2]
    assert [one.ordinal for one in await episodes.page("c1:2", 2, "c1")] == [3]


async def test_episodes_are_found_by_current_and_former_messages(episodes: EpisodeQueries) -> None:
    await stored(episodes, 1, overlap_ids=())
    await stored(episodes, 2, overlap_ids=("m1",), message_ids=("m3", "m5"), core_ids=("m3", "m4", "m5"))
    third = await stored(episodes, 3, overlap_ids=())
    assert await episodes.put(a_tombstone(3, overlap_ids=("m1",)), third)
    assert [e.ordinal for e in await episodes.holding("c1", "m1")] == [1, 2, 3]
    assert [e.ordinal for e in await episodes.holding("c1", "m4")] == [2]
    assert [e.ordinal for e in await episodes.holding("c1", "m7")] == [3]
    assert await episodes.holding("c2", "m1") == []


async def test_row_is_replaced_once_by_who_read_its_revision(episodes: EpisodeQueries) -> None:
    first = a_row(cause=Cause("episode.closed", 1, 7), inputs=((1, 1), (2, 3)))
    assert await episodes.put_row(first, None)
    assert not await episodes.put_row(replace(first, content="Other."), None)
    assert await episodes.latest_row("c1") == first
    second = replace(first, content="Up to 2.", revision=2, last_ordinal=2)
    assert await episodes.put_row(second, first)
    assert not await episodes.put_row(replace(second, content="Late."), first)
    assert await episodes.latest_row("c1") == second
    assert await episodes.latest_row("c2") is None


async def test_rows_are_in_numeric_order_beyond_nine(episodes: EpisodeQueries) -> None:
    rows = [a_row(number) for number in range(1, 13)]
    for row in rows:
        assert await episodes.put_row(row, None)
    assert await episodes.latest_row("c1") == rows[-1]
    assert await episodes.rows("c1") == rows
    assert await episodes.rows("c1", 9) == rows[8:]
    assert await episodes.rows_at_ends("c1", 3) == [rows[0], *rows[9:]]
    assert await episodes.rows_at_ends("c1", 20) == rows
    assert await episodes.rows_at_ends("c2", 3) == []
    renewed = replace(rows[1], content="New.", revision=2)
    assert await episodes.put_row(renewed, rows[1])
    assert await episodes.rows("c1") == [rows[0], renewed, *rows[2:]]


async def test_conversation_is_replaced_once_by_who_read_its_revision(episodes: EpisodeQueries) -> None:
    first = a_conversation(cause=Cause("episode.closed", 1, 7))
    assert await episodes.put_conversation(first, None)
    assert not await episodes.put_conversation(replace(first, title="Other"), None)
    second = replace(first, title="Second", revision=2)
    won = await asyncio.gather(*(episodes.put_conversation(second, first) for _ in range(10)))
    assert won.count(True) == 1
    assert await episodes.conversation("c1") == second


async def test_emptied_conversation_is_not_listed(episodes: EpisodeQueries) -> None:
    emptied = a_conversation(episode_count=0, title="", user_id="")
    assert await episodes.put_conversation(emptied, None)
    assert await episodes.conversation("c1") == emptied
    assert await find_conversation(episodes, "c1") is None
    assert await episodes.conversations("", "t1", 5) == []


@pytest.mark.parametrize("agent_id", [None, "a1"])
async def test_only_living_episodes_are_summed(episodes: EpisodeQueries, agent_id: str | None) -> None:
    ids = {n: {"agent_id": agent_id, "episode_id": episode_id("c1", n, agent_id)} for n in (2, 3, 4)}
    second, *_ = [await stored(episodes, n, **ids[n]) for n in (2, 3, 4)]
    await stored(episodes, 9, agent_id="another", episode_id=episode_id("c1", 9, "another"))
    assert await episodes.totals("c1", agent_id) == EpisodeTotals(3, 9, 300, 2, 4)
    gone = a_tombstone(2)
    gone = replace(gone, deletion=gone.deletion.model_copy(update=ids[2]))
    assert await episodes.put(gone, second)
    assert await episodes.totals("c1", agent_id) == EpisodeTotals(2, 6, 200, 3, 4)


async def test_conversation_is_found_by_each_participant(episodes: EpisodeQueries) -> None:
    others = {"c1": ("u1", "u2"), "c2": ("u1", "u3"), "c3": ("u1",), "c4": ("u1", "u2")}
    for name, participants in others.items():
        await stored(episodes, conversation_id=name, participants=participants)
    await stored(episodes, 2, conversation_id="c4", participants=("u2",))
    await stored(episodes, conversation_id="c5", tenant_id="t2", user_id="u2", participants=("u2",))
    await stored(episodes, conversation_id="c6", tenant_id=None, user_id="u2")
    assert await episodes.conversations_of("u2", "t1", None, 100) == ["c1", "c4"]
    assert await episodes.conversations_of("u2", "t1", None, 1) == ["c1"]
    assert await episodes.conversations_of("u2", "t1", "c1", 1) == ["c4"]
    assert await episodes.conversations_of("u2", "t1", "c4", 1) == []
    assert await episodes.conversations_of("u1", "t1", None, 100) == ["c1", "c2", "c3", "c4"]
    assert await episodes.conversations_of("u2", None, None, 100) == ["c6"]
    assert await episodes.conversations_of("U2", "t1", None, 100) == []


async def test_expired_episodes_are_found_oldest_first(episodes: EpisodeQueries) -> None:
    written = [await stored(episodes, n, ended_at=NOON + timedelta(minutes=10 - n)) for n in (1, 2, 3, 4)]
    assert await episodes.put(a_tombstone(4), written[3])
    found = await episodes.expired(NOON + timedelta(minutes=9), 5)
    assert [e.summary.episode_id for e in found] == ["c1:3", "c1:2"]
    assert found == await episodes.expired(NOON + timedelta(days=1), 2)


async def test_due_work_is_found_longest_due_first(episodes: EpisodeQueries) -> None:
    for ordinal, minute in ((1, 5), (2, 3), (3, 9), (4, None)):
        due_at = None if minute is None else NOON + timedelta(minutes=minute)
        await stored(episodes, ordinal, due_at=due_at)
    assert [e.ordinal for e in await episodes.due(NOON + timedelta(minutes=5), 5)] == [2, 1]
    assert [e.ordinal for e in await episodes.due(NOON + timedelta(days=1), 1)] == [2]
    assert await episodes.due(NOON, 5) == []


async def test_users_conversations_are_listed_by_their_last_summary(episodes: EpisodeQueries) -> None:
    for minute, name in enumerate(("c1", "a/b", "c%", "c4")):
        updated_at = NOON + timedelta(minutes=min(minute, 2))
        await episodes.put_conversation(a_conversation(scope_id(name), updated_at=updated_at), None)
    for fields in ({"user_id": "u2"}, {"tenant_id": "t2"}, {"tenant_id": None}):
        await episodes.put_conversation(a_conversation("-".join(map(str, fields.values())), **fields), None)
    every = await episodes.conversations("u1", "t1", 10)
    assert [found.conversation_id for found in every] == ["c4", "c%25", "a%2Fb", "c1"]
    pages = []
    before = None
    while page := await episodes.conversations("u1", "t1", 1, before):
        pages += page
        before = (page[-1].updated_at, page[-1].conversation_id)
    assert pages == every
    assert [found.conversation_id for found in await episodes.conversations("u1", None, 10)] == ["None"]


async def test_usage_is_summed_by_tenant_user_model_outcome_day(episodes: EpisodeQueries) -> None:
    used = Usage(prompt_tokens=100, cached_tokens=60, completion_tokens=20, seconds=1.5)
    await stored(episodes, 1, usage=used, model="small")
    in_vain = (Calls("large", "cut_off", used), Calls("large", "answer_invalid", Usage(prompt_tokens=1)))
    await stored(episodes, 2, usage=used, model="extractive", calls=in_vain, user_id="u2")
    await stored(episodes, 3, usage=used, model="large", tenant_id=None, created_at=NOON + timedelta(days=1))
    await episodes.put(a_tombstone(4, 1), None)
    assert await episodes.usage("model") == [
        UsageTotals("large", 2, 201, 120, 40, 3.0),
        UsageTotals("small", 1, 100, 60, 20, 1.5),
    ]
    assert await episodes.usage("outcome") == [
        UsageTotals("answer_invalid", 1, 1, 0, 0, 0.0),
        UsageTotals("cut_off", 1, 100, 60, 20, 1.5),
        UsageTotals("ok", 2, 200, 120, 40, 3.0),
    ]
    assert await episodes.usage("tenant") == [
        UsageTotals(None, 1, 100, 60, 20, 1.5),
        UsageTotals("t1", 2, 201, 120, 40, 3.0),
    ]
    assert [(one.group, one.episodes) for one in await episodes.usage("user")] == [("u1", 2), ("u2", 1)]
    days = [(one.group, one.episodes) for one in await episodes.usage("day")]
    assert days == [("2026-01-05", 2), ("2026-01-06", 1)]


async def test_episode_without_llm_counts_in_usage_without_tokens(episodes: EpisodeQueries) -> None:
    await stored(episodes, calls=(), model="extractive")
    assert await episodes.usage("model") == [UsageTotals("extractive", 1, 0, 0, 0, 0.0)]
    assert await episodes.usage("outcome") == [UsageTotals(None, 1, 0, 0, 0, 0.0)]
