import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from inspect import iscoroutinefunction, signature
from itertools import islice
from threading import Event
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from afterword import Memory
from afterword.reading.memory import PAUSE_SECONDS, QueryEmbedder
from afterword.schemas.base import Owner
from afterword.streams.errors import OwnerMissing
from afterword.streams.http import HttpClient
from afterword.streams.settings import Settings
from afterword.streams.stores.index import VECTOR_CHARACTERS, SearchText
from afterword.streams.summarizer.embedders import (
    MARGIN_CHARACTERS,
    SERVERS,
    HttpEmbedder,
    background_sentences,
    embed_messages,
    make_embedder,
)
from tests.doubles.index import MemoryIndex
from tests.doubles.stores import MemoryEpisodes, MemoryMessages
from tests.endpoints import serving as serving_route
from tests.rows import with_rows
from tests.samples import a_message
from tests.unit.afterword.reading.remembered import Remembered
from tests.unit.summarizer.conversations import dialogues


def texts(dialogue: int) -> list[str]:
    return [text for _, text in dialogues()[dialogue]]


async def test_conversation_is_recalled_by_what_was_said(world: Remembered) -> None:
    for n in range(10):
        await world.summarise(await world.say(*texts(n), conversation_id=f"c{n}"))
    (best, *_) = await world.memory.recall("survivor benefits of a widower", user_id="u1", tenant_id="t1", k=3)
    assert best.conversation_id == "c0"
    assert best.short_summary == world.episodes.episodes["c0:1"].summary.short_summary
    assert best.message_ids == world.episodes.episodes["c0:1"].summary.message_ids


@pytest.mark.parametrize("owner", [("u2", "t1"), ("u1", "t2"), ("u1", None), ("u1", "")])
async def test_nothing_of_others_is_recalled(world: Remembered, owner: tuple[str, str | None]) -> None:
    await world.summarise(await world.say(*texts(0)))
    assert await world.memory.recall("benefits", user_id=owner[0], tenant_id=owner[1]) == []


@pytest.mark.parametrize(
    ("user", "tenant", "named"), [(None, "t1", "user_id"), ("u1", 7, "tenant_id"), (7, 7, "user"), ("", "t1", "user")]
)
async def test_recall_refuses_to_search_without_an_owner(world: Remembered, user, tenant, named: str) -> None:
    with pytest.raises(OwnerMissing, match=named):
        await world.memory.recall("benefits", user_id=user, tenant_id=tenant)


@pytest.mark.parametrize("summarised", [True, False])
@pytest.mark.parametrize(
    "other",
    [{"user_id": "u2"}, {"tenant_id": "t2"}, {"tenant_id": None}, {"user_id": "u2", "tenant_id": "t1"}],
    ids=str,
)
async def test_another_users_conversation_is_unknown(world: Remembered, summarised: bool, other) -> None:
    said = await world.say("My PIN is 4711.")
    if summarised:
        await world.summarise(said)
    assert await world.memory.context("c1", **other) is None
    assert await world.memory.episodes("c1", **other) == await world.memory.episodes("unknown")


async def test_conversation_is_known_to_its_owner(world: Remembered) -> None:
    said = await world.say("My PIN is 4711.")
    before = await world.context()
    owners: list[dict[str, Any]] = [{"user_id": "u1"}, {"tenant_id": "t1"}, {"user_id": "u1", "tenant_id": "t1"}]
    for owner in owners:
        assert await world.context(**owner) == before
    await world.summarise(said)
    for owner in owners:
        assert (await world.context(**owner)).episode_count == 1
        assert len((await world.memory.episodes("c1", **owner)).episodes) == 1


@pytest.mark.parametrize("user", [None, "", 7, {"$ne": None}])
async def test_empty_user_is_refused(world: Remembered, user) -> None:
    await world.summarise(await world.say("My PIN is 4711."))
    with pytest.raises(ValueError, match="user_id"):
        await world.memory.context("c1", user_id=user)
    with pytest.raises(OwnerMissing, match="user_id"):
        await world.memory.episodes("c1", user_id=user)


