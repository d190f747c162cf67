"""Expired data is removed in an order that survives a crash, and does not come back."""

import asyncio
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import EpisodeRedo, InvalidRecord, SummaryDeleted
from afterword.streams.errors import StoreUnavailable
from afterword.streams.settings import Retention
from afterword.streams.stores.episodes import DeletedEpisode
from afterword.streams.summarizer.timers import RetentionSweep, interval_seconds, request_for
from tests.samples import NOON, a_cause, a_closed_episode
from tests.summarizer_world import NO_FAULTS, Crash, Faults, World, crash, outage
from tests.unit.summarizer.test_amending import CLOSED, a_world, amend, delete, edit, ended_at, skip

DAY = timedelta(days=1)
BOTH = Retention(messages_days=1, episodes_days=1)


class Sweep(RetentionSweep):
    """A sweep whose requests are handled at once."""

    def __init__(
        self, world: World, at: datetime, retention: Retention = BOTH, faults: Faults = NO_FAULTS, **fields: Any
    ) -> None:
        self.reconciler = world.reconciler(retention=retention, clock=lambda: at, **fields)
        self.requests: list[EpisodeRedo] = []
        stores = {name: faults.around(getattr(world, name)) for name in ("episodes", "messages")}
        super().__init__(retention, **stores, send=faults.around_call(self.handle), clock=lambda: at)

    async def handle(self, request: EpisodeRedo) -> None:
        self.requests.append(request)
        await self.reconciler.handle(request, a_cause(500 + len(self.requests)))


def left(world: World) -> dict[str, Any]:
    return {
        "episodes": set(world.episodes.episodes),
        "points": set(world.index.points),
        "rows": [ordinal for row in world.episodes.all_rows.get("c1", ()) for ordinal, _ in row.inputs],
        "texts": [row.content for row in world.episodes.all_rows.get("c1", ()) if row.content],
        "conversations": {
            name: known.episode_count
            for name, known in world.episodes.known.items()
            if known.episode_count or known.title or known.user_id
        },
        "messages": set(world.messages.messages) | set(world.messages.episode_ids),
    }


NOTHING = left(World())


async def test_nothing_expires_by_default() -> None:
    world = await a_world()
    before = left(world)
    sweep = Sweep(world, NOON + 36_500 * DAY, Retention())
    await sweep.sweep()
    await asyncio.wait_for(sweep.run(), 60)
    assert left(world) == before


async def test_episode_expires_with_its_last_message() -> None:
    world = await a_world()
    await Sweep(world, NOON + DAY + timedelta(minutes=4), Retention(episodes_days=1)).sweep()
    assert left(world)["episodes"] == left(world)["points"] == {"c1:2", "c1:3"}
    assert left(world)["conversations"] == {"c1": 2}
    assert left(world)["rows"] == [2, 3]
    await Sweep(world, NOON + 2 * DAY).sweep()
    assert left(world) == NOTHING
    assert [(event.event_id, event.reason) for event in world.topic.events] == [
        (f"c1:{ordinal}:2", "expired") for ordinal in (1, 2, 3)
    ]
    assert world.provider.requests == []
    assert ended_at(world) == {one.episode_id: one.source.last_offset for one in CLOSED}
    world.topic.published.clear()
    for change in (edit("m0"), delete("m0")):
        await amend(world, change)
    assert (left(world), world.topic.events) == (NOTHING, []), "a change of an expired episode does nothing"


async def test_replay_does_not_restore_an_expired_episode() -> None:
    world = await a_world()
    await Sweep(world, NOON + 2 * DAY).sweep()
    world.provider.requests.clear()
    for offset in (0, 50):
        for closed in CLOSED:
            reconciler = world.reconciler(retention=BOTH, clock=lambda: NOON + 2 * DAY)
            await reconciler.handle(closed, a_cause(closed.ordinal + offset))
            event = world.topic.events[-1]
            assert isinstance(event, SummaryDeleted)
            assert event.reason == "expired"
    assert left(world) == NOTHING
    assert world.provider.requests == []


async def test_replay_labels_no_expired_message() -> None:
    world = await a_world()
    await Sweep(world, NOON + DAY + timedelta(minutes=1), Retention(messages_days=1)).sweep()
    reconciler = world.reconciler(retention=BOTH, clock=lambda: NOON + DAY + timedelta(minutes=1))
    await reconciler.handle(CLOSED[0], a_cause(50))
    assert "c1:m0:t1" not in world.messages.episode_ids
    assert world.messages.episode_ids["c1:m1:t1"] == "c1:1"


@pytest.mark.parametrize("change", [edit("m0"), delete("m0")], ids=["edit", "deletion"])
async def test_change_of_an_expired_episode_removes_it(change: Any) -> None:
    world = await a_world()
    fields = {"retention": BOTH, "clock": lambda: NOON + 2 * DAY}
    await amend(world, change, **fields)
    [event] = world.topic.events
    assert isinstance(event, SummaryDeleted)
    assert (event.event_id, event.reason) == ("c1:1:2", "expired")
    assert world.provider.requests == []
    assert left(world)["episodes"] == left(world)["points"] == {"c1:2", "c1:3"}


async def test_episode_expired_before_closing_skips_the_llm() -> None:
    world = World()
    await world.run(CLOSED[:1], retention=BOTH, clock=lambda: NOON + 2 * DAY)
    [event] = world.topic.events
    assert isinstance(event, SummaryDeleted)
    assert (event.event_id, event.reason) == ("c1:1:1", "expired")
    assert world.provider.requests == []
    assert left(world) == NOTHING


