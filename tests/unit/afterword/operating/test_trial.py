"""Trials of a prompt: which episodes are chosen, what the candidate is asked, and when it is worse."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from afterword.operating.redo import Comparison, NothingToCompare, candidate_settings, sample, summarize_again
from afterword.schemas import MessageCreated, Quality, Usage
from afterword.streams.errors import ConfigurationError, ProviderUnavailable
from afterword.streams.settings import Llm, QualitySettings, Settings
from afterword.streams.stores.episodes import StoredEpisode
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.summarizer.providers import Maker, maker_of
from afterword.streams.summarizer.summarizer import Summarizer, SummaryCheck
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from tests.doubles.provider import ScriptedProvider
from tests.doubles.stores import MemoryEpisodes, MemoryMessages
from tests.samples import NOON, a_stored_episode, some_calls
from tests.summarizer_world import METRICS

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


def stored(number: int, **fields: Any) -> StoredEpisode:
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
        found = await tried(provider, *(stored(n) for n in range(4)))
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
    found = await tried(provider, *(stored(n) for n in range(4)))
    assert found.is_worse
    assert found.trials[0].episode_id == "c2:1"
    assert found.trials[0].candidate.refused == "off_topic"
    assert found.measures["refused"] == (0, 0.25)
    assert found.measures["tokens of prompts"][1] == (3 * 200 + 2 * 200) / 4, "a refused one is asked for twice"


async def test_candidate_beats_what_the_gate_refuses_today() -> None:
    found = await tried(Candidate(GOOD), stored(1, **INVENTED), stored(2))
    assert found.measures["refused"] == (0.5, 0)
    before, after = found.measures["grounding"]
    assert before < after
    assert not found.is_worse


async def test_absent_llm_gives_no_verdict() -> None:
    provider = Candidate(GOOD)
    provider.outage = ProviderUnavailable(problem="away")
    with pytest.raises(ProviderUnavailable):
        await tried(provider, stored(1))


async def test_unarchived_episodes_are_left_out() -> None:
    known, messages = await a_world(stored(1), stored(2))
    del messages.messages["c1:m1"]
    found = await compared(known, messages, Candidate(GOOD))
    assert [one.episode_id for one in found.trials] == ["c2:1"]
    assert found.left_out == 1
    messages.messages.clear()
    with pytest.raises(NothingToCompare):
        await compared(known, messages, Candidate(GOOD))


async def test_sample_repeats_and_has_llm_summaries_only() -> None:
    fallback = Quality(source="fallback", reason="provider_unavailable")
    known, _ = await a_world(*(stored(n) for n in range(40)), *(stored(n, quality=fallback) for n in range(40, 60)))

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
