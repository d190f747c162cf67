"""The chain of rolling-summary rows that a long conversation leaves, with the provider that needs no LLM."""

from itertools import pairwise
from typing import Any

import pytest

from afterword.schemas import EpisodeClosed
from afterword.schemas.ids import episode_id
from afterword.streams.stores.episodes import RollingRow
from afterword.streams.summarizer.providers import ExtractiveProvider
from afterword.streams.summarizer.rolling import SummaryRules
from afterword.streams.tokens import count_tokens
from tests.summarizer_world import Crash, Faults, World, crash
from tests.unit.summarizer.conversations import Turn, an_episode_of, dialogues

MAX_TOKENS = 800
FIRST: list[Turn] = [
    ("user", "Hi, my name is Ada Lovelace and I am allergic to peanuts."),
    ("assistant", "Thank you, I noted it."),
]
CALLS = 10
"""Calls that a pipeline makes for one episode, those of the provider apart."""
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
    return world.episodes.rows["c1"]


def text_after(world: World, ordinal: int) -> str:
    return world.episodes.episodes[episode_id("c1", ordinal)].summary.rolling_summary


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
    for row in rows:
        within = range(row.first_ordinal, row.last_ordinal)
        assert all(count_tokens(text_after(world, ordinal)) < MAX_TOKENS for ordinal in within)


async def test_each_row_but_the_first_begins_with_room_to_grow(world: World) -> None:
    for row in rows_of(world)[1:]:
        assert count_tokens(text_after(world, row.first_ordinal)) <= MAX_TOKENS * 3 // 4


async def test_every_row_is_the_text_of_the_whole_conversation_so_far(world: World) -> None:
    for row in rows_of(world):
        assert row.content == text_after(world, row.last_ordinal)
        assert "Ada Lovelace" in row.content
        assert "peanuts" in row.content


async def test_crashes_and_replays_leave_the_same_rows(world: World, conversation: tuple[EpisodeClosed, ...]) -> None:
    disturbed = World()
    for episode in conversation:
        at, after = episode.ordinal % CALLS + 1, episode.ordinal % 2 == 0
        with pytest.raises(Crash):
            await disturbed.run((episode,), Faults(at, after, crash), **OPTIONS)
        await disturbed.run((episode,), **OPTIONS)
    await disturbed.run(conversation, **OPTIONS)
    assert disturbed.state == world.state
