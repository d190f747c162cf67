import asyncio
import copy
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import EpisodeClosed, SummaryCreated, fingerprint
from afterword.schemas.ids import message_key
from afterword.streams.errors import EpisodeConflict, ProviderMisconfigured, ProviderUnavailable
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import RollingRow, StoredEpisode
from afterword.streams.summarizer.revisions import compression
from afterword.streams.summarizer.summarizer import Summarizer, waited_for
from afterword.streams.tokens import count_tokens
from tests.doubles.stores import MemoryEpisodes
from tests.samples import NOON, a_closed_episode, a_stored_episode, an_episode_message
from tests.summarizer_world import (
    EPISODES,
    Crash,
    Fault,
    Faults,
    RecordedReadiness,
    Slowly,
    Worded,
    World,
    a_step_runner,
    cancelled,
    crash,
    outage,
)


async def undisturbed() -> Any:
    world = World()
    await world.run(EPISODES)
    return world.state


async def test_an_episode_ends_in_every_store_and_on_the_topic() -> None:
    world, episode = World(), EPISODES[0]
    summary = await world.pipeline().process(episode)
    stored = world.episodes.episodes["c1:1"]
    fields = {"last_offset": 2, "participants": ("u1",), "built_on": ()}
    assert stored == StoredEpisode(summary, episode.fingerprint, "trigger", (), **fields)
    assert world.topic.events == [summary]
    assert world.messages.episode_ids == dict.fromkeys([message_key("c1", f"m{n}", "t1") for n in range(3)], "c1:1")
    assert world.index.points["c1:1"].raw_text == "Text of m0.\nText of m1.\nText of m2."
    assert world.index.points["c1:1"].vectors
    conversation = await world.episodes.conversation("c1")
    assert conversation is not None
    assert (conversation.title, conversation.message_count, conversation.last_ordinal) == (summary.title, 3, 1)
    row = await world.episodes.latest_row("c1")
    assert row is not None
    assert (row.content, row.last_ordinal) == (summary.rolling_summary, 1)


async def test_the_event_says_what_the_episode_says() -> None:
    episode = a_closed_episode(2, agent_id="a1", revision=3)
    summary = await World().pipeline().process(episode)
    shared = set(SummaryCreated.model_fields) & set(EpisodeClosed.model_fields)
    assert {name: getattr(summary, name) for name in shared} == {name: getattr(episode, name) for name in shared}
    assert summary.event_id == "c1:2:3"
    assert summary.message_ids == ("m3", "m4", "m5")
    assert summary.created_at == NOON + timedelta(hours=1)
    assert summary.compression.tokens_before == 100
    assert summary.compression.tokens_after == count_tokens(summary.long_summary)
    assert summary.compression.ratio == pytest.approx(1 - count_tokens(summary.long_summary) / 100)
    assert (summary.compression.events_before, summary.compression.events_after) == (3, 1)


def test_an_episode_without_text_is_not_compressed() -> None:
    assert compression(a_closed_episode(token_count=0), 7).ratio == 0.0


async def test_overlap_is_noted_but_never_counted_assigned_or_indexed() -> None:
    world = World()
    await world.pipeline().process(EPISODES[1])
    assert world.episodes.episodes["c1:2"].overlap_ids == ("m1", "m2")
    assert set(world.messages.episode_ids) == {"c1:m3:t1", "c1:m4:t1", "c1:m5:t1"}
    assert "m2" not in world.index.points["c1:2"].raw_text


async def test_each_episode_is_told_what_was_said_before() -> None:
    world = World()
    await world.run(EPISODES)
    previous = [request.previous_rolling for request in world.provider.requests]
    rolling = [world.episodes.episodes[f"c1:{n}"].summary.rolling_summary for n in (1, 2)]
    assert previous == ["", *rolling]


async def test_a_stored_episode_is_announced_again_without_asking_the_llm() -> None:
    world = World()
    first = await world.pipeline().process(EPISODES[0])
    state = world.state
    assert await world.pipeline().process(EPISODES[0]) == first
    assert len(world.provider.requests) == 1
    assert world.topic.events == [first, first]
    assert world.state == state


async def test_the_same_revision_of_other_messages_is_a_conflict() -> None:
    world = World()
    await world.pipeline().process(EPISODES[0])
    state = world.state
    with pytest.raises(EpisodeConflict):
        await world.pipeline().process(EPISODES[0].model_copy(update={"fingerprint": "other"}))
    assert world.state == state


async def test_a_conflict_is_seen_also_when_the_other_one_was_faster() -> None:
    world = World()

    class Overtaken(MemoryEpisodes):
        async def add(self, episode: StoredEpisode) -> StoredEpisode:
            return a_stored_episode(fingerprint="other")

    with pytest.raises(EpisodeConflict):
        await world.pipeline(episodes=Overtaken()).process(EPISODES[0])
    assert world.topic.events == []


async def test_a_row_that_another_writer_changed_meanwhile_is_decided_again() -> None:
    class Overtaken(MemoryEpisodes):
        lost = False

        async def put_row(self, row: RollingRow, after: RollingRow | None) -> bool:
            if not self.lost:
                self.lost = True
                return False
            return await super().put_row(row, after)

    episodes = Overtaken()
    summary = await World().pipeline(episodes=episodes).process(EPISODES[0])
    assert [row.content for row in episodes.rows["c1"]] == [summary.rolling_summary]


