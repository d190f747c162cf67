"""The verification of a receipt reports what the stores still have of a person."""

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import ConsumerRecord

from afterword.operating.person import NEVER, Records, TheirDeadLetters, TopicDate, left_in_stores, person_of
from afterword.schemas.dead_letters import dead_letter
from tests.doubles.index import MemoryIndex
from tests.samples import a_stored_episode
from tests.unit.afterword.operating.erasing.test_receipt import NOW, a_receipt
from tests.unit.afterword.operating.erasing.world import SETTINGS, TENANT, World


async def left(world: World, end: int) -> dict[str, int]:
    stores: Any = SimpleNamespace(messages=world.messages, episodes=world.episodes, index=MemoryIndex())
    topics = (TopicDate(topic="messages", gone_by=NEVER, ends={0: end}, ours=False),)
    where = {"deleted_conversations": ("anns",), "shared_conversations": ("shared",), "topics": topics}
    receipt = a_receipt(finished_at=NOW + timedelta(days=1), **where)
    remains = await left_in_stores(stores, receipt, person_of("ann", TENANT), "messages")
    assert all(one.gone_by is None for one in remains)
    return {one.place: one.number for one in remains if one.number}


async def test_messages_older_than_the_receipt_count_per_conversation() -> None:
    world = World()
    for conversation, user in (("anns", "ann"), ("shared", "bob"), ("shared", "ann"), ("anns", "ann")):
        await world.say(conversation, user)
    assert await left(world, end=3) == {"messages in the archive": 2}
    assert await left(world, end=0) == {}


async def test_episodes_older_than_the_receipt_count_for_its_person() -> None:
    world = World()
    of_two = replace(a_stored_episode(user_id="bob", tenant_id=TENANT), participants=("ann", "bob"))
    await world.episodes.put(of_two, None)
    assert await left(world, end=0) == {"episodes": 1}
    others = World()
    await others.episodes.put(a_stored_episode(user_id="bob", tenant_id=TENANT), None)
    assert await left(others, end=0) == {}


@pytest.mark.parametrize(
    ("conversation", "error_type", "is_theirs"),
    [
        ("anns", "invalid_json", True),
        ("anns", "tenant_mismatch", False),
        ("shared", "invalid_json", False),
        ("bobs", "invalid_json", False),
    ],
)
def test_dead_letters_discarded_by_the_erasure_count(conversation: str, error_type: str, is_theirs: bool) -> None:
    original: Any = SimpleNamespace(
        topic="messages", partition=0, offset=7, key=conversation.encode(), value=b"{", headers=[]
    )
    key, value, headers = dead_letter(original, stage="segmenter", error_type=error_type, message="", now_ms=1)
    topic = SETTINGS.kafka.dead_letters(SETTINGS.kafka.messages_topic)
    record = ConsumerRecord(topic, 0, 3, 1, 0, key, value, None, 1, 1, tuple(headers))
    theirs = TheirDeadLetters(person_of("ann", TENANT), frozenset({"anns"}), frozenset({"shared"}))
    assert Records(SETTINGS.kafka, theirs).are_theirs(record) is is_theirs