async def test_participants_context_shows_own_messages_only(world: Remembered) -> None:
    guest = await world.say("I want a cello.", "A small one fits.", "I am allergic to rosin.", user_id="guest-11")
    own = await world.say("Please save my basket.", "Saved.", user_id="nora")
    for rounds in range(2):
        if rounds:
            await world.summarise([*guest, *own])
        found = await world.memory.context("c1", user_id="nora", tenant_id="t1", profile=True)
        assert found is not None
        assert (found.messages, found.tokens_full, found.events_full) == (tuple(own), found.tokens, 2)
        assert (found.title, found.rolling_summary, found.recent_summaries) == ("", "", ())
        assert "rosin" not in found.as_text()
    for owner in (("mallory", "t1"), ("nora", "t2"), ("nora", None)):
        assert await world.memory.context("c1", user_id=owner[0], tenant_id=owner[1]) is None
    assert await world.memory.context("c2", user_id="nora", tenant_id="t1") is None


OPERATORS = [{"$ne": None}, {"$gt": ""}, {"$regex": ".*"}]
GIVEN: dict[str, Any] = {
    "query": "pin", "conversation_id": "c1", "conversation_ids": ["c1"], "message_id": "m0", "episode_id": "c1:1",
    "owner": Owner(), "messages": [a_message()], "user_id": "u1", "tenant_id": "t1",
}  # fmt: skip
"""Arguments of `Memory` that have no default, and whose the data is."""
METHODS = {name: method for name, method in vars(Memory).items() if iscoroutinefunction(method) and name[0] != "_"}
HARMLESS = {"self", "profile", "besides", "time_zone", "current_conversation_id"}
"""Arguments that choose among what is read anyway."""
CALLS = [(name, one) for name, method in METHODS.items() for one in signature(method).parameters.keys() - HARMLESS]


def instead_of(name: str, operator: object) -> object:
    match name:
        case "conversation_ids":
            return [operator]
        case "owner":
            return Owner(operator)  # type: ignore[arg-type]  # that is what is tested
        case "messages":
            return [a_message().model_copy(update={"id": operator})]
    return operator


@pytest.mark.parametrize(("method", "name"), sorted(CALLS))
@pytest.mark.parametrize("operator", OPERATORS, ids=str)
async def test_operator_finds_nothing(world: Remembered, method: str, name: str, operator: object) -> None:
    await world.summarise(await world.say("My PIN is 4711."))
    given = {one: GIVEN[one] for one in signature(METHODS[method]).parameters if one in GIVEN}
    try:
        found = await getattr(world.memory, method)(**given | {name: instead_of(name, operator)})
    except (AttributeError, TypeError, ValueError):
        return
    assert not {"c1", "u1"} & set(re.findall(r"\w+", repr(found)))


async def test_user_and_tenant_have_no_default(world: Remembered) -> None:
    with pytest.raises(TypeError, match="user_id"):
        await world.memory.recall("benefits")  # type: ignore[call-arg]  # that is what is tested


async def test_episodes_are_paged_back_to_the_first(world: Remembered) -> None:
    await world.summarise(await world.say(*islice(texts(0) * 9, 70)), size=10)
    first = await world.memory.episodes("c1", limit=3)
    second = await world.memory.episodes("c1", limit=3, before=first.next_before)
    third = await world.memory.episodes("c1", limit=3, before=second.next_before)
    pages = [[stored.summary.ordinal for stored in page.episodes] for page in (first, second, third)]
    assert pages == [[7, 6, 5], [4, 3, 2], [1]]
    assert third.next_before is None
    assert (await world.memory.episodes("c2")).episodes == ()


async def test_every_episode_names_its_source(world: Remembered) -> None:
    said = await world.say(*texts(0), tools=("search",))
    await world.summarise(said, size=100)
    (stored,) = (await world.memory.episodes("c1")).episodes
    assert stored.summary.message_ids == tuple(message.id for message in said)
    compression = stored.summary.compression
    assert (compression.events_before, compression.events_after) == (len(said), 1)
    assert compression.ratio == pytest.approx(1 - compression.tokens_after / compression.tokens_before)
    assert stored.summary.model
    assert stored.summary.metrics


@with_rows
async def test_trigger_preset_decides_how_many_messages_stay(tmp_path, trigger, kept: int | None) -> None:
    settings = Settings(episodes={"trigger": trigger}, sqlite={"path": tmp_path / "afterword.sqlite"})
    async with Memory.from_settings(settings) as memory:
        assert memory._keep_recent == kept


