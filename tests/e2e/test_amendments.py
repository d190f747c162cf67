"""Edits and deletions on the real processes: only the current version of a message can be read anywhere."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from afterword import Memory, MessageCreated, Producer, RevisionSubscriber, SummaryCreated, SummaryDeleted
from afterword.schemas.dead_letters import read_dead_letter
from afterword.streams.kafka.clients import running_consumer
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.segmenter.state import CONVERSATIONS, State, decode_state, record_key
from afterword.streams.settings import Settings
from tests.e2e.deployment import Deployment
from tests.waiting import until

FACTS = ("The flight to Rome is on Monday.", "The hotel is booked for three nights.", "My passport is N4471902.")
TENANT = "acme"

Events = list[SummaryCreated | SummaryDeleted]


def message(conversation: str, number: int, content: str) -> MessageCreated:
    return MessageCreated(
        id=f"m{number}", conversation_id=conversation, user_id="ann", tenant_id=TENANT, role="user", content=content
    )


@pytest.fixture
def settings(make_settings: Callable[..., Settings], request: pytest.FixtureRequest) -> Settings:
    """Retries are short. Tests may pass settings of episodes."""
    episodes = getattr(request, "param", {})
    retry = {"first_delay_seconds": 0.5}
    return make_settings(kafka={"partitions": 4}, retry=retry, drain_seconds=10, episodes=episodes)


@pytest_asyncio.fixture
async def events(deployment: Deployment) -> AsyncIterator[Events]:
    """Yield every announced event as it arrives."""
    found: Events = []

    async def read() -> None:
        async with RevisionSubscriber.from_settings(deployment.settings, group_id="reader") as subscriber:
            async for event in subscriber:
                found.append(event)

    for role in ALWAYS_RUN:
        deployment.start(role)
    reading = asyncio.create_task(read())
    yield found
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


def latest(events: Events, conversation: str) -> dict[int, SummaryCreated | SummaryDeleted]:
    """Return the highest revision of each ordinal."""
    found: dict[int, SummaryCreated | SummaryDeleted] = {}
    for event in events:
        known = found.get(event.ordinal)
        if event.conversation_id == conversation and (known is None or known.revision < event.revision):
            found[event.ordinal] = event
    return found


async def dead_letters(deployment: Deployment, number: int) -> set[tuple[str, str]]:
    """Return the error types of this number of dead letters, each with the record's topic."""
    kafka = deployment.settings.kafka
    topics = {kafka.dead_letters(topic): topic for topic in (kafka.messages_topic, kafka.episodes_topic)}
    found: set[tuple[str, str]] = set()
    async with running_consumer(kafka, *topics, auto_offset_reset="earliest") as consumer:

        async def are_read() -> bool:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found.update((topics[record.topic], read_dead_letter(record).error_type) for record in records)
            return len(found) == number

        await until(are_read)
    return found


async def has(events: Events, conversation: str, revisions: dict[int, int]) -> bool:
    known = latest(events, conversation)
    return {ordinal: event.revision for ordinal, event in known.items()} == revisions


async def test_correction_and_deletion_take_effect_everywhere(deployment: Deployment, events: Events) -> None:
    async with (
        Producer.from_settings(deployment.settings) as producer,
        Memory.from_settings(deployment.settings) as memory,
    ):
        for number, fact in enumerate(FACTS):
            await producer.send(message("c", number, fact))
        await producer.flush("c", tenant_id=TENANT)
        await producer.send(message("c", 3, "A window seat, please."))
        await producer.flush("c", tenant_id=TENANT)
        await until(lambda: has(events, "c", {1: 1, 2: 1}))

        await producer.edit("c", "m0", tenant_id=TENANT, content="The flight to Oslo is on Monday.")
        await until(lambda: has(events, "c", {1: 2, 2: 1}))
        first = latest(events, "c")[1]
        assert isinstance(first, SummaryCreated)
        assert first.reason == "edited"
        assert "Oslo" in first.long_summary
        assert "Rome" not in first.long_summary
        found = await memory.recall("Oslo", user_id="ann", tenant_id=TENANT)
        assert [(hit.episode_id, hit.revision) for hit in found][:1] == [("c:1", 2)]

        await producer.delete("c", "m2", tenant_id=TENANT, reason="private")
        await until(lambda: has(events, "c", {1: 4, 2: 3}))  # each without its texts before
        context = await memory.context("c", keep_recent=10)
        assert context is not None
        assert "N4471902" not in repr(context)
        assert "Rome" not in repr(context)
        assert [m.content for m in context.messages] == [
            "The flight to Oslo is on Monday.", FACTS[1], "A window seat, please.",
        ]  # fmt: skip
        page = await memory.episodes("c")
        assert "N4471902" not in repr(page)
        assert await memory.recall("N4471902", user_id="ann", tenant_id=TENANT) == []

        await producer.delete("c", "m3", tenant_id=TENANT)
        await until(lambda: has(events, "c", {1: 4, 2: 4}))
        assert isinstance(latest(events, "c")[2], SummaryDeleted)
        assert [e.summary.ordinal for e in (await memory.episodes("c")).episodes] == [1]
    report = await deployment.audit()
    assert report.clean, list(report.lines())


