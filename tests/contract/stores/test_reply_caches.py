import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from afterword.schemas import Usage
from afterword.streams.stores.replies import KeptReply, ReplyCache, ReplyOrigin

REPLY = KeptReply("The answer: 💬 字 \u0000.", Usage(prompt_tokens=10, completion_tokens=5))
HOUR = timedelta(hours=1)


def later() -> datetime:
    return datetime.now(UTC) + HOUR


async def test_an_unknown_question_has_no_reply(replies: ReplyCache) -> None:
    assert await replies.get("k") is None


@pytest.mark.parametrize("reply", [REPLY, replace(REPLY, cut_off=True), replace(REPLY, refused=True, text="")])
async def test_a_reply_comes_back_equal_in_every_field(replies: ReplyCache, reply: KeptReply) -> None:
    await replies.put("k", reply, later())
    assert await replies.get("k") == reply


async def test_a_reply_that_has_expired_is_not_given_any_more(replies: ReplyCache) -> None:
    await replies.put("k", REPLY, datetime.now(UTC) - HOUR)
    assert await replies.get("k") is None
    await replies.put("k", REPLY, later())
    assert await replies.get("k") == REPLY


async def test_the_last_reply_stays(replies: ReplyCache) -> None:
    await asyncio.gather(*(replies.put("k", replace(REPLY, text=f"By {n}"), later()) for n in range(10)))
    await replies.put("k", REPLY, later())
    assert await replies.get("k") == REPLY


async def test_replies_about_an_episode_and_those_after_it_are_forgotten(replies: ReplyCache) -> None:
    for ordinal in (1, 2, 3):
        await replies.put(f"k{ordinal}", replace(REPLY, origin=ReplyOrigin("c1", ordinal)), later())
    await replies.put("other", replace(REPLY, origin=ReplyOrigin("c2", 3)), later())
    await replies.put("old", REPLY, later())
    await replies.forget("c1", 2)
    found = {key: await replies.get(key) for key in ("k1", "k2", "k3", "other", "old")}
    assert {key for key, reply in found.items() if reply} == {"k1", "other", "old"}
    assert found["k1"] == replace(REPLY, origin=ReplyOrigin("c1", 1))
