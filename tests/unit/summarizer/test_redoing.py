"""Requests to write stored summaries again: their revisions, beside changes of messages and under faults."""

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import EpisodeRedo, InvalidRecord, SummaryCreated
from afterword.streams.errors import AnswerInvalid, BudgetExhausted, ProviderUnavailable, StoreUnavailable
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import Summary, SummaryRequest, SummaryRules
from tests.doubles.provider import ScriptedProvider
from tests.samples import a_cause, an_amendment
from tests.summarizer_world import NO_FAULTS, TODAY, Crash, Fault, Faults, World, cancelled, crash, outage
from tests.unit.summarizer.test_amending import (
    CHANGES,
    CLOSED,
    LATER,
    RULES,
    Changed,
    a_world,
    amend,
    announced,
    archive,
    check,
    contents,
    delete,
    edit,
)

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
