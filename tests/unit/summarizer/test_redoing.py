"""Requests to summarize stored episodes anew: their revisions, beside changes of messages and under faults."""

import asyncio
import contextlib
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import EpisodeRedo, InvalidRecord, SummaryCreated
from afterword.schemas.episodes import EPISODE_REDO
from afterword.schemas.headers import cloud_event
from afterword.streams.errors import BudgetExhausted, ProviderUnavailable
from afterword.streams.settings import Retry
from afterword.streams.summarizer.amending import NotRedone
from afterword.streams.summarizer.rolling import SummaryRules
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from tests.doubles.provider import ScriptedProvider
from tests.summarizer_world import NO_FAULTS, TODAY, Crash, Fault, Faults, World, a_handler, cancelled, crash, outage
from tests.unit.summarizer.test_agent import DeadLetterTopic, Event
from tests.unit.summarizer.test_amending import (
    CHANGES,
    CLOSED,
    LATER,
    NUMBERED,
    ONE_EACH,
    Changed,
    a_world,
    amended,
    announced,
    archive,
    archived,
    check,
    contents,
    delete,
    edit,
    everything,
)

ROOMY = SummaryRules(rolling_max_tokens=200)


class Todays(ScriptedProvider):
    """An LLM that is asked with today's prompt, and says so."""

    def _answer(self, request: SummaryRequest) -> Summary:
        made = super()._answer(request)
        return replace(made, title=f"New {made.title}", prompt_version=TODAY.prompt_version)


def request(ordinal: int, revision: int = 1, **fields: Any) -> EpisodeRedo:
    given = {"conversation_id": "c1", "tenant_id": "t1", "episode_id": f"c1:{ordinal}", "revision": revision}
    return EpisodeRedo(**given | TODAY._asdict() | {"requested_at": LATER} | fields)


HERE, THERE = "episode.closed/0/7", "episode.closed/0/8"
"""Positions of two records."""


async def redo(
    world: World, redo: EpisodeRedo, faults: Faults = NO_FAULTS, position: str = HERE, **fields: Any
) -> None:
    await world.amendments(faults, provider=Todays(), **fields).redo(redo, position)


def summary_of(world: World, ordinal: int) -> SummaryCreated:
    return world.episodes.episodes[f"c1:{ordinal}"].summary


async def test_a_request_makes_the_next_revision_from_the_archive() -> None:
    world = await a_world()
    provider = Todays()
    await world.amendments(provider=provider).redo(request(2), HERE)
    assert [contents(asked.episode) for asked in provider.requests] == [["Text of m3.", "Text of m4.", "Text of m5."]]
    [event] = world.topic.events
    assert isinstance(event, SummaryCreated)
    assert (event.event_id, event.supersedes, event.reason, event.made_from) == ("c1:2:2", "c1:2:1", "redone", 1)
    assert (event.title, event.prompt_version) == ("New Episode 2", TODAY.prompt_version)
    assert summary_of(world, 2) == event
    assert world.index.points["c1:2"].summary == event
    check(world)


async def test_a_conversation_that_is_made_anew_in_order_has_todays_texts_in_rows_title_and_counts() -> None:
    world = await a_world(ROOMY)
    before = world.episodes.known["c1"]
    for ordinal in (1, 2, 3):
        await redo(world, request(ordinal), rules=ROOMY)
    assert announced(world) == ["c1:1:2", "c1:2:2", "c1:3:2"]
    after = world.episodes.known["c1"]
    assert (after.title, after.last_revision) == ("New Episode 3", 2)
    assert (after.episode_count, after.message_count) == (before.episode_count, before.message_count)
    assert world.episodes.rows["c1"][-1].content == summary_of(world, 3).rolling_summary
    check(world)


async def test_later_rolling_summaries_stay() -> None:
    world = await a_world(ROOMY)
    before = summary_of(world, 3), world.episodes.rows["c1"][-1]
    await redo(world, request(1), rules=ROOMY)
    assert announced(world) == ["c1:1:2"]
    assert (summary_of(world, 3), world.episodes.rows["c1"][-1]) == before


async def test_a_request_that_is_read_again_asks_the_llm_once_and_is_announced_again() -> None:
    world = await a_world()
    await redo(world, request(3))
    before = world.state
    await world.amendments().redo(request(3), HERE)
    assert world.provider.requests == []
    assert world.state == before
    assert announced(world) == ["c1:3:2", "c1:3:2"]


