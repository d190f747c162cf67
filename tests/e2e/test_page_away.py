"""The page and the API while MongoDB, then Kafka, is killed and comes back: real servers, workers and browser."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import async_playwright, expect

from afterword.embedded import EmbeddedStack
from afterword.serving.problems import RETRY_SECONDS
from tests.conftest import stack_settings
from tests.e2e.deployment import deployed
from tests.e2e.test_page import BROWSERS, EXECUTABLE, World, address, settled
from tests.e2e.test_serve import feed_runs, messages, serving
from tests.mongo_server import MongoServer, running_mongo
from tests.stack import chosen_jars

SHORT_SESSION = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
"""A broker that was killed is registered again when its old session has ended: after 9 s by default."""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(EXECUTABLE is None, reason=f"no Chromium: none of {', '.join(BROWSERS)} is installed"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own_stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedStack]:
    """Start separate servers, because this test kills them."""
    directory = tmp_path_factory.mktemp("away") / "stack"
    async with EmbeddedStack(directory, jars=chosen_jars(), properties=SHORT_SESSION) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def database(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MongoServer]:
    """Start a separate server, because this test kills it."""
    async with running_mongo(tmp_path_factory.mktemp("mongo")) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(
    own_stack: EmbeddedStack, database: MongoServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """Run a server, the workers that need no LLM, and a browser, with a conversation in the archive."""
    directory = tmp_path_factory.mktemp("page")
    overrides = {
        "kafka": {"partitions": 1},
        "sqlite": {"path": None},
        "mongo": {"uri": database.uri, "database": "page"},
        "drain_seconds": 1,
    }
    settings = stack_settings(own_stack, "", "page", directory, **overrides)
    async with deployed(settings, directory) as deployment, serving(deployment) as server, async_playwright() as driver:
        for role in ("segmenter", "archiver"):
            deployment.start(role)
        browser = await driver.chromium.launch(executable_path=EXECUTABLE, args=["--no-sandbox"])
        made = World(deployment, server, browser)
        await feed_runs(server)
        await made.send("trip", 4)
        await server.until(
            lambda answer: answer.status_code == 200 and answer.json()["last_message_at"], "/v1/conversations/trip"
        )
        yield made
        await browser.close()


async def refused(world: World, method: str, path: str, body: object = None) -> None:
    """Ask until the server reports that something is unavailable, with the time of the next attempt."""
    async with world.server.client() as client:
        answer = await client.request(method, path, json=body, timeout=60)
    assert answer.status_code == 503, answer.text
    assert answer.headers["retry-after"] == str(RETRY_SECONDS)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["error_type"] in ("store_unavailable", "broker_unavailable")


async def test_page_survives_an_outage_of_mongodb(world: World, database: MongoServer) -> None:
    async with world.page() as page, world.page() as other, world.page() as health:
        await page.goto(address("/conversation", id="trip"))
        await expect(page.locator(".message")).to_have_count(4)
        await health.goto("/health")
        tile = health.locator(".tile", has_text="Stores")
        await expect(tile).to_contain_text("ready")
        await asyncio.to_thread(database.process.kill)
        await expect(page.locator("#connection")).to_contain_text("is unavailable")
        await expect(page.locator(".message")).to_have_count(4)  # what was there can still be read
        await expect(tile).to_contain_text("unavailable")
        answer, *_ = await asyncio.gather(
            other.goto(address("/conversation", id="trip")),
            refused(world, "GET", "/v1/conversations/trip"),
            refused(world, "GET", "/v1/conversations/trip/context"),
        )
        assert answer is not None
        assert (answer.status, answer.headers["retry-after"]) == (503, str(RETRY_SECONDS))
        await expect(other.get_by_text("A store cannot be reached.")).to_be_visible()
        # whatever does not need it still works
        async with world.server.client() as client:
            assert (await client.post("/v1/messages", json=messages("trip", 2, 4))).status_code == 202
        await database.run()
        await expect(other.locator(".message")).to_have_count(6)
        await expect(page.locator(".message")).to_have_count(6)
        await expect(page.locator("#connection")).to_be_hidden()
        await expect(tile).to_contain_text("ready")


async def test_page_survives_an_outage_of_kafka(world: World, own_stack: EmbeddedStack) -> None:
    async with world.page() as page, world.page() as other, world.page() as health:
        await page.goto("/")
        await expect(page.locator("#entries")).to_contain_text("trip")
        await health.goto("/health")
        tile = health.locator(".tile", has_text="Kafka")
        await expect(tile).to_contain_text("ready")
        await settled(page)  # a reading of the lag that the kill interrupts would go on for its ten seconds
        await asyncio.to_thread(own_stack.kafka.process.kill)
        refusing = asyncio.create_task(refused(world, "POST", "/v1/messages", messages("lost", 1)))
        await expect(page.locator("#connection")).to_contain_text("is unavailable")
        await expect(page.locator("#tiles")).to_contain_text("Kafka cannot be reached")
        await expect(tile).to_contain_text("unavailable")
        answer = await other.goto("/dead-letters")
        assert answer is not None
        assert (answer.status, answer.headers["retry-after"]) == (503, str(RETRY_SECONDS))
        await expect(other.get_by_text("Kafka cannot be reached.")).to_be_visible()
        async with world.server.client() as client:  # whatever does not need it still works
            assert (await client.get("/v1/conversations/trip")).status_code == 200
        await refusing
        await own_stack.start_kafka()
        await expect(other.get_by_role("heading", name="Dead letters")).to_be_visible()
        await expect(tile).to_contain_text("ready")
        await expect(page.locator("#connection")).to_be_hidden()
        await expect(page.locator("#tiles")).not_to_contain_text("Kafka cannot be reached")
        await world.send("after", 3)
        await expect(page.locator("#entries .entry-episode-closed", has_text="after")).to_be_visible()
