"""The summarizer as a process: it reads `episode.closed`, an LLM answers well or badly, and the results are checked."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import ConsumerRecord

from afterword import SummarySubscriber
from afterword.schemas import EpisodeClosed, SummaryCreated, fingerprint
from afterword.schemas.dead_letters import DEAD_LETTER_PREFIX
from afterword.streams.kafka.clients import running_consumer, running_producer
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import living
from afterword.streams.stores.opening import open_stores
from tests import openai_server as llm
from tests.e2e.deployment import Deployment, deployed
from tests.openai_server import LlmServer, Outcome
from tests.samples import a_closed_episode, an_episode_message

SECONDS = 180
TIMEOUT_SECONDS = 6.0
ATTEMPTS = 3
SECRET = "hunter2"
LLM = {
    "provider": "openai",
    "model": llm.MODEL,
    "timeout_seconds": TIMEOUT_SECONDS,
    "attempts": ATTEMPTS,
    "retry_budget_seconds": 60,
    "max_concurrency": 32,
}


@pytest.fixture
def settings(make_settings: Callable[..., Settings], llm_server: LlmServer) -> Settings:
    return make_settings(
        kafka={"partitions": 1, "session_timeout_seconds": 6},
        llm={**LLM, "base_url": f"{llm_server.url}/v1"},
        drain_seconds=5,
    )


@pytest_asyncio.fixture
async def deployment(settings: Settings, tmp_path) -> AsyncIterator[Deployment]:
    """Run a deployment with only a summarizer."""
    async with deployed(settings, tmp_path) as ready:
        ready.start("summarizer")
        yield ready


def episode(conversation_id: str, ordinal: int = 1) -> EpisodeClosed:
    """Return an episode whose messages name its conversation in brackets."""
    contents = (
        f"[{conversation_id}] I want to cancel order 4711.",
        f"It is cancelled, the refund takes three days, and the password was {SECRET}.",
    )
    messages = tuple(an_episode_message(f"m{ordinal}-{n}", n, content=text) for n, text in enumerate(contents))
    fields: dict[str, Any] = {"messages": messages, "fingerprint": fingerprint(messages), "overlap": ()}
    return a_closed_episode(ordinal, conversation_id, **fields)


async def send(settings: Settings, *episodes: EpisodeClosed) -> None:
    async with running_producer(settings.kafka) as producer:
        for closed in episodes:
            key = closed.conversation_id.encode()
            await producer.send_and_wait(settings.kafka.episodes_topic, closed.to_json(), key=key)


async def announced(settings: Settings, count: int) -> list[SummaryCreated]:
    """Read that many events, in order of arrival."""
    kafka = settings.kafka
    subscriber = SummarySubscriber(
        bootstrap_servers=kafka.bootstrap_servers, group_id=f"{kafka.summaries_topic}-test", topic=kafka.summaries_topic
    )
    async with asyncio.timeout(SECONDS), subscriber as events:
        return [await anext(events) for _ in range(count)]


async def announced_of_each(settings: Settings, count: int) -> dict[str, SummaryCreated]:
    """Return the events of that many conversations, by conversation."""
    return {event.conversation_id: event for event in await announced(settings, count)}


async def stored(settings: Settings, *episode_ids: str) -> dict[str, SummaryCreated]:
    """Return the stored summaries of these episodes, by conversation."""
    async with open_stores(settings) as stores:
        found = living((await stores.episodes.lookup(episode_ids)).values())
    return {each.summary.conversation_id: each.summary for each in found.values()}


@dataclass(frozen=True)
class End:
    """The outcome of an episode."""

    calls: int
    reason: str | None = None
    """Reason for the fallback; None if the texts are the LLM's."""


def always(outcome: Outcome) -> list[Outcome]:
    return [outcome] * 10


def cases(server: LlmServer) -> dict[str, tuple[list[Outcome], End]]:
    not_json, other_schema = llm.answers("{not JSON}"), llm.answers('{"summary": "It went well."}')
    refusal, empty = llm.answers("", refusal="I cannot help with that."), llm.answers("")
    unavailable, invalid = End(ATTEMPTS, "provider_unavailable"), End(ATTEMPTS, "answer_invalid")
    failed = End(ATTEMPTS, "prompt_failed")  # the others are answered
    return {
        "success": ([llm.success()], End(1)),
        "429 and a short Retry-After": ([llm.rate_limited(retry_after="1")], End(2)),
        "500 once": ([llm.fails(500)], End(2)),
        "500 always": (always(llm.fails(500)), failed),
        "timeout once": ([server.hangs()], End(2)),
        "timeout always": (always(server.hangs()), unavailable),
        "malformed JSON once": ([not_json], End(2)),
        "malformed JSON always": (always(not_json), invalid),
        "wrong schema once": ([other_schema], End(2)),
        "wrong schema always": (always(other_schema), invalid),
        "refusal": (always(refusal), invalid),
        "empty answer": (always(empty), failed),
        "a page of HTML": (always(llm.says("<html>maintenance</html>")), failed),
    }


