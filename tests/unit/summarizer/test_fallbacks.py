"""Fallbacks: when and by whom the LLM is asked to replace them, and that this ends."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from afterword.schemas import EpisodeRedo
from afterword.schemas.summaries import Calls, Usage, total
from afterword.streams.errors import AnswerInvalid, PromptFailed, PromptRefused, ProviderUnavailable, StoreUnavailable
from afterword.streams.settings import Retry, Settings
from afterword.streams.stores.sqlite import SqliteFile, SqliteRecords
from afterword.streams.summarizer.providers import ExtractiveProvider
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.timers import (
    MOST_REQUESTED,
    UNUSABLE_ANSWERS,
    FallbackTimer,
    next_attempt,
    request_for,
    retry_refused,
)
from tests.samples import NOON, a_cause, a_closed_episode, some_calls
from tests.summarizer_world import World
from tests.unit.summarizer.test_amending import CLOSED, amend, announced, check, contents, delete, edit

RETRY = Retry(attempts=5, first_delay_seconds=10.0, longest_delay_seconds=40.0)
AWAY = ProviderUnavailable(problem="away")
UNUSABLE = AnswerInvalid(problem="no JSON")
REFUSED = PromptRefused(problem="filtered", calls=(Calls("m", "prompt_refused", Usage()),))
HOUR = timedelta(hours=1)


class Clock:
    def __init__(self) -> None:
        self.now = NOON + HOUR

    def __call__(self) -> datetime:
        return self.now


class Deployment(World):
    """One summarizer with its timer; requests are handled when asked."""

    def __init__(self, retry: Retry = RETRY) -> None:
        super().__init__()
        self.clock, self.retry, self.requests, self.offset = Clock(), retry, list[EpisodeRedo](), 1000
        self.timer = self.a_timer()

    def a_timer(self) -> FallbackTimer:
        llm: Any = Summarizer(self.provider)
        return FallbackTimer(self.episodes, llm, self._send, self.retry, self.clock)

    async def _send(self, redo: EpisodeRedo) -> None:
        self.requests.append(redo)

    def fields(self) -> dict[str, Any]:
        return {"summarizer": Summarizer(self.provider), "retry": self.retry, "clock": self.clock}

    async def close(self, *episodes: Any) -> None:
        await self.run(episodes, **self.fields())

    async def handle(self) -> None:
        for redo in self.requests:
            self.offset += 1
            await self.reconciler(**self.fields()).handle(redo, a_cause(self.offset))
        self.requests.clear()

    async def after(self, seconds: float) -> int:
        """Let time pass and the timer run; return the number of requests handled."""
        self.clock.now += timedelta(seconds=seconds)
        await self.timer.tick()
        made = len(self.requests)
        await self.handle()
        return made


async def test_due_fallback_is_announced_and_replaced() -> None:
    world = Deployment()
    world.provider.script.append(AWAY)
    await world.close(CLOSED[0])
    assert world.episodes.episodes["c1:1"].summary.quality.source == "fallback"
    assert await world.after(5) == 0
    assert await world.after(6) == 1
    summary = world.episodes.episodes["c1:1"].summary
    assert (summary.quality.source, summary.revision, summary.reason) == ("llm", 2, "redone")
    assert announced(world) == ["c1:1:1", "c1:1:2"]
    assert await world.after(3600) == 0


async def test_replacement_uses_the_messages_latest_texts() -> None:
    world = Deployment()
    world.provider.script.append(AWAY)
    await world.close(CLOSED[0])
    world.provider.outage = AWAY
    await amend(world, delete("m0"), 100, **world.fields())
    assert world.episodes.episodes["c1:1"].summary.revision == 3, "one without texts, and a fallback"
    world.provider.outage = None
    await amend(world, edit("m1"), 101, **world.fields())
    assert contents(world.provider.requests[-1].episode) == ["edited", "Text of m2."]
    assert await world.after(3600) == 0
    check(world)


async def test_nothing_is_asked_while_the_llm_is_down() -> None:
    world = Deployment()
    world.provider.outage = AWAY
    await world.close(CLOSED[0])
    with pytest.raises(ProviderUnavailable):
        await world.after(11)
    assert world.requests == []
    world.provider.outage = None
    assert await world.after(0) == 1


async def test_unusable_answers_are_given_up_sooner_than_outages() -> None:
    for error, attempts in ((UNUSABLE, UNUSABLE_ANSWERS), (AWAY, RETRY.attempts)):
        world = Deployment()
        world.provider.script.extend([error] * 100)
        await world.close(CLOSED[0])
        made = [await world.after(41) for _ in range(10)]
        assert sum(made) == attempts
        assert world.episodes.episodes["c1:1"].summary.revision == 1
        assert announced(world) == ["c1:1:1"]


async def test_prompt_that_fails_a_gateway_stays_due() -> None:
    world = Deployment(Retry())
    world.provider.script.extend([PromptFailed(problem="408")] * 30)
    await world.close(CLOSED[0])
    tried = sum([await world.after(600) for _ in range(6 * 48)])
    assert 20 < tried <= 31
    assert world.episodes.episodes["c1:1"].summary.quality.source == "llm"


async def test_calls_of_earlier_revisions_and_failures_are_counted() -> None:
    world = Deployment()
    world.provider.script.extend(
        [AnswerInvalid(problem="no JSON", calls=some_calls(Usage(prompt_tokens=5), "answer_invalid"))] * 2
    )
    await world.close(CLOSED[0])
    assert [await world.after(41) for _ in range(2)] == [1, 1]
    stored = world.episodes.episodes["c1:1"]
    assert (stored.summary.quality.source, stored.summary.revision) == ("llm", 2)
    assert total(stored.calls) == Usage(prompt_tokens=10) + stored.summary.usage


async def test_calls_of_a_waiting_episode_are_counted() -> None:
    world = Deployment()
    in_vain = some_calls(Usage(prompt_tokens=5), "cut_off")
    world.provider.script.extend([ProviderUnavailable(problem="away", calls=in_vain)] * 2)
    await world.run(CLOSED[:1], summarizer=Summarizer(world.provider, waits=(ProviderUnavailable,)))
    calls = world.episodes.episodes["c1:1"].calls
    assert {one.outcome: one.usage.prompt_tokens for one in calls} == {"cut_off": 10, "ok": 3}


async def test_wasted_calls_are_booked_under_the_asked_model() -> None:
    world = Deployment()
    for model in ("before", "m", "m", "m"):
        used = Usage(prompt_tokens=5)
        calls = (Calls(model, "answer_invalid", used),)
        world.provider.script.append(AnswerInvalid(problem="no JSON", calls=calls))
    await world.close(CLOSED[0])
    for _ in range(4):
        await world.after(41)
    stored = world.episodes.episodes["c1:1"]
    assert (stored.summary.model, total(stored.calls).prompt_tokens) == ("extractive", 20)
    assert [(one.model, one.usage.prompt_tokens) for one in stored.calls] == [("before", 5), ("m", 15)]


def settings_of(model: str, **llm: Any) -> Settings:
    return Settings.model_validate({"llm": {"provider": "openai", "model": model, **llm}})


async def test_refused_prompt_is_retried_after_a_server_change() -> None:
    world, records = Deployment(RETRY.model_copy(update={"attempts": 100})), SqliteRecords(SqliteFile(None))
    world.clock.now = datetime.now(UTC)

    async def started(settings: Settings) -> int:
        await retry_refused(world.episodes, records, settings)
        return sum([await world.after(60) for _ in range(5)])

    await started(settings_of("m"))
    # refused at once, refused after an outage, and answered unusably
    for script in ([REFUSED] * 4, [AWAY, *[REFUSED] * 3], [UNUSABLE] * 4):
        world.provider.script.extend(script)
        await world.close(CLOSED[len(world.episodes.episodes)])
        assert sum([await world.after(60) for _ in range(5)]) == UNUSABLE_ANSWERS
    assert await started(settings_of("m")) == 0
    unasked = {"max_concurrency": 1, "timeout_seconds": 9, "attempts": 1, "retry_budget_seconds": 9}
    assert await started(settings_of("m", prompt_price=1, answer_price=1, api_key="x", **unasked)) == 0
    world.provider.script.extend([REFUSED] * 6)
    assert await started(settings_of("m", base_url="http://other/v1")) == 6
    assert await started(settings_of("better", base_url="http://other/v1")) == 2
    sources = [one.summary.quality.source for one in world.episodes.episodes.values()]
    assert sources == ["llm", "llm", "fallback"]


async def test_two_models_ask_once_each_about_a_refused_prompt() -> None:
    world, records = Deployment(RETRY.model_copy(update={"attempts": 100})), SqliteRecords(SqliteFile(None))
    asked = dict.fromkeys("ab", 0)
    world.clock.now = datetime.now(UTC)
    world.provider.script.extend([REFUSED] * 100)
    await world.close(CLOSED[0])
    for _ in range(5):
        for model in asked:
            await retry_refused(world.episodes, records, settings_of(model))
            asked[model] += sum([await world.after(60) for _ in range(5)])
    assert set(asked.values()) == {UNUSABLE_ANSWERS}
    await world.close(CLOSED[1])
    world.episodes.episodes["c1:2"] = replace(world.episodes.episodes["c1:2"], due_at=None)
    for model in asked:
        await retry_refused(world.episodes, records, settings_of(model))
        assert sum([await world.after(60) for _ in range(5)]) == UNUSABLE_ANSWERS


@pytest.mark.parametrize("attempts", [0, 5], ids=["no attempts", "no LLM"])
async def test_fallback_that_nothing_can_replace_stays(attempts: int) -> None:
    world = Deployment(Retry(attempts=attempts))
    world.provider.script.append(AWAY)
    provider = ExtractiveProvider() if attempts else world.provider
    await world.run(CLOSED[:1], **world.fields() | {"summarizer": Summarizer(provider)})
    assert world.episodes.episodes["c1:1"].due_at is None
    assert await world.after(10**6) == 0


async def test_marked_summary_is_redone_once() -> None:
    world = Deployment(Retry(attempts=0))
    await world.close(*CLOSED[:2])
    known = world.episodes.episodes["c1:1"]
    world.episodes.episodes["c1:1"] = replace(known, due_at=world.clock.now)
    assert await world.after(0) == 1
    found = [world.episodes.episodes[name] for name in ("c1:1", "c1:2")]
    assert [(one.summary.revision, one.due_at) for one in found] == [(2, None), (1, None)]
    assert await world.after(3600) == 0


async def test_two_timers_make_one_revision() -> None:
    world = Deployment()
    world.provider.script.append(AWAY)
    await world.close(CLOSED[0])
    world.clock.now += timedelta(seconds=11)
    await world.a_timer().tick()
    world.requests.clear()  # it was lost
    assert await world.after(0) == 0
    assert await world.after(41) == 1
    first = request_for(world.episodes.episodes["c1:1"], NOON)
    world.requests += [first.model_copy(update={"revision": 1}), first]
    await world.handle()
    assert announced(world) == ["c1:1:1", "c1:1:2", "c1:1:3"]


async def test_few_redos_run_at_a_time() -> None:
    world = Deployment()
    world.provider.script.extend([AWAY] * 30)
    await world.close(*[a_closed_episode(1, f"c{number}") for number in range(30)])
    world.clock.now += timedelta(seconds=11)
    await world.timer.tick()
    await world.timer.tick()
    assert len(world.requests) == MOST_REQUESTED
    made = []
    while not made or made[-1]:
        made.append(await world.after(0))
    assert sum(made) == 30
    assert {one.summary.quality.source for one in world.episodes.episodes.values()} == {"llm"}


async def test_store_outage_is_waited_out() -> None:
    world = Deployment()

    class Away:
        looked = 0

        async def lookup(self, _: Any) -> Any:
            self.looked += 1
            raise StoreUnavailable(store="any", problem="away")

    stores: Any = Away()
    timer = FallbackTimer(stores, Summarizer(world.provider), world._send, RETRY, world.clock)
    running = asyncio.create_task(timer.run())
    async with asyncio.timeout(60):
        while not stores.looked:  # noqa: ASYNC110 – a store in memory sets no event
            await asyncio.sleep(0.01)
    assert not running.done()
    running.cancel()


def test_delay_doubles_up_to_the_longest() -> None:
    many = RETRY.model_copy(update={"attempts": 10**9})
    found = [next_attempt(many, number, 0, NOON) for number in (0, 1, 2, 3, 10**8)]
    assert found == [NOON + timedelta(seconds=seconds) for seconds in (10, 20, 40, 40, 40)]
    assert next_attempt(RETRY, 5, 0, NOON) is None
    assert next_attempt(RETRY, 1, UNUSABLE_ANSWERS, NOON) is None
