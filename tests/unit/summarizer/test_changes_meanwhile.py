"""A change of an earlier episode that is handled while a new episode of its conversation is with the LLM."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import SummaryCreated, Usage
from afterword.streams.errors import ProviderUnavailable
from afterword.streams.stores.episodes import EpisodeVersion
from afterword.streams.stores.replies import KeptReply, ReplyOrigin
from afterword.streams.summarizer.amending import NotArchived
from afterword.streams.summarizer.pipeline import CHANGED, MOST_ASKED, QUICK_SECONDS
from afterword.streams.summarizer.rolling import SummaryRules
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import Summary, SummaryRequest, is_replaceable
from tests.doubles.provider import ScriptedProvider
from tests.summarizer_world import Crash, Faults, Slowly, World, crash
from tests.unit.summarizer.test_amending import (
    DELETE_ALL,
    LATER,
    NUMBERED,
    Changed,
    amended,
    announced,
    archive,
    archived,
    check,
    delete,
    edit,
    everything,
)
from tests.virtual_time import run_in_virtual_time

RULES = SummaryRules(rolling_max_tokens=500)
CARRIED = SummaryRules(rolling_max_tokens=500, min_new_episodes=3)
"""The second episode carries the first one's rolling summary over."""
NEW = NUMBERED[2]
QUICK = 3600.0
"""Every answer is quicker."""
FIRST, OVERLAP = "m0", "m5"
"""A message of the first episode, and one that the new episode has in its overlap."""

AWAY = ProviderUnavailable(problem="away")

Meanwhile = Callable[[int], Awaitable[None]]


class Interrupted(ScriptedProvider):
    """Repeats what was said; something happens during each of its answers, which are numbered."""

    def __init__(self, meanwhile: Meanwhile) -> None:
        super().__init__()
        self.repeats = True
        self._meanwhile = meanwhile

    async def summarize(self, request: SummaryRequest) -> Summary:
        answer = await super().summarize(request)
        await self._meanwhile(len(self.requests))
        return answer


class Cached(Interrupted):
    """Its answers are cached when they come, as those of an LLM are; then the process may be killed."""

    def __init__(self, world: World, meanwhile: Meanwhile, *, is_killed: bool) -> None:
        super().__init__(meanwhile)
        self._world, self._is_killed = world, is_killed

    async def summarize(self, request: SummaryRequest) -> Summary:
        answer = await super().summarize(request)
        reply = KeptReply(answer.long_summary, Usage(), origin=ReplyOrigin("c1", request.episode.ordinal))
        await self._world.replies.put(str(len(self.requests)), reply, LATER)
        if self._is_killed and len(self.requests) == 1:
            raise Crash
        return answer


async def two_of_three(rules: SummaryRules = RULES) -> World:
    """Two episodes, summarized, and the messages of a third one in the archive."""
    world = World()
    world.provider.repeats = True
    await world.messages.put_many(archived(NUMBERED))
    await world.run(NUMBERED[:2], rules=rules)
    world.topic.events.clear()
    return world


async def handle(world: World, change: Changed, offset: int = 100, rules: SummaryRules = RULES) -> None:
    """Archive a change and make its revisions, as the lane of `episode.retry` does."""
    await archive(world, change, offset)
    await world.amendments(rules=rules).apply(amended(change, offset))


def spoken(world: World) -> str:
    return everything(world) + repr(world.topic.events)


@pytest.mark.parametrize("rules", [RULES, CARRIED])
@pytest.mark.parametrize("message_id", [FIRST, OVERLAP])
async def test_what_was_deleted_meanwhile_is_neither_stored_nor_announced(rules: SummaryRules, message_id: str) -> None:
    world = await two_of_three(rules)

    async def once(number: int) -> None:
        if number == 1:
            await handle(world, delete(message_id), rules=rules)

    provider = Interrupted(once)
    await world.pipeline(provider=provider, rules=rules).process(NEW)
    assert f"<{message_id}>" not in spoken(world)
    assert len(provider.requests) == 2
    assert [event for event in announced(world) if event.startswith("c1:3")] == ["c1:3:1"]
    check(world)


