"""Announcement of a changed title."""

from dataclasses import replace
from typing import Any

from afterword.streams.summarizer.summary import SummaryRequest
from tests.doubles.provider import ScriptedProvider
from tests.samples import a_closed_episode
from tests.summarizer_world import Crash, Faults, World, crash

TITLES = ("A flight", "A flight", "A hotel", "A hotel", "A flight")
EPISODES = tuple(a_closed_episode(ordinal) for ordinal in range(1, 6))
CHANGES = [True, False, True, False, True]


class Titled(ScriptedProvider):
    async def summarize(self, request: SummaryRequest) -> Any:
        return replace(await super().summarize(request), title=TITLES[request.episode.ordinal - 1])


def changes(world: World) -> list[bool | None]:
    return [episode.summary.title_changed for episode in world.episodes.episodes.values()]


async def test_a_title_that_stays_is_not_announced_as_changed() -> None:
    world = World(provider=Titled())
    await world.run(EPISODES)
    assert [summary.title_changed for summary in world.topic.events] == changes(world) == CHANGES


async def test_a_crash_at_any_call_changes_nothing_of_that() -> None:
    at, struck = 0, True
    while struck:
        at += 1
        world, faults = World(provider=Titled()), Faults(at, after=at % 2 == 0, fault=crash)
        try:
            await world.run(EPISODES, faults)
        except Crash:
            await world.run(EPISODES)
        struck = faults.struck
        assert changes(world) == CHANGES
        assert all(len(contents) == 1 for contents in world.contents_by_event_id().values())


async def test_a_summary_that_is_made_again_later_on_changes_no_title() -> None:
    world = World(provider=Titled())
    await world.run(EPISODES)
    await world.run((EPISODES[2].model_copy(update={"revision": 2}),))
    assert world.topic.events[-1].title_changed is False
    conversation = await world.episodes.conversation("c1")
    assert conversation is not None
    assert conversation.title == "A flight"