async def test_shorter_retention_elsewhere_does_not_change_our_episode() -> None:
    world = await a_world()
    before = world.episodes.episodes["c1:1"]
    await world.reconciler().handle(request_for(before, NOON, expired=True), a_cause(50))
    assert world.episodes.episodes["c1:1"] == before
    assert world.provider.requests == []


async def test_concurrent_expiries_are_announced_once() -> None:
    world = await a_world()
    sweep = Sweep(world, NOON + 2 * DAY)
    await sweep.sweep()
    for request in list(sweep.requests):
        await sweep.handle(request)
    assert [event.event_id for event in world.topic.events] == ["c1:1:2", "c1:2:2", "c1:3:2"]


async def test_new_episode_keeps_its_conversations_rolling_text() -> None:
    world = await a_world()
    await Sweep(world, NOON + DAY + timedelta(minutes=7), Retention(episodes_days=1)).sweep()
    assert left(world)["episodes"] == {"c1:3"}
    await world.run((a_closed_episode(4),))
    await Sweep(world, NOON + DAY + timedelta(minutes=9), Retention(episodes_days=1)).sweep()
    assert (left(world)["episodes"], left(world)["conversations"]) == ({"c1:4"}, {"c1": 1})
    assert left(world)["rows"] == [4]


@given(at=st.integers(1, 60), after=st.booleans(), fault=st.sampled_from([crash, outage]))
async def test_crash_during_expiry_leaves_no_dangling_reference(at: int, after: bool, fault: Any) -> None:
    world = await a_world()
    with suppress(Crash, StoreUnavailable):
        await Sweep(world, NOON + 2 * DAY, faults=Faults(at, after, fault)).sweep()
    await Sweep(world, NOON + 2 * DAY).sweep()
    assert left(world) == NOTHING


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("at", range(1, 20))
async def test_crash_in_a_removal_is_repeated_to_the_end(at: int, late: bool) -> None:
    world = await a_world()
    request = request_for(world.episodes.episodes["c1:2"], NOON, expired=True)
    fields = {"retention": BOTH, "clock": lambda: NOON + 2 * DAY}
    with suppress(Crash):
        await world.reconciler(Faults(at, late, crash), **fields).handle(request, a_cause(50))
    world.topic.published.clear()
    await world.reconciler(**fields).handle(request, a_cause(50))
    assert [event.event_id for event in world.topic.events] == ["c1:2:2"]
    assert left(world)["episodes"] == left(world)["points"] == {"c1:1", "c1:3"}
    assert left(world)["rows"] == [1, 3]
    assert left(world)["conversations"] == {"c1": 2}


async def test_outage_postpones_the_sweep() -> None:
    world = await a_world()
    short = Retention(messages_days=1e-6, episodes_days=1e-6)
    assert interval_seconds(short) == 0.5
    running = asyncio.create_task(Sweep(world, NOON + DAY, short, Faults(2, False, outage)).run())
    async with asyncio.timeout(60):
        while left(world) != NOTHING:  # noqa: ASYNC110 – a store in memory sets no event
            await asyncio.sleep(0.01)
    running.cancel()
    crashing = asyncio.create_task(Sweep(await a_world(), NOON + DAY, short, Faults(1, False, crash)).run())
    with pytest.raises(Crash):
        await crashing


def test_sweep_interval_is_ten_minutes_for_long_retention() -> None:
    assert interval_seconds(Retention(messages_days=30)) == 600


# Changes of what has expired


async def with_expired_messages() -> World:
    """m0 m1 m2 of the first episode have expired in the archive, and m3, which the second one begins with."""
    world = await a_world()
    await world.messages.expire(NOON + timedelta(minutes=3, seconds=30), 100)
    assert "c1:m3:t1" not in world.messages.messages
    return world


@pytest.mark.parametrize("message_id", ["m1", "m4"])
async def test_edit_of_an_episode_with_expired_messages_is_refused(message_id: str) -> None:
    world = await with_expired_messages()
    before = world.state
    with pytest.raises(InvalidRecord) as refused:
        await amend(world, edit(message_id))
    assert refused.value.error_type == "expired"
    assert world.state[:3] == before[:3]
    assert world.topic.events == []


async def test_edit_without_effect_is_accepted_after_expiry() -> None:
    world = await with_expired_messages()
    before = world.state
    await amend(world, edit("m4", content=CLOSED[1].messages[1].content))
    assert (world.state[:3], world.topic.events) == (before[:3], [])


@pytest.mark.parametrize("change", [delete("m1"), delete("m4"), skip(4)], ids=["expired", "sibling", "skipped"])
async def test_deletion_takes_episodes_that_cannot_be_remade(change: Any) -> None:
    world = await with_expired_messages()
    await amend(world, change)
    ended = {event.episode_id for event in world.topic.events if isinstance(event, SummaryDeleted)}
    ordinal = 1 if change.id == "m1" else 2
    assert f"c1:{ordinal}" in ended
    assert isinstance(world.episodes.deleted.get(f"c1:{ordinal}"), DeletedEpisode)
    assert f"c1:{ordinal}" not in world.index.points
    assert not any(change.id in e.summary.message_ids for e in world.episodes.episodes.values())
    assert not any(change.id in dict(e.inputs) for e in world.episodes.episodes.values())
    before, asked = world.state, len(world.provider.requests)
    await amend(world, change)
    assert world.state == before
    assert len(world.provider.requests) == asked