@pytest.mark.parametrize("change", [edit("m7", "<edited>"), delete("m7")])
async def test_what_is_indexed_is_as_new_as_what_another_worker_has_stored(change: Changed) -> None:
    world = await two_of_three()

    async def once(_: int) -> None:
        await archive(world, change, 100)
        await world.pipeline().process(NEW)

    await world.pipeline(provider=Interrupted(once), quick_seconds=QUICK).process(NEW)
    assert "<m7>" not in world.index.points["c1:3"].raw_text
    assert "<m8>" in world.index.points["c1:3"].raw_text


async def test_an_archive_that_is_behind_the_episode_takes_no_edit_back() -> None:
    """Two edits came while the message was pending; when the summary was made, the archive had the first one."""
    world = await two_of_three()
    await archive(world, edit("m7", "<first>"), 20)
    message = NEW.messages[1].model_copy(update={"content": "<second>", "changed": 21})
    await world.pipeline().process(NEW.model_copy(update={"messages": (NEW.messages[0], message, NEW.messages[2])}))
    assert "<second>" in spoken(world)
    assert "<first>" not in spoken(world)
    await archive(world, edit("m8", "<edited>"), 100)
    with pytest.raises(NotArchived):  # the archive would still take it back
        await world.amendments().apply(amended(edit("m8", "<edited>"), 100))
    await archive(world, edit("m7", "<second>"), 21)
    await world.amendments().apply(amended(edit("m8", "<edited>"), 100))
    [stored] = [event for event in world.topic.events if event.event_id == "c1:3:2"]
    assert all(text in repr(stored) for text in ("<second>", "<edited>"))


@pytest.mark.parametrize(("seconds", "looks"), [(0.0, 1), (QUICK_SECONDS, 2)])
def test_only_an_answer_that_took_its_time_is_looked_at_before_it_is_stored(seconds: float, looks: int) -> None:
    async def scenario() -> list[str]:
        world = await two_of_three()
        read: list[str] = []

        class Counted:
            async def versions(self, episode_ids: Sequence[str]) -> dict[str, EpisodeVersion]:
                read.extend(one for one in episode_ids if one == "c1:2")
                return await world.episodes.versions(episode_ids)

            def __getattr__(self, name: str) -> Any:
                return getattr(world.episodes, name)

        provider = Interrupted(lambda _: asyncio.sleep(seconds))
        await world.pipeline(provider=provider, rules=RULES, episodes=Counted(), quick_seconds=QUICK_SECONDS).process(
            NEW
        )
        return read

    assert len(run_in_virtual_time(scenario())) == looks


async def test_an_edit_meanwhile_is_in_the_first_revision() -> None:
    world = await two_of_three()

    async def once(number: int) -> None:
        if number == 1:
            await handle(world, edit(FIRST, "<edited>"))

    await world.pipeline(provider=Interrupted(once), rules=RULES).process(NEW)
    stored = world.episodes.episodes["c1:3"]
    assert stored.as_of == 100
    assert "<edited>" in stored.summary.rolling_summary
    assert f"<{FIRST}>" not in spoken(world)


async def test_answers_to_what_has_changed_are_forgotten() -> None:
    world, forgotten = await two_of_three(), []

    async def forget(scope: str, ordinal: int) -> None:
        forgotten.append((scope, ordinal))

    async def once(number: int) -> None:
        if number == 1:
            await handle(world, delete(FIRST))
            world.replies.forget = forget  # type: ignore[method-assign]  # what the new episode's record forgets

    await world.pipeline(provider=Interrupted(once), rules=RULES).process(NEW)
    assert forgotten == [("c1", 3)]


