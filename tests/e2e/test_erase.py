"""Erasing a person on the real processes: alone and among others, twice, and verified."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from afterword import Eraser, Memory, MessageCreated, Producer
from afterword.operating.person import Receipt, verify
from afterword.streams.kafka.clients import running_producer
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.settings import Settings
from tests.e2e.deployment import WAIT_SECONDS, Deployment, afterword, deployed
from tests.e2e.test_redaction import documents

pytestmark = pytest.mark.nightly

TENANT = "acme"


@pytest.fixture
def settings(make_settings: Callable[..., Settings]) -> Settings:
    retry = {"first_delay_seconds": 0.5}
    return make_settings(kafka={"partitions": 2}, retry=retry, drain_seconds=10, episodes={"overlap": 1})


@pytest_asyncio.fixture
async def deployment(settings: Settings, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployed(settings, tmp_path) as ready:
        for role in ALWAYS_RUN:
            ready.start(role)
        yield ready


def message(conversation: str, number: int, user: str, content: str, **fields: Any) -> MessageCreated:
    given: dict[str, Any] = {"role": "user", "tenant_id": TENANT, **fields}
    return MessageCreated(id=f"m{number}", conversation_id=conversation, user_id=user, content=content, **given)


async def test_person_is_erased_alone_and_in_groups_and_repeatedly(deployment: Deployment, tmp_path: Path) -> None:
    settings = deployment.settings
    person = ("--user", "ann", "--tenant", TENANT)
    async with Producer.from_settings(settings) as producer, running_producer(settings.kafka) as raw:
        for number, content in enumerate(("My passport is N4471902.", "I fly to Rome.", "The hotel is booked.")):
            await producer.send(message("alone", number, "ann", content))
        await producer.flush("alone", tenant_id=TENANT)
        await producer.send(message("alone", 3, "ann", "Pending: my PIN is 77119."))
        talk = (
            ("bob", "The meeting is on Monday."),
            ("ann", "I am ill with malaria."),
            ("bob", "Get well, colleague."),
        )
        for number, (user, content) in enumerate(talk):
            await producer.send(message("shared", number, user, content))
        await producer.flush("shared", tenant_id=TENANT)
        await producer.send(message("shared", 3, "ann", "Pending: malaria tropica."))
        await producer.send(message("shared", 4, "bob", "The meeting moves to Tuesday."))
        await producer.send(message("elsewhere", 0, "ann", "Another tenant's ann.", tenant_id="other"))
        await producer.send(message("bobs", 0, "bob", "Nothing of others."))
        rejected = b'{"id": 7, "user_id": "ann", "tenant_id": "acme", "content": "malaria"}'
        await raw.send_and_wait(settings.kafka.messages_topic, rejected, key=b"odd")
    report = await deployment.audit()
    assert report.clean, list(report.lines())

    code, said, errors = await afterword(settings, "erase", *person, "--dry-run", "--json")
    assert (code, json.loads(said)) == (0, {
        "conversations": 2, "shared_conversations": 1, "messages": 6, "episodes": 2, "dead_letters": 1,
    }), errors  # fmt: skip
    code, said, errors = await afterword(settings, "erase", *person, given="n\n")
    assert (code, said.strip()) == (1, "")
    assert errors.endswith("Aborted.\n")

    receipts = tmp_path / "receipts"
    arguments = ("erase", *person, "--yes", "--by", "the data protection officer", "--receipt")
    code, said, errors = await afterword(settings, *arguments, str(receipts / "1.json"))
    assert code == 0, errors
    assert said.startswith("receipt ")
    receipt = Receipt.read(receipts / "1.json")
    assert receipt.counts == {"messages": 6, "conversations": 2, "episodes": 2, "dead_letters": 1}
    assert receipt.deleted_conversations == ("alone",)
    assert receipt.shared_conversations == ("shared",)
    assert all(isinstance(topic.gone_by, datetime) for topic in receipt.topics if topic.ours)
    assert not {"ann", "acme"} & set((receipts / "1.json").read_text().split('"'))

    async with Memory.from_settings(settings) as memory:
        assert await memory.context("alone") is None
        context = await memory.context("shared", keep_recent=10)
        assert context is not None
        assert [one.content for one in context.messages] == [talk[0][1], talk[2][1], "The meeting moves to Tuesday."]
        assert "malaria" not in repr((context, await memory.episodes("shared")))
        assert await memory.recall("malaria passport", user_id="ann", tenant_id=TENANT) == []
        assert await memory.context("elsewhere", keep_recent=10)
    stored = [text for text in await documents(settings) if b"elsewhere" not in text]
    assert not [text for text in stored if b"'ann'" in text or b"malaria" in text or b"N4471902" in text]

    code, said, errors = await afterword(settings, "erase", *arguments[1:], str(receipts / "2.json"))
    assert code == 0, errors
    again = Receipt.read(receipts / "2.json")
    assert again.receipt_id != receipt.receipt_id
    assert set(again.counts.values()) == {0}

    verified = ("erase", "verify", str(receipts / "1.json"))
    code, said, errors = await afterword(settings, *verified, *person)
    assert code == 0, errors
    assert settings.kafka.episodes_topic in said
    assert "will be gone by" in said
    assert len(said.splitlines()) > 1
    assert "\N{REPLACEMENT CHARACTER}" not in said
    code, _, errors = await afterword(settings, *verified, "--user", "bob", "--tenant", TENANT)
    assert (code, "the receipt is not for this user" in errors) == (2, True)
    late = await verify(settings, receipt, "ann", TENANT, receipt.finished_at + timedelta(days=60))
    assert {found.place for found in late if found.late} >= {
        settings.kafka.episodes_topic,
        settings.kafka.summaries_topic,
    }
    report = await deployment.audit()
    assert report.clean, list(report.lines())


async def test_erasing_a_group_member_keeps_the_others_messages(deployment: Deployment) -> None:
    """The participant wrote in the first of two episodes, in its last message, which the second one has as overlap."""
    settings = deployment.settings
    talk = (
        ("ann", "I am allergic to nuts."),
        ("ann", "We meet in Lisbon on Friday."),
        ("bob", "I am allergic to penicillin."),
        ("ann", "The train leaves at nine."),
        ("cid", "I am a nurse."),
    )

    async def known(memory: Memory, user: str) -> list[str]:
        return [fact.statement for fact in (await memory.profile(user, TENANT)).facts]

    async with Producer.from_settings(settings) as producer:
        for number, (user, content) in enumerate(talk):
            await producer.send(message("group", number, user, content, author=user.title()))
            if number == 2:
                await producer.flush("group", tenant_id=TENANT)
        await producer.flush("group", tenant_id=TENANT)
    report = await deployment.audit()
    assert report.clean, list(report.lines())
    async with Memory.from_settings(settings) as memory:
        assert [len(await known(memory, user)) for user in ("ann", "bob", "cid")] == [1, 1, 1]
        for user in ("ann", "bob"):
            assert await memory.recall("Who is allergic to penicillin?", user_id=user, tenant_id=TENANT)
        async with Eraser.from_settings(settings) as eraser:
            receipt = await eraser.erase("bob", TENANT, timeout_seconds=WAIT_SECONDS)
        assert receipt.shared_conversations == ("group",)
        assert receipt.counts == {"messages": 1, "conversations": 1, "episodes": 2, "dead_letters": 0}

        context = await memory.context("group", keep_recent=10)
        assert context is not None
        assert [one.content for one in context.messages] == [content for user, content in talk if user != "bob"]
        assert [len(await known(memory, user)) for user in ("ann", "bob", "cid")] == [1, 0, 1]
        episodes = (await memory.episodes("group")).episodes
        assert [sorted(stored.participants) for stored in episodes] == [["ann", "cid"], ["ann"]]
        assert await memory.recall("allergic to penicillin", user_id="bob", tenant_id=TENANT) == []
        found = await memory.recall("Who is allergic to penicillin?", user_id="ann", tenant_id=TENANT)
        assert "penicillin" not in repr((found, context, episodes))
        assert await memory.recall("nuts", user_id="ann", tenant_id=TENANT)
    gone = [text for text in await documents(settings) if b"penicillin" in text or b"'bob'" in text or b"Bob" in text]
    assert gone == []
    report = await deployment.audit()
    assert report.clean, list(report.lines())


async def test_person_who_writes_after_an_erasure_is_found_again(deployment: Deployment) -> None:
    settings = deployment.settings
    async with Producer.from_settings(settings) as producer, Eraser.from_settings(settings) as eraser:
        for number in range(20):
            await producer.send(message(f"c{number % 4}", number, "ann", f"Line {number}."))
        erasing = asyncio.create_task(eraser.erase("ann", TENANT, timeout_seconds=WAIT_SECONDS))
        for number in range(20, 30):
            await producer.send(message(f"c{number % 5}", number, "ann", f"Line {number}."))
        await erasing
        receipt = await eraser.erase("ann", TENANT, timeout_seconds=WAIT_SECONDS)
        plan = await eraser.plan("ann", TENANT)
    assert plan["messages"] == plan["conversations"] == 0
    assert set(erasing.result().conversations | receipt.conversations) == {f"c{number}" for number in range(5)}
    assert not [text for text in await documents(settings) if b"'ann'" in text]