def requests_of(server: LlmServer, conversation: str) -> list[llm.Recorded]:
    return [request for request in server.requests if f"[{conversation}]" in request.prompt]


async def test_each_episode_ends_as_described_whatever_the_llm_does(settings, deployment, llm_server):
    wanted = cases(llm_server)
    llm_server.scripts = {f"[{name}]": deque(script) for name, (script, _) in wanted.items()}
    await send(settings, *[episode(name) for name in wanted])
    events = await announced_of_each(settings, len(wanted))
    ends = {name: End(len(requests_of(llm_server, name)), events[name].quality.reason) for name in wanted}
    assert ends == {name: end for name, (_, end) in wanted.items()}
    assert await stored(settings, *[event.episode_id for event in events.values()]) == events
    for event in events.values():
        check_texts(event)
    check_waits_and_corrections(llm_server)
    assert SECRET not in deployment.logs("summarizer")
    await send_limited(settings, llm_server)


async def send_limited(settings: Settings, server: LlmServer) -> None:
    """Send two episodes while the server wants no question for an hour: one is asked, and both fall back."""
    server.scripts = {"[limited]": deque(always(llm.rate_limited(retry_after="3600")))}
    for name in ("limited", "next"):
        await send(settings, episode(name))
        while (event := (await announced(settings, 1))[0]).conversation_id != name:
            pass  # a fallback of before was replaced
        assert event.quality.reason == "provider_rate_limited"
    assert [len(requests_of(server, name)) for name in ("limited", "next")] == [1, 0]


def check_texts(event: SummaryCreated) -> None:
    if event.quality.source == "llm":
        assert (event.model, event.quality.reason) == (llm.MODEL, None)
        texts = {name: getattr(event, name) for name in ("title", "short_summary", "long_summary")}
        assert texts == {name: llm.TEXTS[name] for name in texts}
    else:
        assert event.model == "extractive"
        assert "4711" in event.long_summary
        assert event.usage.prompt_tokens == (0 if event.quality.reason != "answer_invalid" else 3 * llm.PROMPT_TOKENS)


def check_waits_and_corrections(server: LlmServer) -> None:
    first, second = requests_of(server, "429 and a short Retry-After")
    assert second.at - first.at >= 1
    for name, problem in {"malformed JSON once": "not valid JSON", "wrong schema once": '"title" was missing'}.items():
        first, second = requests_of(server, name)
        assert problem in second.prompt
        assert problem not in first.prompt


INVALID: dict[str, tuple[bytes | None, bytes | None]] = {
    "invalid_json": (b"c1", f"{SECRET} is no JSON".encode()),
    "schema_violation": (b"c1", json.dumps({"episode_id": SECRET}).encode()),
    "empty_value": (b"c1", None),
    "missing_key": (None, episode("c1").to_json()),
    "key_mismatch": (b"c2", episode("c1").to_json()),
    "episode_conflict": (b"c1", episode("c1").model_copy(update={"fingerprint": "another"}).to_json()),
}
"""Key and value of invalid records, by error type."""


async def test_invalid_records_are_dead_lettered_and_neighbours_summarized(settings, deployment):
    topic = settings.kafka.episodes_topic
    await send(settings, episode("c1"))
    async with running_producer(settings.kafka) as producer:
        for key, value in INVALID.values():
            await producer.send_and_wait(topic, value, key=key, headers=[("trace", b"t1")])
    await send(settings, episode("c2"))
    events = await announced_of_each(settings, 2)
    assert await stored(settings, "c1:1", "c2:1") == events
    letters = await dead_letters(settings, len(INVALID))
    assert {error_of(letter, "type"): (letter.key, letter.value) for letter in letters} == INVALID
    for letter in letters:
        check_headers(letter, topic)
    assert SECRET not in deployment.logs("summarizer")


async def dead_letters(settings: Settings, count: int) -> list[ConsumerRecord]:
    topic = settings.kafka.dead_letters(settings.kafka.episodes_topic)
    async with (
        asyncio.timeout(SECONDS),
        running_consumer(settings.kafka, topic, auto_offset_reset="earliest") as reader,
    ):
        return [await reader.getone() for _ in range(count)]


def error_of(letter: ConsumerRecord, name: str) -> str:
    return dict(letter.headers)[DEAD_LETTER_PREFIX + name].decode()


def check_headers(letter: ConsumerRecord, topic: str) -> None:
    names = [name.removeprefix(DEAD_LETTER_PREFIX) for name, _ in letter.headers]
    assert names == ["trace", "topic", "partition", "offset", "stage", "type", "message", "timestamp", "attempts"]
    where = [error_of(letter, name) for name in ("topic", "partition", "offset")]
    assert where == [topic, "0", str(1 + list(INVALID).index(error_of(letter, "type")))]
    assert (error_of(letter, "stage"), error_of(letter, "attempts")) == ("summarizer", "1")
    assert SECRET not in error_of(letter, "message")
