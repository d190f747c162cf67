"""Memory never shows what was deleted, from the moment the archive has the deletion."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from afterword import Memory
from afterword.schemas import EpisodeClosed, MessageDeleted
from afterword.streams.stores.messages import PendingDeletion
from afterword.streams.summarizer.rolling import SummaryRules
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from afterword.withheld import MOST_DELETIONS
from tests.doubles.provider import ScriptedProvider
from tests.samples import a_closed_episode, an_episode_message
from tests.summarizer_world import Crash, Faults, World, crash
from tests.unit.summarizer.test_amending import DELETE_ALL, amended, archive, archived, delete, skip

NEEDLE = "needle"


def telling(episode: EpisodeClosed) -> EpisodeClosed:
    messages = tuple(m.model_copy(update={"content": f"{NEEDLE}{m.id}"}) for m in episode.messages)
    return episode.model_copy(update={"messages": messages})


CLOSED = tuple(map(telling, map(a_closed_episode, (1, 2, 3))))
RULES = [SummaryRules(rolling_max_tokens=500), SummaryRules(rolling_max_tokens=500, min_new_episodes=3)]


class Telling(ScriptedProvider):
    """Says everything that it is told, in the title as well."""

    def _answer(self, request: SummaryRequest) -> Summary:
        answer = super()._answer(request)
        return replace(answer, title=answer.short_summary)


async def a_world(rules: SummaryRules = RULES[0]) -> World:
    world = World(provider=Telling())
    world.provider.repeats = True
    await world.messages.put_many(archived(CLOSED))
    await world.run(CLOSED, rules=rules)
    return world


def memory_of(world: World) -> Memory:
    return Memory(world.episodes, world.messages, world.index.search)


async def shown(world: World, question: str = f"{NEEDLE}m1 Episode messages") -> str:
    """Everything that Memory tells."""
    memory = memory_of(world)
    context = await memory.context("c1", keep_recent=20, max_tokens=10_000)
    page = await memory.episodes("c1")
    hits = await memory.recall(question, user_id="u1", tenant_id="t1", k=20)
    return repr((context, page, hits))


class Watched(Faults):
    """Looks at what Memory tells before and after every call of a store."""

    def __init__(self, look: Callable[[], Awaitable[None]], at: int = 0) -> None:
        super().__init__(at, after=True, fault=crash)
        self._look = look

    def around_call(self, call: Any) -> Any:
        inner = super().around_call(call)

        async def looked_at(*args: Any, **kwargs: Any) -> Any:
            await self._look()
            result = await inner(*args, **kwargs)
            await self._look()
            return result

        return looked_at


@pytest.mark.parametrize("rules", RULES, ids=["each episode", "every third"])
@pytest.mark.parametrize("message_id", ["m1", "m2", "m5", "m8"])
async def test_a_deleted_message_is_not_shown_at_any_moment_of_its_amendment(
    message_id: str, rules: SummaryRules
) -> None:
    world = await a_world(rules)
    needle = f"{NEEDLE}{message_id}"
    assert needle in await shown(world)
    await archive(world, delete(message_id), 100)
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        assert needle not in await shown(world)

    for at in range(1, 40, 3):  # the next worker goes on
        try:
            await world.amendments(Watched(look, at), rules=rules).apply(amended(delete(message_id), 100))
        except Crash:
            continue
        break
    assert looks > 20
    assert needle not in await shown(world)
    assert world.messages.pending == {}
    told = await shown(world)
    assert all(f"{NEEDLE}m{n}" in told for n in range(9) if f"m{n}" != message_id), "all the others are there again"


async def test_a_summary_that_is_withheld_is_no_event_of_the_context() -> None:
    world = await a_world()
    await archive(world, delete("m1"), 100)
    found = await memory_of(world).context("c1", keep_recent=2, max_tokens=10_000)
    assert found is not None
    assert (found.rolling_summary, found.events, len(found.messages)) == ("", 2, 2)


async def test_a_deleted_conversation_is_not_shown_at_any_moment() -> None:
    world = await a_world()
    await archive(world, DELETE_ALL, 100)

    async def look() -> None:
        assert NEEDLE not in await shown(world)

    await look()
    for at in range(1, 40):
        try:
            await world.amendments(Watched(look, at)).apply(amended(DELETE_ALL, 100))
        except Crash:
            continue
        break
    assert world.messages.pending == {}
    assert world.episodes.episodes == {}


async def test_a_conversation_that_begins_anew_is_shown_even_if_its_deletion_was_archived_late() -> None:
    world = await a_world()
    await world.amendments().apply(amended(DELETE_ALL, 9))
    await archive(world, DELETE_ALL, 9)
    assert world.messages.pending != {}
    source = a_closed_episode().source.model_copy(update={"last_offset": 10})
    fresh = a_closed_episode(4, messages=(an_episode_message("m99"),), overlap=(), message_count=1, source=source)
    await world.pipeline().process(fresh)
    told = await shown(world)
    assert "Episode 4" in told
    [episode] = (await memory_of(world).episodes("c1")).episodes
    assert episode.summary.rolling_summary
    context = await memory_of(world).context("c1")
    assert context is not None
    assert (context.title[:9], bool(context.rolling_summary)) == ("Episode 4", True)


async def test_only_what_may_have_it_is_left_out_and_pages_go_on() -> None:
    world = await a_world()
    await archive(world, delete("m7"), 100)
    memory = memory_of(world)
    newest = await memory.episodes("c1", limit=1)
    assert (newest.episodes, newest.next_before) == ((), 3)
    rest = await memory.episodes("c1", before=newest.next_before)
    assert [e.summary.ordinal for e in rest.episodes] == [2, 1]
    assert all(not e.summary.rolling_summary and e.summary.long_summary for e in rest.episodes)
    context = await memory.context("c1", keep_recent=1)
    assert context is not None
    assert (context.title, context.rolling_summary, context.recent_summaries) == ("", "", ())
    assert [m.id for m in context.messages] == ["m8"]
    hits = await memory.recall("Episode messages", user_id="u1", tenant_id="t1")
    assert {hit.episode_id for hit in hits} == {"c1:1", "c1:2"}


async def test_an_episode_that_had_it_in_its_overlap_is_left_out_too() -> None:
    world = await a_world()
    await archive(world, delete("m2"), 100)
    assert [e.summary.ordinal for e in (await memory_of(world).episodes("c1")).episodes] == [3]
    hits = await memory_of(world).recall("Episode messages", user_id="u1", tenant_id="t1")
    assert {hit.episode_id for hit in hits} == {"c1:3"}


async def test_a_message_that_no_episode_had_hides_nothing() -> None:
    world = await a_world()
    before = await shown(world)
    for note in (
        PendingDeletion("c1", "t1", "pending when it was deleted", 100),
        PendingDeletion("c1", "t2", "m1", 100),
        PendingDeletion("c1", None, None, 100),
        PendingDeletion("c2", "t1", "m1", 100),
    ):
        world.messages._note(note)
    assert await shown(world) == before


async def test_agents_hide_what_they_had_only() -> None:
    world = World(provider=Telling())
    world.provider.repeats = True
    for agent, ids in (("x", CLOSED[0]), ("y", CLOSED[1])):
        fields = {"agent_id": agent, "episode_id": f"c1/{agent}:1", "ordinal": 1, "overlap": ()}
        await world.pipeline().process(ids.model_copy(update=fields))
    await world.messages.put_many(archived(CLOSED))
    await archive(world, delete("m1"), 100)
    memory = memory_of(world)
    x, y = [await memory.context("c1", agent_id=agent, keep_recent=0) for agent in "xy"]
    assert x is not None
    assert y is not None
    assert (bool(x.title), bool(y.title), bool(y.rolling_summary)) == (False, True, True)
    assert (await memory.episodes("c1", agent_id="x")).episodes == ()
    assert (await memory.episodes("c1", agent_id="y")).episodes[0].summary.rolling_summary


async def test_where_very_many_deletions_are_pending_nothing_is_shown_of_that_conversation_alone() -> None:
    world = await a_world()
    other = a_closed_episode(1, conversation_id="c2")
    await world.pipeline().process(other)
    for n in range(MOST_DELETIONS):
        world.messages._note(PendingDeletion("c1", "t1", f"x{n}", 100 + n))
    assert NEEDLE not in repr(await memory_of(world).episodes("c1"))
    context = await memory_of(world).context("c1", keep_recent=0)
    assert context is not None
    assert (context.title, context.rolling_summary) == ("", "")
    hits = await memory_of(world).recall("Text Episode messages", user_id="u1", tenant_id="t1", k=20)
    assert {hit.conversation_id for hit in hits} == {"c2"}


async def test_a_hit_of_an_older_revision_has_the_texts_of_the_stored_one() -> None:
    world = await a_world()
    point = world.index.points["c1:1"]
    await archive(world, delete("m1"), 100)
    await world.amendments().apply(amended(delete("m1"), 100))
    world.index.points["c1:1"] = point
    hits = await memory_of(world).recall(f"{NEEDLE}m1", user_id="u1", tenant_id="t1", k=1)
    assert [(hit.episode_id, hit.revision, hit.message_ids) for hit in hits] == [("c1:1", 2, ("m0", "m2"))]
    assert f"{NEEDLE}m1" not in repr(hits)
    await world.episodes.end_conversation(world.episodes.episodes["c1:1"])
    world.episodes.episodes.clear()
    assert await memory_of(world).recall(f"{NEEDLE}m1", user_id="u1", tenant_id="t1") == []


async def test_a_deletion_is_pending_unless_its_message_cannot_be_in_an_episode() -> None:
    world = await a_world()
    late = archived(CLOSED)[0]
    skipped = late.message.model_copy(update={"id": "aside", "skip_summarization": True})
    await world.messages.put_many([replace(late, message=skipped, offset=50)])
    await archive(world, MessageDeleted(id="aside", conversation_id="c1", tenant_id="t1"), 100)
    await archive(world, delete("nobody"), 101)
    assert world.messages.pending == {}
    await archive(world, skip(3), 102)
    await archive(world, delete("m3"), 103)
    assert len(world.messages.pending) == 1


async def test_reading_what_is_not_deleted_costs_one_question() -> None:
    world = await a_world()
    calls: list[str] = []

    class Counted:
        def __init__(self, target: Any) -> None:
            self._target = target

        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(self._target, name)

    episodes: Any = Counted(world.episodes)
    messages: Any = Counted(world.messages)
    memory = Memory(episodes, messages, world.index.search)
    await memory.episodes("c1")
    assert calls == ["pending_deletions", "latest"]
    calls.clear()
    await memory.recall("Episode", user_id="u1", tenant_id="t1")
    assert [name for name in calls if name != "texts"] == ["pending_deletions", "find_many"]
