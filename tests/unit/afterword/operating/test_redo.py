"""Redoing summaries: which are marked as due, and in which order."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from afterword.operating.redo import redo
from afterword.schemas import Quality
from afterword.streams.settings import load_settings
from afterword.streams.stores.episodes import StoredEpisode
from afterword.streams.stores.opening import open_stores
from afterword.streams.summarizer.providers import Maker
from afterword.streams.summarizer.timers import UNUSABLE_ANSWERS, RedoCounts, mark_as_due, request_for, was_refused
from tests.doubles.stores import MemoryEpisodes
from tests.samples import NOON, a_stored_episode

TODAY = Maker("new-model", "episodic-2")
END_OF_TIME = datetime.max.replace(tzinfo=NOON.tzinfo)


def stored(conversation: str, ordinal: int, **fields: Any) -> StoredEpisode:
    name = f"{conversation}:{ordinal}"
    names = {"conversation_id": conversation, "episode_id": name, "event_id": f"{name}:1", "tenant_id": None}
    return a_stored_episode(ordinal, **names | {"model": "old", "prompt_version": "episodic-1"} | fields)


def world(*episodes: StoredEpisode) -> MemoryEpisodes:
    found = MemoryEpisodes()
    for episode in episodes:
        found.episodes[episode.summary.episode_id] = episode
    return found


async def marked(
    episodes: MemoryEpisodes,
    since: datetime | None = None,
    conversation_id: str | None = None,
    limit: int | None = None,
) -> RedoCounts:
    return await mark_as_due(episodes, TODAY, since, conversation_id, limit)


async def due(episodes: MemoryEpisodes) -> list[str]:
    return [one.summary.episode_id for one in await episodes.due(END_OF_TIME, 100)]


async def test_summaries_of_other_prompts_or_models_are_due() -> None:
    today = {"model": TODAY.model, "prompt_version": TODAY.prompt_version}
    other_model, other_prompt = (stored("a", n) for n in (10, 2)), stored("b", 1, model=TODAY.model)
    known = world(*other_model, stored("a", 3, **today), other_prompt)
    counts = await marked(known)
    assert (counts.summaries, counts.waiting) == (3, 3)
    assert counts.by_maker == {Maker("old", "episodic-1"): 2, Maker(TODAY.model, "episodic-1"): 1}
    assert await due(known) == ["b:1", "a:2", "a:10"]


async def test_refused_selects_summaries_whose_prompt_was_refused() -> None:
    reasons = {1: "prompt_refused", 2: "provider_unavailable"}
    fallbacks = (stored("a", n, quality=Quality(source="fallback", reason=reason)) for n, reason in reasons.items())
    known = world(*fallbacks, stored("a", 3))
    assert (await mark_as_due(known, TODAY, None, None, None, was_refused)).waiting == 1
    assert await due(known) == ["a:1"]


async def test_limit_skips_waiting_summaries_and_zero_only_counts() -> None:
    known = world(*(stored("a", n) for n in range(1, 6)))
    assert (await marked(known, limit=0)).waiting == len(await due(known)) == 0
    for waiting in (2, 4, 5, 5):
        counts = await marked(known, limit=2)
        assert (counts.summaries, counts.waiting) == (5, waiting)
    assert len(await due(known)) == 5


async def test_filters_must_all_match() -> None:
    fallback = {"quality": Quality(source="fallback", reason="provider_unavailable")}
    episodes = (stored("a", 1), stored("a", 2, **fallback), stored("b", 1, **fallback))
    overnight = stored("b", 3, ended_at=NOON + timedelta(days=1), prompt_version=None)
    known = world(*episodes, overnight, stored("b", 2, started_at=NOON + timedelta(days=1), prompt_version=None))
    assert (await marked(known, limit=0)).summaries == 5
    assert (await marked(known, since=NOON + timedelta(hours=12), conversation_id="a")).summaries == 0
    await marked(known, since=NOON + timedelta(hours=12))
    assert await due(known) == ["b:2"]
    await marked(known, conversation_id="b")
    assert set(await due(known)) == {"b:1", "b:2", "b:3"}


async def test_abandoned_episode_is_retried_and_a_waiting_one_unchanged() -> None:
    given_up = replace(stored("a", 1), unusable=UNUSABLE_ANSWERS, attempt=3)
    waits = replace(stored("a", 2), due_at=NOON)
    known = world(given_up, waits)
    assert (await marked(known)).waiting == 2
    assert (known.episodes["a:1"].unusable, known.episodes["a:1"].attempt) == (0, 3)
    assert known.episodes["a:2"] == waits


async def test_summary_changed_meanwhile_is_left_to_another_run() -> None:
    known = world(stored("a", 1))
    put = known.put

    async def put_late(episode: Any, before: Any) -> bool:
        known.put = put  # type: ignore[method-assign]
        revised = replace(before, summary=before.summary.model_copy(update={"revision": 2}))
        return await put(revised, before) and await put(episode, before)

    known.put = put_late  # type: ignore[method-assign]
    assert (await marked(known)).waiting == 0
    assert known.episodes["a:1"].summary.revision == 2
    assert (await marked(known)).waiting == 1


async def test_summary_with_expired_messages_is_left_out(tmp_path: Path) -> None:
    settings = load_settings(
        sqlite={"path": tmp_path / "stores.sqlite"},
        llm={"provider": "openai", "model": TODAY.model},
        retention={"messages_days": 1},
    )
    async with open_stores(settings) as stores:
        for episode in (stored("a", 1), stored("a", 2, started_at=datetime.now(NOON.tzinfo))):
            await stores.episodes.put(episode, None)
    assert (await redo(settings, None, None, 0)).summaries == 1


def test_request_names_the_episode_and_its_revision() -> None:
    asked = request_for(stored("a", 1, tenant_id="t"), NOON)
    assert (asked.conversation_id, asked.tenant_id, asked.episode_id, asked.revision) == ("a", "t", "a:1", 1)
