"""The table of docs/how-to/keys-and-jwt.md: what a user's key reads and changes where several people write."""

import asyncio
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from afterword.schemas import MessageCreated
from afterword.serving.requests import SCOPES
from tests.unit.afterword.serving.served import Served, serving
from tests.unit.afterword.serving.test_reading import Holder

SECRETS = ("salary", "violin", "mortgage", "garden", "bicycle", "passport", "lottery", "surgery")
"""One word for each message, which occurs nowhere else."""
USERS = ("u1", "u2", "u3")
SIZE = 3
"""Number of messages in an episode."""


async def said(served: Served, conversation_id: str, users: list[str], secrets: list[str]) -> list[MessageCreated]:
    found: list[MessageCreated] = []
    for user, secret in zip(users, secrets, strict=False):
        text = f"My {secret} is what I think about today."
        found += await served.remembered.say(text, role="user", user_id=user, conversation_id=conversation_id)
    await served.remembered.summarise(found[: len(found) // SIZE * SIZE], SIZE)
    return found


def may_read(viewer: str, messages: list[MessageCreated]) -> set[str]:
    """Return the ids of the messages that the viewer may read: of one's own conversation, one's own episodes, and one's
    own messages."""
    whole = [messages[start : start + SIZE] for start in range(0, len(messages) // SIZE * SIZE, SIZE)]
    of_episodes = {one.id for episode in whole if episode[0].user_id == viewer for one in episode}
    return {one.id for one in messages if viewer in (one.user_id, messages[0].user_id)} | of_episodes


async def answers(served: Served, conversation_id: str, messages: list[MessageCreated]) -> str:
    """Return all that any route answers, as one text."""
    path = f"/v1/conversations/{conversation_id}"
    paths = [
        path,
        f"{path}/context?profile=true&form=text",
        f"{path}/messages",
        f"{path}/episodes",
        "/v1/conversations",
    ]
    paths += [f"{path}/messages/{one.id}" for one in messages]
    paths += [f"/v1/episodes/{conversation_id}%3A{ordinal}" for ordinal in range(1, len(messages) // SIZE + 1)]
    paths += [f"/v1/users/{user}/profile" for user in USERS]
    found = [(await served.client.get(one)).text for one in paths]
    queries = (*SECRETS, "What did we talk about last?", "my plans for today")
    wanted: list[dict[str, Any]] = [{"query": query, "form": "text", "k": 20} for query in queries]
    found += [(await served.client.post("/v1/recall", json=one)).text for one in wanted]
    return "\n".join(found)


async def changes(served: Served, conversation_id: str, messages: list[MessageCreated]) -> list[int]:
    """Try to write, edit, delete and flush, and return the statuses."""
    path = f"/v1/conversations/{conversation_id}"
    new = {"id": "new", "conversation_id": conversation_id, "role": "user", "content": "Hello."}
    found = [await served.client.post("/v1/messages", json={"messages": [new]})]
    for one in messages:
        found.append(await served.client.patch(f"{path}/messages/{one.id}", json={"content": "Changed."}))
        found.append(await served.client.delete(f"{path}/messages/{one.id}"))
    found.append(await served.client.post(f"{path}/flush", json={}))
    found.append(await served.client.delete(path))
    return [answer.status_code for answer in found]


FEW = settings(max_examples=settings().max_examples // 3)
CONVERSATIONS = st.lists(st.sampled_from(USERS), min_size=1, max_size=len(SECRETS))


@FEW
@given(CONVERSATIONS, st.sampled_from(USERS))
@example(["u1", "u2", "u1", "u2", "u1", "u3", "u3", "u2"], "u2")
@example(["u1", "u1", "u2"], "u2")
def test_user_reads_exactly_what_the_table_says(users: list[str], viewer: str) -> None:
    async def check() -> None:
        async with serving(Holder(tenant_id="t1", user_id=viewer)) as served:
            messages = await said(served, "c1", users, list(SECRETS))
            found = await answers(served, "c1", messages)
            allowed = may_read(viewer, messages)
            seen = {one.id for one, secret in zip(messages, SECRETS, strict=False) if secret in found}
            assert seen == allowed

    asyncio.run(check())


@FEW
@given(CONVERSATIONS, st.sampled_from(USERS), st.sampled_from([None, "t1", "t2"]))
@example(["u1", "u2"], "u1", "t2")
@example(["u1", "u2"], "u2", "t1")
def test_only_the_conversations_user_in_its_tenant_changes_it(
    users: list[str], viewer: str, tenant_id: str | None
) -> None:
    async def check() -> None:
        async with serving(Holder(tenant_id=tenant_id, user_id=viewer, scopes=SCOPES)) as served:
            messages = await said(served, "c1", users, list(SECRETS))
            if (viewer, tenant_id) == (users[0], "t1"):
                assert {*await changes(served, "c1", messages)} == {202}
                return
            assert {*await changes(served, "c1", messages)} == {404}
            assert served.broker.records == []
            if tenant_id != "t1":
                found = await answers(served, "c1", messages)
                assert not [secret for secret in SECRETS if secret in found]

    asyncio.run(check())