async def until_forgotten(deployment: Deployment, conversation: str, stub: State) -> None:
    """Wait until nothing but this stub is left of the conversation."""
    kafka, found = deployment.settings.kafka, State(None, next_seq=1)
    async with running_consumer(kafka, kafka.changelog(CONVERSATIONS), auto_offset_reset="earliest") as consumer:

        async def is_left() -> bool:
            nonlocal found
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    if record.key == record_key(conversation):
                        found = decode_state(record.value)
            return found == stub

        await until(is_left)


@pytest.mark.nightly
@pytest.mark.parametrize("settings", [{"forget_after_days": 3 / 86_400, "overlap": 2}], indirect=True)
async def test_forgotten_conversation_goes_on_and_accepts_changes(deployment: Deployment, events: Events) -> None:
    async with Producer.from_settings(deployment.settings) as producer:
        for number, fact in enumerate(FACTS[:2]):
            await producer.send(message("f", number, fact))
        await producer.flush("f", tenant_id=TENANT)
        await until(lambda: has(events, "f", {1: 1}))
        await until_forgotten(deployment, "f", State(TENANT, last_ordinal=1))

        await producer.send(message("f", 2, FACTS[2]))
        await producer.send(message("f", 0, FACTS[0]))
        await producer.flush("f", tenant_id=TENANT)
        await until(lambda: has(events, "f", {1: 1, 2: 1}))
        second = latest(events, "f")[2]
        assert isinstance(second, SummaryCreated)
        assert second.message_ids == ("m2", "m0")
        assert [episode.overlap for episode in await deployment.episodes()] == [(), ()]

        await until_forgotten(deployment, "f", State(TENANT, last_ordinal=2))
        await producer.edit("f", "m1", tenant_id=TENANT, content="The hotel is booked for a week.")
        await until(lambda: has(events, "f", {1: 2, 2: 1}))
        first = latest(events, "f")[1]
        assert isinstance(first, SummaryCreated)
        assert "a week" in first.long_summary
        await producer.delete("f", "m2", tenant_id=TENANT)
        await until(lambda: has(events, "f", {1: 2, 2: 3}))
    report = await deployment.audit()
    assert report.clean, list(report.lines())


async def test_pending_messages_close_with_their_latest_text(deployment: Deployment, events: Events) -> None:
    async with Producer.from_settings(deployment.settings) as producer:
        for number, fact in enumerate(FACTS):
            await producer.send(message("p", number, fact))
        await producer.edit("p", "m0", tenant_id=TENANT, content="The flight to Oslo is on Monday.")
        await producer.delete("p", "m2", tenant_id=TENANT)
        await producer.flush("p", tenant_id=TENANT)
        await until(lambda: has(events, "p", {1: 1}))
    event = latest(events, "p")[1]
    assert isinstance(event, SummaryCreated)
    assert event.message_ids == ("m0", "m1")
    assert "Oslo" in event.long_summary
    assert "N4471902" not in event.to_json().decode()
    [closed] = await deployment.episodes()
    assert "N4471902" not in closed.to_json().decode()
    report = await deployment.audit()
    assert report.clean, list(report.lines())


async def test_deleted_conversation_is_gone_and_begins_anew(deployment: Deployment, events: Events) -> None:
    async with (
        Producer.from_settings(deployment.settings) as producer,
        Memory.from_settings(deployment.settings) as memory,
    ):
        for number, fact in enumerate(FACTS[:2]):
            await producer.send(message("d", number, fact))
        await producer.flush("d", tenant_id=TENANT)
        await producer.send(message("d", 2, FACTS[2]))  # pending when the conversation is deleted
        await until(lambda: has(events, "d", {1: 1}))
        await producer.delete_conversation("d", tenant_id=TENANT)
        await producer.delete_conversation("d", tenant_id=TENANT)
        await until(lambda: has(events, "d", {1: 2}))
        assert await memory.context("d") is None
        await producer.send(message("d", 10, "A new beginning."))
        await producer.flush("d", tenant_id=TENANT)
        await until(lambda: has(events, "d", {1: 2, 2: 1}))
        context = await memory.context("d", keep_recent=10)
        assert context is not None
        assert [m.content for m in context.messages] == ["A new beginning."]
        assert not any(fact in repr(context) for fact in FACTS)
        second = latest(events, "d")[2]
        assert isinstance(second, SummaryCreated)
        assert second.message_ids == ("m10",)
    report = await deployment.audit()
    assert report.clean, list(report.lines())


async def test_impossible_changes_become_dead_letters(deployment: Deployment, events: Events) -> None:
    async with Producer.from_settings(deployment.settings) as producer:
        await producer.send(message("u", 0, FACTS[0]))
        await producer.flush("u", tenant_id=TENANT)
        await until(lambda: has(events, "u", {1: 1}))
        await producer.edit("u", "nobody", tenant_id=TENANT, content="x")
        await producer.delete("u", "m0", tenant_id="another")

        kafka = deployment.settings.kafka
        assert await dead_letters(deployment, 2) == {
            (kafka.messages_topic, "tenant_mismatch"),
            (kafka.episodes_topic, "unknown_message"),
        }
    assert await has(events, "u", {1: 1})
