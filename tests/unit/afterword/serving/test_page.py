"""The page shows what the principal may see, escaped, and accepts only its own forms."""

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from aiokafka import TopicPartition
from jinja2.nodes import Filter
from pydantic import SecretStr
from starlette.requests import Request
from structlog.testing import capture_logs

from afterword.operating.dlq import DeadLetterCounts
from afterword.operating.person import Receipt
from afterword.schemas import Quality, Usage
from afterword.schemas.base import Owner
from afterword.schemas.dead_letters import DeadLetter
from afterword.schemas.summaries import SUMMARY_CREATED, Compression
from afterword.serving import requests, server
from afterword.serving.feed import ALL, Batch, Published, StreamFilter
from afterword.serving.page import operating
from afterword.serving.page.operating import LiveTotals, live_parts
from afterword.serving.page.rendering import (
    MOST_MARKS,
    address,
    anchor,
    fragment,
    rendered,
    templates,
    visible_text,
    with_unsupported,
    with_words,
    word_finder,
)
from afterword.serving.page.visitor import COOKIE, RENEWED_SECONDS, SESSION_SECONDS, SIGNED_IN_SECONDS, Seal
from afterword.serving.problems import Unauthenticated
from afterword.serving.requests import Principal, SharedRead, admit, is_still_admitted, new_key
from afterword.serving.server import make_app
from afterword.streams.errors import StoreUnavailable
from afterword.streams.kafka.log_reader import Extent
from afterword.streams.settings import Kafka, Llm, Settings
from afterword.streams.stores.episodes import UsageTotals
from tests.blocking import MOST_SHARE, blocking
from tests.nasty_texts import mixed
from tests.rows import with_rows
from tests.samples import a_stored_episode, a_summary
from tests.unit.afterword.serving.served import Served, serving
from tests.unit.afterword.serving.test_erasures import running, until
from tests.unit.afterword.serving.test_hostile_requests import Upload
from tests.unit.afterword.serving.test_reading import Holder, a_conversation

OURS = {"origin": "http://127.0.0.1"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
SCREENS = ("/", "/conversations", "/conversation?id=c1", "/search", "/health")


class OneKey:
    """An authenticator that admits whoever has the key."""

    def __init__(self, key: str, **fields: Any) -> None:
        self._key = key
        self._principal = Principal("k1", **{"scopes": frozenset({"read", "write", "admin"}), **fields})

    async def principal(self, token: str | None) -> Principal:
        if token != self._key:
            raise Unauthenticated
        return self._principal


def signed_in(served: Served) -> dict[str, str]:
    return {"cookie": f"{COOKIE}={served.app.state.seal.begun('k')}"}


async def test_every_screen_is_a_page_without_inline_code(served: Served) -> None:
    await a_conversation(served)
    for path in SCREENS:
        answer = await served.client.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-type"].startswith("text/html")
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! src=)|javascript:", answer.text), path


async def test_unchanged_static_files_are_not_resent(served: Served) -> None:
    page = await served.client.get("/")
    for path in re.findall(r'"(/static/[^"]+)"', page.text):
        answer = await served.client.get(path)
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")
        again = await served.client.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    for path in ("/static/none.css", "/static/", "/static/..%2f__init__.py", "/static/../rendering.py"):
        assert (await served.client.get(path)).status_code == 404


async def test_conversation_shows_messages_beside_their_episodes(served: Served) -> None:
    await a_conversation(served)
    page = (await served.client.get("/conversation", params={"id": "c1"})).text
    assert [int(n) for n in re.findall(r"<strong>Episode (\d)", page)] == [1, 2]
    assert page.count('<li class="message') == 6
    assert page.count(">pending</span>") == 2
    assert page.index("A flight to Rome on day 0") < page.index("A flight to Rome on day 5")


async def older_pages(served: Served, first: str = "/conversation?id=c1") -> list[tuple[int, int, list[str]]]:
    """Return the first and last day that each page shows, and its episodes, following the links to older messages."""
    found, path = [], first
    while path:
        page = (await served.client.get(path)).text
        days = re.findall(r'dir="auto"><p>A flight to Rome on day (\d+)\.</p>', page)
        found.append((int(days[0]), int(days[-1]), re.findall(r"<strong>Episode (\d+)", page)))
        older = re.search(r'href="([^"]+)"[^>]*>Older messages', page)
        path = older[1].replace("&amp;", "&") if older else ""
    return found


