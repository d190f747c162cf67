"""What is known about a user is shown with its messages to those who may see it, and deleting these removes it."""

import re
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import orjson
import pytest

from afterword.streams.settings import Llm
from tests.samples import NOON, a_fact, a_stored_episode
from tests.unit.afterword.serving.served import Served, serving
from tests.unit.afterword.serving.test_page import HOSTILE, OURS
from tests.unit.afterword.serving.test_reading import Holder

OWNER = {"user_id": "u1", "tenant_id": "t1"}
WRITER = frozenset({"read", "write"})


async def say(served: Served, text: str, *, day: int, conversation_id: str = "c1", **fields: Any) -> str:
    """Archive a message that is an episode of its own, and the fact that it states. Returns the message's id."""
    user_id = fields.pop("user_id", "u1")
    [said] = await served.remembered.say(text, conversation_id=conversation_id, user_id=user_id)
    await served.remembered.episodes.put(
        a_stored_episode(
            day,
            conversation_id=conversation_id,
            user_id=user_id,
            participants=(user_id,),
            message_ids=(said.id,),
            ended_at=NOON + timedelta(days=day),
            facts=(a_fact(text, user_id=user_id, message_ids=(said.id,), **fields),),
        ),
        None,
    )
    return said.id


def city(text: str, **fields: Any) -> dict[str, Any]:
    return {"text": text, "attribute": "home_city", **fields}


async def forget_links(served: Served) -> list[str]:
    page = (await served.client.get("/person", params=OWNER)).text
    return [found.replace("&amp;", "&") for found in re.findall(r'href="(/person/forget[^"]+)"', page)]


async def test_profile_page_groups_facts_with_sources_and_changes(served: Served) -> None:
    await say(served, **city("lives in Leeds"), day=1)
    moved = await say(served, **city("lives in Porto"), day=2)
    await say(served, "no nuts", day=3, kind="constraint", said_by="assistant")
    page = (await served.client.get("/person", params=OWNER)).text
    assert page.index("Who they are") < page.index("lives in Porto") < page.index("What they must have or avoid")
    assert f'href="/conversation/message?id=c1&amp;message_id={moved}"' in page
    assert "said by the assistant, not the user" in page
    assert "home city: <del>lives in Leeds</del> → lives in Porto" in page
    loaded = (await served.client.get("/person/context", params={**OWNER, "max_tokens": 500})).text
    assert "lives in Porto" in loaded
    assert "Leeds" not in loaded


async def test_all_conversations_of_a_person_are_paged(served: Served) -> None:
    for n in range(12):
        said = await served.remembered.say("A flight to Rome.", "Booked.", conversation_id=f"c{n}")
        await served.remembered.summarise(said)
    found, path = [], f"/person?{urlencode(OWNER)}"
    while path:
        page = (await served.client.get(path)).text
        found.append(len(re.findall(r'href="/conversation\?id=c\d+"', page)))
        older = re.search(r'href="([^"]+)">Older conversations', page)
        path = older[1].replace("&amp;", "&") if older else ""
    assert found == [10, 2]


async def test_forgetting_deletes_the_chosen_source_messages(served: Served) -> None:
    said = [await say(served, "likes tea", day=day, conversation_id=f"c{day}") for day in (1, 2)]
    [link] = await forget_links(served)
    page = (await served.client.get(link)).text
    choices = [orjson.loads(found.replace("&#34;", '"')) for found in re.findall(r'value="(\[.*?\])"', page)]
    assert choices == [["c2", said[1]], ["c1", said[0]]]
    chosen = {"message": orjson.dumps(choices[1]).decode()}
    answer = await served.client.post("/person/forget", params=OWNER, data=chosen, headers=OURS)
    assert (answer.status_code, answer.headers["location"]) == (303, "/person?user_id=u1&tenant_id=t1&sent=1")
    [record] = served.broker.records
    assert (record.conversation_id, record.tenant_id) == ("c1", "t1")
    deleted = orjson.loads(record.value)
    assert deleted["id"] == said[0]


@pytest.mark.parametrize("chosen", ["c1", '["c1"]', '["c1", 5]', '["", "m0"]', "\x00"])
async def test_only_ids_offered_by_the_form_are_accepted(served: Served, chosen: str) -> None:
    answer = await served.client.post("/person/forget", params=OWNER, data={"message": chosen}, headers=OURS)
    assert answer.status_code == 422
    assert served.broker.records == []


async def test_api_key_deletes_in_its_users_conversations_only() -> None:
    async with serving(Holder(scopes=WRITER, tenant_id="t1", user_id="u1")) as served:
        await say(served, "likes tea", day=1)
        theirs = await say(served, "likes wine", day=2, conversation_id="c2", user_id="u2")
        led = await served.client.get("/people")
        assert (led.status_code, led.headers["location"]) == (303, "/person?user_id=u1&tenant_id=t1")
        assert "likes tea" in (await served.client.get(led.headers["location"])).text
        for path in ("/person?", "/person/context?", "/person/forget?fact=x&"):
            assert (await served.client.get(f"{path}user_id=u2")).status_code == 403, path
        chosen = {"message": orjson.dumps(["c2", theirs]).decode()}
        answer = await served.client.post("/person/forget", params=OWNER, data=chosen, headers=OURS)
        assert answer.status_code == 404
        assert served.broker.records == []


