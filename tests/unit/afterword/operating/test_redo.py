"""Requests to redo summaries: which, in which order, how many at a time, and until when."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from afterword.operating.redo import Redo, RedoCounts, RedoStalled, Requests, Wanted, episodes_to_redo, planned
from afterword.schemas import EpisodeRedo, MessageCreated, Quality
from afterword.streams.kafka.log_reader import Position
from afterword.streams.settings import Retry
from afterword.streams.stores.episodes import StoredEpisode
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.summarizer.fallbacks import UNUSABLE_ANSWERS, request_for
from afterword.streams.summarizer.providers import Maker
from distributions.engine.tests.simulation.virtual_time import run_in_virtual_time
from tests.doubles.stores import MemoryEpisodes, MemoryMessages
from tests.samples import NOON, a_stored_episode

TODAY = Maker("new-model", "episodic-2")
RETRY = Retry(first_delay_seconds=30, longest_delay_seconds=900)
Outcome = Callable[[EpisodeRedo], bool]
"""Whether the summarizer makes the summary of a request."""


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


class World(Requests):
    """Stores, and a topic whose requests are handled when the group's offsets are read."""

    def __init__(self, *episodes: StoredEpisode, makes: Outcome = lambda _: True) -> None:
        self.episodes, self.messages = MemoryEpisodes(), MemoryMessages()
        self.makes = makes
        self.sent: list[EpisodeRedo] = []
        self.most_waiting = 0
        self.works = True
        self._handled = 0
        for episode in episodes:
            self.episodes.episodes[episode.summary.episode_id] = episode

    async def archive(self) -> None:
        for episode in self.episodes.episodes.values():
            summary = episode.summary
            named = {"conversation_id": summary.conversation_id, "user_id": "u", "role": "user", "content": "Text."}
            message = MessageCreated(id=f"m{summary.ordinal}", sent_at=NOON, **named)
            await self.messages.put_many([ArchivedMessage(message, 0, summary.ordinal)])

    async def send(self, redo: EpisodeRedo) -> Position:
        self.sent.append(redo)
        return Position(0, len(self.sent) - 1)

    async def handled_to(self) -> Mapping[int, int]:
        self.most_waiting = max(self.most_waiting, len(self.sent) - self._handled)
        while self.works and self._handled < len(self.sent):
            redo = self.sent[self._handled]
            self._handled += 1
            known = self.episodes.episodes[redo.episode_id]
            if self.makes(redo):
                made = {"model": TODAY.model, "prompt_version": TODAY.prompt_version, "revision": redo.revision + 1}
                self.episodes.episodes[redo.episode_id] = replace(known, summary=known.summary.model_copy(update=made))
        return {0: self._handled}

    def redo(self, progress: Any = lambda _: None) -> RedoCounts:
        async def run() -> RedoCounts:
            given = {"in_flight": 2, "give_up_seconds": 7200.0, "progress": progress}
            work = Redo(self.episodes, self.messages, self, TODAY, RETRY, **given)
            return await work.run(await episodes_to_redo(self.episodes, Wanted(), TODAY))

        return run_in_virtual_time(run())

    @property
    def asked(self) -> list[str]:
        return [redo.episode_id for redo in self.sent]


async def a_world(*episodes: StoredEpisode, makes: Outcome = lambda _: True) -> World:
    world = World(*episodes, makes=makes)
    await world.archive()
    return world


def archived(*episodes: StoredEpisode, makes: Outcome = lambda _: True) -> World:
    return run_in_virtual_time(a_world(*episodes, makes=makes))


def test_every_summary_of_another_prompt_or_model_is_asked_for_in_its_conversations_order() -> None:
    today = {"model": TODAY.model, "prompt_version": TODAY.prompt_version}
    done = stored("a", 3, **today)
    world = archived(*(stored("a", n) for n in (10, 2, 1)), done, stored("b", 1, model=TODAY.model))
    assert world.redo().as_dict() == {"redone": 4, "gone": 0, "not_archived": 0, "kept": 0}
    assert world.asked == ["a:1", "a:2", "a:10", "b:1"]
    assert (world.sent[0].revision, world.sent[0].model, world.sent[0].prompt_version) == (1, *TODAY)
    assert world.most_waiting <= 2


