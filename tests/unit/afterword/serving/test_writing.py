"""Routes that write send records that the workers accept, only for the key's tenant and user."""

import asyncio
import time
from functools import partial
from typing import Any

import orjson
import pytest

from afterword.schemas import (
    ConversationAssigned,
    ConversationDeleted,
    ConversationFlush,
    InputEvent,
    MessageCreated,
    MessageDeleted,
    MessageEdited,
    decode_input,
)
from afterword.schemas.base import Owner
from afterword.schemas.records import owner_in
from afterword.serving.outbox import Pace
from afterword.serving.requests import SCOPES
from afterword.serving.writing import MOST_MESSAGES
from afterword.streams.settings import Episodes
from afterword.streams.stores.messages import ArchiveChange, ArchivedMessage
from tests.rows import with_rows
from tests.unit.afterword.serving.served import Served, serving
from tests.unit.afterword.serving.test_reading import Holder, a_conversation
from tests.unit.segmenter.chat import Chat, Sent

MESSAGES = "/v1/messages"
MESSAGE = {"id": "m1", "conversation_id": "c1", "user_id": "u1", "role": "user", "content": "Hello."}


def sent(served: Served) -> list[InputEvent]:
    return [
        decode_input(record.conversation_id.encode(), record.value, record.headers, 0)
        for record in served.broker.records
    ]


async def test_messages_are_answered_with_their_positions(served: Served) -> None:
    batch = [{**MESSAGE, "id": f"m{n}"} for n in range(1000)]
    answer = await served.client.post(MESSAGES, json={"messages": batch})
    assert answer.status_code == 202
    assert answer.json()["records"][:2] == [{"partition": 0, "offset": 0}, {"partition": 0, "offset": 1}]
    assert [event.id for event in sent(served) if isinstance(event, MessageCreated)] == [m["id"] for m in batch]


async def test_batch_that_could_not_be_resent_is_refused() -> None:
    async with serving(episodes=Episodes(dedupe_window=10)) as served:
        batch = [{**MESSAGE, "id": f"m{n}"} for n in range(6)]
        answer = await served.client.post(MESSAGES, json={"messages": batch})
        assert (answer.status_code, answer.json()["problems"][0]["field"]) == (422, "body.messages")
        batch[0]["conversation_id"] = "c2"
        assert (await served.client.post(MESSAGES, json={"messages": batch})).status_code == 202


def test_largest_batch_may_be_resent_after_other_writes() -> None:
    """As often as the batch has messages."""

    async def written() -> list[Sent]:
        async with serving() as served:
            batch = [{**MESSAGE, "id": f"m{n}"} for n in range(MOST_MESSAGES)]
            others = [{**MESSAGE, "id": f"other{n}"} for n in range(MOST_MESSAGES)]
            for messages in (batch, others, batch):
                assert (await served.client.post(MESSAGES, json={"messages": messages})).status_code == 202
            return [Sent(record.conversation_id.encode(), record.value) for record in served.broker.records]

    outcome = Chat(Episodes()).process(asyncio.run(written()))
    assert (outcome.messages, outcome.duplicates) == (2 * MOST_MESSAGES, MOST_MESSAGES)


async def test_paced_writes_of_a_key_keep_the_last_value() -> None:
    pace, written = Pace[str, str](0.05), []

    async def write(text: str) -> str:
        written.append((text, time.monotonic()))
        return text

    keyed = [("a", "one"), ("a", "two"), ("b", "other"), ("a", "three")]
    assert await asyncio.gather(*[pace.write(key, partial(write, text)) for key, text in keyed]) == [
        "three",
        "three",
        "other",
        "three",
    ]
    assert await asyncio.gather(*[pace.write("a", partial(write, text)) for text in ("four", "five")]) == ["five"] * 2
    assert [text for text, _ in written] == ["three", "other", "five"]
    assert written[2][1] - written[0][1] >= 0.05


async def test_resent_message_is_written_with_its_last_text(served: Served) -> None:
    texts = ("The", "The key", "The key is here.")
    bodies = [{"messages": [{**MESSAGE, "content": text}]} for text in texts]
    assert (await served.client.post(MESSAGES, json=bodies[0])).status_code == 202
    answers = await asyncio.gather(*[served.client.post(MESSAGES, json=body) for body in bodies[1:]])
    assert [answer.json() for answer in answers] == [{"records": [{"partition": 0, "offset": 1}]}] * 2
    assert [getattr(event, "content", None) for event in sent(served)] == ["The", "The key is here."]


@pytest.mark.parametrize("change", [{"content": "Goodbye."}, {"role": "assistant"}, {"user_id": "u2"}])
async def test_changed_repeat_is_refused_if_repeats_are_rejected(change: dict[str, Any]) -> None:
    async with serving(episodes=Episodes(on_changed_repeat="reject")) as served:
        message = MessageCreated.model_validate(MESSAGE)
        await served.remembered.messages.put_many([ArchivedMessage(message, 0, 0)])
        new = {**MESSAGE, "id": "m2"}
        for batch in ([new, {**MESSAGE, **change}], [new, {**new, **change}]):
            answer = await served.client.post(MESSAGES, json={"messages": batch})
            assert (answer.status_code, answer.json()["problems"][0]["field"]) == (409, "body.messages.1")
        assert served.broker.records == []
        edit = MessageEdited(id="m1", conversation_id="c1", content="Hi.")
        await served.remembered.messages.change(ArchiveChange(edit, 0, 1))
        assert (await served.client.post(MESSAGES, json={"messages": [MESSAGE, new, new]})).status_code == 202