async def test_reader_forgets_nothing_and_sees_no_other_tenant() -> None:
    holder = Holder(tenant_id="t1")
    async with serving(holder) as served:
        await say(served, "likes tea", day=1)
        assert await forget_links(served) == []
        assert (await served.client.post("/person/forget", params=OWNER, headers=OURS)).status_code == 403
        holder.become(tenant_id="t2", scopes=WRITER)
        page = await served.client.get("/person", params={"user_id": "u1"})
        assert (page.status_code, "likes tea" in page.text) == (404, False)
        holder.become(tenant_id="t2", user_id="u1")
        assert (await served.client.get("/person")).status_code == 200, "nothing is known of oneself yet"


async def test_users_words_and_names_are_escaped(served: Served) -> None:
    await say(served, **city(HOSTILE), day=1, conversation_id=HOSTILE, user_id=HOSTILE, about=HOSTILE)
    await say(served, **city(f"{HOSTILE}!?"), day=2, conversation_id=HOSTILE, user_id=HOSTILE, about=HOSTILE)
    owner = {"user_id": HOSTILE, "tenant_id": "t1"}
    person = (await served.client.get("/person", params=owner)).text
    links = [found.replace("&amp;", "&") for found in re.findall(r'href="(/person/forget[^"]+)"', person)]
    pages = [person, *[(await served.client.get(link)).text for link in links]]
    pages += [(await served.client.get("/people", params={"tenant_id": "t1"})).text]
    pages += [(await served.client.get("/person/context", params=owner)).text]
    assert len(pages) == 5
    for page in pages:
        assert "&lt;script&gt;alert(1)" in page
        assert "<script>alert" not in page
        assert "49" not in re.sub(r'"[^"]*"', "", page)
        assert not set("\u202e\x1b\x00") & set(re.sub(r'value="[^"]*"', "", page))  # a form keeps an id
        assert "onx=1" not in re.sub(r">[^<]*<", "><", re.sub(r'"[^"]*"', '""', page))


async def test_admin_lists_searches_and_pages_users_with_sums() -> None:
    async with serving(llm=Llm(prompt_price=100_000.0, answer_price=200_000.0)) as served:
        for n in range(52):
            await say(served, "likes tea", day=1, conversation_id=f"of-{n}", user_id=f"user-{n:02}")
        await say(served, "likes wine", day=2, conversation_id="of-7", user_id="user-07")
        first = (await served.client.get("/people", params={"tenant_id": "t1"})).text
        listed = re.findall(r"<bdi>(user-\d\d)</bdi>", first)
        assert listed == ["user-07", *(f"user-{n:02}" for n in range(51, 1, -1) if n != 7)], "not by last activity"
        [more] = re.findall(r'class="button" href="([^"]+)"', first)
        assert "user-00" in (await served.client.get(more.replace("&amp;", "&"))).text
        found = (await served.client.get("/people", params={"tenant_id": "t1", "prefix": "user-07"})).text
        assert re.findall(r"<bdi>(user-\d\d)</bdi>", found) == ["user-07"]
        for said in ("1 conversation<", "2 episodes", "200 tokens of messages", "30 tokens of the LLM", "cost 4.00"):
            assert said in found
        assert "user-" not in (await served.client.get("/people")).text  # no tenant


async def test_visitor_without_admin_rights_must_name_the_user() -> None:
    async with serving(Holder(tenant_id="t1")) as served:
        await say(served, "likes tea", day=1)
        page = (await served.client.get("/people")).text
        assert 'name="user_id"' in page
        assert "u1" not in page


async def test_person_is_handed_over_to_another_user() -> None:
    async with serving(Holder(tenant_id="t1", scopes=WRITER)) as served:
        await say(served, "lives in Leeds", day=1)
        assert 'action="/person/hand-over' in (await served.client.get("/person", params=OWNER)).text
        answer = await served.client.post("/person/hand-over", params=OWNER, data={"to": "nora"}, headers=OURS)
        assert (answer.status_code, answer.headers["location"]) == (303, "/person?user_id=nora&tenant_id=t1&sent=1")
        [record] = served.broker.records
        assert orjson.loads(record.value)["user_id"] == "nora"
        for wrong in ({"to": ""}, {"to": "u1"}, {}):
            answer = await served.client.post("/person/hand-over", params=OWNER, data=wrong, headers=OURS)
            assert answer.status_code == 422
    async with serving(Holder(tenant_id="t1", user_id="u1", scopes=WRITER)) as served:
        assert "hand-over" not in (await served.client.get("/person", params=OWNER)).text
        answer = await served.client.post("/person/hand-over", params=OWNER, data={"to": "nora"}, headers=OURS)
        assert answer.status_code == 403