@asynccontextmanager
async def embedding_server() -> AsyncIterator[tuple[Settings, list[str]]]:
    """Run a server, and yield settings with redaction for its clients, and the texts that it was shown."""
    inputs: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        texts = (await request.json())["input"]
        inputs.extend(texts)
        return web.json_response({"data": [{"embedding": [0.5, 1]}] * len(texts)})

    app = web.Application()
    app.router.add_post("/v1/embeddings", answer)
    async with TestServer(app) as server:
        embedder = {"provider": "openai", "model": "m", "base_url": str(server.make_url("/v1"))}
        yield Settings(embedder=embedder, redaction={"where": "llm"}), inputs


async def test_embedder_server_sees_placeholders_of_a_query() -> None:
    async with embedding_server() as (settings, inputs):
        embed = QueryEmbedder(settings)
        vector = await embed("the boat of joe@example.com")
        await embed.close()
    assert vector
    assert vector.vector == [0.5, 1.0]
    assert inputs == ["the boat of [EMAIL]", *background_sentences()]


@pytest.mark.parametrize("answer", ["silent", 500])
async def test_query_waits_for_a_failing_embedder_once_and_briefly(answer: str | int) -> None:
    asked, now, goes_on = 0, 0.0, asyncio.Event()

    async def fail(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if answer == "silent":
            await goes_on.wait()
        return web.Response(status=500)

    async with serving_route(fail, "POST", "/v1/embeddings") as url:
        given = {"provider": "openai", "model": "m", "base_url": f"{url}/v1"}
        embed = QueryEmbedder(Settings(embedder=given), lambda: now)
        found = Memory(MemoryEpisodes(), MemoryMessages(), MemoryIndex().search, embed=embed)
        async with asyncio.timeout(5):
            assert await embed("boat") is None
        assert found.by_words
        before = asked
        assert await embed("boat") is None
        assert asked == before
        now = PAUSE_SECONDS + 1
        assert not found.by_words
        assert await embed("boat") is None
        assert asked > before
        goes_on.set()
        await embed.close()


@pytest.mark.parametrize("length", [VECTOR_CHARACTERS, VECTOR_CHARACTERS + MARGIN_CHARACTERS])
@pytest.mark.parametrize("shown", [1, 12, 18])
async def test_embedder_server_sees_no_half_of_a_redacted_value(length: int, shown: int) -> None:
    text = f"{'word ' * 2000}"[: length - shown - 1] + " 4111 1111 1111 1111 is my card. " + "And so on. " * 1000
    async with embedding_server() as (settings, inputs):
        embedder = make_embedder(settings.embedder, settings.redaction)
        assert embedder is not None
        assert await embed_messages(embedder, {"m1": SearchText(text)}) == {"m1": [0.5, 1.0]}
        await embedder.close()
    assert "4" not in inputs[0]
    assert VECTOR_CHARACTERS - 20 <= len(inputs[0]) <= VECTOR_CHARACTERS


async def test_redaction_of_long_texts_does_not_block_other_work() -> None:
    went_on = Event()

    def redacted(text: str) -> str:
        assert went_on.wait(10)
        return text

    async with embedding_server() as (settings, inputs):
        http = HttpClient(settings.embedder, "embedder", "")
        embedder = HttpEmbedder(http, settings.embedder, "/embeddings", SERVERS["openai"][2], redacted)
        asyncio.get_running_loop().call_soon(went_on.set)
        assert await embedder.passages(["a text"]) == [[0.5, 1.0]]
        await embedder.close()
    assert inputs == ["a text"]


async def test_memory_connects_on_first_use() -> None:
    address = "mongodb://127.0.0.1:1"
    async with Memory.from_settings(Settings(mongo={"uri": address}, qdrant={"url": "http://127.0.0.1:1"})):
        pass


@pytest.mark.parametrize("limit", [-1, 0, 1001])
async def test_page_has_between_1_and_1000_episodes(world: Remembered, limit: int) -> None:
    with pytest.raises(ValueError, match="limit must be at least 1 and at most 1000"):
        await world.memory.episodes("c1", limit)


@pytest.mark.parametrize("bounds", [{"keep_recent": -1}, {"max_tokens": 0}, {"max_tokens": -5}], ids=str)
async def test_context_size_is_bounded(world: Remembered, bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        await world.memory.context("c1", **bounds)
