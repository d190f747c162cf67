"""Fallbacks are replaced by what the LLM writes once it answers, whatever happens in between."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from afterword.schemas import EpisodeClosed
from afterword.schemas.decoding import decode_episode
from afterword.schemas.headers import Headers
from afterword.schemas.ids import message_key
from afterword.streams.errors import AnswerInvalid, ProviderUnavailable
from afterword.streams.settings import Retry
from afterword.streams.stores.messages import DeletedMessage
from afterword.streams.summarizer.agent import RecordHandler
from afterword.streams.summarizer.providers import ExtractiveProvider
from afterword.streams.summarizer.retries import Try, headers_of
from afterword.streams.summarizer.summarizer import Summarizer
from tests.samples import a_closed_episode
from tests.summarizer_world import EPISODES, NO_FAULTS, Crash, Fault, Faults, World, a_handler, cancelled, crash, outage

AWAY = ProviderUnavailable(problem="away")
NOON_MS = 1_772_366_400_000


@dataclass
class Partition:
    """Records, and how many of them are committed."""

    topic: str
    records: list[Any] = field(default_factory=list)
    committed: int = 0

    def append(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        place = {"topic": self.topic, "partition": 0, "offset": len(self.records)}
        self.records.append(SimpleNamespace(**place, key=key, value=value, headers=headers))

    async def work_off(self, handle: Callable[[Any], Any]) -> None:
        while self.committed < len(self.records):
            await self.work_off_one(handle)

    async def work_off_one(self, handle: Callable[[Any], Any]) -> None:
        done = asyncio.Event()
        await handle(SimpleNamespace(value=self.records[self.committed], ack=done.set))
        assert done.is_set()
        self.committed += 1


class Deployment:
    """A world, its topics, and a summarizer that may crash and start again."""

    def __init__(self, *episodes: EpisodeClosed, retry: Retry | None = None) -> None:
        self.world = World()
        self.closed, self.retries, self.dead = Partition("episode.closed"), Partition("episode.retry"), Partition("dlq")
        self.retry = retry or Retry(attempts=3)
        for episode in episodes:
            self.closed.append(episode.conversation_id.encode(), episode.to_json(), [("trace", b"t1")])

    def handler(self, faults: Faults) -> RecordHandler:
        pipeline = self.world.pipeline(faults, summarizer=faults.around(Summarizer(self.world.provider)))
        outputs: Any = SimpleNamespace(send_to_dlq=self._send_to_dlq, retry=self._retry)
        return a_handler(pipeline, outputs, self.retry, clock_ms=lambda: NOON_MS)

    async def summarize(self, faults: Faults = NO_FAULTS) -> None:
        await self.closed.work_off(self.handler(faults).summarize)

    async def replace(self, faults: Faults = NO_FAULTS) -> None:
        await self.retries.work_off(self.handler(faults).replace_fallback)

    async def _retry(self, record: Any, attempt: Try, value: bytes | None) -> None:
        self.retries.append(record.key, value, headers_of(attempt))

    async def _send_to_dlq(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        self.dead.append(key, value, headers)

    @property
    def announced(self) -> list[tuple[str, str | None, str | None]]:
        return [(e.event_id, e.supersedes, e.quality.reason) for e in self.world.topic.events]


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with capture_logs() as logs:
        yield logs


async def after_an_outage(*episodes: EpisodeClosed, faults: Faults = NO_FAULTS, **fields: Any) -> Deployment:
    """All of them summarized without the LLM, which answers from now on."""
    deployment = Deployment(*episodes, **fields)
    deployment.world.provider.outage = AWAY
    await deployment.summarize(faults)
    deployment.world.provider.outage = None
    return deployment


async def test_a_fallback_is_announced_and_then_replaced_by_the_llm() -> None:
    deployment = await after_an_outage(EPISODES[0])
    assert deployment.announced == [("c1:1:1", None, "provider_unavailable")]
    await deployment.replace()
    assert deployment.announced[1:] == [("c1:1:2", "c1:1:1", None)]
    summary = deployment.world.topic.events[-1]
    assert (summary.revision, summary.episode_revision, summary.quality.source) == (2, 1, "llm")
    assert deployment.world.episodes.episodes["c1:1"].summary == summary
    assert deployment.world.index.points["c1:1"].summary == summary


async def test_the_record_of_a_retry_is_the_episodes_own() -> None:
    deployment = await after_an_outage(EPISODES[0])
    original, again = deployment.closed.records[0], deployment.retries.records[0]
    assert (again.key, again.value) == (original.key, original.value)


async def test_a_message_that_was_deleted_meanwhile_is_not_written_once_more() -> None:
    episode = a_closed_episode(2)
    deployment = Deployment(episode, retry=Retry(attempts=50))
    deployment.world.provider.outage = AWAY
    deleted = {message_key("c1", name, "t1"): DeletedMessage(9) for name in ("m2", "m4")}  # one of the overlap
    deployment.world.messages.deleted = {**deleted}
    await deployment.summarize()
    [first] = deployment.retries.records
    again = decode_episode(first.key, first.value)
    assert [m.id for m in (*again.messages, *again.overlap)] == ["m3", "m5", "m1"]
    assert (again.fingerprint, again.message_count) == (episode.fingerprint, 2)
    await deployment.retries.work_off_one(deployment.handler(NO_FAULTS).replace_fallback)
    assert deployment.retries.records[1].value == first.value
    deployment.world.messages.deleted |= {message_key("c1", name, "t1"): DeletedMessage(9) for name in ("m3", "m5")}
    await deployment.retries.work_off_one(deployment.handler(NO_FAULTS).replace_fallback)
    assert len(deployment.retries.records) == 2, "of an episode of which no message is left there is no retry"


async def test_the_conversation_follows_its_last_episode_and_counts_nothing_twice() -> None:
    deployment = await after_an_outage(*EPISODES)
    await deployment.replace()
    stores = deployment.world.episodes
    last = stores.episodes["c1:3"].summary
    conversation = stores.known["c1"]
    assert (conversation.episode_count, conversation.message_count, conversation.title) == (3, 9, last.title)
    row = stores.rows["c1"][-1]
    assert (row.content, row.last_ordinal, row.last_revision) == (last.rolling_summary, 3, 2)


async def test_each_is_made_again_from_what_the_llm_wrote_of_the_one_before() -> None:
    deployment = await after_an_outage(*EPISODES)
    deployment.world.provider.requests.clear()
    await deployment.replace()
    stored = deployment.world.episodes.episodes
    expected = ["", *[stored[f"c1:{n}"].summary.rolling_summary for n in (1, 2)]]
    assert [request.previous_rolling for request in deployment.world.provider.requests] == expected


async def test_what_was_built_on_a_fallback_meanwhile_stays() -> None:
    deployment = await after_an_outage(EPISODES[0])
    second = EPISODES[1]
    deployment.closed.append(b"c1", second.to_json(), [])
    await deployment.summarize()
    row, title = deployment.world.episodes.rows["c1"][-1], deployment.world.episodes.known["c1"].title
    await deployment.replace()
    assert deployment.world.episodes.rows["c1"][-1] == row
    assert deployment.world.episodes.known["c1"].title == title
    assert deployment.world.episodes.episodes["c1:1"].summary.quality.source == "llm"


async def test_another_failure_changes_nothing_and_is_followed_by_a_later_try(quiet: list[Any]) -> None:
    deployment = await after_an_outage(EPISODES[0])
    state = deployment.world.state
    deployment.world.provider.outage = AWAY
    await deployment.replace()
    assert deployment.world.state == state
    assert len(deployment.retries.records) == deployment.retry.attempts
    lasts = [(entry["error_type"], entry["last"]) for entry in quiet if entry["event"] == "fallback_kept"]
    assert lasts == [("provider_unavailable", False), ("provider_unavailable", False), ("provider_unavailable", True)]


async def test_an_llm_whose_answers_cannot_be_used_is_given_up_sooner() -> None:
    deployment = await after_an_outage(EPISODES[0], retry=Retry(attempts=50, unusable_answers=2))
    deployment.world.provider.outage = AnswerInvalid(problem="no JSON")
    await deployment.replace()
    assert len(deployment.retries.records) == 2
    assert deployment.world.episodes.episodes["c1:1"].summary.quality.reason == "provider_unavailable"


async def test_a_summary_by_the_llm_is_not_made_again() -> None:
    deployment = Deployment(EPISODES[0])
    await deployment.summarize()
    assert deployment.retries.records == []


async def test_where_no_llm_is_configured_nothing_is_made_again() -> None:
    deployment = Deployment(EPISODES[0])
    deployment.world.provider = ExtractiveProvider()  # type: ignore[assignment]  # another provider than usual
    await deployment.summarize()
    assert deployment.world.topic.events[0].quality.reason == "extractive_provider"
    assert deployment.retries.records == []


async def test_an_extractive_summary_replaces_no_fallback() -> None:
    deployment = await after_an_outage(EPISODES[0])
    state = deployment.world.state
    deployment.world.provider = ExtractiveProvider()  # type: ignore[assignment]  # another provider than usual
    await deployment.replace()
    assert deployment.world.state == state


async def test_a_retry_that_comes_twice_asks_the_llm_once_and_says_the_same() -> None:
    deployment = await after_an_outage(EPISODES[0])
    deployment.retries.records *= 2
    deployment.world.provider.requests.clear()
    await deployment.replace()
    assert len(deployment.world.provider.requests) == 1
    assert deployment.announced[1:] == [("c1:1:2", "c1:1:1", None)] * 2


async def test_a_retry_of_an_episode_that_was_erased_or_closed_anew_does_nothing() -> None:
    deployment = await after_an_outage(EPISODES[0])
    edited = EPISODES[0].model_copy(update={"revision": 2, "fingerprint": "edited"})
    deployment.closed.append(b"c1", edited.to_json(), [])
    await deployment.summarize()
    state, told = deployment.world.state, len(deployment.world.topic.events)
    await deployment.replace()
    assert deployment.world.state == state
    assert len(deployment.world.topic.events) == told
    del deployment.world.episodes.episodes["c1:1"]
    deployment.retries.committed = 0
    await deployment.replace()
    assert deployment.world.episodes.episodes == {}


async def test_an_episode_that_is_closed_anew_after_its_fallback_was_replaced_is_the_next_revision() -> None:
    deployment = await after_an_outage(EPISODES[0])
    await deployment.replace()
    edited = EPISODES[0].model_copy(update={"revision": 2, "fingerprint": "edited"})
    deployment.closed.append(b"c1", edited.to_json(), [])
    await deployment.summarize()
    summary = deployment.world.episodes.episodes["c1:1"].summary
    assert (summary.event_id, summary.episode_revision, summary.supersedes) == ("c1:1:3", 2, "c1:1:2")
    assert deployment.dead.records == []


async def test_what_is_no_retry_is_a_dead_letter_and_the_next_one_is_handled() -> None:
    deployment = await after_an_outage(EPISODES[0])
    deployment.retries.append(b"c1", b"{", [])
    deployment.retries.append(b"c1", EPISODES[0].to_json(), [("afterword_retry_number", b"many")])
    await deployment.replace()
    assert [dict(rejected.headers)["__afterword.errors.type"] for rejected in deployment.dead.records] == [
        b"invalid_json",
        b"schema_violation",
    ]
    assert deployment.retries.committed == 3


def replaced(deployment: Deployment) -> Any:
    """All that must be there in the end, however often something was said."""
    return deployment.world.state


async def undisturbed() -> Any:
    deployment = await after_an_outage(*EPISODES)
    await deployment.replace()
    assert {event_id for event_id, *_ in deployment.announced} == {f"c1:{n}:{r}" for n in (1, 2, 3) for r in (1, 2)}
    return replaced(deployment)


async def calls_of(replacing: bool) -> int:
    faults = Faults(0, after=False, fault=crash)
    deployment = await after_an_outage(*EPISODES, faults=NO_FAULTS if replacing else faults)
    if replacing:
        await deployment.replace(faults)
    return faults.calls


async def disturbed(faults: Faults, *, replacing: bool) -> Deployment:
    """Struck while it falls back, or while it replaces; then started again."""
    deployment = Deployment(*EPISODES)
    deployment.world.provider.outage = AWAY
    if not replacing:
        await until_struck(deployment.summarize(faults))
    await deployment.summarize()
    deployment.world.provider.outage = None
    if replacing:
        await until_struck(deployment.replace(faults))
    await deployment.replace()
    return deployment


async def until_struck(work: Any) -> None:
    try:
        await work
    except (Crash, asyncio.CancelledError):
        return


@pytest.mark.parametrize("replacing", [False, True], ids=["while it falls back", "while it replaces"])
@pytest.mark.parametrize("after", [False, True], ids=["before the effect", "after the effect"])
@pytest.mark.parametrize("fault", [crash, cancelled, outage])
async def test_a_crash_or_an_outage_at_any_call_ends_in_the_same_replaced_summaries(
    fault: Fault, after: bool, replacing: bool
) -> None:
    expected = await undisturbed()
    for at in range(1, await calls_of(replacing) + 1):
        faults = Faults(at, after, fault)
        deployment = await disturbed(faults, replacing=replacing)
        assert faults.struck
        assert replaced(deployment) == expected, f"at call {at}"
        assert all(len(contents) == 1 for contents in deployment.world.contents_by_event_id().values())


@given(st.lists(st.tuples(st.integers(1, 60), st.booleans(), st.booleans()), max_size=6))
async def test_any_series_of_crashes_ends_in_the_same_replaced_summaries(crashes: list[tuple[int, bool, bool]]) -> None:
    with capture_logs():
        deployment = Deployment(*EPISODES)
        deployment.world.provider.outage = AWAY
        for at, after, _ in crashes:
            await until_struck(deployment.summarize(Faults(at, after, crash)))
        await deployment.summarize()
        deployment.world.provider.outage = None
        for at, _, after in crashes:
            await until_struck(deployment.replace(Faults(at, after, crash)))
        await deployment.replace()
        assert replaced(deployment) == await undisturbed()
        assert all(len(contents) == 1 for contents in deployment.world.contents_by_event_id().values())


async def test_conversations_are_replaced_apart() -> None:
    deployment = await after_an_outage(EPISODES[0], a_closed_episode(1, "c2"))
    await deployment.replace()
    assert {e.event_id for e in deployment.world.topic.events if e.supersedes} == {"c1:1:2", "c2:1:2"}
