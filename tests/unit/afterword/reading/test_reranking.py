"""Reranking in a recall: what a reranker sees, how its answers are used, and that a search answers whatever it does."""

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from afterword import Memory
from afterword.reading.reranking import PAUSE_SECONDS, Reranking, places_in
from afterword.reading.search import DOCUMENT_CHARACTERS, READ_CHARACTERS
from afterword.schemas import MessageDeleted
from afterword.streams.errors import (
    AnswerInvalid,
    ConfigurationError,
    ProviderError,
    ProviderMisconfigured,
    ProviderRateLimited,
    ProviderUnavailable,
)
from afterword.streams.settings import Redaction, RerankerSettings
from afterword.streams.stores.index import Recalled
from afterword.streams.stores.messages import ArchiveChange
from tests.doubles.reranker import ScriptedReranking
from tests.rows import with_rows
from tests.unit.afterword.reading.remembered import Remembered

OWNER: dict[str, Any] = {"user_id": "u1", "tenant_id": "t1"}
FAILURES = [
    ProviderUnavailable(problem="it answers with 503"),
    ProviderRateLimited(retry_after=1),
    ProviderMisconfigured(problem="it does not accept the API key (401)"),
    AnswerInvalid(problem="the response was not a ranking"),
]


def memory_with(world: Remembered, reranking: Reranking) -> Memory:
    return Memory(world.episodes, world.messages, world.index.search, reranking=reranking)


async def boats(world: Remembered, number: int) -> None:
    for n, name in enumerate(("Alba", "Berta", "Clara", "Dora", "Emma", "Frida", "Greta", "Hanna")[:number]):
        await world.summarise(await world.say(f"Boat {name}.", "Aye.", conversation_id=f"c{n}"))


def names(hits: Sequence[Recalled]) -> list[str]:
    return [hit.conversation_id for hit in hits]


async def test_reranker_order_is_fused_with_passage_order(world: Remembered) -> None:
    await boats(world, 4)
    before = await world.memory.recall("boat", **OWNER)
    reranker = ScriptedReranking([[2, 0], [1, 0, 2, 3], [3, 2, 1, 0]])
    memory = memory_with(world, reranker)
    after = await memory.recall("boat", **OWNER)
    assert names(after) == [names(before)[place] for place in (0, 2, 1, 3)], "two have named it"
    assert [hit.score for hit in after] == [hit.score for hit in before], "scores stay with their ranks"
    assert all(hit.matches for hit in after)
    assert len(reranker.questions) == 1
    after = await memory.recall("boat", **OWNER)
    assert names(after) == [names(before)[place] for place in (1, 0, 2, 3)], "in doubt the reranker is right"


async def test_asked_time_counts_whatever_the_reranker_says(world: Remembered) -> None:
    await boats(world, 2)
    in_may = {"sent_at": datetime(2023, 5, 3, 12, tzinfo=UTC), "conversation_id": "may"}
    await world.summarise(await world.say("A boat, the old one.", "Aye.", **in_may))
    hits = await memory_with(world, ScriptedReranking([[1, 2, 0]])).recall("which boat in May 2023?", **OWNER)
    assert names(hits)[0] == "may"


async def test_reranker_chooses_among_candidates_beyond_the_requested_hits(world: Remembered) -> None:
    await boats(world, 8)
    before = await world.memory.recall("boat", **OWNER, k=8)
    reranker = ScriptedReranking([[5]])
    (best,) = await memory_with(world, reranker).recall("boat", **OWNER, k=1)
    assert best.conversation_id == names(before)[5]
    assert len(reranker.questions[0].texts) == 8
    every = await memory_with(world, ScriptedReranking([[5]])).recall("boat", **OWNER, k=8)
    assert names(every) == [names(before)[place] for place in (5, 0, 1, 2, 3, 4, 6, 7)]


