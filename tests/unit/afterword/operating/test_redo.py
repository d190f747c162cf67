"""Redoing summaries: which, how many at a time, and until when."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from afterword.operating.redo import MARKED_AT_ONCE, Redo, RedoCounts, RedoStalled, wanted_episodes
from afterword.schemas import MessageCreated, Quality
from afterword.streams.stores.episodes import StoredEpisode
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.summarizer.providers import Maker
from afterword.streams.summarizer.timers import UNUSABLE_ANSWERS, request_for
from distributions.engine.tests.simulation.virtual_time import run_in_virtual_time
from tests.doubles.stores import MemoryEpisodes, MemoryMessages
from tests.samples import NOON, a_stored_episode

TODAY = Maker("new-model", "episodic-2")
Outcome = Callable[[StoredEpisode], bool]
"""Says whether the LLM's answer for an episode is usable."""


def stored(conversation: str, ordinal: int, **fields: Any) -> StoredEpisode:
    episode_id = f"{conversation}:{ordinal}"
    given = {
        "conversation_id": conversation,
        "episode_id": episode_id,
        "event_id": f"{episode_id}:1",
        "tenant_id": None,
    }
    ids = {"message_ids": (f"m{ordinal}",), "message_count": 1, "model": "old", "overlap_ids": ()}
    return a_stored_episode(ordinal, **given | ids | {"prompt_version": "episodic-1"} | fields)


class World:
    """Stores, and summarizers whose timers handle two due summaries per second."""

    def __init__(self, *episodes: StoredEpisode, makes: Outcome = lambda _: True) -> None:
        self.episodes, self.messages = MemoryEpisodes(), MemoryMessages()
        self.makes = makes
        self.asked: list[str] = []
        for episode in episodes:
            self.episodes.episodes[episode.summary.episode_id] = episode

    async def archive(self) -> None:
        for episode in self.episodes.episodes.values():
            summary = episode.summary
            named = {"conversation_id": summary.conversation_id, "user_id": "u", "role": "user", "content": "Text."}
            message = MessageCreated(id=f"m{summary.ordinal}", sent_at=NOON, **named)
            await self.messages.put_many([ArchivedMessage(message, 0, summary.ordinal)])

    @property
    def due(self) -> list[StoredEpisode]:
        found = [one for one in self.episodes.episodes.values() if one.due_at is not None]
        return sorted(found, key=lambda one: (one.due_at, one.summary.episode_id))

    async def summarize(self) -> None:
        while True:
            await asyncio.sleep(1)
            for stored in self.due[:2]:
                self.asked.append(stored.summary.episode_id)
                made = {"model": TODAY.model, "prompt_version": TODAY.prompt_version}
                made |= {"revision": stored.summary.revision + 1}
                if self.makes(stored):
                    after = replace(stored, summary=stored.summary.model_copy(update=made), due_at=None)
                else:
                    unusable = stored.unusable + 1
                    due_at = stored.due_at if unusable < UNUSABLE_ANSWERS else None
                    after = replace(stored, attempt=stored.attempt + 1, unusable=unusable, due_at=due_at)
                assert await self.episodes.put(after, stored)

    def redo(self, progress: Any = lambda _: None, works: bool = True) -> RedoCounts:
        async def run() -> RedoCounts:
            working = asyncio.create_task(self.summarize()) if works else None
            try:
                work = Redo(self.episodes, self.messages, TODAY, progress)
                return await work.run([one.summary.episode_id async for one in wanted_episodes(self.episodes, TODAY)])
            finally:
                if working:
                    working.cancel()

        return run_in_virtual_time(run())


async def a_world(*episodes: StoredEpisode, makes: Outcome = lambda _: True) -> World:
    world = World(*episodes, makes=makes)
    await world.archive()
    return world


def archived(*episodes: StoredEpisode, makes: Outcome = lambda _: True) -> World:
    return run_in_virtual_time(a_world(*episodes, makes=makes))


def test_every_summary_of_another_prompt_or_model_is_redone() -> None:
    today = {"model": TODAY.model, "prompt_version": TODAY.prompt_version}
    done = stored("a", 3, **today)
    world = archived(*(stored("a", n) for n in (10, 2, 1)), done, stored("b", 1, model=TODAY.model))
    assert world.redo() == RedoCounts(redone=4)
    assert sorted(world.asked) == ["a:1", "a:10", "a:2", "b:1"]


def test_a_run_that_is_stopped_leaves_few_to_be_redone_and_another_continues() -> None:
    total = 3 * MARKED_AT_ONCE
    world = archived(*(stored("a", n) for n in range(1, total + 1)))
    with pytest.raises(KeyboardInterrupt):
        world.redo(progress=lambda counts: interrupt(counts.redone >= 2))
    assert len(world.due) <= MARKED_AT_ONCE
    before = len(world.asked)
    assert 0 < before < total
    assert world.redo().redone == total - before
    assert sorted(world.asked) == sorted(f"a:{n}" for n in range(1, total + 1))


def interrupt(now: bool) -> None:
    if now:
        raise KeyboardInterrupt


async def test_filters_must_all_match() -> None:
    fallback = {"quality": Quality(source="fallback", reason="provider_unavailable")}
    episodes = (stored("a", 1), stored("a", 2, **fallback), stored("b", 1, **fallback))
    later = stored("b", 2, ended_at=NOON + timedelta(days=1), prompt_version=None)
    world = World(*episodes, later)

    async def found(**fields: Any) -> list[str]:
        return [one.summary.episode_id async for one in wanted_episodes(world.episodes, TODAY, **fields)]

    assert await found(conversation_id="b") == ["b:1", "b:2"]
    assert await found(since=NOON + timedelta(hours=12)) == ["b:2"]
    assert len(await found()) == 4


def test_an_answer_that_can_never_be_used_is_given_up() -> None:
    world = archived(*(stored("a", n) for n in range(1, 7)), makes=lambda one: one.summary.episode_id != "a:3")
    assert world.redo() == RedoCounts(redone=5, kept=1)
    assert world.asked.count("a:3") == UNUSABLE_ANSWERS
    assert world.redo() == RedoCounts(kept=1), "another run tries again"
    assert world.asked.count("a:3") == 2 * UNUSABLE_ANSWERS


def test_it_gives_up_when_nothing_is_made_for_long() -> None:
    world = archived(stored("a", 1))
    with pytest.raises(RedoStalled, match="1 are waiting"):
        world.redo(works=False)


def test_what_is_not_in_the_archive_is_kept() -> None:
    world = archived(stored("a", 1), stored("a", 2))
    world.messages.messages.clear()
    assert world.redo() == RedoCounts(not_archived=2)
    assert world.due == []


def test_a_summary_that_got_another_revision_meanwhile_is_redone_with_that() -> None:
    world = archived(stored("a", 1))
    put = world.episodes.put

    async def put_late(episode: Any, before: Any) -> bool:
        world.episodes.put = put  # type: ignore[method-assign]
        revised = replace(before, summary=before.summary.model_copy(update={"revision": 2}))
        return await put(revised, before) and await put(episode, before)

    world.episodes.put = put_late  # type: ignore[method-assign]
    assert world.redo() == RedoCounts(redone=1)
    assert world.episodes.episodes["a:1"].summary.revision == 3


def test_a_request_names_the_episode_and_its_revision() -> None:
    asked = request_for(stored("a", 1, tenant_id="t"), NOON)
    assert (asked.conversation_id, asked.tenant_id, asked.episode_id, asked.revision) == ("a", "t", "a:1", 1)
