"""The chain of rolling-summary rows that a long conversation leaves."""

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import EpisodeClosed
from afterword.schemas.ids import episode_id
from afterword.streams.stores.episodes import RollingRow
from afterword.streams.summarizer.providers import ExtractiveProvider
from afterword.streams.summarizer.summary import SummaryRules
from afterword_text.tokens import count_tokens
from tests.samples import NOON, a_cause, a_closed_episode
from tests.summarizer_world import Crash, Faults, Slowly, Worded, World, crash
from tests.unit.summarizer.conversations import Turn, an_episode_of, dialogues

MAX_TOKENS = 800
FIRST: list[Turn] = [
    ("user", "Hi, my name is Ada Lovelace and I am allergic to peanuts."),
    ("assistant", "Thank you, I noted it."),
]
CALLS = 8
"""Calls that a reconciler makes at least for one episode, those of the provider apart."""
OPTIONS: dict[str, Any] = {"rules": SummaryRules(MAX_TOKENS), "provider": ExtractiveProvider()}


@pytest.fixture(scope="module")
def conversation() -> tuple[EpisodeClosed, ...]:
    """60 episodes."""
    told = enumerate((FIRST, *dialogues()[:59]), 1)
    return tuple(an_episode_of(*turns, ordinal=n, episode_id=episode_id("c1", n)) for n, turns in told)


@pytest.fixture
async def world(conversation: tuple[EpisodeClosed, ...]) -> World:
    world = World()
    await world.run(conversation, **OPTIONS)
    return world


def rows_of(world: World) -> list[RollingRow]:
    return world.episodes.all_rows["c1"]


async def test_several_rows_cover_every_episode_once(world: World) -> None:
    rows = rows_of(world)
    assert [row.row for row in rows] == list(range(1, len(rows) + 1))
    assert len(rows) > 3
    assert (rows[0].first_ordinal, rows[-1].last_ordinal) == (1, 60)
    assert all(later.first_ordinal == row.last_ordinal + 1 for row, later in pairwise(rows))


async def test_each_row_but_the_last_ends_past_the_limit(world: World) -> None:
    rows = rows_of(world)
    assert all(MAX_TOKENS <= count_tokens(row.content) <= MAX_TOKENS * 5 // 4 for row in rows[:-1])
    assert count_tokens(rows[-1].content) < MAX_TOKENS


async def test_every_row_tells_of_its_own_episodes(world: World) -> None:
    first, *others = rows_of(world)
    assert "Ada Lovelace" in first.content
    assert "peanuts" in first.content
    assert not any("Ada Lovelace" in row.content for row in others)
    for row in (first, *others):
        assert [ordinal for ordinal, _ in row.inputs] == list(range(row.first_ordinal, row.last_ordinal + 1))


async def test_crashes_do_not_change_row_coverage(conversation: tuple[EpisodeClosed, ...]) -> None:
    disturbed = World()
    for place, episode in enumerate(conversation):
        at, after = episode.ordinal % CALLS + 1, episode.ordinal % 2 == 0
        with pytest.raises(Crash):
            await disturbed.reconciler(Faults(at, after, crash), **OPTIONS).handle(episode, a_cause(place))
        await disturbed.reconciler(**OPTIONS).handle(episode, a_cause(place))
    rows = rows_of(disturbed)
    assert [ordinal for row in rows for ordinal, _ in row.inputs] == list(range(1, 61))
    assert all(MAX_TOKENS <= count_tokens(row.content) <= MAX_TOKENS * 5 // 4 for row in rows[:-1])


EPISODES = tuple(a_closed_episode(ordinal) for ordinal in range(1, 6))


async def after(rules: SummaryRules, episodes: tuple[EpisodeClosed, ...] = EPISODES) -> World:
    world = World()
    await world.run(episodes, rules=rules)
    return world


async def test_rows_name_the_episodes_they_tell_of() -> None:
    rows = rows_of(await after(SummaryRules(200)))
    assert [(row.first_ordinal, row.last_ordinal) for row in rows] == [(1, 5)]
    rows = rows_of(await after(SummaryRules(5)))
    assert [(row.first_ordinal, row.last_ordinal) for row in rows] == [(ordinal, ordinal) for ordinal in range(1, 6)]


async def test_missing_episode_is_not_named_before_it_comes() -> None:
    world = await after(SummaryRules(200), (*EPISODES[:2], *EPISODES[3:]))
    assert [[ordinal for ordinal, _ in row.inputs] for row in rows_of(world)] == [[1, 2, 4, 5]]
    await world.run(EPISODES[2:3], rules=SummaryRules(200))
    assert [[ordinal for ordinal, _ in row.inputs] for row in rows_of(world)] == [[1, 2, 3, 4, 5]]


async def test_episode_stored_without_a_row_joins_the_next() -> None:
    world = await after(SummaryRules(200), EPISODES[:1])
    put_row, world.episodes.put_row = world.episodes.put_row, None  # type: ignore[method-assign, assignment]
    with pytest.raises(TypeError):
        await world.run(EPISODES[1:2], rules=SummaryRules(200))
    world.episodes.put_row = put_row  # type: ignore[method-assign]
    await world.run(EPISODES[2:3], rules=SummaryRules(200))
    assert [row.inputs for row in rows_of(world)] == [((1, 1), (2, 1), (3, 1))]
    assert "Episode 2 has" in world.provider.requests[-1].previous_rolling


@given(st.integers(1, 50), st.sampled_from([5, 30, 200]))
async def test_every_episode_enters_the_rolling_summary_once(number: int, max_tokens: int) -> None:
    episodes = tuple(a_closed_episode(ordinal, size=1) for ordinal in range(1, number + 1))
    world = await after(SummaryRules(max_tokens), episodes)
    assert all(request.wants_rolling for request in world.provider.requests)
    rows = rows_of(world)
    ranges = [ordinal for row in rows for ordinal in range(row.first_ordinal, row.last_ordinal + 1)]
    assert ranges == [ordinal for row in rows for ordinal, _ in row.inputs] == list(range(1, number + 1))


TURNS = st.lists(st.integers(0, 6), max_size=60)


@given(TURNS, TURNS, st.sampled_from([5, 30, 200]))
async def test_two_workers_take_every_episode_once(first: list[int], second: list[int], other: int) -> None:
    world = World()

    async def work(name: str, turns: list[int], rules: SummaryRules) -> None:
        slowly = Slowly(turns)
        await world.run(
            EPISODES,
            episodes=slowly.around(world.episodes),
            provider=slowly.around(Worded(name)),
            publish=slowly.around_call(world.topic.publish),
            clock=lambda: NOON + timedelta(hours=1),
            rules=rules,
        )

    await asyncio.gather(work("one", first, SummaryRules(30)), work("two", second, SummaryRules(other)))
    assert [ordinal for row in rows_of(world) for ordinal, _ in row.inputs] == [1, 2, 3, 4, 5]
    assert all(len(contents) == 1 for contents in world.contents_by_event_id().values())
