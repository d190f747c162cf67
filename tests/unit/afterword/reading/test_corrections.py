"""Corrections that are shown beside what they correct."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from afterword.reading.memory import hits_as_text
from afterword.schemas import MessageDeleted
from afterword.streams.stores.index import Match
from afterword.streams.stores.messages import ArchiveChange
from tests.rows import with_rows
from tests.samples import NOON
from tests.unit.afterword.reading.remembered import Remembered

OWNER: dict[str, Any] = {"user_id": "u1", "tenant_id": "t1"}
TOLD = ("The plumber comes on Monday at nine.", "Noted.")
CORRECTED = ("No, not that day after all, he said Thursday.", "Changed.")
ASKED = "when does the plumber come?"


async def say(world: Remembered, at: datetime, *texts: str, **fields: Any) -> list[str]:
    """Let user and assistant take turns in an episode; return the ids of the messages."""
    said = []
    for n, text in enumerate(texts):
        told = {"role": "assistant" if n % 2 else "user", "sent_at": at + timedelta(seconds=n), **fields}
        said += await world.say(text, **told)
    await world.summarise(said)
    return [one.id for one in said]


async def matches(world: Remembered, question: str = ASKED, **wanted: Any) -> list[Match]:
    hits = await world.memory.recall(question, **OWNER, **wanted)
    return list(hits[0].matches)


async def test_late_correction_is_the_second_match(world: Remembered) -> None:
    between = ("Is there parking?", "There is a garage.", "And a lift?", "Yes.", "Can we smoke?", "On the balcony.")
    named = await say(world, NOON, *TOLD, *between, *CORRECTED)
    found = await matches(world)
    assert [match.message_id for match in found[:2]] == [named[0], named[8]]


@pytest.mark.parametrize(
    ("conversation_id", "later"), [("c1", timedelta(minutes=20)), ("c2", timedelta(days=1)), ("c2", timedelta(hours=2))]
)
async def test_later_episodes_correction_stands_beside_what_it_corrects(
    world: Remembered, conversation_id: str, later: timedelta
) -> None:
    await say(world, NOON, *TOLD)
    named = await say(world, NOON + later, *CORRECTED, conversation_id=conversation_id)
    found = await matches(world, k=1)
    elsewhere = None if conversation_id == "c1" else "c2"
    assert (found[1].message_id, found[1].conversation_id) == (named[0], elsewhere)
    assert "he said Thursday" in hits_as_text(await world.memory.recall(ASKED, **OWNER, k=1))


async def test_correction_in_an_open_conversation_is_found(world: Remembered) -> None:
    await say(world, NOON, *TOLD)
    await world.say(*CORRECTED, conversation_id="open", sent_at=NOON + timedelta(hours=3))
    assert (await matches(world))[1].content == CORRECTED[0]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("I watched a film about whales.", {}),
        ("Does he come on Thursday?", {}),
        (CORRECTED[0], {"user_id": "u2"}),
        (CORRECTED[0], {"role": "assistant"}),
        (CORRECTED[0], {"sent_at": NOON + timedelta(days=3)}),
        (CORRECTED[0], {"sent_at": NOON - timedelta(days=1)}),
    ],
)
async def test_unrelated_messages_are_not_shown_as_corrections(
    world: Remembered, text: str, fields: dict[str, Any]
) -> None:
    await say(world, NOON, *TOLD)
    await say(world, NOON + timedelta(days=1), text, "I see.", conversation_id="c2", **fields)
    assert {match.content for match in await matches(world)} == set(TOLD)


@with_rows
@pytest.mark.parametrize("is_next", [False, True])
async def test_statement_about_another_subject_is_not_a_correction(
    world: Remembered, question: str, answer: str, later: str, is_next: bool
) -> None:
    told, other = [answer, "ok"], [later, "ok"]
    for n, said in enumerate([told, other] if is_next else [told + other]):
        await say(world, NOON + n * timedelta(minutes=20), *said)
    best, *others = await matches(world, question)
    assert best.content == answer
    assert not [match for match in others if match.score == best.score]


@with_rows
async def test_later_change_comes_before_what_it_changes(
    world: Remembered, question: str, text: str, fields: dict[str, Any], first: str
) -> None:
    await say(world, NOON, "My snack budget is $65.", "Noted.")
    await say(world, NOON + timedelta(days=9), text, "I see.", conversation_id="c2", **fields)
    hits = await world.memory.recall(question, **OWNER)
    assert hits[0].conversation_id == first
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


async def test_deleted_correction_is_not_shown(world: Remembered) -> None:
    await say(world, NOON, *TOLD)
    [name, _] = await say(world, NOON + timedelta(hours=1), *CORRECTED, conversation_id="c2")
    deleted = MessageDeleted(conversation_id="c2", id=name, tenant_id="t1")
    await world.messages.change(ArchiveChange(deleted, 0, 100))
    assert {match.content for match in await matches(world)} == set(TOLD)


async def test_at_most_two_corrections_are_shown_in_order(world: Remembered) -> None:
    await say(world, NOON, *TOLD)
    for day in ("Tuesday", "Wednesday", "Thursday"):
        await say(world, NOON + timedelta(hours=2 + len(day) / 10), f"No, {day}.", "Changed.", conversation_id=day)
    shown = [match.content for match in await matches(world)]
    assert shown[0] == TOLD[0]
    assert len([text for text in shown if text.startswith("No, ")]) == 2
    assert shown[1:3] == sorted(shown[1:3], key=["No, Tuesday.", "No, Thursday.", "No, Wednesday."].index)
