"""The chain of rolling-summary rows that a long conversation leaves."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afterword.schemas import EpisodeClosed
from afterword.schemas.base import episode_id
from afterword.streams.stores.episodes import RollingRow
from afterword.streams.summarizer.conversations import History
from afterword.streams.summarizer.providers import ExtractiveProvider
from afterword.streams.summarizer.summary import SummaryRules
from afterword_text.tokens import count_tokens
from tests.samples import NOON, a_cause, a_closed_episode, a_summary
from tests.summarizer_world import World
from tests.unit.summarizer.conversations import Turn, an_episode_of, dialogues

RULES = SummaryRules(rolling_max_tokens=5)
BRIEF, LONG = "So far.", "The flight to Rome was booked for Monday."
ROW = RollingRow(
    "c1", 2, 7, a_cause(), BRIEF, is_complete=False, first_ordinal=2, last_ordinal=3, inputs=((3, 1),), updated_at=NOON
)


def following(row: RollingRow | None, ordinal: int, text: str) -> RollingRow:
    return History(RULES, row, (), None).next_row("c1", a_summary(ordinal, revision=2), text, a_cause(9))


def test_first_episode_begins_the_first_row() -> None:
    row = following(None, 4, LONG)
    assert (row.row, row.revision, row.content, row.first_ordinal, row.last_ordinal) == (1, 1, LONG, 1, 4)
    assert (row.inputs, row.cause, row.is_complete) == (((4, 2),), a_cause(9), True)


def test_row_under_the_limit_continues() -> None:
    row = following(ROW, 4, LONG)
    assert (row.row, row.revision, row.content, row.first_ordinal, row.last_ordinal) == (2, 8, LONG, 2, 4)
    assert row.inputs == ((3, 1), (4, 2))


def test_row_past_the_limit_is_followed_by_another() -> None:
    full = following(ROW, 4, LONG)
    history = History(RULES, full, (), None)
    assert (history.text, history.continued) == ("", None)
    row = history.next_row("c1", a_summary(5), BRIEF, a_cause())
    assert (row.row, row.first_ordinal, row.last_ordinal, row.inputs) == (3, 5, 5, ((5, 1),))


def test_rows_writer_decides_whether_it_is_complete() -> None:
    """Otherwise two workers with different limits could put one episode into two rows."""
    assert following(replace(ROW, content=LONG), 4, BRIEF).row == 2
    assert following(replace(ROW, is_complete=True), 4, BRIEF).row == 3


@given(st.lists(st.sampled_from([BRIEF, LONG]), max_size=30))
def test_rows_cover_every_ordinal_once_in_order(texts: list[str]) -> None:
    rows: list[RollingRow] = []
    for ordinal, text in enumerate(texts, 1):
        row = following(rows[-1] if rows else None, ordinal, text)
        rows[row.row - 1 :] = [row]
    assert [row.row for row in rows] == list(range(1, len(rows) + 1))
    assert all(row.is_complete for row in rows[:-1])
    assert all(earlier.last_ordinal + 1 == later.first_ordinal for earlier, later in pairwise(rows))
    assert [ordinal for row in rows for ordinal, _ in row.inputs] == list(range(1, len(texts) + 1))


MAX_TOKENS = 800
FIRST: list[Turn] = [
    ("user", "Hi, my name is Ada Lovelace and I am allergic to peanuts."),
    ("assistant", "Thank you, I noted it."),
]
OPTIONS: dict[str, Any] = {"rules": SummaryRules(MAX_TOKENS), "provider": ExtractiveProvider()}


@pytest.fixture(scope="module")
def conversation() -> tuple[EpisodeClosed, ...]:
    """60 episodes."""
    told = enumerate((FIRST, *dialogues()[:59]), 1)
    return tuple(an_episode_of(*turns, ordinal=n, episode_id=episode_id("c1", n)) for n, turns in told)


def rows_of(world: World) -> list[RollingRow]:
    return world.episodes.all_rows["c1"]


def check(rows: list[RollingRow]) -> None:
    """Check that the rows cover 60 episodes once each, and that each row but the last ends just past the limit."""
    assert [row.row for row in rows] == list(range(1, len(rows) + 1))
    covered = [ordinal for row in rows for ordinal in range(row.first_ordinal, row.last_ordinal + 1)]
    assert covered == [ordinal for row in rows for ordinal, _ in row.inputs] == list(range(1, 61))
    assert all(MAX_TOKENS <= count_tokens(row.content) <= MAX_TOKENS * 5 // 4 for row in rows[:-1])
    assert count_tokens(rows[-1].content) < MAX_TOKENS


async def test_rows_tell_of_their_own_episodes_up_to_the_limit(conversation: tuple[EpisodeClosed, ...]) -> None:
    world = World()
    await world.run(conversation, **OPTIONS)
    first, *others = rows = rows_of(world)
    check(rows)
    assert len(rows) > 3
    assert "Ada Lovelace" in first.content
    assert "peanuts" in first.content
    assert not any("Ada Lovelace" in row.content for row in others)


EPISODES = tuple(a_closed_episode(ordinal) for ordinal in range(1, 6))


async def after(rules: SummaryRules, episodes: tuple[EpisodeClosed, ...] = EPISODES) -> World:
    world = World()
    await world.run(episodes, rules=rules)
    return world


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


@settings(max_examples=settings().max_examples // 3)
@given(st.integers(1, 50), st.sampled_from([5, 30, 200]))
async def test_every_episode_enters_the_rolling_summary_once(number: int, max_tokens: int) -> None:
    episodes = tuple(a_closed_episode(ordinal, size=1) for ordinal in range(1, number + 1))
    world = await after(SummaryRules(max_tokens), episodes)
    assert all(request.wants_rolling for request in world.provider.requests)
    rows = rows_of(world)
    ranges = [ordinal for row in rows for ordinal in range(row.first_ordinal, row.last_ordinal + 1)]
    assert ranges == [ordinal for row in rows for ordinal, _ in row.inputs] == list(range(1, number + 1))