async def test_of_two_requests_for_one_revision_the_one_that_made_it_announces_it() -> None:
    world = await a_world()
    await redo(world, request(3))
    before = world.state
    with pytest.raises(NotRedone):
        await redo(world, request(3), position=THERE)
    assert world.state == before
    assert announced(world) == ["c1:3:2"]


@pytest.mark.parametrize(
    "given",
    [
        request(3, revision=2),
        request(9),
        request(3, model="another"),
        request(3, prompt_version="episodic-1"),
        request(3, conversation_id="c2"),
    ],
)
async def test_a_request_for_what_is_not_stored_or_for_another_prompt_does_nothing(given: EpisodeRedo) -> None:
    world = await a_world()
    before = world.state
    with pytest.raises(NotRedone):
        await redo(world, given)
    assert world.state == before


async def test_a_request_of_another_tenant_is_refused() -> None:
    world = await a_world()
    with pytest.raises(InvalidRecord) as refused:
        await redo(world, request(3, tenant_id="t2"))
    assert refused.value.error_type == "tenant_mismatch"


@pytest.mark.parametrize("error", [ProviderUnavailable(problem="away"), BudgetExhausted(whose="a tenant", limit=1)])
async def test_without_an_answer_the_summary_stays(error: Any) -> None:
    world = await a_world()
    world.provider.script.append(error)
    before = world.state
    with pytest.raises(type(error)):
        await world.amendments(summarizer=Summarizer(world.provider)).redo(request(3), HERE)
    assert world.state == before


async def test_without_its_messages_the_summary_stays() -> None:
    world = await a_world()
    world.messages.messages.clear()
    with pytest.raises(NotRedone):
        await redo(world, request(3))
    assert summary_of(world, 3).revision == 1


async def test_a_deleted_episode_is_not_made_anew() -> None:
    world = await a_world()
    deletions = list(enumerate(map(delete, ("m6", "m7", "m8")), 100))
    for offset, deletion in deletions:
        await archive(world, deletion, offset)
    with pytest.raises(NotRedone):  # nothing is left of it, and its deletion comes
        await redo(world, request(3))
    for offset, deletion in deletions:
        await world.amendments().apply(amended(deletion, offset))
    with pytest.raises(NotRedone):
        await redo(world, request(3))
    assert await world.episodes.find("c1:3") is None
    check(world)


async def test_a_change_that_the_archive_has_already_is_in_the_new_revision_and_made_once() -> None:
    world = await a_world()
    await archive(world, edit("m7"), 100)
    await redo(world, request(3))
    assert announced(world) == ["c1:3:2"]
    await world.amendments().apply(amended(edit("m7"), 100))
    assert world.provider.requests == []
    assert announced(world) == ["c1:3:2"]
    check(world)


def record(event: EpisodeRedo, offset: int) -> Any:
    headers = cloud_event(EPISODE_REDO, "c1:3:1:redo", "test", LATER)
    where = {"topic": "episode.closed", "partition": 0, "offset": offset, "timestamp": 0}
    return SimpleNamespace(key=b"c1", value=event.to_json(), headers=headers, **where)


async def handled(world: World, event: EpisodeRedo, provider: ScriptedProvider, offset: int = 7) -> DeadLetterTopic:
    """Handle the request as the agent does; it is acknowledged, whatever comes of it."""
    outputs: Any = DeadLetterTopic()
    amendments = world.amendments(summarizer=Summarizer(provider))
    acknowledged = Event(record(event, offset), outputs)
    await a_handler(world.pipeline(), outputs, Retry(), amendments=amendments).summarize(acknowledged)
    assert acknowledged.acknowledged == [len(outputs.taken)]
    return outputs  # type: ignore[no-any-return] – declared for the handler


async def test_the_agent_makes_it_and_leaves_what_cannot_be_made_as_it_is() -> None:
    world = await a_world()
    away = ScriptedProvider([ProviderUnavailable(problem="away")])
    assert (await handled(world, request(3), away)).taken == []
    assert announced(world) == []
    assert (await handled(world, request(3), Todays())).taken == []
    assert announced(world) == [], "it was given up: an owner before this one may not store what nobody announces"
    assert (await handled(world, request(3), Todays(), 8)).taken == []
    assert announced(world) == ["c1:3:2"]
    assert (await handled(world, request(3, revision=7), Todays())).taken == []
    assert len((await handled(world, request(3, tenant_id="t2"), Todays())).taken) == 1


