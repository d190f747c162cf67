"""Sealed episodes: opened when they are taken, tried again sealed, and announced sealed."""

import pytest

from afterword.schemas import (
    EpisodeClosed,
    InvalidRecord,
    MessageCreated,
    MessageDeleted,
    SummaryCreated,
    SummaryDeleted,
)
from afterword.schemas.episodes import EpisodeMetrics, fingerprint, metrics
from afterword.streams.errors import SealedWithoutKey
from afterword.streams.sealing.codec import digest_of_owner
from afterword.streams.sealing.opening import SealingWithKeys
from afterword.streams.settings import Crypto
from afterword.streams.stores.messages import ArchiveChange, ArchivedMessage
from afterword.streams.stores.user_keys import KeyOwner
from tests.doubles.stores import MemoryUserKeys
from tests.samples import a_closed_episode, an_episode_message
from tests.summarizer_world import EPISODES, World

KEY = "MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTE="


def sealing(store: MemoryUserKeys) -> SealingWithKeys:
    return SealingWithKeys(Crypto.model_validate({"seal": "on", "key": KEY, "cache_seconds": 1}), store)


async def sealed(event: EpisodeClosed, keys: SealingWithKeys) -> EpisodeClosed:
    """The event as a segmenter that seals writes it."""
    place = event.tenant_id, event.conversation_id
    core = [await keys.waited(lambda m=m: keys.message(m, place)) for m in event.messages]
    overlap = [await keys.waited(lambda m=m: keys.message(m, place)) for m in event.overlap]
    update = {"messages": tuple(core), "overlap": tuple(overlap), "fingerprint": fingerprint(core)}
    return event.model_copy(update={**update, "user_id": "", "metrics": EpisodeMetrics(), "sealed": True})


async def destroy(store: MemoryUserKeys, *users: str, tenant: str | None = "t1") -> None:
    for user in users:
        await store.destroy(await store.retire(digest_of_owner(KeyOwner(tenant, user))))


def talk() -> EpisodeClosed:
    said = [
        an_episode_message("a", content="ann says", user_id="ann"),
        an_episode_message("b", content="bob says", user_id="bob"),
    ]
    return a_closed_episode(messages=tuple(said), message_count=2)


async def test_a_sealed_episode_is_summarized_as_if_it_were_not_and_announced_sealed() -> None:
    plain, world, store = World(), World(), MemoryUserKeys()
    keys = sealing(store)
    events = tuple(event.model_copy(update={"metrics": metrics(event.messages)}) for event in EPISODES)
    await plain.run(events)
    for event in events:
        await world.pipeline(sealing=keys).process(await sealed(event, keys))
    assert {i: e.event for i, e in world.episodes.episodes.items()} == {
        i: e.event for i, e in plain.episodes.episodes.items()
    }
    assert world.index.points == plain.index.points
    announced = [event for event in world.topic.events if isinstance(event, SummaryCreated)]
    assert all(event.sealed_texts and not event.long_summary and not event.user_id for event in announced)
    opened = [await keys.waited(lambda e=event: keys.opened_summary(e)) for event in announced]
    assert opened == plain.topic.events


async def test_messages_whose_key_was_destroyed_are_in_no_summary() -> None:
    world, store = World(), MemoryUserKeys()
    event = await sealed(talk(), sealing(store))
    await destroy(store, "ann", tenant=event.tenant_id)
    summary = await world.pipeline(sealing=sealing(store)).process(event)
    assert isinstance(summary, SummaryCreated)
    assert (summary.message_ids, summary.user_id) == (("b",), "bob")
    assert "ann says" not in repr(world.episodes.episodes) + repr(world.index.points)
    other = World()
    await destroy(store, "bob", tenant=event.tenant_id)
    assert isinstance(await other.pipeline(sealing=sealing(store)).process(event), SummaryDeleted)


async def test_a_sealed_episode_is_tried_again_sealed_and_without_what_was_deleted() -> None:
    world, store = World(), MemoryUserKeys()
    keys = sealing(store)
    event = await sealed(talk(), keys)
    pipeline = world.pipeline(sealing=keys)
    assert await pipeline.left_of(event) is event
    deletion = MessageDeleted(id="a", conversation_id=event.conversation_id, tenant_id=event.tenant_id)
    whose = {"conversation_id": event.conversation_id, "tenant_id": event.tenant_id, "user_id": "ann"}
    said = MessageCreated(id="a", role="user", content="ann says", sent_at=event.started_at, **whose)
    await world.messages.put_many([ArchivedMessage(said, 0, 1)])
    await world.messages.change(ArchiveChange(deletion, 0, 99))
    left = await pipeline.left_of(event)
    assert left is not None
    assert (left.sealed, left.messages, left.fingerprint) == (True, event.messages[1:], event.fingerprint)
    assert b"bob says" not in left.to_json()


async def test_a_summary_cannot_be_read_without_the_key_of_any_of_its_users() -> None:
    for user in ("ann", "bob"):
        world, store = World(), MemoryUserKeys()
        event = talk()
        await world.pipeline(sealing=sealing(store)).process(event)
        [announced] = world.topic.events
        assert isinstance(announced, SummaryCreated)
        assert "says" not in announced.model_dump_json()
        await destroy(store, user, tenant=event.tenant_id)
        keys = sealing(store)
        assert await keys.waited(lambda k=keys, e=announced: k.opened_summary(e)) is None


async def test_a_sealed_episode_needs_the_key_and_must_be_as_it_was() -> None:
    world, store = World(), MemoryUserKeys()
    event = await sealed(talk(), sealing(store))
    with pytest.raises(SealedWithoutKey, match="an episode is sealed"):
        await world.pipeline().process(event)
    first, second = event.messages
    swapped = (first.model_copy(update={"content": second.content}), second)
    with pytest.raises(InvalidRecord, match="seal_broken"):
        await world.pipeline(sealing=sealing(store)).process(event.model_copy(update={"messages": swapped}))
    assert world.topic.events == []