async def test_changes_during_each_answer_end_in_a_fallback_that_is_replaced_later() -> None:
    world = await two_of_three()

    async def each_time(number: int) -> None:
        await handle(world, edit(FIRST, f"<edited {number}>"), 100 + number)

    provider = Interrupted(each_time)
    summary = await world.pipeline(provider=provider, rules=RULES).process(NEW)
    assert len(provider.requests) == MOST_ASKED
    assert isinstance(summary, SummaryCreated)
    assert (summary.quality.source, summary.quality.reason, summary.revision) == ("fallback", CHANGED, 1)
    assert is_replaceable(summary.quality)
    check(world)
    await world.pipeline(rules=RULES).replace_fallback(NEW)
    assert world.episodes.episodes["c1:3"].summary.quality.source == "llm"


async def test_a_fallback_that_was_replaced_meanwhile_costs_no_second_answer() -> None:
    world = World()
    await world.messages.put_many(archived(NUMBERED))
    world.provider.outage = ProviderUnavailable(problem="away")
    await world.run(NUMBERED[:2], summarizer=Summarizer(world.provider))
    world.provider.outage = None

    async def replace(_number: int) -> None:
        await world.pipeline().replace_fallback(NUMBERED[1])

    provider = Interrupted(replace)
    await world.pipeline(provider=provider).process(NEW)
    assert world.episodes.episodes["c1:2"].summary.revision == 2
    assert len(provider.requests) == 1
    asked = len(world.provider.requests)
    await world.run((NEW,))
    assert (len(provider.requests), len(world.provider.requests)) == (1, asked)


async def test_a_replaced_fallback_still_knows_a_message_that_its_retry_has_no_more() -> None:
    """A record of `episode.retry` is written without deleted messages; later texts may have them until the deletion."""
    world = World()
    world.provider.repeats = True
    await world.messages.put_many(archived(NUMBERED))
    world.provider.outage = ProviderUnavailable(problem="away")
    await world.run(NUMBERED[:1], rules=RULES, summarizer=Summarizer(world.provider))
    world.provider.outage = None
    await world.run(NUMBERED[1:2], rules=RULES)
    assert f"<{FIRST}>" in everything(world)
    await archive(world, delete(FIRST), 100)
    retried = await world.pipeline().left_of(NUMBERED[0])
    assert retried is not None
    await world.pipeline(rules=RULES).replace_fallback(retried)
    await world.amendments(rules=RULES).apply(amended(delete(FIRST), 100))
    assert f"<{FIRST}>" not in everything(world)


async def test_a_change_that_the_first_revision_had_already_is_noted_in_what_is_built_on_it() -> None:
    world = World()
    await world.messages.put_many(archived(NUMBERED[:2]))
    await archive(world, edit(FIRST), 100)
    await world.run(NUMBERED[:1], rules=RULES)

    async def once(_number: int) -> None:
        await world.amendments(rules=RULES).apply(amended(edit(FIRST), 100))

    provider = Interrupted(once)
    await world.pipeline(provider=provider, rules=RULES).process(NUMBERED[1])
    assert len(provider.requests) == 1
    check(world)


async def test_the_only_episode_before_may_go_meanwhile() -> None:
    world = World()
    world.provider.repeats = True
    await world.messages.put_many(archived(NUMBERED))
    await world.run(NUMBERED[:1], rules=RULES)
    world.topic.events.clear()

    async def all_of_the_first(number: int) -> None:
        if number == 1:
            for offset, message in enumerate(NUMBERED[0].messages, 100):
                await handle(world, delete(message.id), offset)

    await world.pipeline(provider=Interrupted(all_of_the_first), rules=RULES).process(NUMBERED[1])
    assert not [m.id for m in NUMBERED[0].messages if f"<{m.id}>" in everything(world)]
    assert world.episodes.episodes["c1:2"].as_of == 102