async def test_a_higher_revision_replaces_the_summary_and_counts_nothing_twice() -> None:
    world = World()
    await world.run(EPISODES)
    rows, conversations = world.episodes.rows, world.episodes.known
    before = copy.deepcopy((rows, conversations))
    again = EPISODES[1].model_copy(update={"revision": 2, "fingerprint": "edited"})
    summary = await world.pipeline().process(again)
    assert world.topic.events[-1].event_id == "c1:2:2"
    assert world.episodes.episodes["c1:2"].summary == world.index.points["c1:2"].summary == summary
    assert (rows, conversations) == before
    assert world.provider.requests[-1].previous_rolling == world.episodes.episodes["c1:1"].summary.rolling_summary


async def test_a_revision_that_comes_late_changes_nothing() -> None:
    world = World()
    edited = (an_episode_message("m0", content="Edited."), *EPISODES[0].messages[1:])
    current = EPISODES[0].model_copy(update={"revision": 2, "messages": edited, "fingerprint": fingerprint(edited)})
    await world.pipeline().process(current)
    state = world.state
    assert (await world.pipeline().process(EPISODES[0])).revision == 2
    assert world.state == state
    assert len(world.provider.requests) == 1


@pytest.mark.parametrize("outage", [ProviderUnavailable(problem="away"), ProviderMisconfigured(problem="no key")])
async def test_an_llm_that_is_away_is_waited_for_when_that_is_set_and_nothing_is_stored_meanwhile(
    outage: ProviderUnavailable,
) -> None:
    world = World()
    world.provider.outage = outage
    settings = Settings.model_validate({"summarizer": {"on_llm_outage": "wait"}})
    summarizer = Summarizer(world.provider, waits=waited_for(settings))
    readiness, stored = RecordedReadiness(), list[Any]()

    def back_at_the_third_time(failures: int, _: Exception) -> float:
        stored.append(copy.copy(world.episodes.episodes))
        if failures == 3:
            world.provider.outage = None
        return 0.0

    pipeline = world.pipeline(summarizer=summarizer, steps=a_step_runner(readiness, back_at_the_third_time))
    await pipeline.process(EPISODES[0])
    assert stored == [{}, {}, {}]
    assert readiness.calls == [("not_ready", "summarize", outage.error_type)] * 3 + [("ready", "summarize")]
    assert [event.quality.source for event in world.topic.events] == ["llm"]


async def count_calls() -> int:
    faults = Faults(0, after=False, fault=crash)
    await World().run(EPISODES, faults)
    return faults.calls


@pytest.mark.parametrize("after", [False, True], ids=["before the effect", "after the effect"])
@pytest.mark.parametrize("fault", [crash, cancelled])
async def test_a_crash_at_any_call_leaves_nothing_undone_or_done_twice(fault: Fault, after: bool) -> None:
    expected = await undisturbed()
    for at in range(1, await count_calls() + 1):
        world, faults = World(), Faults(at, after, fault)
        with pytest.raises((Crash, asyncio.CancelledError)):
            await world.run(EPISODES, faults)
        assert faults.struck
        await world.run(EPISODES)
        assert world.state == expected, f"crash at call {at}"
        assert all(len(contents) == 1 for contents in world.contents_by_event_id().values())


@pytest.mark.parametrize("after", [False, True], ids=["before the effect", "after the effect"])
async def test_an_outage_at_any_call_is_waited_out(after: bool) -> None:
    expected = await undisturbed()
    for at in range(1, await count_calls() + 1):
        world, faults = World(), Faults(at, after, outage)
        await world.run(EPISODES, faults)
        assert faults.struck
        assert world.state == expected, f"outage at call {at}"


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=8))
async def test_any_series_of_crashes_ends_like_an_undisturbed_run(crashes: list[tuple[int, bool]]) -> None:
    world = World()
    for at, after in crashes:
        try:
            await world.run(EPISODES, Faults(at, after, crash))
        except Crash:
            continue
    await world.run(EPISODES)
    assert world.state == await undisturbed()
    assert all(len(contents) == 1 for contents in world.contents_by_event_id().values())


TURNS = st.lists(st.integers(0, 6), max_size=60)


@given(TURNS, TURNS)
async def test_two_workers_on_the_same_episodes_store_and_say_the_same(first: list[int], second: list[int]) -> None:
    world = World()

    async def work(name: str, turns: list[int], hours: int) -> None:
        slowly = Slowly(turns)
        pipeline = world.pipeline(
            episodes=slowly.around(world.episodes),
            messages=slowly.around(world.messages),
            index=slowly.around(world.index),
            provider=slowly.around(Worded(name)),
            publish=slowly.around_call(world.topic.publish),
            clock=lambda: NOON + timedelta(hours=hours),
        )
        for episode in EPISODES:
            await pipeline.process(episode)

    await asyncio.gather(work("one", first, 1), work("two", second, 2))
    assert {event_id: len(contents) for event_id, contents in world.contents_by_event_id().items()} == dict.fromkeys(
        ("c1:1:1", "c1:2:1", "c1:3:1"), 1
    )
    stored = {key: episode.summary for key, episode in world.episodes.episodes.items()}
    assert {event.episode_id: event for event in world.topic.events} == stored
    assert {key: point.summary for key, point in world.index.points.items()} == stored
    conversation = world.episodes.known["c1"]
    assert (conversation.episode_count, conversation.message_count, conversation.title) == (3, 9, stored["c1:3"].title)
    row = world.episodes.rows["c1"][-1]
    assert (row.last_ordinal, row.content) == (3, stored["c1:3"].rolling_summary)
