"""The page of `afterword serve` in a real browser, in front of real servers and workers."""

import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright, expect

from afterword.local.demo import CHATS, messages_of
from afterword.samples import sample_lines
from afterword.schemas.dead_letters import INGEST, dead_letter
from afterword.serving.page.rendering import anchor
from afterword.serving.requests import new_key
from afterword.streams.ingest.sources import load_sources
from afterword.streams.kafka.clients import client_options
from afterword.streams.stores.opening import open_stores
from tests.conftest import stack_settings
from tests.e2e.deployment import Deployment, deployed
from tests.e2e.test_serve import ROLES, Serving, feed_runs, messages, serving
from tests.stack import Stack
from tests.unit.streams.ingest.records import FIELDS, Foreign

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
EXECUTABLE = next(filter(None, map(shutil.which, BROWSERS)), None)
SCREENSHOTS = "PAGE_SCREENSHOTS"
"""Names the directory for screenshots; without the variable, none are taken."""
WAIT_MS = 120_000
SCREENS = {
    "live": "/",
    "conversations": "/conversations",
    "conversation": "/conversation?id=trip",
    "edit": "/conversation/edit?id=trip&message_id=m1",
    "agent": "/conversation/context?id=trip",
    "people": "/people",
    "person": "/person?user_id=u1",
    "chat": "/chat?id=nothing-said",
    "prompts": "/chat/prompts?id=trip&name=u1",
    "search": "/search",
    "dead-letters": "/dead-letters",
    "erasures": "/erasures",
    "health": "/health",
}
SCRIPTS = (
    "<script>window.hit = 1; alert(1)</script>",
    "<img src=x onerror='window.hit = 1; alert(1)'>",
    '"><svg onload="window.hit = 1; alert(1)"><animate onbegin="alert(1)"/></svg>',
    "<a href='javascript:alert(1)'>link</a> [link](javascript:alert(1)) javascript:alert(1)",
    "' hx-get='/conversations' hx-trigger='load' hx-on:load='alert(1)' x='",
    "{{ 7 * 7 }} {% include 'base.html' %} ${alert(1)}",
    "</textarea></title></style><iframe srcdoc='<script>parent.hit = 1</script>'></iframe>",
    "\u202eright to left\u202d \u2066isolated \u200e",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x00 \x9b2J",
    "Z" + "\u0301\u0323\u0334" * 200,
)

expect.set_options(timeout=WAIT_MS)

pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason=f"no Chromium: none of {', '.join(BROWSERS)} is installed")


@dataclass
class World:
    """A deployment with a server and a browser."""

    deployment: Deployment
    server: Serving
    browser: Browser

    @asynccontextmanager
    async def page(self, width: int = 1280, **options: Any) -> AsyncIterator[Page]:
        """Open a page that must log no error, open no dialog and break no rule of the content security policy."""
        context = await self.browser.new_context(
            **{"viewport": {"width": width, "height": 900}, "base_url": self.server.address, **options}
        )
        context.set_default_timeout(WAIT_MS)
        page = await context.new_page()
        wrong: list[str] = []
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
        try:
            yield page
        finally:
            await context.close()
        assert wrong == []

    async def send(self, conversation_id: str, count: int, first: int = 0, **fields: Any) -> None:
        """Send messages and close their episode."""
        async with self.server.client() as client:
            answer = await client.post("/v1/messages", json=messages(conversation_id, count, first, **fields))
            assert answer.status_code == 202, answer.text
            path = f"/v1/conversations/{quoted(conversation_id)}/flush"
            assert (await client.post(path, json={})).status_code == 202


def quoted(part: str) -> str:
    return urlencode({"": part})[1:].replace("+", "%20")


