"""One run of an erasure: what it deletes, what it waits for, and that it may end anywhere and be run again."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from afterword.operating.eraser import NotErased, UserNotArchived
from afterword.operating.person import Receipt
from afterword.schemas import ConversationAssigned, ConversationDeleted, MessageDeleted
from afterword.streams.errors import StoreUnavailable
from afterword.streams.stores.messages import ArchiveChange
from distributions.engine.tests.simulation.virtual_time import run_in_virtual_time
from tests.samples import a_stored_episode
from tests.summarizer_world import NO_FAULTS, Crash, Fault, Faults, crash, outage
from tests.unit.afterword.operating.erasing.world import SETTINGS, TENANT, ErasesWithoutBroker, Unread, World

KAFKA = SETTINGS.kafka


@pytest.mark.parametrize(("other", "deleted"), [("bob", MessageDeleted), (None, ConversationDeleted)])
async def test_participant_keeps_episodes_whose_messages_have_expired(other: str | None, deleted: type) -> None:
    world = World()
    await world.say("c1", "ann")
    if other:
        await world.episodes.put(a_stored_episode(user_id=other, tenant_id=TENANT), None)
    receipt = await world.erase()
    assert [type(event) for event in world.sent] == [deleted]
    assert len(receipt.shared_conversations) == bool(other)


async def test_shared_episodes_without_archived_messages_are_named() -> None:
    world = World()
    shared = replace(a_stored_episode(user_id="bob", tenant_id=TENANT), participants=("ann", "bob"))
    await world.episodes.put(shared, None)
    with pytest.raises(UserNotArchived, match="first is c1"):
        await world.erase()
    assert world.sent == []


async def test_erasure_does_not_wait_for_others_episodes() -> None:
    world = World(unread=[Unread(KAFKA.episodes_topic, 7, b"bobs")])
    await world.say("anns", "ann")
    assert (await world.erase()).deleted_conversations == ("anns",)


def test_erasure_waits_for_the_persons_pending_summaries() -> None:
    async def story() -> None:
        world = World(unread=[Unread(KAFKA.episodes_topic, 7, b"anns")])
        await world.say("anns", "ann")
        with pytest.raises(NotErased, match="1 records that the summarizer has not processed"):
            await world.erase(timeout_seconds=0.1)
        assert world.erasures.receipts == {}
        world.unread.clear()
        assert (await world.erase()).counts["messages"] == 1

    run_in_virtual_time(story())


def test_progress_is_reported_whenever_it_changes() -> None:
    told: list[tuple[str, int]] = []

    async def report(what: str, left: int) -> None:
        told.append((what, left))

    async def story() -> None:
        world = World(unread=[Unread(KAFKA.episodes_topic, 7, b"anns")])
        await world.say("anns", "ann")
        with pytest.raises(NotErased):
            await ErasesWithoutBroker(world).erase("ann", TENANT, timeout_seconds=5, progress=report)

    run_in_virtual_time(story())
    assert told == [
        ("conversations in which something was deleted", 1),
        ("records that the summarizer has not processed", 1),
    ]


async def a_world() -> World:
    """A world with a person who talks alone and with others."""
    world = World()
    await world.say("alone", "ann")
    for user in ("ann", "bob", "ann"):
        await world.say("shared", user)
    return world


async def disturbed(faults: Faults) -> Mapping[str, Any]:
    """Run an erasure until a fault ends it, then another; return what is left, and the receipt."""
    world = await a_world()
    with suppress(Crash, StoreUnavailable):
        await world.erase(faults)
    begun = {one.erasure_id for one in world.erasures.erasures.values()}
    if not world.erasures.receipts:
        receipt = await world.erase()
        assert begun <= {receipt.receipt_id}
    [kept] = world.erasures.receipts.values()
    told = Receipt.model_validate_json(kept.receipt or "")
    left = {key: type(one) for key, one in world.messages.messages.items()}
    return {
        "left": left,
        "under way": world.erasures.erasures,
        **told.model_dump(exclude={"receipt_id", "asked_at", "finished_at", "person"}),
    }


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("fault", [crash, outage])
def test_erasure_ends_the_same_after_any_kill_or_outage(fault: Fault, after: bool) -> None:
    expected = run_in_virtual_time(disturbed(NO_FAULTS))
    assert expected["counts"] == {"messages": 3, "conversations": 2, "episodes": 0, "dead_letters": 0}
    for at in count(1):
        faults = Faults(at, after, fault)
        assert run_in_virtual_time(disturbed(faults)) == expected, f"call {at}"
        if not faults.struck:
            break
    assert at > 10


async def test_repeated_erasure_has_no_effect() -> None:
    world = await a_world()
    first = await world.erase()
    sent = len(world.sent)
    again = await world.erase()
    assert again.receipt_id != first.receipt_id
    assert set(again.counts.values()) == {0}
    assert len(world.sent) == sent
    assert set((await ErasesWithoutBroker(world).plan("ann", TENANT)).values()) == {0}


@pytest.mark.parametrize("other", ["bob", None])
async def test_erasure_reaches_what_was_assigned_to_the_user(other: str | None) -> None:
    world = World()
    for user in ("guest", "ann", *([other] if other else [])):
        await world.say("c1", user)
    given = ConversationAssigned(conversation_id="c1", tenant_id=TENANT, from_user_id="guest", user_id="ann")
    await world.messages.change(ArchiveChange(given, 0, next(world.offsets)))
    receipt = await world.erase()
    assert receipt.counts["messages"] == 2
    assert [one.message.user_id for one in world.messages.messages.values()] == ([other] if other else [])
    await world.say("c1", "guest")
    assert await world.messages.conversations_of("ann", TENANT, None, 1) == []
    assert "ann" not in str(await world.messages.records.read_all("assignments"))


async def test_erasure_forgets_assignments_of_expired_conversations() -> None:
    world = World()
    given = ConversationAssigned(conversation_id="c1", tenant_id=TENANT, from_user_id="guest", user_id="ann")
    await world.messages.change(ArchiveChange(given, 0, next(world.offsets)))
    await world.erase()
    assert "ann" not in str(await world.messages.records.read_all("assignments"))
    await world.say("c1", "guest")
    assert await world.messages.conversations_of("ann", TENANT, None, 1) == []