@pytest.mark.parametrize(
    ("said", "size", "first", "shown"),
    [
        (110, 20, "", [(60, 109, "45"), (10, 109, "12345"), (0, 109, "12345")]),
        (230, 100, "&count=200", [(30, 229, "12"), (0, 29, "1")]),
    ],
    ids=["with episodes", "beyond a page's limit"],
)
async def test_older_messages_come_with_their_episodes(
    served: Served, said: int, size: int, first: str, shown: list[tuple[int, int, str]]
) -> None:
    messages = await served.remembered.say(*(f"A flight to Rome on day {n}." for n in range(said)))
    await served.remembered.summarise(messages[: said // size * size], size=size)
    pages = await older_pages(served, f"/conversation?id=c1{first}")
    assert pages == [(oldest, newest, [*episodes]) for oldest, newest, episodes in shown]


async def test_linked_message_is_on_the_page_with_its_episode(served: Served) -> None:
    said = await served.remembered.say(*(f"A flight to Rome on day {n}." for n in range(300)))
    await served.remembered.summarise(said, size=20)
    page = (await served.client.get("/conversation", params={"id": "c1", "message_id": "m30"})).text
    assert f'id="{anchor("m30")}"' in page
    assert f'id="{anchor("m51")}"' not in page, "at most 20 later ones"
    assert 'id="episode-2"' in page
    assert 'id="episode-4"' not in page
    newest = (await served.client.get("/conversation", params={"id": "c1", "message_id": "m290"})).text
    assert f'id="{anchor("m299")}"' in newest


async def polled(served: Served, page: str = "/conversation?id=c1") -> str:
    """Return the address from which a page loads what is new."""
    [path] = re.findall(r'hx-get="(/c\w+\?[^"]+)"', (await served.client.get(page)).text)
    return str(path.replace("&amp;", "&"))


async def test_thread_is_resent_only_after_a_change(served: Served) -> None:
    await a_conversation(served)
    path = await polled(served)
    assert (await served.client.get(path)).status_code == 204
    await served.remembered.say("Something new.")
    changed = await served.client.get(path)
    assert (changed.status_code, "Something new." in changed.text) == (200, True)


async def test_replaced_title_is_sent(served: Served) -> None:
    await a_conversation(served)
    path, episodes = await polled(served), served.remembered.episodes
    stored = await episodes.conversation("c1")
    assert stored
    later = replace(stored, title="A new title", revision=stored.revision + 1)
    assert await episodes.put_conversation(later, stored)
    assert "A new title" in (await served.client.get(path)).text


class Arrivals:
    """The end of the topic of messages."""

    def __init__(self, *ids: str) -> None:
        self._ids = list(ids)

    async def get(self, _: int) -> list[str]:
        return self._ids


async def test_unsummarized_conversation_is_listed_by_its_last_message(served: Served) -> None:
    await served.remembered.say("Hello <b>you</b>.", "My last words.", conversation_id="new")
    served.app.state.latest = Arrivals("gone", "new")
    page = (await served.client.get("/conversations/recent")).text
    assert "2 pending" in page
    assert "My last words." in page
    assert 'href="/conversation?id=new"' in page
    assert "gone" not in page


class Reads:
    """Counts the reads of a clock's time, each of which takes so long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> None:
        self.now, self.number, self.seconds = 0.0, 0, seconds
        monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: self.now))

    async def read(self, what: Any) -> Any:
        self.now += self.seconds
        self.number += 1
        await asyncio.sleep(0)
        if isinstance(what, Exception):
            raise what
        return what


async def test_visitors_share_reads_until_they_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch)
    shared = SharedRead(Kafka(), reads.read, 2.0)
    assert await asyncio.gather(*[shared.get(count) for count in (6, 6, 12)]) == [6, 6, 12]
    assert reads.number == 2
    reads.now = 2.0
    assert await shared.get(6) == 6
    assert reads.number == 3


async def test_slow_read_is_shared_with_all_who_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch, seconds=3.0)
    shared = SharedRead(Kafka(), reads.read, 2.0)
    await asyncio.gather(*[shared.get(None) for _ in range(5)])
    assert reads.number == 1


async def test_failed_read_serves_all_who_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, away = Reads(monkeypatch), StoreUnavailable(store="kafka", problem="any")
    shared = SharedRead(Kafka(), reads.read, 2.0)
    failed = await asyncio.gather(*[shared.get(away) for _ in range(5)], return_exceptions=True)
    assert (failed, reads.number) == ([away] * 5, 1)


async def test_slow_read_delays_no_other_key() -> None:
    goes_on = asyncio.Event()

    async def read(key: str) -> str:
        await (goes_on.wait() if key == "slow" else asyncio.sleep(0))
        return key

    shared = SharedRead(Kafka(), read, 2.0)
    waiting = asyncio.create_task(shared.get("slow"))
    assert await shared.get("other") == "other"
    goes_on.set()
    assert await waiting == "slow"


async def test_latest_conversations_are_read_in_four_sizes(served: Served) -> None:
    read: list[int] = []

    class Sizes(Arrivals):
        async def get(self, count: int) -> list[str]:
            read.append(count)
            return []

    served.app.state.latest = Sizes()
    for count in range(1, 97):
        await served.client.get("/conversations/recent", params={"count": count})
    assert sorted(set(read)) == [12, 24, 48, 96]
    assert (await served.client.get("/conversations/recent", params={"count": 97})).status_code == 422


async def test_each_key_lists_conversations_one_at_a_time() -> None:
    async with serving(OneKey("k", tenant_id="t1", user_id="u1")) as served:
        served.app.state.latest = Arrivals("c1")
        at_once: list[int] = [0, 0]

        async def owners(_: Sequence[str]) -> dict[str, tuple[str, str]]:
            at_once[:] = at_once[0] + 1, max(at_once[1], at_once[0] + 1)
            await asyncio.sleep(0)
            at_once[0] -= 1
            return {}

        served.remembered.messages.owners = owners  # type: ignore[method-assign, assignment]  # counts
        cookie = signed_in(served)
        await asyncio.gather(*[served.client.get("/conversations/recent", headers=cookie) for _ in range(10)])
        assert at_once == [0, 1]


async def test_visitor_sees_latest_messages_of_own_conversations_only() -> None:
    async with serving(OneKey("k", tenant_id="t1", user_id="u1")) as served:
        await served.remembered.say("Mine.", conversation_id="mine")
        await served.remembered.say("Theirs.", conversation_id="theirs", user_id="u2")
        served.app.state.latest = Arrivals("theirs", "mine")
        page = (await served.client.get("/conversations/recent", headers=signed_in(served))).text
        assert "Mine." in page
        assert "Theirs." not in page


async def test_visitor_without_recent_messages_costs_bounded_reads() -> None:
    async with serving(OneKey("k", tenant_id="t1", user_id="u1")) as served:
        served.app.state.latest = Arrivals(*(f"theirs{n}" for n in range(5000)))
        looked_up: list[Sequence[str]] = []

        async def owners(names: Sequence[str]) -> dict[str, tuple[str, str]]:
            looked_up.append(names)
            return dict.fromkeys(names, ("u2", "t1"))

        async def conversation(name: str) -> None:
            raise AssertionError(f"{name} was looked up on its own")

        served.remembered.messages.owners = owners  # type: ignore[method-assign, assignment]  # counts
        served.remembered.episodes.conversation = conversation  # type: ignore[method-assign, assignment]  # as above
        await served.client.get("/conversations/recent", params={"count": 6}, headers=signed_in(served))
        assert [len(names) for names in looked_up] == [240]


def test_markdown_is_shown_and_nothing_in_it_acts() -> None:
    shown = rendered("# Plan\n\n- **one**\n- `two`\n\n[site](https://a.example) ~~no~~\nnext")
    for part in ("<h1>Plan</h1>", "<strong>one</strong>", "<code>two</code>", 'href="https://a.example"', "<br>"):
        assert part in shown
    picture, script = "![x](https://a.example/pixel.png)", "[x](javascript:alert(1)) [y](data:text/html,z)"
    assert "<img" not in rendered(picture)
    for hostile in (script, "<img src=x onerror=alert(1)>", "| a |\n|-|\n| <b onx=1> |", HOSTILE):
        tags = re.findall(r"<(/?\w+[^>]*)>", rendered(hostile))
        assert all(re.fullmatch(r"/?(?:p|br|table|thead|tbody|tr|td|th)", tag) for tag in tags), tags


async def test_search_shows_matching_messages_with_links(served: Served) -> None:
    said = await served.remembered.say("Hello.", "Good day.", "A flight to Rome.", "When?", "On Monday.", "Booked.")
    await served.remembered.summarise(said)
    form = {"user_id": "u1", "tenant_id": "t1", "query": "flights to Rome"}
    page = (await served.client.post("/search", data=form, headers=OURS)).text
    texts = re.findall(r'dir="auto"><p>(.*?)</p>', page)
    assert texts == ["Good day.", "A <mark>flight</mark> to <mark>Rome</mark>.", "When?"], "in order"
    assert re.findall(r'<li class="message role-\w+ (\w*)', page) == ["", "found", ""]
    assert f'href="/conversation?id=c1&amp;message_id=m2#{anchor("m2")}"' in page
    assert re.findall(r">(\w+ match in words)<", page) == ["good match in words"]
    part = await served.client.post("/search", data=form, headers=OURS | {"hx-request": "true"})
    assert ("<mark>flight</mark>" in part.text, "<html" in part.text) == (True, False)


async def test_only_admins_search_all_users_at_once() -> None:
    async with serving() as served:
        for user in ("u1", "u2"):
            said = await served.remembered.say("A **flight** to Rome.", conversation_id=user, user_id=user)
            await served.remembered.summarise(said)
        form = {"user_id": "", "tenant_id": "t1", "query": "flights"}
        page = (await served.client.post("/search", data=form, headers=OURS)).text
        assert sorted(re.findall(r'href="/person\?user_id=(u\d)&amp;tenant_id=t1"', page)) == ["u1", "u2"]
        assert page.count("<strong><mark>flight</mark></strong>") == 2
        assert re.findall(r'<option value="(u\d)">', page) == ["u2", "u1"]
        own = (await served.client.post("/search", data={**form, "user_id": "u1"}, headers=OURS)).text
        assert own.count("<mark>flight</mark>") == 1
    async with serving(OneKey("k", tenant_id=None, scopes=frozenset({"read"}))) as served:
        headers = OURS | signed_in(served)
        answer = await served.client.post("/search", data={**form, "tenant_id": ""}, headers=headers)
        assert answer.status_code == 422
        assert 'list="users"' not in (await served.client.get("/search", headers=headers)).text


async def test_search_through_long_messages_blocks_no_other_request(served: Served) -> None:
    letters = random.Random(1)
    for n in range(10):
        said = ["".join(letters.choices("abcdefghijklmnop", k=6)) for _ in range(500)]
        messages = await served.remembered.say(" ".join([*said, "zebra"]), conversation_id=f"c{n}")
        await served.remembered.summarise(messages)
    form = {"user_id": "u1", "tenant_id": "t1", "query": "zebra"}
    await served.client.post("/search", data=form, headers=OURS)  # loads templates, and more
    page, share = await blocking(served.client.post("/search", data=form, headers=OURS))
    assert page.text.count("<mark>zebra</mark>") >= 5
    assert share < MOST_SHARE


async def test_card_shows_percentages_only_where_they_say_something(served: Served) -> None:
    [said] = await served.remembered.say("A flight to Rome.", conversation_id="c1")
    shown, events = {}, {"events_before": 1, "events_after": 1}
    for source, grounding in (("llm", 1.0), ("llm", 0.75), ("fallback", 1.0)):
        known = served.remembered.episodes.episodes.get("c1:1")
        stored = a_stored_episode(
            1,
            message_ids=(said.id,),
            revision=known.summary.revision + 1 if known else 1,
            quality=Quality(source=source, grounding=grounding),
            compression=Compression(tokens_before=100, tokens_after=149, ratio=-0.49, **events),
        )
        assert await served.remembered.episodes.put(stored, known)
        page = (await served.client.get("/conversation", params={"id": "c1"})).text
        shown[source, grounding] = [text for text in ("Grounding", "nothing unsupported", "75%") if text in page]
        assert "49%" not in page
    assert shown == {
        ("llm", 1.0): ["Grounding", "nothing unsupported"],
        ("llm", 0.75): ["Grounding", "75%"],
        ("fallback", 1.0): [],
    }


def test_indentation_of_code_without_fence_is_kept() -> None:
    code = "def f(x):\n    if x:\n\treturn 1\n  pass"
    lines = rendered(code).removeprefix("<p>").removesuffix("</p>\n").replace("&nbsp;", ".").split("<br>\n")
    assert lines == ["def f(x):", "....if x:", "....return 1", "..pass"]
    assert rendered("- a\n  b\n\n```\n  c\n```").count("&nbsp;") == 0


def test_tasks_of_a_list_have_boxes() -> None:
    shown = rendered("- [ ] buy <li>[ ] milk\n- [x] pay\n\n- [X] go\n- [y] no\n\n[ ] text")
    assert re.findall("[☐☑] \\w+", shown) == ["☐ buy", "☑ pay", "☑ go"]
    assert shown.count("[ ]") == 2


async def test_unknown_address_is_a_page_for_browsers_only(served: Served) -> None:
    for path in ("/conversations/c1", "/people/u1", "/nothing", "/v1/nothing"):
        page = await served.client.get(path, headers={"Accept": "text/html,*/*;q=0.8"})
        assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
        answer = await served.client.get(path)
        assert (answer.status_code, answer.json()["status"]) == (404, 404), path
    css = await served.client.get("/static/page.css", headers={"Accept": "text/html"})
    assert css.status_code == 200


async def test_menu_of_an_error_page_is_complete(served: Served) -> None:
    for path in ("/conversation?id=none", "/nothing"):
        page = await served.client.get(path, headers={"Accept": "text/html"})
        assert page.status_code == 404
        for label in ("Dead letters", "Erasures"):
            assert f">{label}</a>" in page.text, path


async def test_slow_markdown_blocks_no_other_request(served: Served) -> None:
    await a_conversation(served)
    await served.client.get("/conversation", params={"id": "c1"})  # loads templates, and more
    await served.remembered.say(*(f"{n} " + "**a " * 990 for n in range(20)), conversation_id="slow")
    page, share = await blocking(served.client.get("/conversation?id=slow"))
    assert page.text.count('<li class="message') == 20
    assert share < MOST_SHARE


HOSTILE = "<script>alert(1)</script>\"' onx=1 \u202e\x1b[31m\x00 {{ 7 * 7 }}"


async def test_foreign_text_is_escaped_everywhere(served: Served) -> None:
    said = await served.remembered.say(
        *(f"{HOSTILE} Rome {n}" for n in range(4)), conversation_id=HOSTILE, user_id=HOSTILE
    )
    await served.remembered.summarise(said[:2])
    owner = {"user_id": HOSTILE, "tenant_id": "t1"}
    pages = [
        await served.client.get("/person", params=owner),
        await served.client.get("/conversation", params={"id": HOSTILE}),
        await served.client.get("/conversation/context", params={"id": HOSTILE}),
        await served.client.get("/conversation/message", params={"id": HOSTILE, "message_id": "m0"}),
        await served.client.get("/conversation/edit", params={"id": HOSTILE, "message_id": "m0"}),
        await served.client.post("/search", data={**owner, "query": f"{HOSTILE} Rome"}, headers=OURS),
    ]
    for page in pages:
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "&lt;script&gt;alert(1)" in page.text
        assert "49" not in re.sub(r"0\.\d+", "", page.text)  # scores
        shown = re.sub(r'(?s)value="[^"]*"|<textarea.*?</textarea>', "", page.text)  # forms keep what they are given
        assert not set("\u202e\x1b\x00") & set(shown)
        assert "onx=1" not in re.sub(r">[^<]*<", "><", re.sub(r'"[^"]*"', '""', page.text))


@with_rows
async def test_data_beyond_a_principals_rights_is_not_found(path: str) -> None:
    everything = frozenset({"read", "write", "admin"})
    async with serving(Holder(scopes=everything, tenant_id="t2")) as served:
        await a_conversation(served)
        answer = await served.client.get(path)
        assert answer.status_code == 404
        assert "flight" not in answer.text


@with_rows
async def test_changes_are_sent_for_the_conversations_tenant(served: Served, action: str, ids: dict[str, str]) -> None:
    await a_conversation(served)
    editor = "/conversation/edit" if "message" in action else "/conversation"
    assert f'name="action" value="{action}"' in (await served.client.get(editor, params=ids)).text
    form = {"action": action, "content": "new\r\ntext", "to": "nora"}
    answer = await served.client.post("/conversation", params=ids, data=form, headers=OURS)
    assert answer.status_code == 303
    [record] = served.broker.records
    assert record.tenant_id == "t1"
    assert (b'"new\\ntext"' in record.value) == (action == "save-message")


@with_rows
async def test_form_that_contradicts_its_button_changes_nothing(
    served: Served, action: str, ids: dict[str, str]
) -> None:
    await a_conversation(served)
    answer = await served.client.post("/conversation", params=ids, data={"action": action}, headers=OURS)
    assert answer.status_code == 422
    assert served.broker.records == []


@pytest.mark.parametrize(
    "headers", [{}, {"origin": "https://evil.example"}, {"origin": "null"}, {"origin": "http://["}]
)
@pytest.mark.parametrize("path", ["/conversation?id=c1", "/sign-in"])
async def test_forms_of_another_site_are_refused(served: Served, path: str, headers: dict[str, str]) -> None:
    await a_conversation(served)
    answer = await served.client.post(path, data={"action": "delete-conversation", "key": "k"}, headers=headers)
    assert answer.status_code == 403
    assert served.broker.records == []


async def test_reader_gets_no_forms_and_cannot_send_them() -> None:
    async with serving(Holder()) as served:
        await served.remembered.say("Hello.", tenant_id=None)
        holder = {"id": "c1"}
        assert (await served.client.get("/conversation", params=holder)).status_code == 200
        assert "/conversation/edit" not in (await served.client.get("/conversation", params=holder)).text
        deletion = {"action": "delete-conversation"}
        assert (await served.client.post("/conversation?id=c1", data=deletion, headers=OURS)).status_code == 403


async def test_api_key_is_kept_in_a_same_site_cookie() -> None:
    key, _ = new_key(("read",), "t1", None)
    async with serving(OneKey(key, tenant_id="t1"), auth="keys") as served:
        first = await served.client.get("/conversation?id=c1")
        assert (first.status_code, first.headers["location"]) == (303, "/sign-in")
        part = await served.client.get("/conversation/context?id=c1", headers={"hx-request": "true"})
        assert (part.status_code, part.headers["hx-redirect"]) == (401, "/sign-in")
        wrong = await served.client.post("/sign-in", data={"key": "afw_wrong"}, headers=OURS)
        assert wrong.status_code == 401
        right = await served.client.post("/sign-in", data={"key": f" {key} "}, headers=OURS)
        cookie = right.headers["set-cookie"]
        assert right.status_code == 303
        assert all(part in cookie for part in (f"{COOKIE}=", "HttpOnly", "SameSite=strict"))
        assert key not in cookie
        assert "Secure" not in cookie
        assert (await served.client.get("/")).status_code == 200
        sealed = served.client.cookies[COOKIE]
        bearer = {"Authorization": f"Bearer {sealed}"}
        assert (await served.client.get("/v1/conversations", headers=bearer)).status_code == 401
        assert (await served.client.get("/v1/conversations")).status_code == 401, "the API takes no cookie"


async def test_copied_cookie_is_refused_after_sign_out() -> None:
    key, _ = new_key(("read",), "t1", None)
    async with serving(OneKey(key, tenant_id="t1"), auth="keys") as served:
        await served.client.post("/sign-in", data={"key": key}, headers=OURS)
        copied = {"cookie": f"{COOKIE}={served.client.cookies[COOKIE]}"}
        await served.client.post("/sign-in", data={"key": key}, headers=OURS)
        other = {"cookie": f"{COOKIE}={served.client.cookies[COOKIE]}"}
        served.client.cookies.clear()
        assert (await served.client.get("/", headers=copied)).status_code == 200
        assert (await served.client.post("/sign-out", headers=copied | OURS | FORM)).status_code == 303
        assert (await served.client.get("/", headers=copied)).status_code == 303
        assert (await served.client.get("/", headers=other)).status_code == 200, "another browser stays signed in"


async def test_sign_out_ends_the_cookies_streams() -> None:
    request = Request({"type": "http", "app": SimpleNamespace(state=SimpleNamespace()), "state": {}, "headers": []})
    async with serving(OneKey("afw_1"), auth="keys") as served:
        seal, request.app.state.services = served.app.state.seal, served.services
        cookie = seal.begun("afw_1")
        caller = await admit(request, partial(seal.key_in, cookie), "read")
        assert await is_still_admitted(caller)
        seal.end(seal.session(cookie))
        assert not await is_still_admitted(caller)


def test_only_recent_cookies_of_the_same_secret_open(monkeypatch: pytest.MonkeyPatch) -> None:
    seal, other = Seal(SecretStr("a secret of all servers")), Seal(None)
    cookie = seal.sealed("afw_1")
    assert Seal(SecretStr("a secret of all servers")).opened(cookie) == "afw_1"
    assert [one.opened(cookie) for one in (other, Seal(SecretStr("another secret of theirs")))] == [None, None]
    assert [seal.opened(one) for one in (None, "", "afw_1", cookie[:-2], "ü")] == [None] * 5
    later = time.time() + SESSION_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert seal.opened(cookie) is None


def test_clock_that_is_set_back_signs_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seal = Seal(None)
    cookie, earlier = seal.sealed("afw_1"), time.time() - 86_400
    monkeypatch.setattr(time, "time", lambda: earlier)
    assert seal.opened(cookie) == "afw_1"


async def test_cookie_is_renewed_before_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    key, now = "afw_1", time.time()
    async with serving(OneKey(key), auth="keys") as served:
        await served.client.post("/sign-in", data={"key": key}, headers=OURS)
        first = served.client.cookies[COOKIE]
        await served.client.get("/")
        assert served.client.cookies[COOKIE] == first
        for later in (SESSION_SECONDS - 5, 2 * SESSION_SECONDS - 10):
            monkeypatch.setattr(time, "time", lambda at=now + later: at)
            assert (await served.client.get("/")).status_code == 200
        assert served.client.cookies[COOKIE] != first
        assert (await served.client.get("/", headers={"cookie": f"{COOKIE}={first}"})).status_code == 303


async def test_sign_out_ends_earlier_cookies_on_every_server(monkeypatch: pytest.MonkeyPatch) -> None:
    key, now = "afw_1", time.time()
    async with serving(OneKey(key), auth="keys", cookie_secret="a secret of all servers") as served:
        other = httpx.AsyncClient(transport=httpx.ASGITransport(make_app(served.services)), base_url="http://127.0.0.1")
        await served.client.post("/sign-in", data={"key": key}, headers=OURS)
        first = {"cookie": f"{COOKIE}={served.client.cookies[COOKIE]}"}
        monkeypatch.setattr(time, "time", lambda: now + RENEWED_SECONDS + 1)
        assert (await other.get("/", headers=first)).status_code == 200
        await served.client.get("/")  # renews the cookie
        await served.client.post("/sign-out", headers=OURS | FORM)
        assert (await served.client.get("/", headers=first)).status_code == 303
        assert (await other.get("/", headers=first)).status_code == 303
        await other.aclose()


async def test_session_ends_half_a_day_after_sign_in(monkeypatch: pytest.MonkeyPatch) -> None:
    key, now = "afw_1", time.time()
    async with serving(OneKey(key), auth="keys") as served:
        await served.client.post("/sign-in", data={"key": key}, headers=OURS)
        for later in range(0, SIGNED_IN_SECONDS, SESSION_SECONDS - 60):
            monkeypatch.setattr(time, "time", lambda at=now + later: at)
            assert (await served.client.get("/erasures")).status_code in (200, 403)
        monkeypatch.setattr(time, "time", lambda: now + SIGNED_IN_SECONDS + 2)
        assert (await served.client.get("/")).status_code == 303


def test_message_with_many_marks_is_shown_as_it_is() -> None:
    assert "<em>" in rendered("*a* " * (MOST_MARKS // 2))
    for mark in "*_~`[]|<&!\\\n":
        assert rendered(f"{mark} " * (MOST_MARKS + 1)).startswith('<pre class="code">'), mark


def guarded() -> list[tuple[str, str]]:
    """Return the method and path of each of the page's routes that need a key."""
    routes: list[Any] = [route for screen in server.SCREENS for route in screen.router.routes]
    found = sorted((method, route.path) for route in routes for method in route.methods)
    return [(method, path) for method, path in found if not path.startswith(("/static", "/sign-"))]


@pytest.mark.parametrize(("method", "path"), guarded())
async def test_visitor_without_a_key_sees_no_screen(method: str, path: str) -> None:
    upload = Upload()
    async with serving(OneKey("afw_1"), auth="keys") as served:
        content = upload.chunks() if method == "POST" else None
        answer = await served.client.request(method, path, content=content, headers=OURS)
        assert answer.status_code == (303 if method == "GET" else 401)
        assert upload.read <= 1
        large = await served.client.post("/sign-in", content=upload.chunks(), headers=OURS | FORM)
        assert large.status_code == 413
        assert upload.read <= 2


def test_more_than_twenty_screens_need_a_key() -> None:
    assert len(guarded()) > 20


async def test_page_reports_an_outage_and_the_log_names_it(served: Served) -> None:

    async def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailable(store="mongodb at db.internal:27017", problem="AutoReconnect")

    served.remembered.episodes.conversation = away  # type: ignore[method-assign, assignment]  # a store that fails
    with capture_logs() as logs:
        answer = await served.client.get("/conversation?id=c1")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "A store cannot be reached." in answer.text
    assert "internal" not in answer.text
    assert [(one["event"], "db.internal" in one["problem"]) for one in logs] == [("request_failed", True)]


async def test_cookie_is_secure_away_from_loopback() -> None:
    async with serving(OneKey("afw_1"), auth="keys") as served:
        elsewhere = {"host": "memory.example", "origin": "https://memory.example"}
        answer = await served.client.post("/sign-in", data={"key": "afw_1"}, headers=elsewhere)
        assert "; Secure" in answer.headers["set-cookie"]


async def test_erasure_is_requested_watched_and_its_receipt_saved(served: Served) -> None:
    ann = {"user_id": "ann", "tenant_id": "t1", "conversation_id": "", "asked_by": "<b>the officer</b>"}
    answer = await served.client.post("/erasures", data=ann, headers=OURS)
    assert answer.status_code == 303
    path = answer.headers["location"]
    page = (await served.client.get(path)).text
    assert 'hx-trigger="every 2s"' in page
    assert "&lt;b&gt;the officer" in page
    assert "ann" not in path
    assert (await served.client.get(path.replace("/erasure?", "/erasure/receipt?"))).status_code == 404
    state = f"{path}&part=true"
    assert "hx-trigger" in (await served.client.get(state)).text
    async with running(served.erasures):
        await until(served, {"erasure_id": path.partition("=")[2]}, state="done")
    part = (await served.client.get(state)).text
    assert "Done." in part
    assert "hx-trigger" not in part
    receipt = await served.client.get(path.replace("/erasure?", "/erasure/receipt?"))
    assert Receipt.model_validate_json(receipt.content).asked_by == "<b>the officer</b>"
    assert "attachment" in receipt.headers["content-disposition"]


def test_every_filter_of_a_template_exists() -> None:
    """Jinja raises the error of an unknown one only where its branch is rendered."""
    made = templates()
    parsed = (made.parse(made.loader.get_source(made, name)[0]) for name in made.list_templates())  # type: ignore[union-attr]  # it has one
    used = {each.name for template in parsed for each in template.find_all(Filter)}
    assert used <= made.filters.keys()


def test_address_escapes_any_id() -> None:
    assert address("/conversation", id="..", agent_id=None) == "/conversation?id=.."
    assert address("/c", id="a&b=\"<'/?#", x="ü\ud800") == "/c?id=a%26b%3D%22%3C%27%2F%3F%23&x=%C3%BC%3F"


def test_control_characters_are_made_visible() -> None:
    assert visible_text("a\x1b\u202e\r\nb\tc\x00") == "a\ufffd\ufffd\nb\tc\ufffd"


def test_unsupported_words_are_underlined_and_everything_is_escaped() -> None:
    shown = str(with_unsupported("<b>Bob</b> pays <i> 120 of 1200 & 99.", ["Bob", "99", "1200", "<i>"]))
    assert re.findall("<mark[^>]*>(.*?)</mark>", shown) == ["Bob", "&lt;i&gt;", "1200", "99"]
    assert "&lt;b&gt;<mark" in shown


@with_rows
def test_words_are_marked_in_every_form_the_search_finds(query: str, text: str, marked: list[str]) -> None:
    shown = str(with_words(text, word_finder(query)))
    assert re.findall("<mark>(.*?)</mark>", shown) == marked
    assert "<Roman>" not in shown


def test_marking_words_accepts_any_text() -> None:
    text = " ".join(mixed(200_000).split())
    find = word_finder("flights to Rome 1 漢")
    assert len(with_words(text, find)) > 1000
    assert len(with_unsupported(text, ["a", "(", "1"])) > 1000


class OneToCome:
    """A feed with past events, and one that is still to come."""

    running = True

    def __init__(self, past: list[Published], coming: Published) -> None:
        self.offsets: dict[TopicPartition, int] = {}
        self.deleted: list[Published] = []
        self._past = past
        self._coming = coming

    async def still_there(self, events: list[Published]) -> list[Published]:
        return [event for event in events if event not in self.deleted]

    async def follow(self, *_: object) -> AsyncIterator[Batch]:
        for one in self._past:
            yield Batch([one], "p")
        for events in ([], [self._coming], []):
            yield Batch(events)


async def test_live_counts_24_hours_then_waits_for_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operating, "TICK_SECONDS", 3600)
    now = datetime.now(UTC)
    past = [summarized(1, created_at=now - timedelta(hours=25)), summarized(2, created_at=now - timedelta(hours=23))]
    feed: Any = OneToCome(past, summarized(3, created_at=now))
    everything = StreamFilter(Owner(), frozenset(ALL))
    async with asyncio.timeout(60), aclosing(live_parts(feed, everything, True)) as parts:
        history, tiles, coming, later = [await anext(parts) for _ in range(4)]
    assert re.findall(r"Title \d", str(history.data)) == ["Title 2", "Title 1"]
    assert re.findall(r"Title \d", str(coming.data)) == ["Title 3"]
    counted = r'Summaries</span>\s*<span class="number">(\d+)'
    assert [re.findall(counted, str(part.data)) for part in (tiles, later)] == [["1"], ["2"]]


async def test_live_shows_nothing_deleted_during_catch_up() -> None:
    feed: Any = OneToCome([summarized(1), summarized(2)], summarized(3))
    feed.deleted = [summarized(1)]
    async with aclosing(live_parts(feed, StreamFilter(Owner(), frozenset(ALL)), True)) as parts:
        history = await anext(parts)
    assert re.findall(r"Title \d", str(history.data)) == ["Title 2"]


async def test_live_reports_an_outage_of_kafka_first() -> None:
    feed: Any = OneToCome([], summarized(1))
    feed.running = False
    async with aclosing(live_parts(feed, StreamFilter(Owner(), frozenset(ALL)), True)) as parts:
        tiles = await anext(parts)
    assert "Kafka cannot be reached" in str(tiles.data)


class Queues:
    """A log and a queue of dead letters in one, with two topics of `size` dead letters. `reads` are what was read."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.expired = 0
        self.reads: list[str] = []

    @asynccontextmanager
    async def opened(self, *_: object) -> AsyncIterator["Queues"]:
        yield self

    async def extent(self, _: list[str]) -> Extent:
        where = TopicPartition("dlq", 0)
        return Extent({where: self.expired}, {where: self.size})

    async def ends(self, topic: str) -> dict[TopicPartition, int]:
        return {TopicPartition(topic, 0): 7}

    async def left(self, *_: object) -> int:
        return 0

    async def topics(self) -> list[str]:
        return ["first", "second"]

    async def count(self, topic: str, *_: object) -> DeadLetterCounts:
        self.reads.append(topic)
        return DeadLetterCounts(resolved=self.size - self.expired)

    async def unresolved(self, topic: str, _: object) -> AsyncIterator[DeadLetter]:
        self.reads.append(topic)
        for offset in range(self.size):
            yield DeadLetter(topic, 0, offset, datetime.now(UTC), "decode", "invalid_json", "", None, None, None, ())


async def test_dead_letters_are_recounted_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    queues, counted = Queues(3), operating.Counted()
    monkeypatch.setattr(operating, "open_log", queues.opened)
    monkeypatch.setattr(operating, "DeadLetterQueue", lambda *_: queues)
    numbers = []
    for size, expired in ((3, 0), (3, 0), (4, 0), (4, 0), (4, 1), (operating.MOST_COUNTED + 1, 0)):
        queues.size, queues.expired = size, expired
        numbers.append((await operating.read_lag(Settings(), counted))["dead_letters"])
    assert numbers == [6, 6, 8, 8, 6, None]
    assert queues.reads == ["first", "second"] * 3


async def test_dead_letter_list_stops_reading_once_full(monkeypatch: pytest.MonkeyPatch) -> None:
    queues = Queues(operating.LISTED + 1)
    monkeypatch.setattr(operating, "open_queue", queues.opened)
    async with serving() as served:
        assert (await served.client.get("/dead-letters")).status_code == 200
    assert queues.reads == ["first"]


def test_live_counts_llm_time_and_tokens() -> None:
    totals = LiveTotals()
    nothing = fragment("live_tiles.html", totals=totals, away=False, has_llm=True)
    assert ">–<" in nothing
    assert "cannot be reached" not in nothing
    without_llm = fragment("live_tiles.html", totals=totals, away=False, has_llm=False)
    assert ("LLM time" in nothing, "LLM time" in without_llm, ">none<" in without_llm) == (True, False, True)
    used = Usage(prompt_tokens=1000, completion_tokens=50, seconds=1.5), Usage()
    totals.count(summarized(ordinal, usage=usage) for ordinal, usage in enumerate(used, 1))
    totals.count([summarized(3, usage=Usage(prompt_tokens=500, completion_tokens=50, seconds=3.5))])
    shown = fragment("live_tiles.html", totals=totals, away=True, has_llm=True)
    for text in (">2.5 s<", "5.0 s in total", ">1,600<", "1,500 read, 100 written", "Kafka cannot be reached"):
        assert text in shown, text


async def test_live_counts_archived_messages_and_nothing_else(served: Served) -> None:

    async def lag(_: None) -> dict[str, int]:
        return {"segmenter": 0, "archiver": 0, "summarizer": 0, "dead_letters": 0}

    served.app.state.lag = SharedRead(Kafka(), lag, 1.0)
    await served.remembered.say("Hello.", "Good day.")
    part = (await served.client.get("/live/lag")).text
    assert re.findall(r'Messages</span>\s*<span class="number">(\d+)', part) == ["2"]


@pytest.mark.parametrize("path", ["/conversations/recent", "/people", "/health/usage"])
async def test_empty_screen_names_the_command_that_fills_it(served: Served, path: str) -> None:
    served.app.state.latest = Arrivals()
    assert "afterword say" in (await served.client.get(path)).text


def summarized(ordinal: int, **fields: Any) -> Published:
    summary = a_summary(ordinal, **fields)
    where = TopicPartition("summary.created", 0)
    return Published("p", SUMMARY_CREATED, summary, summary.model_dump_json(), where, ordinal, 0.0)


async def test_health_names_what_is_down(served: Served) -> None:
    served.database.away = True
    state = await served.client.get("/health/state")
    assert state.status_code == 200
    assert state.text.count("unavailable") == 2


async def test_usage_table_has_a_bounded_number_of_rows(served: Served) -> None:

    async def usage(_: str) -> list[UsageTotals]:
        return [UsageTotals(f"user{n}", 1, 1, 1, 1, 1.0) for n in range(2500)]

    served.app.state.services = replace(served.services, usage=usage)
    page = (await served.client.get("/health/usage?by=user")).text
    assert page.count('<th scope="row">') == 1000
    assert "1,500 more" in page


async def test_operators_see_usage_and_cost_of_the_llm() -> None:
    llm = Llm(prompt_price=2, cached_price=0.5, answer_price=10)
    async with serving(llm=llm) as served:
        used = Usage(prompt_tokens=1_500_000, cached_tokens=500_000, completion_tokens=100_000, seconds=7)
        await served.remembered.episodes.put(a_stored_episode(user_id="<b>ada</b>", usage=used), None)
        page = await served.client.get("/health/usage?by=user")
        assert "&lt;b&gt;ada" in page.text
        assert "1,500,000" in page.text
        assert ">3.25<" in page.text
        assert (await served.client.get("/health/usage?by=nothing")).status_code >= 400
