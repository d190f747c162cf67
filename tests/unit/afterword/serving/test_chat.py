"""The chat shows what an assistant receives with and without memory, and exists on this machine only."""

import re
from typing import Any

import pytest

from afterword.schemas import MessageCreated
from tests.samples import a_fact, a_stored_episode
from tests.unit.afterword.serving.served import Served, serving
from tests.unit.afterword.serving.test_page import OURS, OneKey

YOU: dict[str, Any] = {"user_id": "you", "tenant_id": None}


async def sides(served: Served, conversation_id: str) -> dict[str, str]:
    """Return each side's text and its tokens."""
    page = (await served.client.get("/chat", params={"id": conversation_id})).text
    parts = re.findall(r'(?s)<section class="panel" aria-label="([^"]+)">(.*?)</section>', page)
    return {label: " ".join(re.sub(r"<[^>]+>", " ", text).split()) for label, text in parts}


async def test_in_a_second_conversation_only_the_side_with_memory_knows_what_the_first_said() -> None:
    async with serving() as served:
        await served.remembered.say("I live in Porto.", conversation_id="chat-1", **YOU)
        before = await sides(served, "chat-1")
        assert all("I live in Porto." in text for text in before.values())
        fact = a_fact(user_id="you", message_ids=("m0",))
        given = {**YOU, "participants": ("you",), "facts": (fact,), "message_ids": ("m0",)}
        await served.remembered.episodes.put(a_stored_episode(conversation_id="chat-1", **given), None)
        await served.remembered.say("Hello again.", conversation_id="chat-2", **YOU)
        after = await sides(served, "chat-2")
        assert "lives in Porto" in after["With memory"]
        assert "Porto" not in after["Without memory"]
        assert all("Hello again." in text for text in after.values())
        tokens = {label: int(re.findall(r"(\d+) tokens$", text)[0]) for label, text in after.items()}
        assert tokens["With memory"] > tokens["Without memory"] > 0


async def test_what_is_typed_is_sent_and_another_conversation_closes_this_one() -> None:
    async with serving() as served:
        first = (await served.client.get("/chat")).headers["location"]
        answer = await served.client.post(first, data={"content": " Hi. "}, headers=OURS)
        assert (answer.status_code, answer.headers["location"]) == (303, first)
        await served.client.post(first, data={"content": "   "}, headers=OURS)
        [record] = served.broker.records
        message = MessageCreated.model_validate_json(record.value)
        assert (message.content, message.role, message.user_id) == ("Hi.", "user", "you")
        closing = first.replace("/chat?", "/chat/close?")
        then = await served.client.post(closing, data={"then": "new"}, headers=OURS)
        assert re.fullmatch(r"/chat\?id=chat-\w+", then.headers["location"])
        assert then.headers["location"] != first
        assert served.broker.records[1].conversation_id == message.conversation_id


async def test_the_part_is_sent_again_only_if_it_has_changed() -> None:
    async with serving() as served:
        page = (await served.client.get("/chat", params={"id": "chat-1"})).text
        [again] = re.findall(r'hx-get="(/chat\?[^"]+)"', page)
        assert (await served.client.get(again.replace("&amp;", "&"))).status_code == 204
        await served.remembered.say("Hello.", conversation_id="chat-1", **YOU)
        changed = await served.client.get(again.replace("&amp;", "&"))
        assert (changed.status_code, "Hello." in changed.text) == (200, True)


@pytest.mark.parametrize("path", ["/chat?id=c1", "/chat/close?id=c1"])
async def test_a_server_with_authentication_has_no_chat(path: str) -> None:
    async with serving(OneKey("afw_1"), auth="keys") as served:
        await served.client.post("/sign-in", data={"key": "afw_1"}, headers=OURS)
        method = "POST" if "close" in path else "GET"
        answer = await served.client.request(method, path, headers=OURS)
        assert answer.status_code == 404
