"""Redoing summaries: which are marked as due, and trials of a prompt on what was said."""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from afterword.operating.redo import Comparison, NothingToCompare, candidate_settings, redo, sample, summarize_again
from afterword.schemas import MessageCreated, Quality, Usage
from afterword.streams.errors import ConfigurationError, ProviderUnavailable
from afterword.streams.settings import Llm, QualitySettings, Settings, load_settings
from afterword.streams.stores.episodes import StoredEpisode
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.stores.opening import open_stores
from afterword.streams.summarizer.providers import Maker, maker_of
from afterword.streams.summarizer.summarizer import Summarizer, SummaryCheck
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from afterword.streams.summarizer.timers import UNUSABLE_ANSWERS, RedoCounts, mark_as_due, request_for, was_refused
from tests.doubles.provider import ScriptedProvider
from tests.doubles.stores import MemoryEpisodes, MemoryMessages
from tests.samples import NOON, a_stored_episode, some_calls
from tests.summarizer_world import METRICS

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


CANDIDATE = Maker("new-model", "episodic-2")
SAID = ("Please cancel order 4711, it has not arrived.", "Order 4711 is cancelled. The refund takes three days.")
GOOD = {
    "title": "Cancelled order",
    "short_summary": "The user cancelled order 4711.",
    "long_summary": "The user asked to cancel order 4711, as it had not arrived. The assistant cancelled the order. "
    "The refund takes three days.",
    "rolling_summary": "The user cancelled order 4711 and waits for the refund.",
}
INVENTED = {
    **GOOD,
    "long_summary": "The user ordered 9999 bicycles in Paris. The assistant paid 500 euros to Mr Smith.",
}


class Candidate(ScriptedProvider):
    """Answers with the same texts each time."""

    def __init__(self, texts: dict[str, str]) -> None:
        super().__init__()
        self._texts = texts

    def _answer(self, request: SummaryRequest) -> Summary:
        made = {"model": CANDIDATE.model, "prompt_version": CANDIDATE.prompt_version, "quality": Quality(source="llm")}
        return Summary(**self._texts, **made, calls=some_calls(Usage(prompt_tokens=200, completion_tokens=50)))


class InPairs(Candidate):
    """Begins to answer when two are asking."""

    def __init__(self, texts: dict[str, str]) -> None:
        super().__init__(texts)
        self._both = asyncio.Barrier(2)

    async def summarize(self, request: SummaryRequest) -> Summary:
        await self._both.wait()
        return await super().summarize(request)


def summarized(number: int, **fields: Any) -> StoredEpisode:
    names = {"episode_id": f"c{number}:1", "event_id": f"c{number}:1:1", "conversation_id": f"c{number}"}
    ids = {"tenant_id": None, "message_ids": ("m0", "m1"), "message_count": 2, "quality": Quality(source="llm")}
    made = {"model": "old", "prompt_version": "episodic-1", "usage": Usage(prompt_tokens=100, completion_tokens=40)}
    texts = {name: text for name, text in GOOD.items() if name != "rolling_summary"}
    return a_stored_episode(**{"overlap_ids": ()} | names | ids | texts | made | fields)


async def a_world(*episodes: StoredEpisode) -> tuple[MemoryEpisodes, MemoryMessages]:
    known, messages = MemoryEpisodes(), MemoryMessages()
    for episode in episodes:
        known.episodes[episode.summary.episode_id] = episode
        for n, content in enumerate(SAID):
            named = {"conversation_id": episode.summary.conversation_id, "user_id": "u", "content": content}
            message = MessageCreated(id=f"m{n}", role="assistant" if n else "user", sent_at=NOON, **named)
            await messages.put_many([ArchivedMessage(message, 0, n)])
    return known, messages


async def tried(provider: ScriptedProvider, *episodes: StoredEpisode) -> Comparison:
    return await compared(*await a_world(*episodes), provider)


async def compared(known: MemoryEpisodes, messages: MemoryMessages, provider: ScriptedProvider) -> Comparison:
    settings = Settings(llm=Llm(provider="openai", model=CANDIDATE.model, max_concurrency=2))
    summarizer = Summarizer(provider, check=SummaryCheck(QualitySettings(), METRICS))
    chosen = list(known.episodes.values())
    return await summarize_again(settings, known, messages, summarizer, chosen, lambda _: None)