async def test_message_arrives_unchanged(served: Served) -> None:
    full = {
        **MESSAGE,
        "tenant_id": "t1",
        "agent_id": "a1",
        "sent_at": "2026-01-05T12:00:00+01:00",
        "sentiment": 0.5,
        "flows": ["booking"],
        "metadata": {"deep": [{"a": 1}]},
    }
    assert (await served.client.post(MESSAGES, json={"messages": [full]})).status_code == 202
    [event] = sent(served)
    assert event == MessageCreated.model_validate_json(orjson.dumps(full))


@with_rows
async def test_message_no_worker_accepts_is_refused(served: Served, change: dict[str, Any], field: str) -> None:
    answer = await served.client.post(MESSAGES, json={"messages": [{**MESSAGE, **change}]})
    assert answer.status_code == 422
    assert [problem["field"] for problem in answer.json()["problems"]] == [field]
    assert served.broker.records == []


async def test_message_names_its_user_unless_the_key_does(served: Served) -> None:
    bare = {name: value for name, value in MESSAGE.items() if name != "user_id"}
    answer = await served.client.post(MESSAGES, json={"messages": [MESSAGE, bare]})
    assert answer.status_code == 422
    assert [problem["field"] for problem in answer.json()["problems"]] == ["body.messages.1.user_id"]
    assert served.broker.records == []
    nobody = {**MESSAGE, "user_id": ""}  # as on the topic, where it may be empty
    assert (await served.client.post(MESSAGES, json={"messages": [nobody]})).status_code == 202


@pytest.mark.parametrize("messages", [[], [MESSAGE] * 1001, MESSAGE, None])
async def test_batch_has_1_to_1000_messages(served: Served, messages: Any) -> None:
    assert (await served.client.post(MESSAGES, json={"messages": messages})).status_code == 422


async def test_tenant_and_user_are_those_of_the_key() -> None:
    async with serving(Holder(tenant_id="t1", user_id="u1", scopes=SCOPES)) as served:
        bare = {name: value for name, value in MESSAGE.items() if name != "user_id"}
        assert (await served.client.post(MESSAGES, json={"messages": [bare]})).status_code == 202
        [event] = sent(served)
        assert isinstance(event, MessageCreated)
        assert (event.user_id, event.tenant_id) == ("u1", "t1")
        for other in ({"user_id": "u2"}, {"tenant_id": "t2"}):
            answer = await served.client.post(MESSAGES, json={"messages": [{**bare, **other}]})
            assert answer.status_code == 403
        assert len(served.broker.records) == 1


async def test_records_of_unknown_conversations_claim_them_for_the_user() -> None:
    async with serving(Holder(tenant_id="t1", user_id="u1", scopes=SCOPES)) as served:
        await a_conversation(served)
        answers = [
            await served.client.post(MESSAGES, json={"messages": [MESSAGE, {**MESSAGE, "conversation_id": "new"}]}),
            await served.client.post("/v1/conversations/new/flush", json={}),
            await served.client.post("/v1/conversations/c1/flush", json={}),
        ]
        assert [answer.status_code for answer in answers] == [202] * 3
        claims = [(one.conversation_id, owner_in(one.headers)) for one in served.broker.records]
        assert claims == [("c1", None), ("new", ("t1", "u1")), ("new", ("t1", "u1")), ("c1", None)]
    async with serving(Holder(tenant_id="t1", scopes=SCOPES)) as served:
        await served.client.post(MESSAGES, json={"messages": [MESSAGE]})
        assert owner_in(served.broker.records[0].headers) is None


async def test_context_of_own_new_conversation_is_empty_until_archived() -> None:
    context = "/v1/conversations/c1/context"
    async with serving(Holder(tenant_id="t1", user_id="u1", scopes=SCOPES)) as served:
        assert (await served.client.get(context)).status_code == 404
        assert (await served.client.post(MESSAGES, json={"messages": [MESSAGE]})).status_code == 202
        assert (await served.client.get(context)).json()["messages"] == []
        assert not served.broker.begun.is_of(Owner("u2", "t1"), "c1")
        await served.remembered.say("Hello.", user_id="u2")  # somebody else was first
        assert (await served.client.get(context)).status_code == 404


@pytest.mark.parametrize(("method", "path"), [("DELETE", "conversations/c1"), ("POST", "erasures")])
async def test_context_is_unknown_once_its_messages_are_deleted(method: str, path: str) -> None:
    async with serving(Holder(tenant_id="t1", scopes=SCOPES | {"erase"})) as served:
        await served.client.post(MESSAGES, json={"messages": [MESSAGE]})
        answer = await served.client.request(method, f"/v1/{path}", json={"user_id": MESSAGE["user_id"]})
        assert answer.status_code == 202
        assert (await served.client.get("/v1/conversations/c1/context")).status_code == 404