class Between(Faults):
    """Lets something else happen as a whole before the n-th call of its proxies."""

    def __init__(self, at: int, meanwhile: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(0, after=False, fault=lambda: None)
        self._n = at
        self._meanwhile = meanwhile

    def around_call(self, call: Any) -> Any:
        async def then(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self._n:
                await self._meanwhile()
            return await call(*args, **kwargs)

        return then


@pytest.mark.parametrize("rules", [RULES, CARRIED])
@pytest.mark.parametrize("message_id", [FIRST, OVERLAP])
@pytest.mark.parametrize("at", range(1, 30))
async def test_a_change_between_any_two_calls_leaves_nothing_of_before(
    at: int, message_id: str, rules: SummaryRules
) -> None:
    world = await two_of_three(rules)
    between = Between(at, lambda: handle(world, delete(message_id), rules=rules))
    await world.pipeline(between, rules=rules).process(NEW)
    if between.calls >= at:
        check(world)
        assert f"<{message_id}>" not in everything(world)
        told = {event.event_id for event in world.topic.events}
        assert {event.supersedes for event in world.topic.events} <= told | {"c1:1:1", "c1:2:1", None}


@pytest.mark.parametrize("rules", [RULES, CARRIED])
@pytest.mark.parametrize("message_id", [FIRST, OVERLAP])
@pytest.mark.parametrize("quick_seconds", [0.0, QUICK])
@pytest.mark.parametrize("at", range(1, 50))
async def test_an_episode_between_any_two_calls_of_a_change_has_nothing_of_before(
    at: int, quick_seconds: float, message_id: str, rules: SummaryRules
) -> None:
    world = await two_of_three(rules)
    await archive(world, delete(message_id), 100)
    between = Between(at, lambda: world.run((NEW,), rules=rules, quick_seconds=quick_seconds))
    await world.amendments(between, rules=rules).apply(amended(delete(message_id), 100))
    if between.calls >= at:
        check(world, rows_know=False)
        assert f"<{message_id}>" not in everything(world)


TURNS = st.lists(st.integers(0, 6), max_size=80)
CHANGES = st.lists(
    st.one_of(
        st.integers(0, 8).map(lambda n: edit(f"m{n}", f"edited {n}")), st.integers(0, 8).map(lambda n: delete(f"m{n}"))
    ),
    min_size=1,
    max_size=3,
)


def parts(world: World, slowly: Slowly, rules: SummaryRules) -> dict[str, Any]:
    given: dict[str, Any] = world.parts()
    slow = {name: slowly.around(given[name]) for name in ("episodes", "messages", "summarizer", "replies")}
    return {**given, **slow, "rules": rules}


def gone(world: World, changes: list[Changed]) -> list[str]:
    """Return the messages that were changed and are still somewhere as they were."""
    return [change.id for change in changes if f"<{change.id}>" in everything(world)]  # type: ignore[union-attr]


@given(CHANGES, TURNS, TURNS, st.sampled_from([RULES, CARRIED]), st.sampled_from([0.0, QUICK]))
def test_whatever_comes_between_which_steps_nothing_is_left_of_before(
    changes: list[Changed], turns: list[int], others: list[int], rules: SummaryRules, quick_seconds: float
) -> None:
    async def scenario() -> None:
        world = await two_of_three(rules)

        async def on_the_lane_of_retries() -> None:
            for offset, change in enumerate(changes, 100):
                await Slowly(others).around_call(archive)(world, change, offset)
            for offset, change in enumerate(changes, 100):
                if change.id not in {m.id for m in NEW.messages}:  # type: ignore[union-attr]
                    amendments = world.amendments(**parts(world, Slowly(others), rules))
                    await amendments.apply(amended(change, offset))

        pipeline = world.pipeline(**parts(world, Slowly(turns), rules), quick_seconds=quick_seconds)
        await asyncio.gather(pipeline.process(NEW), on_the_lane_of_retries())
        for offset, change in enumerate(changes, 100):
            if change.id in {m.id for m in NEW.messages}:  # type: ignore[union-attr]  # behind the episode on its lane
                await world.amendments(rules=rules).apply(amended(change, offset))
        check(world, rows_know=False)
        assert gone(world, changes) == []
        told = {event.event_id for event in world.topic.events}
        before = {"c1:1:1", "c1:2:1", None}
        assert all(event.supersedes in told | before for event in world.topic.events)

    asyncio.run(scenario())


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 40))
async def test_killed_at_any_call_the_next_worker_leaves_nothing_of_before(at: int, after: bool) -> None:
    world = await two_of_three()

    async def once(number: int) -> None:
        if number == 1:
            await handle(world, delete(FIRST))

    faults = Faults(at, after, crash)
    provider = Interrupted(once)
    fields: dict[str, Any] = {"summarizer": faults.around(Summarizer(provider))}
    with contextlib.suppress(Crash):
        await world.pipeline(faults, rules=RULES, **fields).process(NEW)
    await world.pipeline(rules=RULES, summarizer=Summarizer(provider)).process(NEW)
    check(world)
    assert f"<{FIRST}>" not in everything(world)


