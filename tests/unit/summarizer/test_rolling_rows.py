"""The chain of rolling-summary rows that a long conversation leaves, with the provider that needs no LLM."""

from itertools import pairwise
from typing import Any

import pytest

from afterword.schemas import EpisodeClosed
from afterword.schemas.ids import episode_id
from afterword.streams.stores.episodes import RollingRow
from afterword.streams.summarizer.providers import ExtractiveProvider
from afterword.streams.summarizer.rolling import SummaryRules
from afterword.streams.text.tokens import count_tokens
from tests.samples import a_cause
from tests.summarizer_world import Crash, Faults, World, crash
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


async def test_there_are_several_rows_and_together_they_cover_every_episode_once(world: World) -> None:
    rows = rows_of(world)
    assert [row.row for row in rows] == list(range(1, len(rows) + 1))
    assert len(rows) > 3
    assert (rows[0].first_ordinal, rows[-1].last_ordinal) == (1, 60)
    assert all(later.first_ordinal == row.last_ordinal + 1 for row, later in pairwise(rows))


async def test_each_row_but_the_last_ends_where_it_passes_the_limit(world: World) -> None:
    rows = rows_of(world)
    assert all(row.token_count == count_tokens(row.content) for row in rows)
    assert all(MAX_TOKENS <= row.token_count <= MAX_TOKENS * 5 // 4 for row in rows[:-1])


async def test_every_row_is_about_its_own_episodes_and_the_first_keeps_the_beginning(world: World) -> None:
    first, *others = rows_of(world)
    assert "Ada Lovelace" in first.content
    assert "peanuts" in first.content
    assert not any("Ada Lovelace" in row.content for row in others)
    for row in (first, *others):
        assert [ordinal for ordinal, _ in row.inputs] == list(range(row.first_ordinal, row.last_ordinal + 1))


async def test_crashes_leave_rows_that_cover_the_same(conversation: tuple[EpisodeClosed, ...]) -> None:
    disturbed = World()
    for place, episode in enumerate(conversation):
        at, after = episode.ordinal % CALLS + 1, episode.ordinal % 2 == 0
        with pytest.raises(Crash):
            await disturbed.reconciler(Faults(at, after, crash), **OPTIONS).closed(episode, a_cause(place))
        await disturbed.reconciler(**OPTIONS).closed(episode, a_cause(place))
    rows = rows_of(disturbed)
    assert [ordinal for row in rows for ordinal, _ in row.inputs] == list(range(1, 61))
    assert all(MAX_TOKENS <= row.token_count <= MAX_TOKENS * 5 // 4 for row in rows[:-1])
