"""Cadence of updates of the rolling summary, and that nothing is lost to it in between."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import EpisodeClosed, SummaryCreated
from afterword.streams.settings import MOST_PENDING_EPISODES
from afterword.streams.summarizer.providers import ExtractiveProvider
from afterword.streams.summarizer.rolling import PENDING_TOKENS, SummaryRules
from afterword.streams.summarizer.summary import SummaryRequest
from afterword.streams.text.tokens import count_tokens
from tests.doubles.provider import ScriptedProvider
from tests.samples import NOON, a_closed_episode
from tests.summarizer_world import Crash, Fault, Faults, Slowly, Worded, World, cancelled, crash
from tests.unit.summarizer.conversations import an_episode_of, dialogues
from tests.unit.summarizer.test_rolling_rows import FIRST

EVERY_THIRD = SummaryRules(200, min_new_episodes=3)
EPISODES = tuple(a_closed_episode(ordinal) for ordinal in range(1, 9))


async def after(rules: SummaryRules, episodes: tuple[EpisodeClosed, ...] = EPISODES, **fields: Any) -> World:
    world = World()
    await world.run(episodes, rules=rules, **fields)
    return world


def told(world: World) -> list[SummaryCreated]:
    return [event for event in world.topic.events if isinstance(event, SummaryCreated)]


def new_ordinals(world: World) -> list[tuple[int, ...]]:
    """Ordinals that came into a row with each episode."""
    known: set[int] = set()
    found = []
    for event in world.topic.conversations:
        last = max((row.last_ordinal for row in event.rolling), default=0)
        stored = [episode.ordinal for episode in world.episodes.episodes.values()]
        found.append(tuple(n for n in stored if n <= last and n not in known))
        known |= {*found[-1]}
    return found


async def test_by_default_every_episode_updates_the_rolling_summary() -> None:
    world = await after(SummaryRules(200))
    assert new_ordinals(world) == [(ordinal,) for ordinal in range(1, 9)]
    assert all(request.wants_rolling for request in world.provider.requests)


async def test_an_update_waits_for_so_many_new_episodes_and_takes_in_all_of_them() -> None:
    world = await after(EVERY_THIRD)
    assert new_ordinals(world) == [(1,), (), (), (2, 3, 4), (), (), (5, 6, 7), ()]
    assert [request.wants_rolling for request in world.provider.requests] == [bool(new) for new in new_ordinals(world)]


async def test_an_update_waits_for_so_many_tokens_too() -> None:
    sizes = (100, 30, 30, 200, 10, 10, 10, 300)
    episodes = tuple(e.model_copy(update={"token_count": n}) for e, n in zip(EPISODES, sizes, strict=True))
    assert new_ordinals(await after(SummaryRules(200, min_tokens=200), episodes)) == [
        *((1,), (), (), (2, 3, 4)),
        *((), (), (), (5, 6, 7, 8)),
    ]
    assert new_ordinals(await after(SummaryRules(200, min_new_episodes=2, min_tokens=250), episodes)) == [
        *((1,), (), (), (2, 3, 4)),
        *((), (), (), (5, 6, 7, 8)),
    ]


async def test_no_more_episodes_are_left_pending_than_an_update_can_be_told_of() -> None:
    episodes = tuple(a_closed_episode(ordinal) for ordinal in range(1, 2 * MOST_PENDING_EPISODES))
    new = new_ordinals(await after(SummaryRules(200, min_tokens=10**9), episodes))
    assert [len(ordinals or ()) for ordinals in new if ordinals] == [1, MOST_PENDING_EPISODES]


async def test_the_llm_is_told_of_every_episode_since_the_last_update() -> None:
    world = await after(EVERY_THIRD)
    text, pending = "", list[str]()
    for summary, event, request in zip(told(world), world.topic.conversations, world.provider.requests, strict=True):
        assert request.previous_rolling == "\n".join(filter(None, (text, *pending)))
        pending.append(summary.long_summary)
        if event.rolling:
            text, pending = event.rolling[-1].text, []


async def test_many_long_summaries_are_told_by_their_short_ones() -> None:
    class Wordy(ScriptedProvider):
        async def summarize(self, request: SummaryRequest) -> Any:
            return replace(
                await super().summarize(request), long_summary="A long story. " * 100, short_summary="Brief."
            )

    world = World(provider=Wordy())
    await world.run(EPISODES, rules=SummaryRules(200, min_new_episodes=6))
    assert count_tokens("A long story. " * 100) * 5 > PENDING_TOKENS
    assert [request.previous_rolling.count("Brief.") for request in world.provider.requests[4:]] == [0, 0, 5, 5]


async def test_rows_say_what_their_texts_really_tell_of() -> None:
    rows = (await after(EVERY_THIRD)).episodes.all_rows["c1"]
    assert [(row.first_ordinal, row.last_ordinal) for row in rows] == [(1, 7)]
    rows = (await after(replace(EVERY_THIRD, rolling_max_tokens=5))).episodes.all_rows["c1"]
    assert [(row.first_ordinal, row.last_ordinal) for row in rows] == [(1, 1), (2, 4), (5, 7)]


async def test_an_episode_that_is_missing_is_not_said_to_be_told() -> None:
    world = await after(EVERY_THIRD, (*EPISODES[:2], *EPISODES[3:5]))
    assert new_ordinals(world) == [(1,), (), (), (2, 4, 5)]


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=50),
    st.integers(1, MOST_PENDING_EPISODES),
    st.integers(0, 2000),
    st.sampled_from([5, 30, 200]),
)
async def test_every_episode_goes_into_the_rolling_summary_once_and_in_order(
    sizes: list[int], min_new_episodes: int, min_tokens: int, max_tokens: int
) -> None:
    episodes = tuple(a_closed_episode(n, size=1, token_count=tokens) for n, tokens in enumerate(sizes, 1))
    world = await after(SummaryRules(max_tokens, min_new_episodes, min_tokens), episodes)
    taken = [ordinal for new in new_ordinals(world) for ordinal in new or ()]
    assert taken == list(range(1, len(taken) + 1))
    assert len(sizes) - len(taken) < max(min_new_episodes, MOST_PENDING_EPISODES)
    rows = world.episodes.all_rows["c1"]
    ranges = [ordinal for row in rows for ordinal in range(row.first_ordinal, row.last_ordinal + 1)]
    assert ranges == taken


async def count_calls() -> int:
    faults = Faults(0, after=False, fault=crash)
    await World().run(EPISODES[:5], faults, rules=EVERY_THIRD)
    return faults.calls


@pytest.mark.parametrize("late", [False, True], ids=["before the effect", "after the effect"])
@pytest.mark.parametrize("fault", [crash, cancelled])
async def test_a_crash_at_any_call_changes_nothing_of_what_was_taken_in(fault: Fault, late: bool) -> None:
    for at in range(1, await count_calls() + 1):
        world = World()
        with pytest.raises((Crash, asyncio.CancelledError)):
            await world.run(EPISODES[:5], Faults(at, late, fault), rules=EVERY_THIRD)
        await world.run(EPISODES[:5], rules=EVERY_THIRD)
        assert [row.inputs for row in world.episodes.all_rows["c1"]] == [((1, 1), (2, 1), (3, 1), (4, 1))]
        assert world.episodes.known["c1"].episode_count == 5


TURNS = st.lists(st.integers(0, 6), max_size=60)


@given(TURNS, TURNS, st.integers(1, 3))
async def test_two_workers_take_every_episode_in_once_even_with_other_settings(
    first: list[int], second: list[int], others: int
) -> None:
    world = World()

    async def work(name: str, turns: list[int], rules: SummaryRules) -> None:
        slowly = Slowly(turns)
        await world.run(
            EPISODES[:5],
            episodes=slowly.around(world.episodes),
            provider=slowly.around(Worded(name)),
            publish=slowly.around_call(world.topic.publish),
            clock=lambda: NOON + timedelta(hours=1),
            rules=rules,
        )

    await asyncio.gather(
        work("one", first, EVERY_THIRD), work("two", second, replace(EVERY_THIRD, min_new_episodes=others))
    )
    taken = [ordinal for row in world.episodes.all_rows["c1"] for ordinal, _ in row.inputs]
    assert taken == list(range(1, len(taken) + 1))
    assert len(taken) >= 4
    assert all(len(contents) == 1 for contents in world.contents_by_event_id().values())


async def test_facts_of_the_first_episode_are_still_there_after_fifty_also_at_every_fifth() -> None:
    turns = (FIRST, *dialogues()[:49])
    episodes = tuple(an_episode_of(*t, ordinal=n, episode_id=f"c1:{n}") for n, t in enumerate(turns, 1))
    world = await after(SummaryRules(800, min_new_episodes=5), episodes, provider=ExtractiveProvider())
    rows = world.episodes.all_rows["c1"]
    assert "Ada Lovelace" in rows[0].content
    assert "peanuts" in rows[0].content
    assert all(row.token_count <= 1000 for row in rows)