async def test_both_prompts_summarize_the_same_messages_under_one_gate() -> None:
    provider = InPairs({**GOOD, "long_summary": GOOD["long_summary"].removesuffix(" The refund takes three days.")})
    async with asyncio.timeout(60):
        found = await tried(provider, *(summarized(n) for n in range(4)))
    assert [message.content for message in provider.requests[0].episode.messages] == list(SAID)
    assert provider.most_running == 2
    assert {(one.stored.model, one.candidate.model) for one in found.trials} == {("old", CANDIDATE.model)}
    measures = found.measures
    assert (measures["refused"], measures["grounding"]) == ((0, 0), (1.0, 1.0))
    before, after = measures["tokens of long summaries"]
    assert after < before
    assert (measures["tokens of prompts"], measures["tokens of answers"]) == ((100, 200), (40, 50))
    assert not found.is_worse


async def test_candidate_that_invents_is_worse_with_worst_trial_first() -> None:
    provider = Candidate(GOOD)
    answer = provider._answer
    provider._answer = lambda r: (  # type: ignore[method-assign] – one conversation is told wrongly
        replace(answer(r), **INVENTED) if r.episode.conversation_id == "c2" else answer(r)
    )
    found = await tried(provider, *(summarized(n) for n in range(4)))
    assert found.is_worse
    assert found.trials[0].episode_id == "c2:1"
    assert found.trials[0].candidate.refused == "off_topic"
    assert found.measures["refused"] == (0, 0.25)
    assert found.measures["tokens of prompts"][1] == (3 * 200 + 2 * 200) / 4, "a refused one is asked for twice"


async def test_candidate_beats_what_the_gate_refuses_today() -> None:
    found = await tried(Candidate(GOOD), summarized(1, **INVENTED), summarized(2))
    assert found.measures["refused"] == (0.5, 0)
    before, after = found.measures["grounding"]
    assert before < after
    assert not found.is_worse


async def test_absent_llm_gives_no_verdict() -> None:
    provider = Candidate(GOOD)
    provider.outage = ProviderUnavailable(problem="away")
    with pytest.raises(ProviderUnavailable):
        await tried(provider, summarized(1))


async def test_unarchived_episodes_are_left_out() -> None:
    known, messages = await a_world(summarized(1), summarized(2))
    del messages.messages["c1:m1"]
    found = await compared(known, messages, Candidate(GOOD))
    assert [one.episode_id for one in found.trials] == ["c2:1"]
    assert found.left_out == 1
    messages.messages.clear()
    with pytest.raises(NothingToCompare):
        await compared(known, messages, Candidate(GOOD))


async def test_sample_repeats_and_has_llm_summaries_only() -> None:
    fallback = Quality(source="fallback", reason="provider_unavailable")
    known, _ = await a_world(
        *(summarized(n) for n in range(40)), *(summarized(n, quality=fallback) for n in range(40, 60))
    )

    async def chosen(size: int) -> list[str]:
        return [episode.summary.episode_id for episode in await sample(known, size)]

    first = await chosen(10)
    assert len(set(first)) == 10
    assert first == await chosen(10)
    assert set(first) < set(await chosen(1000)) == {f"c{n}:1" for n in range(40)}


def test_candidate_uses_prompt_and_model_without_budget(tmp_path: Path) -> None:
    settings = Settings(llm=Llm(provider="openai", model="m"), budget={"tokens_per_hour": 5})  # type: ignore[arg-type]
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Tell it.\n{conversation_text}")
    candidate = candidate_settings(settings, prompt, "m2")
    assert maker_of(candidate).model == "m2"
    assert maker_of(candidate).prompt_version != maker_of(settings).prompt_version
    assert candidate.budget.limited is False
    assert maker_of(candidate_settings(settings, None, None)) == maker_of(settings)
    prompt.write_text("Tell it.")
    wrong = [(settings, prompt, None), (settings, tmp_path / "absent.txt", None), (Settings(), None, "m2")]
    for given, said in zip(wrong, ("conversation_text", "No such file", "no LLM"), strict=True):
        with pytest.raises(ConfigurationError, match=said):
            candidate_settings(*given)