async def test_reranked_document_is_messages_and_summary(world: Remembered) -> None:
    await world.summarise(await world.say("Hello.", "Hi.", "We sail to Corsica.", "In which boat?", "The blue one."))
    await world.summarise(await world.say("Corsica?", "An island.", conversation_id="c2"))
    reranker = ScriptedReranking()
    hits = await memory_with(world, reranker).recall("sailing to Corsica", **OWNER, min_score_ratio=0)
    (question,) = reranker.questions
    assert question.query == "sailing to Corsica"
    summary = next(hit.short_summary for hit in hits if hit.conversation_id == "c1")
    (shown,) = (text for text in question.texts if "We sail to Corsica." in text.splitlines())
    assert shown.endswith(f"\n{summary}")


async def test_reranked_documents_are_bounded(world: Remembered) -> None:
    for n in range(3):
        await world.summarise(await world.say("boat " * 100_000, conversation_id=f"c{n}"))
    reranker = ScriptedReranking()
    await memory_with(world, reranker).recall("boat", **OWNER)
    assert max(map(len, reranker.questions[0].texts)) <= DOCUMENT_CHARACTERS


async def test_message_deleted_during_reranking_is_not_shown(world: Remembered) -> None:
    said = await world.say("The blue boat.", "A secret of the boat.", "A boat, yes.")
    await world.summarise(said)
    await boats(world, 2)
    reranker = ScriptedReranking()
    memory = memory_with(world, reranker)
    await memory.recall("boat", **OWNER)
    assert any("secret" in text for text in reranker.questions[0].texts)
    deleted = MessageDeleted(conversation_id="c1", id=said[1].id, tenant_id="t1")
    await world.messages.change(ArchiveChange(deleted, 0, 100))
    stored = world.episodes.episodes["c1:1"]
    kept = tuple(one for one in stored.summary.message_ids if one != said[1].id)
    update = {"revision": 2, "message_ids": kept, "short_summary": "A blue boat."}
    world.episodes.episodes["c1:1"] = stored.__class__(
        **{**vars(stored), "summary": stored.summary.model_copy(update=update)}
    )
    await memory.recall("boat", **OWNER)
    texts = reranker.questions[1].texts
    assert "The blue boat.\nA boat, yes.\nA blue boat." in texts
    assert not any("secret" in text for text in texts)


async def test_single_candidate_is_not_reranked(world: Remembered) -> None:
    reranker = ScriptedReranking()
    memory = memory_with(world, reranker)
    assert await memory.recall("boat", **OWNER) == []
    await boats(world, 1)
    assert len(await memory.recall("boat", **OWNER)) == 1
    assert reranker.questions == []


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.error_type)
async def test_failed_reranking_keeps_the_order_and_logs_no_contents(world: Remembered, failure: ProviderError) -> None:
    await boats(world, 4)
    before = await world.memory.recall("boat", **OWNER)
    reranker = ScriptedReranking([failure])
    with capture_logs() as logs:
        after = await memory_with(world, reranker).recall("boat", **OWNER)
    assert after == before
    (logged,) = logs
    assert (logged["event"], logged["log_level"]) == ("reranking_failed", "warning")
    assert logged["error_type"] == failure.error_type
    assert "boat" not in str(logs)
    assert len(reranker.questions) == 1


async def test_slow_reranker_is_not_awaited(world: Remembered) -> None:
    await boats(world, 3)
    before = await world.memory.recall("boat", **OWNER)
    reranker = ScriptedReranking(timeout_seconds=0.1)
    reranker.delay_seconds = 600.0
    began = time.monotonic()
    with capture_logs() as logs:
        assert await memory_with(world, reranker).recall("boat", **OWNER) == before
    assert time.monotonic() - began < 120
    assert "did not answer in 0.1 s" in logs[0]["problem"]


async def test_failed_reranker_pauses_and_is_asked_again(world: Remembered) -> None:
    await boats(world, 3)
    now = 0.0
    script = [FAILURES[0], AnswerInvalid(problem="nonsense"), [2, 1, 0]]
    reranker = ScriptedReranking(script, clock=lambda: now)
    memory = memory_with(world, reranker)
    before = await memory.recall("boat", **OWNER)
    with capture_logs() as logs:
        assert await memory.recall("boat", **OWNER) == before
    assert (len(reranker.questions), logs) == (1, [])
    now += PAUSE_SECONDS + 0.1
    assert await memory.recall("boat", **OWNER) == before
    assert names(await memory.recall("boat", **OWNER))[0] == names(before)[2], "nonsense is no reason to pause"
    assert len(reranker.questions) == 3