async def test_what_a_former_owner_has_stored_of_a_request_is_announced_where_the_llm_is_away() -> None:
    world, former = await a_world(), await a_world()
    await redo(former, request(3))

    class Slow(ScriptedProvider):
        """Learns that the LLM is away when a former owner has stored its answer."""

        async def summarize(self, request: SummaryRequest) -> Summary:
            await world.episodes.add(former.episodes.episodes["c1:3"])
            return await super().summarize(request)

    assert (await handled(world, request(3), Slow([ProviderUnavailable(problem="away")]))).taken == []
    assert announced(world) == ["c1:3:2"]


STEPS = st.lists(st.one_of(CHANGES.map(lambda changes: changes[0]), st.integers(1, 3)), min_size=1, max_size=8)
"""Changes, and ordinals of episodes that are to be made anew."""
RULES = st.sampled_from([SummaryRules(rolling_max_tokens=20), SummaryRules(rolling_max_tokens=200, min_new_episodes=2)])


async def taken(world: World, step: Changed | int, offset: int, faults: Faults, rules: SummaryRules) -> None:
    """`step`: a change, or the ordinal of an episode whose stored revision is to be made anew."""
    if not isinstance(step, int):
        await archive(world, step, offset)
        await repeated(world, lambda f: world.amendments(f, rules=rules).apply(amended(step, offset)), faults)
        return
    stored = world.episodes.episodes.get(f"c1:{step}")
    if stored is not None:
        asked = request(step, stored.summary.revision)
        await repeated(world, lambda f: world.amendments(f, rules=rules).redo(asked, f"{offset}"), faults)
        assert summary_of(world, step).reason == "redone"


async def repeated(world: World, call: Any, faults: Faults) -> None:
    try:
        await call(faults)
    except (Crash, asyncio.CancelledError):  # the next worker handles it again
        await call(NO_FAULTS)


@given(ONE_EACH, st.lists(st.integers(1, 3), max_size=4), st.sampled_from([20, 500]), st.randoms(use_true_random=False))
def test_a_request_that_overtakes_a_change_leaves_nothing_of_before(
    changes: tuple[Changed, ...], redone: list[int], rolling_max_tokens: int, random: Random
) -> None:
    """The archive is ahead: a redone summary has changes that its conversation's later episodes do not have yet."""

    async def scenario() -> None:
        world, rules = World(), SummaryRules(rolling_max_tokens)
        world.provider.repeats = True
        await world.messages.put_many(archived(NUMBERED))
        await world.run(NUMBERED, rules=rules)
        for offset, change in enumerate(changes, 100):
            await archive(world, change, offset)
        steps: list[Any] = [*enumerate(changes, 100), *redone]
        random.shuffle(steps)
        for number, step in enumerate(steps):
            if not isinstance(step, int):
                await world.amendments(rules=rules).apply(amended(step[1], step[0]))
            elif stored := world.episodes.episodes.get(f"c1:{step}"):
                with contextlib.suppress(NotRedone):  # nothing is left of it
                    await world.amendments(rules=rules).redo(request(step, stored.summary.revision), f"{number}")
        check(world)
        assert [change.id for change in changes if f"<{change.id}>" in everything(world)] == []  # type: ignore[union-attr]

    asyncio.run(scenario())


@given(STEPS, RULES, st.integers(1, 80), st.booleans(), st.sampled_from([crash, cancelled, outage]))
def test_any_requests_among_changes_leave_every_revision_stored_and_announced(
    steps: list[Changed | int], rules: SummaryRules, at: int, after: bool, fault: Fault
) -> None:
    async def scenario() -> None:
        world = World()
        await world.messages.put_many(archived(CLOSED))
        await world.run(CLOSED, rules=rules)
        faults = Faults(at, after, fault)
        for offset, step in enumerate(steps, 100):
            await taken(world, step, offset, faults, rules)
        check(world)
        superseded = {event.supersedes for event in world.topic.events if event.supersedes}
        assert superseded <= set(announced(world))

    asyncio.run(scenario())