async def test_changes_become_lifecycle_events() -> None:
    async with serving(Holder(tenant_id="t1", scopes=SCOPES)) as served:
        await a_conversation(served, "a/b")
        path = "/v1/conversations/a%2Fb"
        answers = [
            await served.client.post(f"{path}/flush", json={"reason": "done"}),
            await served.client.patch(f"{path}/messages/m%2F1", json={"content": "Changed.", "flows": ["f"]}),
            await served.client.delete(f"{path}/messages/m1", params={"reason": "asked"}),
            await served.client.delete(path),
        ]
        assert [answer.status_code for answer in answers] == [202] * 4
        ids = {"conversation_id": "a/b", "tenant_id": "t1"}
        assert sent(served) == [
            ConversationFlush(**ids, reason="done"),
            MessageEdited(id="m/1", content="Changed.", flows=("f",), **ids),
            MessageDeleted(id="m1", reason="asked", **ids),
            ConversationDeleted(**ids),
        ]


async def test_sentiment_can_be_removed(served: Served) -> None:
    path = "/v1/conversations/c1/messages/m1"
    assert (await served.client.patch(path, json={"sentiment": None})).status_code == 202
    [event] = sent(served)
    assert isinstance(event, MessageEdited)
    assert event.changes == {"sentiment": None}


@pytest.mark.parametrize("body", [{}, {"tenant_id": "t1"}, {"role": "user"}, {"content": 5}, {"id": "m2"}])
async def test_edit_without_or_with_unknown_fields_is_refused(served: Served, body: Any) -> None:
    answer = await served.client.patch("/v1/conversations/c1/messages/m1", json=body)
    assert answer.status_code == 422
    assert served.broker.records == []


async def test_nothing_is_acknowledged_while_kafka_is_down(served: Served) -> None:
    served.broker.away = True
    answer = await served.client.post(MESSAGES, json={"messages": [MESSAGE]})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error_type"] == "broker_unavailable"
    assert "internal" not in answer.text
    served.broker.away = False
    assert (await served.client.post(MESSAGES, json={"messages": [MESSAGE]})).status_code == 202


MERGE = "/v1/users/guest%2F1/merge-into/nora"


async def test_merge_assigns_every_conversation_of_the_guest() -> None:
    async with serving(Holder(tenant_id="t1", scopes=SCOPES)) as served:
        for name, user_id in (("c1", "guest/1"), ("c2", "guest/1"), ("c3", "eve")):
            await served.remembered.say("Hello.", conversation_id=name, user_id=user_id)
        begun = {**MESSAGE, "conversation_id": "c4", "user_id": "guest/1"}
        assert (await served.client.post(MESSAGES, json={"messages": [begun]})).status_code == 202
        answer = await served.client.post(MERGE, json={"reason": "signed in"})
        assert (answer.status_code, len(answer.json()["records"])) == (202, 3)
        users = {"from_user_id": "guest/1", "user_id": "nora", "tenant_id": "t1", "reason": "signed in"}
        wanted = [ConversationAssigned(conversation_id=name, **users) for name in ("c1", "c2", "c4")]
        assert sent(served)[1:] == wanted
        assert served.broker.begun.is_of(Owner("nora", "t1"), "c4")
        answer = await served.client.post("/v1/users/nobody/merge-into/nora", json={})
        assert (answer.status_code, answer.json()["records"]) == (202, [])


async def test_one_conversation_is_assigned() -> None:
    async with serving(Holder(tenant_id="t1", scopes=SCOPES)) as served:
        await a_conversation(served, "a/b")
        users = {"from_user_id": "u1", "user_id": "nora"}
        assert (await served.client.post("/v1/conversations/a%2Fb/assign", json=users)).status_code == 202
        assert sent(served) == [ConversationAssigned(conversation_id="a/b", tenant_id="t1", **users)]
        for wrong in ({**users, "user_id": "u1"}, {**users, "user_id": ""}, {"user_id": "nora"}):
            assert (await served.client.post("/v1/conversations/a%2Fb/assign", json=wrong)).status_code == 422
        assert (await served.client.post("/v1/users/u1/merge-into/u1", json={})).status_code == 422


async def test_either_user_may_send_an_assigned_message_again() -> None:
    async with serving(episodes=Episodes(on_changed_repeat="reject")) as served:
        [said] = await served.remembered.say("Hello.", user_id="guest")
        users = {"from_user_id": "guest", "user_id": "nora"}
        given = ConversationAssigned(conversation_id="c1", tenant_id=said.tenant_id, **users)
        await served.remembered.messages.change(ArchiveChange(given, 0, 99))
        again = {**MESSAGE, "id": said.id, "tenant_id": said.tenant_id}
        for user_id, content, status in (("guest", "Hello.", 202), ("nora", "Hello.", 202), ("eve", "Hello.", 409)):
            message = {**again, "user_id": user_id, "content": content}
            assert (await served.client.post(MESSAGES, json={"messages": [message]})).status_code == status