async def test_paused_reranker_causes_no_redaction(world: Remembered) -> None:
    await boats(world, 3)
    shown: list[str] = []

    def mask(text: str) -> str:
        shown.append(text)
        return text

    memory = memory_with(world, ScriptedReranking(FAILURES[:1], mask=mask))
    for _ in range(3):
        assert await memory.recall("boat", **OWNER)
    assert shown.count("boat") == 1


async def test_cancelled_search_ends(world: Remembered) -> None:
    await boats(world, 3)
    reranker = ScriptedReranking()
    reranker.delay_seconds = 600.0
    search = asyncio.create_task(memory_with(world, reranker).recall("boat", **OWNER))
    await reranker.asked.wait()
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search


@pytest.mark.parametrize("where", ["llm", "everywhere"])
async def test_reranker_sees_placeholders(world: Remembered, where: Any) -> None:
    for n, address in enumerate(("joe@example.com", "ann@example.com")):
        await world.summarise(await world.say(f"Write about the boat to {address}.", "Yes.", conversation_id=f"c{n}"))
    reranker = ScriptedReranking(mask=Redaction(where=where).shown())
    hits = await memory_with(world, reranker).recall("boat of joe@example.com or ann@example.com", **OWNER)
    (question,) = reranker.questions
    assert "@example.com" not in str(question)
    assert {text.partition("\n")[0] for text in question.texts} == {"Write about the boat to [EMAIL]."}
    assert question.query == "boat of [EMAIL] or [EMAIL]"
    assert any("@example.com" in hit.short_summary for hit in hits), "hits have the originals"


@pytest.mark.parametrize("before", range(READ_CHARACTERS - 30, READ_CHARACTERS, 4))
async def test_reranker_sees_no_half_of_a_redacted_value(world: Remembered, before: int) -> None:
    for n in range(2):
        long = "someone.with.a.long.address@example.com "  # its placeholder is shorter: the end moves forward
        text = f"{'x' * (before % len(long))} {long * (before // len(long))}joe.miller@example.com{' blue boat' * 100}"
        await world.summarise(await world.say(f"A boat. {text}", "Yes.", conversation_id=f"c{n}"))
    reranker = ScriptedReranking(mask=Redaction(where="llm").shown())
    memory = memory_with(world, reranker)
    await memory.recall("boat", **OWNER)
    shown = str(reranker.questions)
    assert "[EMAIL]" in shown
    assert not {"joe", "miller", "someone", "example"} & set(re.findall("[a-z]+", shown))


@with_rows
def test_ranking_is_read_in_every_form_or_refused(sentence: str, content: str, places: list[int] | None) -> None:
    with pytest.raises(AnswerInvalid) if places is None else nullcontext():
        assert places_in(orjson.loads(content), 3) == places


json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("results", "data", "index", "relevance_score", "x")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(("results", "data")), json), st.integers(0, 5))
def test_any_answer_gives_distinct_existing_places_or_none(answer: dict[str, Any], count: int) -> None:
    try:
        places = places_in(answer, count)
    except AnswerInvalid:
        return
    assert places
    assert len(set(places)) == len(places)
    assert set(places) <= set(range(count))


def test_problem_of_an_answer_quotes_nothing_of_it() -> None:
    with pytest.raises(AnswerInvalid) as raised:
        places_in({"results": "a secret"}, 3)
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("address", ["", "rerank.internal", "ftp://host"])
def test_invalid_address_is_named_with_its_setting(address: str) -> None:
    with pytest.raises(ConfigurationError, match="AFTERWORD_RERANKER__BASE_URL"):
        Reranking(RerankerSettings(base_url=address))