def address(path: str, **ids: str) -> str:
    return f"{path}?{urlencode(ids)}"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Run everything, with a conversation of two episodes, the samples, and dead letters."""
    suffix, directory = f"-{uuid4().hex[:8]}", tmp_path_factory.mktemp("page")
    sources = directory / "afterword.toml"
    sources.write_text(f'[[sources]]\ntopics = ["crm{suffix}"]\n[sources.map]\n{FIELDS}')
    overrides = {"kafka": {"partitions": 2}, "drain_seconds": 5}
    overrides["ingest"] = {"file": sources}
    settings = stack_settings(stack, suffix, f"page{suffix}", directory, **overrides)
    async with deployed(settings, directory) as deployment, serving(deployment) as server, async_playwright() as driver:
        for role in ROLES:
            deployment.start(role)
        browser = await driver.chromium.launch(executable_path=EXECUTABLE, args=["--no-sandbox"])
        made = World(deployment, server, browser)
        await feed_runs(server)
        await deployment.produce(sample_lines())
        for first in (0, 4):
            await made.send("trip", 4, first)
        for n in range(3):
            await reject(deployment, b"not JSON <script>alert(1)</script>", f"bad-{n}")
        await made.send("trip", 2, 8)
        await deployment.finished()
        yield made
        await browser.close()


async def reject(deployment: Deployment, value: bytes, key: str) -> None:
    """Send a record that becomes a dead letter."""
    kafka = deployment.settings.kafka
    async with AIOKafkaProducer(**client_options(kafka)) as producer:
        await producer.send_and_wait(kafka.messages_topic, value, key=key.encode())


async def fits(page: Page) -> bool:
    """Return whether nothing is wider than the window, once the stylesheet has loaded."""
    await page.wait_for_load_state()
    wide: bool = await page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    return wide


async def check_accessible(page: Page) -> None:
    await page.wait_for_load_state()  # a click does not wait for the stylesheet, without which colours and sizes differ
    found = await Axe().run(page)
    assert found.violations_count == 0, f"{page.url} {page.viewport_size}\n{found.generate_report()}"


async def settled(page: Page) -> None:
    """Wait until a screen has loaded all of its parts."""
    await expect(page.get_by_text("Loading…")).to_have_count(0)
    await expect(page.get_by_text("Connecting…")).to_have_count(0)
    await expect(page.get_by_text("Checking…")).to_have_count(0)
    await expect(page.get_by_text("Loading the workers' lag")).to_have_count(0)


# before others write what is no sight
@pytest.mark.nightly
@pytest.mark.skipif(SCREENSHOTS not in os.environ, reason=f"{SCREENSHOTS} names no directory")
async def test_screenshots_are_written(world: World) -> None:
    directory = Path(os.environ[SCREENSHOTS])
    async with world.server.client() as client:
        for chat in CHATS:
            said = [one.model_dump(mode="json") for one in messages_of(chat, datetime.now(UTC))]
            assert (await client.post("/v1/messages", json={"messages": said})).status_code == 202
            flushed = await client.post(f"/v1/conversations/{said[0]['conversation_id']}/flush", json={})
            assert flushed.status_code == 202
    await world.deployment.finished()
    for scheme in ("light", "dark"):
        for width in (1280, 390):
            async with world.page(width, color_scheme=scheme) as page:
                for name, prepare in PREPARED.items():
                    await prepare(page)
                    await settled(page)
                    await page.screenshot(path=directory / f"page-{name}-{scheme}-{width}.png")


async def test_produced_message_appears_in_live_without_reloading(world: World) -> None:
    async with world.page() as page:
        await page.goto("/")
        await settled(page)
        before = await page.evaluate("performance.getEntriesByType('navigation').length + performance.timeOrigin")
        await world.send("appears/now", 4)
        entry = page.locator("#entries .entry-summary-created", has_text="appears/now")
        await expect(entry).to_be_visible()
        await expect(entry).to_contain_text("flight")
        await expect(page.locator("#entries .entry-episode-closed", has_text="appears/now")).to_be_visible()
        await expect(page.locator("#lag")).to_contain_text("Summarizer")
        after = await page.evaluate("performance.getEntriesByType('navigation').length + performance.timeOrigin")
        assert before == after
        await entry.get_by_role("link").click()
        await expect(page.locator(".episode-card")).to_contain_text("revision 1")


async def test_first_message_is_on_the_page_before_any_summary(world: World) -> None:
    async with world.page() as page:
        await page.goto("/")
        await settled(page)
        async with world.server.client() as client:
            said = messages("just-begun", 1, content="My **first** words.")
            assert (await client.post("/v1/messages", json=said)).status_code == 202
        card = page.locator("#recent .card", has_text="just-begun")
        await expect(card).to_contain_text("1 pending")
        await expect(card).to_contain_text("My **first** words.")
        await page.goto("/conversations")
        await settled(page)
        await page.locator("[data-recent] .card", has_text="just-begun").get_by_role("link").first.click()
        await expect(page.locator(".message strong", has_text="first")).to_be_visible()


async def test_missing_llm_causes_no_warning(world: World) -> None:
    async with world.page() as page:
        await page.goto("/")
        await expect(page.locator("#tiles")).to_contain_text("summaries are made of sentences from the messages")
        await expect(page.locator("#tiles .tile-warn")).to_have_count(0)
        await expect(page.locator("#tiles .number").nth(1)).not_to_have_text("0")


async def test_hidden_page_releases_its_stream_and_resumes_later(world: World) -> None:
    async with world.page() as page:
        await page.add_init_script("""
            window.streams = [];
            window.EventSource = class extends EventSource {
                constructor(...given) { super(...given); window.streams.push(this); }
            };
            window.look = (hidden) => {
                Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
                document.dispatchEvent(new Event("visibilitychange"));
            };""")
        await page.goto("/")
        await settled(page)
        opened = "streams.filter((one) => one.readyState !== EventSource.CLOSED).length"
        assert await page.evaluate(opened) == 1
        await page.evaluate("look(true)")
        assert await page.evaluate(opened) == 0
        await world.send("while-hidden", 4)
        await page.evaluate("look(false)")
        await expect(page.locator("#entries .entry-summary-created", has_text="while-hidden")).to_be_visible()
        assert await page.evaluate(opened) == 1
        await expect(page.locator("#connection")).to_be_hidden()


async def test_search_survives_going_back_and_urls_omit_its_words(world: World) -> None:
    await world.send("found-again", 4, user_id="u-again")
    await world.deployment.finished()
    async with world.page() as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url.partition("#")[0]))
        await search(page, "flights to rome", "u-again")
        await expect(page.locator(".found mark").first).to_be_visible()
        link = page.url
        assert link.endswith("/search#user_id=u-again&query=flights+to+rome")
        await page.locator(".card-title").click()
        await expect(page.locator(".message").first).to_be_visible()
        await page.go_back()
        await expect(page.locator(".found mark").first).to_be_visible()
        await page.get_by_label("What was said").fill("euros")
        await page.keyboard.press("Enter")
        await expect(page.locator(".found mark").first).to_have_text("euros")
        await page.go_back()
        await expect(page.locator(".found mark").first).to_have_text("flight")
        assert not [address for address in asked if re.search("flight|rome|u-again", address)]
    async with world.page() as page:
        await page.goto(link)
        await expect(page.locator(".found mark").first).to_be_visible()
        await expect(page.get_by_label("What was said")).to_have_value("flights to rome")


async def test_search_of_all_users_works_without_scripts(world: World) -> None:
    await world.send("hers", 2, user_id="u-hers", content="The *lighthouse* keeper sings.")
    await world.send("his", 2, user_id="u-his", content="A lighthouse was sold.")
    await world.deployment.finished()
    for scripts in (True, False):
        async with world.page(java_script_enabled=scripts) as page:
            await page.goto("/search")
            await page.get_by_label("What was said").fill("lighthouse")
            await page.get_by_role("button", name="Search").click()
            for user in ("u-hers", "u-his"):
                await expect(page.locator(".card", has_text=f"user {user}")).to_contain_text("match in words")
            await expect(page.locator("em mark").first).to_have_text("lighthouse")
            if scripts:
                await check_accessible(page)


async def test_keyboard_edit_becomes_a_revision_of_the_card(world: World) -> None:
    await world.send("edited", 4)
    await world.deployment.finished()
    async with world.page() as page:
        await page.goto(address("/conversation", id="edited"))
        await tab_to(page, "Edit message m0", "a")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/conversation/edit?*")
        await tab_to(page, "The flight to Rome on day 0 costs 100 euros.")
        await page.keyboard.press("Control+A")
        await page.keyboard.type("The flight to Vienna on day 9 costs 777 euros.")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status").filter(has_text="on its way")).to_be_visible()
        card = page.locator(".episode-card")
        await expect(card).to_contain_text("revision 2")
        await expect(card).to_contain_text("a message was edited")
        await card.get_by_text("Episode 1").click()
        await card.get_by_text("Revisions").click()
        said = [re.compile("^first summary"), re.compile("^a message was edited")]
        await expect(card.locator(".revisions li")).to_have_text(said)
        await expect(page.locator(".messages")).to_contain_text("Vienna")
        await expect(page.locator(".messages")).not_to_contain_text("costs 100 euros")


@pytest.mark.nightly
async def test_card_tells_why_it_changed_without_deleted_text(world: World) -> None:
    await world.send("rewritten", 4)
    await world.deployment.finished()
    async with world.page() as page, world.server.client() as client:
        await page.goto(address("/conversation", id="rewritten"))
        card = page.locator(".episode-card:has(.revisions)")
        await expect(card).to_contain_text("revision 1")
        await expect(card).to_contain_text("first summary")
        await card.get_by_text("Episode 1").click()
        await card.get_by_text("Long summary").click()
        changed = {"content": "The flight to Kyoto on day 9 costs 4711 euros."}
        assert (await client.patch("/v1/conversations/rewritten/messages/m0", json=changed)).status_code == 202
        await expect(card).to_contain_text("revision 2")
        await expect(card).to_contain_text("a message was edited")
        await expect(card).to_contain_text("Kyoto")
        await expect(card.locator(".text").nth(1)).to_be_visible()  # what was opened stays open
        await check_accessible(page)
        assert (await client.delete("/v1/conversations/rewritten/messages/m0")).status_code == 202
        await expect(card).to_contain_text("a message was deleted")
        await expect(card).to_contain_text("revision 4")  # revision 3 has no text: a deletion waits for no summary
        for gone in ("Kyoto", "4711", "100 euros"):
            await expect(page.locator("html")).not_to_contain_text(gone)
            assert gone not in await page.title()
        await page.goto("/")
        await expect(page.locator("#entries .entry-summary-created", has_text="rewritten")).to_contain_text(
            "revision 4"
        )
        await expect(page.locator("#entries")).not_to_contain_text("Kyoto")
        await page.goto(address("/conversation", id="rewritten"))
        assert (await client.delete("/v1/conversations/rewritten")).status_code == 202
        await expect(page.locator("main")).to_have_text("This no longer exists.")


async def tab_to(page: Page, name: str = "", selector: str = "*") -> None:
    """Press Tab until the focus, which must be visible, is on the element with this text, value or label."""
    asked = """([name, selector]) => {
        const at = document.activeElement;
        const texts = [at.value, at.textContent, ...Array.from(at.labels || [], (label) => label.textContent)];
        return at !== document.body && at.matches(selector) && texts.some((text) => (text || "").includes(name));
    }"""
    for _ in range(200):
        await page.keyboard.press("Tab")
        if await page.evaluate(asked, [name, selector]):
            assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            return
    raise AssertionError(f"Tab does not lead to {name} {selector}")


@pytest.mark.nightly
async def test_tab_reaches_everything_and_shows_the_focus(world: World) -> None:
    stops = """() => Array.from(document.querySelectorAll("a[href], button, input, textarea, summary"))
        .filter((one) => one.checkVisibility()).map(nameOf)"""
    async with world.page() as page:
        for path in SCREENS.values():
            await page.goto(path)
            await settled(page)
            await page.evaluate("""() => {
                window.nameOf = (one) => one.getAttribute("href") || one.id || one.name || one.textContent.trim();
                window.met = [];
                document.addEventListener("focusin", (event) => met.push(
                    [nameOf(event.target), getComputedStyle(event.target).outlineStyle]));
            }""")
            wanted = await page.evaluate(stops)
            for _ in range(len(wanted) + 5):  # some may be renewed meanwhile
                await page.keyboard.press("Tab")
            met = await page.evaluate("met")
            assert set(wanted) <= {name for name, _ in met}, path
            assert [name for name, outline in met if outline == "none"] == [], path


async def in_sight(page: Page, text: str, *, last: bool = False) -> bool:
    found = page.locator(".message", has_text=text)
    shown: bool = await (found.last if last else found).evaluate("""(one) => {
        const [at, box] = [one, one.closest(".scroller")].map((each) => each.getBoundingClientRect());
        return at.top >= box.top && at.bottom <= box.bottom;
    }""")
    return shown


async def test_conversation_opens_at_its_newest_and_grows_without_jump(world: World) -> None:
    await world.send("long", 120)
    await world.deployment.finished()
    async with world.page() as page:
        await page.goto(address("/conversation", id="long"))
        await expect(page.locator(".message")).to_have_count(50)
        assert await in_sight(page, "on day 119 costs")
        before = await page.locator(".scroller").evaluate("(box) => { box.scrollTop = -1e6; return box.scrollTop; }")
        await expect(page.locator(".message")).to_have_count(100)
        assert await page.locator(".scroller").evaluate("(box) => box.scrollTop") == pytest.approx(before, abs=2)
        await world.send("long", 1, 120)
        await expect(page.locator(".message", has_text="on day 120 costs")).to_have_count(1)
        assert await in_sight(page, "on day 70 costs"), "what is read stays in sight"
        await page.locator(".outline a").first.click()
        await expect(page.locator(".episode-card[open]")).to_have_count(1)
        await check_accessible(page)
        await page.goto(address("/conversation", id="long", message_id="m5") + f"#{anchor('m5')}")
        assert await in_sight(page, "on day 5 costs")
    async with world.page(390) as page:
        await page.goto(address("/conversation", id="long"))
        assert await in_sight(page, "on day 120 costs")
        await expect(page.locator(".outline")).to_be_hidden()
        await expect(page.locator(".episode-card").last).to_be_visible()


@pytest.mark.nightly
async def test_slider_shows_what_an_agent_loads(world: World) -> None:
    async with world.page() as page, world.server.client() as client:
        await world.send("loaded", 2)
        await world.deployment.finished()
        await page.goto("/conversation?id=loaded")
        await page.get_by_role("link", name="Agent’s view").click()
        await expect(page.locator("#context")).to_contain_text("on day 0")
        assert (await client.delete("/v1/conversations/loaded/messages/m0")).status_code == 202
        await expect(page.locator("#context")).not_to_contain_text("on day 0")
        await expect(page.locator("#context")).to_contain_text("of at most 3,500")
        await page.locator("#max_tokens").focus()
        await page.keyboard.press("Home")
        await expect(page.locator("#context")).to_contain_text("of at most 50")


async def test_search_marks_words_and_a_deletion_disappears_everywhere(world: World) -> None:
    await world.send("gone", 4, user_id="u-gone")
    await world.deployment.finished()
    async with world.page() as page:
        await search(page, "flights to rome", "u-gone")
        await expect(page.locator(".found mark").first).to_have_text("flight")
        await expect(page.locator(".card")).to_contain_text(re.compile("match in words"))
        await page.locator(".card-title").click()
        await page.get_by_text("Delete this conversation").click()
        await page.get_by_role("button", name="Delete the whole conversation").click()
        await page.wait_for_url("**/conversations")
        await world.deployment.finished()
        await search(page, "flights to rome", "u-gone")
        await expect(page.get_by_text("Nothing is known")).to_be_visible()
        await page.goto(address("/person", user_id="u-gone"))
        await expect(page.get_by_role("heading", name="Not Found")).to_be_visible()
        await page.goto(address("/conversation", id="gone"))
        await expect(page.get_by_role("heading", name="Not Found")).to_be_visible()


async def search(page: Page, query: str, user_id: str) -> None:
    await page.goto("/search")
    await page.get_by_label("What was said").fill(query)
    await page.get_by_label("User").fill(user_id)
    await page.get_by_role("button", name="Search").click()


async def test_fact_leads_to_its_message_and_can_be_forgotten(world: World) -> None:
    for n, text in enumerate(("I live in Leeds.", "I live in Porto now.", "I am allergic to nuts.")):
        await world.send(f"mia-{n}", 1, user_id="mia", content=text)
        await world.deployment.finished()
    async with world.page() as page:
        await page.goto("/people")
        await page.get_by_label("User id, or its beginning").fill("mi")
        await page.get_by_role("button", name="Show").click()
        card = page.locator(".card", has_text="mia")
        await expect(card).to_contain_text("3 conversations")
        await card.get_by_role("link").click()
        await expect(page.get_by_role("heading", name="mia")).to_be_visible()
        await expect(page.locator("main")).to_contain_text("home city: I live in Leeds. → I live in Porto now.")
        await expect(page.locator("#context")).to_contain_text("allergic to nuts")
        await expect(page.locator("#context")).not_to_contain_text("Leeds")
        await check_accessible(page)
        await page.get_by_role("link", name="I am allergic to nuts.", exact=True).click()
        await expect(page.locator(".panel .text")).to_have_text("I am allergic to nuts.")
        await page.go_back()
        await page.get_by_role("link", name="Forget this fact: I am allergic to nuts.").click()
        await expect(page.locator(".letter")).to_contain_text("I am allergic to nuts.")
        await expect(page.locator(".letter")).to_have_count(1)
        await check_accessible(page)
        await page.get_by_role("button", name="Delete the selected messages").click()
        await expect(page.get_by_role("status").filter(has_text="change was sent")).to_be_visible()
        await world.deployment.finished()
        await page.reload()
        await expect(page.locator("#context")).to_contain_text("Porto")
        await expect(page.locator("main")).not_to_contain_text("nuts")
        await page.get_by_role("link", name="Erase this user").click()
        await expect(page.get_by_label("User", exact=True)).to_have_value("mia")


async def start_another(page: Page) -> None:
    async with page.expect_navigation():  # until its script listens to the keys
        await page.get_by_role("button", name="Start another conversation").click()


async def say(page: Page, text: str, name: str = "") -> Any:
    """Say something, and return the answer once both are archived."""
    before = await page.locator("#thread .message").count()
    if name:
        await page.get_by_label("Your name").fill(name)
    box = page.get_by_label("Your message")
    await box.fill(text)
    await box.press("Enter")
    await expect(box).to_have_value("")
    await expect(page.locator("#thread .message")).to_have_count(before + 2)
    await expect(page.locator("#said .message")).to_have_count(0)
    return page.locator("#thread .message").last


async def test_chat_answers_the_four_questions_without_an_llm(world: World) -> None:
    yesterday = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    await world.send("errand", 1, user_id="noa", content="I bought a red bicycle.", sent_at=yesterday)
    async with world.page() as page:
        await page.goto("/chat")
        await say(page, "My name is Noa, and I live in Leeds.", "noa")
        await start_another(page)
        await expect(page.locator(".message")).to_have_count(0)
        await say(page, "I moved to Porto.")
        await start_another(page)
        await expect(page.locator(".message")).to_have_count(0)
        await world.deployment.finished()
        for question, told in {
            "what is my name": "You told me today: My name is Noa, and I live in Leeds.",
            "who said that": "You did, today at ",
            "what did I tell you yesterday": "I bought a red bicycle.",
            "what changed": "You told me today: I moved to Porto. Before that, today: I live in Leeds.",
        }.items():
            answer = await say(page, question)
            await expect(answer).to_contain_text(told)
            await expect(answer).to_contain_text("Without memory I know ", use_inner_text=True)
            assert await in_sight(page, "Without memory", last=True)
        await expect(await say(page, "Which instrument do I play?")).to_contain_text("I know nothing about that yet.")
        await page.get_by_text("with and without memory").click()
        await expect(page.get_by_role("region", name="With memory")).to_contain_text("I moved to Porto.")
        await expect(page.get_by_role("region", name="Without memory")).not_to_contain_text("Known of the user")
        await check_accessible(page)


async def test_two_people_chat_and_shift_enter_breaks_lines(world: World) -> None:
    for width in (1280, 390):
        async with world.page(width) as page:
            await page.goto("/chat")
            await say(page, "I booked the cabin for March.", "ada")
            await page.get_by_label("Your message").press("Shift+Enter")
            await expect(page.get_by_label("Your message")).to_have_value("\n")
            answer = await say(page, "Who booked the cabin?", "ben")
            await expect(answer).to_contain_text("ada said today: I booked the cabin for March.")
            assert await in_sight(page, "ada said today", last=True)
            await expect(page.get_by_label("Your message")).to_be_in_viewport()
            assert await fits(page)


async def test_message_that_cannot_be_sent_stays_in_the_box(world: World) -> None:
    async with world.page() as page:
        await page.goto("/chat")
        await page.route(
            "**/chat?*", lambda route: route.abort() if route.request.method == "POST" else route.continue_()
        )
        box = page.get_by_label("Your message")
        await box.fill("Do not lose this.")
        await box.press("Enter")
        await expect(page.get_by_text("This was not sent.")).to_be_visible()
        await expect(box).to_have_value("Do not lose this.")
        await page.unroute("**/chat?*")
        await box.press("Enter")
        await expect(page.locator("#thread .message").first).to_contain_text("Do not lose this.")


@pytest.mark.nightly
async def test_chat_works_without_scripts(world: World) -> None:
    async with world.page(java_script_enabled=False) as page:
        await page.goto("/chat")
        await page.get_by_label("Your message").fill("I live in Porto.")
        await page.get_by_role("button", name="Send").click()
        await world.deployment.finished()
        await page.reload()
        await expect(page.locator(".message")).to_have_count(2)


async def test_dead_letters_are_shown_replayed_and_discarded(world: World) -> None:
    await reject(world.deployment, b"<script>alert(1)</script>\x1b[31m", "bad-letter")
    async with world.page() as page:
        letter = page.locator(".letter", has_text="bad-letter")
        await until_there(page, "/dead-letters", letter)
        await letter.get_by_role("link").click()
        await expect(page.locator(".code")).to_contain_text("<script>alert(1)</script>\ufffd[31m")
        shown = page.url
        await page.get_by_role("button", name="Replay").click()
        await expect(page.get_by_role("status").filter(has_text="1 dead letter was replayed")).to_be_visible()
        await until_there(page, "/dead-letters", letter)  # it is rejected again, as another one
        assert await letter.get_by_role("link").get_attribute("href") not in shown
        await letter.get_by_role("checkbox").check()
        await page.get_by_role("button", name="Discard selected").click()
        await expect(page.get_by_role("status").filter(has_text="1 dead letter was discarded")).to_be_visible()
        await expect(letter).to_have_count(0)


async def test_source_dead_letters_show_their_key_and_are_discarded(world: World) -> None:
    kafka, [source] = world.deployment.settings.kafka, load_sources(world.deployment.settings)
    rejected = Foreign(b'{"user": "dana"}', key=b"customer-7", topic=source.topics[0])
    key, value, headers = dead_letter(rejected, stage=INGEST, error_type="unmapped", message="no role", now_ms=1)
    async with AIOKafkaProducer(**client_options(kafka)) as producer:
        await producer.send_and_wait(kafka.dead_letters(rejected.topic), value, key=key, headers=headers)
    async with world.page() as page:
        letter = page.locator(".letter", has_text="key customer-7")
        await until_there(page, "/dead-letters", letter)
        await letter.get_by_role("checkbox").check()
        await page.get_by_role("button", name="Discard selected").click()
        await expect(page.get_by_role("status").filter(has_text="1 dead letter was discarded")).to_be_visible()
        await expect(letter).to_have_count(0)


async def until_there(page: Page, path: str, wanted: Any) -> None:
    deadline = time.monotonic() + WAIT_MS / 1000
    while time.monotonic() < deadline:
        await page.goto(path)
        if await wanted.count():
            return
    raise AssertionError(f"{path} does not show it")


async def test_erasure_ends_with_a_receipt(world: World) -> None:
    await world.send("left", 3, user_id="u-left")
    await world.deployment.finished()
    async with world.page() as page:
        await page.goto("/erasures")
        await page.get_by_label("User", exact=True).fill("u-left")
        await page.get_by_role("checkbox").check()
        await page.get_by_role("button", name="Erase").click()
        await page.wait_for_url("**/erasure?id=*")
        assert "u-left" not in page.url
        await expect(page.get_by_text("Done.")).to_be_visible()
        await check_accessible(page)
        answer = await page.goto(address("/conversation", id="left"))
        assert answer is not None
        assert answer.status == 404


@pytest.mark.parametrize(
    ("scheme", "screens"),
    [
        ("light", ("conversation", "chat", "search")),
        *(pytest.param(scheme, tuple(SCREENS), marks=pytest.mark.nightly) for scheme in ("light", "dark")),
    ],
)
async def test_screens_fit_are_accessible_and_have_both_schemes(
    world: World, scheme: str, screens: Sequence[str]
) -> None:
    for width in (400, 1600):
        async with world.page(width, color_scheme=scheme) as page:
            for name in screens:
                await page.goto(SCREENS[name])
                await settled(page)
                assert await fits(page), (name, width)
                await check_accessible(page)
            ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (ground == "rgb(17, 22, 29)") == (scheme == "dark")


async def test_hostile_content_runs_nothing_and_keeps_the_layout(world: World) -> None:
    names = [f"{n}{text}"[:250] for n, text in enumerate(SCRIPTS)]
    long = "x" * 690_000
    for n, text in enumerate(SCRIPTS):
        if "\x00" not in names[n]:
            await world.send(names[n], 3, user_id="hostile " + SCRIPTS[0], content=f"{text} Rome {n}")
    await world.send("long" + "y" * 250, 2, user_id="w" * 256, content=long)
    await world.deployment.finished()
    for width in (400, 1600):
        async with world.page(width) as page:
            await page.goto("/")
            await settled(page)
            await expect(page.locator("#entries")).to_contain_text("longyyyy")
            assert await fits(page)
            for name in (names[0], names[4], names[7], "long" + "y" * 250, "..", "."):
                await page.goto(address("/conversation", id=name))
                assert await fits(page), name
            await page.goto(address("/conversation", id="long" + "y" * 250))
            await page.get_by_role("link", name="Show all").first.click()
            await expect(page.locator(".panel .text")).to_have_text(long)
            assert await fits(page)
            await search(page, "Rome", "hostile " + SCRIPTS[0])
            await expect(page.locator(".found mark").first).to_be_visible()
            assert await fits(page)
            assert await page.evaluate("window.hit === undefined && frames.length === 0")
            assert await page.locator("main script, main iframe, main img, main a[href^=javascript]").count() == 0


async def test_api_key_signs_in_and_sees_its_own_only(world: World) -> None:
    key, record = new_key(("read",), "t1", "u1")
    async with open_stores(world.deployment.settings) as stores:
        await stores.keys.put(record)
    async with serving(world.deployment, auth="keys") as server:
        own = World(world.deployment, server, world.browser)
        async with own.page() as page:
            await page.goto("/conversation?id=trip")
            await page.wait_for_url("**/sign-in")
            await page.get_by_label("Key").fill("afw_wrong")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("alert")).to_have_text("This key is not valid.")
            await check_accessible(page)
            await page.get_by_label("Key").fill(key)
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", name="Live")).to_be_visible()
            [cookie] = await page.context.cookies()
            assert (cookie["httpOnly"], cookie["sameSite"], cookie["expires"]) == (True, "Strict", -1)
            assert await page.get_by_role("link", name="Dead letters").count() == 0
            for path in ("/conversation?id=trip", "/dead-letters", "/live/lag"):
                answer = await page.goto(path)
                assert answer is not None
                assert answer.status == 404, path
            await page.goto("/health")
            await page.get_by_role("button", name="Sign out").click()
            await page.wait_for_url("**/sign-in")


async def live_screen(page: Page) -> None:
    await page.goto("/")
    await expect(page.locator("#entries .entry").first).to_be_visible()


async def searched_screen(page: Page) -> None:
    await search(page, "What could make my sister Ines happy?", "mara")
    await expect(page.locator(".found").first).to_be_visible()


async def chat_screen(page: Page) -> None:
    await page.goto("/chat?name=mara")
    for question in ("Where is my home now?", "What changed?", "May I eat salmon?"):
        await say(page, question)


def screen(path: str) -> Callable[[Page], Awaitable[object]]:
    return lambda page: page.goto(path)


PREPARED: dict[str, Callable[[Page], Awaitable[object]]] = {
    "live": live_screen,
    "conversations": screen("/conversations"),
    "conversation": screen("/conversation?id=mara-trip"),
    "long-conversation": screen("/conversation?id=superseg_validation_2"),
    "agent": screen("/conversation/context?id=mara-trip"),
    "edit": screen("/conversation/edit?id=trip&message_id=m1"),
    "person": screen("/person?user_id=mara"),
    "chat": chat_screen,
    "search": searched_screen,
    "dead-letters": screen("/dead-letters"),
    "erasures": screen("/erasures"),
    "health": screen("/health"),
}
