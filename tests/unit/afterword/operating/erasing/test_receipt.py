"""The receipt: its dates, that it names nobody, and what its verification reports."""

import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import ConsumerRecord

from afterword.operating.person import (
    BROKER_SLACK,
    NEVER,
    Person,
    Receipt,
    ReceiptUnreadable,
    Records,
    TheirDeadLetters,
    TopicDate,
    gone_by,
    left_in_stores,
    person_of,
)
from afterword.schemas.dead_letters import dead_letter
from tests.doubles.index import MemoryIndex
from tests.rows import with_rows
from tests.samples import a_stored_episode
from tests.unit.afterword.operating.erasing.world import SETTINGS, TENANT, World

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@with_rows
def test_topics_date_follows_from_its_settings(hours: dict[str, Any], after: float | None) -> None:
    """Numbers are hours."""
    configs = {name: str(value * 3_600_000) if isinstance(value, int) else value for name, value in hours.items()}
    assert gone_by(configs, NOW) == (NEVER if after is None else NOW + after * HOUR + BROKER_SLACK)


def a_receipt(**fields: object) -> Receipt:
    dates = (
        TopicDate(topic="messages", gone_by=NEVER, ends={0: 7}, ours=False),
        TopicDate(topic="episode.closed", gone_by=NOW + HOUR, ends={0: 3}),
        TopicDate(topic="summary.created", gone_by=NOW + 2 * HOUR, ends={0: 3}),
    )
    given: dict[str, object] = {
        "receipt_id": "r1",
        "asked_by": "the officer",
        "asked_at": NOW,
        "finished_at": NOW,
        "person": Person("ann", "acme").digest("r1"),
        "deleted_conversations": ("c1",),
        "shared_conversations": (),
        "counts": {"messages": 1200, "conversations": 1, "dead_letters": 0},
        "topics": dates,
    }
    return Receipt.model_validate({**given, **fields})


def test_receipts_line_names_the_last_date_of_our_topics() -> None:
    assert a_receipt().line() == (
        "receipt r1: 1,200 messages, 1 conversation, 0 dead letters; gone from all stores at 2026-01-05T12:00:00.000Z, "
        "from our topics by 2026-01-05T14:00:00.000Z; your topic messages keeps its records for ever"
    )
    endless = TopicDate(topic="conversation.updated", gone_by=NEVER, ends={})
    receipt = a_receipt(topics=(*a_receipt().topics, endless))
    assert "14:00:00.000Z, but never from conversation.updated; see: afterword check; your" in receipt.line()
    mine = TopicDate(topic="messages", gone_by=NOW + HOUR, ends={}, ours=False)
    assert (
        a_receipt(topics=(mine,))
        .line()
        .endswith("your topic messages keeps its records until 2026-01-05T13:00:00.000Z")
    )


def test_receipt_is_read_unchanged_by_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "new" / "receipt.json"
    a_receipt().write(file)
    assert Receipt.read(file) == a_receipt()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not {"ann", "acme"} & set(file.read_text().split('"'))


@pytest.mark.parametrize(("user", "tenant"), [("Ann", "acme"), ("ann", None), ("ann", "other"), ("", "acme")])
def test_receipt_matches_nobody_else(user: str, tenant: str | None) -> None:
    assert a_receipt().is_of(Person("ann", "acme"))
    assert not a_receipt().is_of(Person(user, tenant))


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"version": 1, "user": "secret"}'])
def test_other_file_is_refused_as_receipt_without_quoting_it(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(ReceiptUnreadable, match="is not a receipt") as raised:
        Receipt.read(file)
    assert "secret" not in str(raised.value)


def test_unreadable_or_unwritable_receipt_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        Receipt.read(tmp_path / "none")
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "receipt.json"):  # it overwrites none
        with pytest.raises(FileExistsError, match="file"):
            a_receipt().write(path)
    assert (tmp_path / "file").read_text() == ""


async def left(world: World, end: int) -> dict[str, int]:
    stores: Any = SimpleNamespace(messages=world.messages, episodes=world.episodes, index=MemoryIndex())
    topics = (TopicDate(topic="messages", gone_by=NEVER, ends={0: end}, ours=False),)
    where = {"deleted_conversations": ("anns",), "shared_conversations": ("shared",), "topics": topics}
    receipt = a_receipt(finished_at=NOW + timedelta(days=1), **where)
    remains = await left_in_stores(stores, receipt, person_of("ann", TENANT), "messages")
    assert all(one.gone_by is None for one in remains)
    return {one.place: one.number for one in remains if one.number}


async def test_messages_older_than_the_receipt_are_reported() -> None:
    world = World()
    for conversation, user in (("anns", "ann"), ("shared", "bob"), ("shared", "ann"), ("anns", "ann")):
        await world.say(conversation, user)
    assert await left(world, end=3) == {"messages in the archive": 2}
    assert await left(world, end=0) == {}


async def test_episodes_older_than_the_receipt_are_reported() -> None:
    world = World()
    of_two = replace(a_stored_episode(user_id="bob", tenant_id=TENANT), participants=("ann", "bob"))
    await world.episodes.put(of_two, None)
    assert await left(world, end=0) == {"episodes": 1}
    others = World()
    await others.episodes.put(a_stored_episode(user_id="bob", tenant_id=TENANT), None)
    assert await left(others, end=0) == {}


@pytest.mark.parametrize(
    ("conversation", "error_type", "is_theirs"),
    [
        ("anns", "invalid_json", True),
        ("anns", "tenant_mismatch", False),
        ("shared", "invalid_json", False),
        ("bobs", "invalid_json", False),
    ],
)
def test_dead_letters_of_the_person_are_reported(conversation: str, error_type: str, is_theirs: bool) -> None:
    original: Any = SimpleNamespace(
        topic="messages", partition=0, offset=7, key=conversation.encode(), value=b"{", headers=[]
    )
    key, value, headers = dead_letter(original, stage="segmenter", error_type=error_type, message="", now_ms=1)
    topic = SETTINGS.kafka.dead_letters(SETTINGS.kafka.messages_topic)
    record = ConsumerRecord(topic, 0, 3, 1, 0, key, value, None, 1, 1, tuple(headers))
    theirs = TheirDeadLetters(person_of("ann", TENANT), frozenset({"anns"}), frozenset({"shared"}))
    assert Records(SETTINGS.kafka, theirs).are_theirs(record) is is_theirs
