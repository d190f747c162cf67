"""Routes that read return what Memory does, and refuse invalid requests."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from afterword.reading.memory import MOST_PROFILE_FACTS, NOTHING_KNOWN, CursorInvalid
from afterword.serving.reading import LARGE_PAGE, LARGE_TOKENS
from afterword.serving.requests import MOST_BYTES, Principal
from afterword.streams.errors import StoreUnavailable
from afterword.streams.stores.episodes import FactOfUser
from tests.blocking import MOST_SHARE, blocking
from tests.rows import with_rows
from tests.samples import NOON, a_fact, a_stored_episode, of_user
from tests.unit.afterword.reading.remembered import UNKNOWN_TO_NEWCOMERS, newcomers_conversation
from tests.unit.afterword.serving.served import Served, serving

CONTEXT = "/v1/conversations/c1/context"


async def a_conversation(served: Served, conversation_id: str = "c1", **fields: Any) -> None:
    """Store six messages, four of them summarized. They are too long to be shown verbatim."""
    said = await served.remembered.say(
        *(f"A flight to Rome on day {n}." + " It is a long story." * 40 for n in range(6)),
        conversation_id=conversation_id,
        **fields,
    )
    await served.remembered.summarise(said[:4], size=2)


class Holder:
    """An authenticator that gives everybody this principal."""

    def __init__(self, **fields: Any) -> None:
        self.become(**fields)

    def become(self, **fields: Any) -> None:
        self._principal = Principal("k1", **{"scopes": frozenset({"read"}), **fields})

    async def principal(self, token: str | None) -> Principal:
        return self._principal


async def test_profile_is_shown_to_its_user_only() -> None:
    holder = Holder(user_id="ann", tenant_id="t1")
    async with serving(holder, auth="keys") as served:
        for user in ("b/ob", "ann"):
            facts = (a_fact(f"is {user}", user_id=user),)
            episode = a_stored_episode(1, conversation_id=user, user_id=user, participants=(user,), facts=facts)
            assert await served.remembered.episodes.put(episode, None)
        answer = await served.client.get("/v1/users/ann/profile")
        assert [fact["statement"] for fact in answer.json()["facts"]] == ["is ann"]
        assert (await served.client.get("/v1/users/b%2Fob/profile")).status_code == 403
        assert (await served.client.get("/v1/users/ann/profile", params={"tenant_id": "t2"})).status_code == 403
        assert (await served.client.get("/v1/users")).status_code == 403
        holder.become(scopes=frozenset({"admin"}), user_id="ann", tenant_id="t1")
        assert (await served.client.get("/v1/users")).status_code == 403, "an admin of one user"
        holder.become(scopes=frozenset({"admin"}), tenant_id="t1")
        answer = await served.client.get("/v1/users/b%2Fob/profile")
        assert "is b/ob" in answer.json()["as_text"]
        page = (await served.client.get("/v1/users", params={"limit": 1})).json()
        rest = (await served.client.get("/v1/users", params={"after": page["next_after"]})).json()
        assert [one["user_id"] for found in (page, rest) for one in found["users"]] == ["b/ob", "ann"]
        assert (page["users"][0]["episodes"], rest["next_after"]) == (1, None)


async def test_conversations_are_paged(served: Served) -> None:
    for name in ("c1", "a/b", "c3"):
        await a_conversation(served, name)
    wanted: dict[str, Any] = {"user_id": "u1", "tenant_id": "t1", "limit": 2}
    first = (await served.client.get("/v1/conversations", params=wanted)).json()
    rest = (await served.client.get("/v1/conversations", params={**wanted, "after": first["next_after"]})).json()
    found = [one["conversation_id"] for page in (first, rest) for one in page["conversations"]]
    assert sorted(found) == ["a/b", "c1", "c3"]
    assert len(first["conversations"]) == 2
    assert rest["next_after"] is None
    [last] = (await served.client.get("/v1/conversations/c1/episodes", params={"limit": 1})).json()["episodes"]
    [listed] = [one for page in (first, rest) for one in page["conversations"] if one["conversation_id"] == "c1"]
    assert listed["last_message_at"] == last["ended_at"] != listed["summarized_at"]
    assert first["conversations"][0]["episode_count"] == 2
    other = (await served.client.get("/v1/conversations", params={**wanted, "tenant_id": "t2"})).json()
    assert other == {"conversations": [], "next_after": None}


async def test_missing_user_is_reported_without_blaming_a_key(served: Served) -> None:
    answer = await served.client.get("/v1/conversations")
    [problem] = answer.json()["problems"]
    assert (answer.status_code, problem["field"], "key" in problem["problem"]) == (422, "user_id", False)


@pytest.mark.parametrize("cursor", ["", "x", "-99999999999999 c1", "1e3 c1"])
async def test_invalid_cursor_is_refused(served: Served, cursor: str) -> None:
    wanted = {"user_id": "u1", "tenant_id": "t1", "after": cursor}
    assert (await served.client.get("/v1/conversations", params=wanted)).status_code == 422
    with pytest.raises(CursorInvalid):
        await served.remembered.memory.conversations(**wanted)


async def test_conversation_shows_its_pending_messages(served: Served) -> None:
    await a_conversation(served)
    shown = (await served.client.get("/v1/conversations/c1")).json()
    assert (shown["episode_count"], shown["message_count"], shown["pending_count"]) == (2, 4, 2)
    assert shown["last_message_at"] == "2026-01-05T12:05:00.123Z"


async def test_context_comes_in_prompt_form_on_request(served: Served) -> None:
    await a_conversation(served)
    wanted = {"keep_recent": "2", "max_tokens": "500"}
    context = await served.remembered.context(keep_recent=2, max_tokens=500)
    messages = (await served.client.get(CONTEXT, params={**wanted, "form": "messages"})).json()
    text = (await served.client.get(CONTEXT, params={**wanted, "form": "text"})).json()
    assert messages["as_messages"][0]["role"] == "system"
    assert messages["as_messages"][1:] == context.as_messages()[1:] != []
    assert "\n".join(context.summary_lines()) in messages["as_messages"][0]["content"]
    assert (text["as_text"], text["as_messages"], messages["as_text"]) == (context.as_text(), None, None)
    assert (await served.client.get(CONTEXT, params={"form": "xml"})).status_code == 422


async def test_episodes_are_listed_and_shown(served: Served) -> None:
    await a_conversation(served)
    page = (await served.client.get("/v1/conversations/c1/episodes", params={"limit": 1})).json()
    assert page["next_before"] == 2
    one = (await served.client.get(f"/v1/episodes/{page['episodes'][0]['episode_id']}")).json()
    assert one == page["episodes"][0]
    assert one["message_ids"] == ["m2", "m3"]
    named = [(each["revision"], each["event_id"], each["reason"]) for each in one["revisions"]]
    assert named == [(one["revision"], one["event_id"], one["reason"])]


async def test_messages_are_paged_newest_first(served: Served) -> None:
    await a_conversation(served)
    found, before = [], None
    for _ in range(3):
        params = {"limit": 2} | ({"before": before} if before else {})
        page = (await served.client.get("/v1/conversations/c1/messages", params=params)).json()
        found += [one["id"] for one in page["messages"]]
        before = page["next_before"]
    assert found == ["m5", "m4", "m3", "m2", "m1", "m0"]
    assert before is None


async def test_recall_respects_its_time_range(served: Served) -> None:
    await a_conversation(served)
    body = {"query": "flight Rome", "user_id": "u1", "tenant_id": "t1"}
    hits = (await served.client.post("/v1/recall", json=body)).json()["hits"]
    assert {hit["ordinal"] for hit in hits if not hit["pending"]} == {1, 2}
    for hit in hits:
        best = hit["matches"][0]
        said = {"message_id", "role", "author", "name", "sent_at", "content"}
        assert best.keys() == said | {"score", "conversation_id"}
        assert best["message_id"] in hit["message_ids"]
        assert "Rome" in best["content"]
    for times, ordinals in (
        ({"started_after": "2026-01-05T12:01:30Z"}, [2]),
        ({"ended_before": "2026-01-05T12:03:00Z"}, [1]),
    ):
        found = (await served.client.post("/v1/recall", json={**body, **times})).json()["hits"]
        assert [hit["ordinal"] for hit in found if not hit["pending"]] == ordinals


async def test_days_are_shown_in_the_requests_zone(served: Served) -> None:
    await a_conversation(served)  # at noon UTC
    body = {"query": "flight Rome", "user_id": "u1", "tenant_id": "t1", "form": "text"}
    for zone, day in (("Pacific/Auckland", "2026-01-06"), (None, "2026-01-05")):
        answer = (await served.client.post("/v1/recall", json={**body, "time_zone": zone})).json()
        assert f"{day}, user: " in answer["as_text"]
    zone = {"time_zone": "Pacific/Auckland"}
    for path in ("/v1/conversations/c1/context", "/v1/users/u1/profile"):
        assert (await served.client.get(path, params=zone)).json()["time_zone"] == zone["time_zone"]
        assert (await served.client.get(path, params={"time_zone": "Nowhere/Land"})).status_code == 422
    refused = await served.client.post("/v1/recall", json={**body, "time_zone": "../etc/localtime"})
    assert refused.status_code == 422


async def test_subject_below_the_minimum_coverage_has_no_hits(served: Served) -> None:
    await newcomers_conversation(served.remembered)
    body = {"query": UNKNOWN_TO_NEWCOMERS, "user_id": "u1", "tenant_id": "t1", "form": "text"}
    given = (await served.client.post("/v1/recall", json=body)).json()
    assert given == {"hits": [], "as_text": NOTHING_KNOWN}
    body["query"] = "Which volcano erupted in Rome while the plumber was ill?"
    assert (await served.client.post("/v1/recall", json=body)).json()["hits"] == []
    [hit] = (await served.client.post("/v1/recall", json={**body, "min_coverage": 0})).json()["hits"]
    assert hit["coverage"] < 0.17


async def test_message_is_read_with_its_neighbours() -> None:
    async with serving() as served:
        await served.remembered.say(*(f"Message {n}." for n in range(100)))

        async def read(name: str, **asked: int) -> list[list[str]]:
            answer = await served.client.get(f"/v1/conversations/c1/messages/{name}", params=asked)
            found = answer.json()
            return [[one["id"] for one in found[part]] for part in ("before", "after")]

        assert await read("m50") == [["m48", "m49"], ["m51", "m52"]]
        assert await read("m0", neighbours=1) == [[], ["m1"]]
        assert await read("m99", neighbours=3) == [["m96", "m97", "m98"], []]
        assert await read("m7", neighbours=0) == [[], []]
        for path in ("c1/messages/m100", "c2/messages/m1", "c1/messages/m1?neighbours=21"):
            assert (await served.client.get(f"/v1/conversations/{path}")).status_code in (404, 422)
    async with serving(Holder(tenant_id="t1", user_id="u2")) as served:
        await served.remembered.say("Hello.")
        assert (await served.client.get("/v1/conversations/c1/messages/m0")).status_code == 404


@pytest.mark.parametrize("name", ["a/b", "a%2Fb", "../c", "ü 🙂", "a?b#c", "a//b", "%"])
async def test_path_may_contain_any_id(served: Served, name: str) -> None:
    from urllib.parse import quote

    await a_conversation(served, name)
    encoded = quote(name, safe="")
    answer = await served.client.get(f"/v1/conversations/{encoded}/context")
    assert answer.json()["conversation_id"] == name
    episodes = (await served.client.get(f"/v1/conversations/{encoded}/episodes")).json()["episodes"]
    one = await served.client.get(f"/v1/episodes/{quote(episodes[0]['episode_id'], safe='')}")
    assert one.json() == episodes[0]


@with_rows
async def test_unknown_resource_is_not_found(served: Served, path: str) -> None:
    await a_conversation(served)
    answer = await served.client.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["error_type"] == "not_found"


@with_rows
async def test_wrong_parameters_are_named(served: Served, path: str, field: str) -> None:
    answer = await served.client.get(path)
    assert answer.status_code == 422
    assert answer.json()["problems"][0]["field"] == field


@with_rows
async def test_wrong_bodies_are_named_and_not_repeated(served: Served, body: Any, field: str) -> None:
    answer = await served.client.post("/v1/recall", json=body)
    assert answer.status_code == 422
    assert answer.json()["problems"][0]["field"] == field
    assert "secret-7" not in answer.text


async def test_body_must_be_json_and_say_so(served: Served) -> None:
    plain = await served.client.post("/v1/recall", content=b"{}", headers={"content-type": "text/plain"})
    assert (plain.status_code, plain.json()["error_type"]) == (415, "unsupported_media_type")
    large = await served.client.post("/v1/messages", json={"messages": ["x" * MOST_BYTES]})
    assert large.status_code == 413
    assert large.json()["error_type"] == "content_too_large"
    assert large.headers["content-type"] == "application/problem+json"


@pytest.mark.usefixtures("within_a_minute")
async def test_excess_requests_learn_when_to_come_back() -> None:
    async with serving(requests_per_minute=3) as served:
        answers = [await served.client.get("/v1/conversations/c9") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [404, 404, 404, 429]
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 120
        assert (await served.client.get("/livez")).status_code == 200


async def test_absent_store_is_reported_without_its_address(served: Served) -> None:

    async def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailable(store="mongodb at db.internal:27017", problem="AutoReconnect")

    served.remembered.episodes.conversation = away  # type: ignore[method-assign, assignment]  # a store that fails
    answer = await served.client.get(CONTEXT)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error_type"] == "store_unavailable"
    assert "internal" not in answer.text


async def test_readiness_follows_the_database(served: Served) -> None:
    assert (await served.client.get("/readyz")).status_code == 200
    served.database.away = True
    assert (await served.client.get("/readyz")).status_code == 503
    assert (await served.client.get("/livez")).status_code == 200


async def test_requests_are_counted_by_route_and_carry_headers(served: Served) -> None:
    answer = await served.client.get("/v1/conversations/secret-7/context")
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    assert answer.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in answer.headers
    await served.client.get("/nowhere/secret-7")
    text = (await served.client.get("/metrics")).text
    shown = 'afterword_requests_total{route="/v1/conversations/{conversation_id}/context",status="404"} 1.0'
    assert shown in text
    assert 'afterword_requests_total{route="unmatched",status="404"} 1.0' in text
    assert "secret-7" not in text


async def test_server_without_authentication_answers_loopback_names_only(served: Served) -> None:
    answer = await served.client.get("/livez", headers={"host": "evil.example"})
    assert answer.status_code == 400


async def test_configured_origins_may_call() -> None:
    async with serving(cors_origins="https://page.example") as served:
        named = await served.client.get("/livez", headers={"origin": "https://page.example"})
        other = await served.client.get("/livez", headers={"origin": "https://evil.example"})
        assert named.headers["access-control-allow-origin"] == "https://page.example"
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("path", ["", "/context", "/episodes", "/messages"])
async def test_read_of_another_owner_is_not_found(served: Served, path: str) -> None:
    await a_conversation(served)
    for address in (f"/v1/conversations/c1{path}", "/v1/episodes/c1:1"):
        whole = await served.client.get(address)
        of_owner = await served.client.get(address, params={"user_id": "u1", "tenant_id": "t1"})
        assert (of_owner.status_code, of_owner.json()) == (200, whole.json())
        for other in ({"user_id": "u2"}, {"user_id": "u1", "tenant_id": "t2"}):
            found = await served.client.get(address, params=other)
            assert found.status_code == 404 or not found.json()["episodes"]


async def test_large_context_blocks_no_other_request(served: Served) -> None:
    await served.remembered.say("Loads what a context needs.", conversation_id="small")
    await served.client.get("/v1/conversations/small/context", params={"form": "text"})
    await served.remembered.say(*(f"{n} is the number of this message. " * 1000 for n in range(150)))
    path = "/v1/conversations/c1/context"
    asked = {"max_tokens": 1_000_000, "keep_recent": 500}
    answer, share = await blocking(served.client.get(path, params=asked))
    assert answer.json()["events"] > 100
    assert share < MOST_SHARE


async def test_large_profile_blocks_no_other_request(served: Served) -> None:
    facts = [
        of_user(a_fact(f"statement {n % 15} of this user"), ended_at=NOON - timedelta(hours=n // 15))
        for n in range(MOST_PROFILE_FACTS)
    ]

    async def facts_of(*_: Any) -> list[FactOfUser]:
        return facts

    await served.client.get("/v1/users/u1/profile")
    served.remembered.episodes.facts_of = facts_of  # type: ignore[method-assign]  # many
    answer, share = await blocking(served.client.get("/v1/users/u1/profile"))
    assert answer.json()["facts"]
    assert share < MOST_SHARE


@pytest.mark.parametrize(
    ("path", "small", "large"),
    [
        ("context", {"max_tokens": LARGE_TOKENS}, {"max_tokens": LARGE_TOKENS + 1}),
        ("episodes", {"limit": LARGE_PAGE}, {"limit": LARGE_PAGE + 1}),
        ("messages", {"limit": LARGE_PAGE}, {"limit": LARGE_PAGE + 1}),
    ],
)
async def test_large_answers_of_a_key_take_turns(
    served: Served, path: str, small: dict[str, int], large: dict[str, int]
) -> None:
    await a_conversation(served)
    get = partial(served.client.get, f"/v1/conversations/c1/{path}")
    async with served.services.turns.of("local"):
        assert (await get(params=small)).status_code == 200
        waiting = asyncio.create_task(get(params=large))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
    assert (await waiting).status_code == 200