@pytest.mark.parametrize("at", range(1, 20))
async def test_killed_before_the_change_was_handled_the_next_worker_leaves_nothing_of_before(at: int) -> None:
    world = await two_of_three()
    with contextlib.suppress(Crash):
        await world.pipeline(Faults(at, after=True, fault=crash), rules=RULES).process(NEW)
    await handle(world, delete(FIRST))
    await world.run((NEW,), rules=RULES)
    check(world)
    assert f"<{FIRST}>" not in everything(world)


def deletes(world: World, message_id: str, offset: int) -> Meanwhile:
    """Delete the message during the first answer."""

    async def once(number: int) -> None:
        if number == 1:
            await handle(world, delete(message_id), offset)

    return once


@pytest.mark.parametrize("is_killed", [False, True])
async def test_what_an_llm_answers_to_a_retry_after_a_deletion_is_not_cached(is_killed: bool) -> None:
    """The record of the deletion has forgotten all answers before this one comes."""
    world = await two_of_three()
    world.provider.outage = AWAY
    await world.pipeline(summarizer=Summarizer(world.provider), rules=RULES).process(NEW)
    provider = Cached(world, deletes(world, "m7", 100), is_killed=is_killed)
    world.provider.outage = None
    if is_killed:
        with pytest.raises(Crash):
            await world.pipeline(provider=provider, rules=RULES).replace_fallback(NEW)
        assert "<m7>" in repr(world.replies.kept)
    await world.pipeline(provider=provider, rules=RULES).replace_fallback(NEW)
    assert "<m7>" not in repr(world.replies.kept)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_nor_what_it_answers_to_the_retry_of_a_change(is_killed: bool) -> None:
    world = await two_of_three()
    await world.run((NEW,), rules=RULES)
    world.provider.outage = AWAY
    change = edit("m8", "<edited>")
    await archive(world, change, 100)
    await world.amendments(summarizer=Summarizer(world.provider), rules=RULES).apply(amended(change, 100))
    world.provider.outage = None
    provider = Cached(world, deletes(world, "m7", 101), is_killed=is_killed)
    retried = amended(change, 100), "retry/0/0"
    if is_killed:
        with pytest.raises(Crash):
            await world.amendments(provider=provider, rules=RULES).replace_fallbacks(*retried)
        assert "<m7>" in repr(world.replies.kept)
    await world.amendments(provider=provider, rules=RULES).replace_fallbacks(*retried)
    assert "<m7>" not in repr(world.replies.kept)


@pytest.mark.parametrize("change", [DELETE_ALL, delete(OVERLAP), edit(OVERLAP, "<edited>")])
async def test_what_a_former_owner_stores_is_announced_all_the_same(change: Changed) -> None:
    """It handles the episode once more, after the change and before the change's own record; nobody hears of it."""
    world = await two_of_three()
    await world.pipeline().process(NEW)
    await archive(world, change, 100)
    heard = list(world.topic.events)
    await world.pipeline().process(NEW)
    world.topic.events[:] = heard  # its transaction is aborted
    await world.amendments().apply(amended(change, 100))
    check(world)
    last = {event.episode_id: event.event_id for event in world.topic.events}
    stored = {**world.episodes.episodes, **world.episodes.deleted}
    assert last["c1:3"] == stored["c1:3"].event.event_id