def test_another_run_asks_for_the_rest_only() -> None:
    world = archived(*(stored("a", n) for n in range(1, 7)))
    with pytest.raises(KeyboardInterrupt):
        world.redo(progress=lambda counts: interrupt(counts.redone >= 2))
    before = len(world.sent)
    done = world.redo()
    assert before < 6
    assert sorted(set(world.asked)) == [f"a:{n}" for n in range(1, 7)]
    assert done.redone == 6 - before


def interrupt(now: bool) -> None:
    if now:
        raise KeyboardInterrupt


async def test_filters_must_all_match() -> None:
    fallback = {"quality": Quality(source="fallback", reason="provider_unavailable")}
    episodes = (stored("a", 1), stored("a", 2, **fallback), stored("b", 1, **fallback))
    later = stored("b", 2, ended_at=NOON + timedelta(days=1), prompt_version=None)
    world = World(*episodes, later)

    async def found(**fields: Any) -> list[str]:
        return await episodes_to_redo(world.episodes, Wanted(**fields), TODAY)

    assert await found(conversation_id="b") == ["b:1", "b:2"]
    assert await found(since=NOON + timedelta(hours=12)) == ["b:2"]
    plan = await planned(world.episodes, Wanted(), TODAY)
    assert (plan.episodes, plan.by_maker) == (4, {Maker("old", "episodic-1"): 3, Maker("old", None): 1})


def test_while_nothing_is_made_it_pauses_longer_and_longer_and_goes_on_with_the_same() -> None:
    began: list[float] = []
    world = archived(*(stored("a", n) for n in range(1, 5)))
    world.makes = lambda _: len(world.sent) > 9
    done = world.redo(progress=lambda counts: began.append(counts.pause_seconds))
    assert (done.redone, done.kept) == (4, 0)
    assert max(began) > 60
    assert world.asked[:8] == ["a:1", "a:2"] * 4, "the others wait until the LLM answers again"


def test_an_answer_that_can_never_be_used_is_asked_for_three_times() -> None:
    world = archived(*(stored("a", n) for n in range(1, 7)), makes=lambda redo: redo.episode_id != "a:3")
    done = world.redo()
    assert (done.redone, done.kept) == (5, 1)
    assert world.asked.count("a:3") <= UNUSABLE_ANSWERS + 1


def test_it_gives_up_when_nothing_is_made_for_long() -> None:
    world = archived(stored("a", 1), makes=lambda _: False)
    with pytest.raises(RedoStalled):
        world.redo()
    world = archived(stored("a", 1))
    world.works = False
    with pytest.raises(RedoStalled, match="1 requests are waiting"):
        world.redo()


def test_what_is_not_in_the_archive_or_gone_is_not_asked_for() -> None:
    world = archived(stored("a", 1), stored("a", 2))
    world.messages.messages.clear()
    done = world.redo()
    assert (done.not_archived, world.sent) == (2, [])


def test_a_summary_that_got_another_revision_meanwhile_is_asked_for_with_that() -> None:
    world = archived(stored("a", 1), stored("a", 2))

    def makes(redo: EpisodeRedo) -> bool:
        known = world.episodes.episodes[redo.episode_id]
        if redo.revision == 1 and redo.episode_id == "a:1":  # as an amendment that came first
            amended = known.summary.model_copy(update={"revision": 2})
            world.episodes.episodes["a:1"] = replace(known, summary=amended)
            return False
        return True

    world.makes = makes
    assert world.redo().redone == 2
    assert [redo.revision for redo in world.sent if redo.episode_id == "a:1"] == [1, 2]


def test_a_request_names_episode_revision_prompt_and_model() -> None:
    asked = request_for(stored("a", 1, tenant_id="t"), TODAY, NOON)
    assert (asked.conversation_id, asked.tenant_id, asked.episode_id, asked.revision) == ("a", "t", "a:1", 1)
    assert (asked.model, asked.prompt_version) == TODAY
