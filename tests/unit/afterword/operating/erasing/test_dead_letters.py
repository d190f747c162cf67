"""A person's dead letters, found by conversation and by their contents."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from afterword.operating.dlq import DeadLetterCounts, Matching
from afterword.operating.person import Person, TheirDeadLetters, holds, person_of
from afterword.schemas import ConversationAssigned
from afterword.schemas.base import user_digest
from afterword.schemas.dead_letters import (
    DEAD_LETTER_PREFIX,
    INGEST,
    MAX_BYTES,
    WEBHOOKS,
    DeadLetter,
    Origin,
    read_dead_letter,
)
from afterword.schemas.messages import MESSAGE_EDITED, Move
from afterword.schemas.records import CE_TYPE
from afterword.streams.stores.messages import ArchiveChange
from distributions.engine.tests.simulation.virtual_time import run_in_virtual_time
from tests.rows import with_rows
from tests.samples import a_closed_episode, a_message, a_summary, an_episode_message
from tests.unit.afterword.operating.erasing.world import TENANT, ErasesWithoutBroker, World
from tests.unit.schemas.test_dead_letters import Record, dead_letter_of
from tests.unit.streams.ingest.records import FIELDS, source

ANN = Person("ann", "acme")


def message(**fields: Any) -> bytes:
    return a_message(**{"user_id": "ann", "tenant_id": "acme", **fields}).to_json()


def structured(value: bytes) -> bytes:
    """Return the same record as a CloudEvent in structured mode."""
    return b'{"specversion": "1.0", "id": "1", "source": "s", "type": "message.created", "data": ' + value + b"}"


def nested(value: bytes, levels: int = 1000) -> bytes:
    """Return a value in nested `data`: in as many as a JSON parser reads, but recursion could not follow."""
    return b'{"data":' * levels + value + b"}" * levels


WRAPPED: dict[str, Callable[[bytes], bytes]] = {
    "structured": structured,
    "nested": nested,
    "in a list": lambda value: b"[" + value + b"]",
    "in 300 objects": lambda value: nested(value, 300),
    "in 300 lists": lambda value: b"[" * 300 + value + b"]" * 300,
    "cut off in 2000 lists": lambda value: b"[" * 2000 + value,
}


def of_episode(*users: str, overlap: Sequence[str] = (), tenant_id: str | None = "acme") -> bytes:
    core, before = ([an_episode_message(f"m{n}", user_id=user) for n, user in enumerate(us)] for us in (users, overlap))
    return a_closed_episode(user_id="bob", tenant_id=tenant_id, messages=tuple(core), overlap=tuple(before)).to_json()


@with_rows
def test_dead_letter_belongs_to_its_user_and_tenant(value: Any, wrapped: list[str], is_theirs: bool) -> None:
    """A value is text, fields of a message, or the users of an episode."""
    match value:
        case str(text):
            letter = text.encode()
        case {"episode": users, **others}:
            letter = of_episode(*users, **others)
        case _:
            letter = message(**value)
    for how in wrapped:
        letter = WRAPPED[how](letter)
    assert holds(letter, ANN) == is_theirs


def test_empty_dead_letter_belongs_to_nobody() -> None:
    assert not holds(None, ANN)
    assert holds(b'{"user_id": "ann"}', Person("ann", None))


def dead(conversation: str, value: bytes, error_type: str = "x") -> DeadLetter:
    now = datetime.now(UTC)
    return DeadLetter("messages.dlq", 0, 0, now, "segmenter", error_type, "", None, conversation.encode(), value, [])


def test_letters_of_own_conversations_and_own_letters_count() -> None:
    theirs = TheirDeadLetters(ANN, frozenset({"alone"}))
    assert theirs(dead("alone", b"no json"))
    assert not theirs(dead("alone", message(tenant_id="other"), "tenant_mismatch"))
    assert theirs(dead("shared", message()))
    assert not theirs(dead("shared", message(user_id="bob")))


def test_letter_truncated_before_its_id_belongs_to_its_user() -> None:
    value = orjson.dumps({"id": "m1", "conversation_id": "c", "content": "x" * MAX_BYTES, "user_id": "änn"})
    written = dead_letter_of(Record(key=b"c", value=value))
    found = read_dead_letter(written)
    assert written.value is not None
    assert len(written.value) < len(value)
    assert TheirDeadLetters(Person("änn", None), frozenset())(found)
    assert not TheirDeadLetters(Person("bob", None), frozenset(), frozenset({"c"}))(found)
    untold = replace(found, users=())
    assert TheirDeadLetters(Person("bob", None), frozenset(), frozenset({"c"}))(untold)
    assert not TheirDeadLetters(Person("bob", None), frozenset(), frozenset({"other"}))(untold)


def test_undelivered_summaries_of_shared_conversations_belong_to_each() -> None:
    theirs = TheirDeadLetters(ANN, frozenset({"alone"}), frozenset({"shared"}))
    summary = a_summary(user_id="bob", tenant_id="acme").to_json()
    undelivered = {name: replace(dead(name, summary), stage=WEBHOOKS) for name in ("alone", "shared", "other")}
    assert [name for name, letter in undelivered.items() if theirs(letter)] == ["alone", "shared"]
    assert not theirs(dead("shared", summary))


def test_letter_with_deeply_nested_users_names_nobody() -> None:
    headers = [(DEAD_LETTER_PREFIX + "users", b"[" * 100_000)]
    assert read_dead_letter(Record("messages.dlq", value=b"", headers=headers)).users == ()


@pytest.mark.parametrize("given", [("", None), (None, None), ("ann", 7), ("ann", {"$ne": 1})])
def test_erasure_needs_one_valid_user(given: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        person_of(*given)


class ErasesLetters(ErasesWithoutBroker):
    """An eraser with dead letters of `messages`, which remembers the discarded ones."""

    def __init__(self, world: World, letters: Sequence[DeadLetter]) -> None:
        super().__init__(world)
        self._letters = letters
        self.discarded: set[str] = set()

    async def unresolved(self, topic: str, filters: Matching) -> AsyncGenerator[DeadLetter, None]:  # type: ignore[override]
        for letter in self._letters:
            if letter.topic == topic and filters(letter):
                yield letter

    async def resolve(self, topic: str, filters: Matching, _: str) -> DeadLetterCounts:  # type: ignore[override]
        found = [letter.address async for letter in self.unresolved(topic, filters)]
        self.discarded.update(found)
        return DeadLetterCounts(resolved=len(found))

    async def count(self, topic: str, filters: Matching, _: str) -> DeadLetterCounts:
        return DeadLetterCounts(resolved=len([one async for one in self.unresolved(topic, filters)]))


EDITED = [(CE_TYPE, MESSAGE_EDITED.encode())]


def an_edit(**fields: Any) -> bytes:
    return orjson.dumps({"conversation_id": "shared", "tenant_id": TENANT, **fields, "content": "I am ill."})


@pytest.mark.parametrize(
    ("value", "headers", "conversation", "is_theirs"),
    [
        (an_edit(id="m0"), EDITED, "shared", True),
        (an_edit(id="m1"), EDITED, "shared", False),
        (an_edit(id="m2"), EDITED, "shared", True),
        (an_edit(id=7), EDITED, "shared", True),
        (an_edit(id="m0", type=MESSAGE_EDITED), [], "shared", True),
        (structured(an_edit(id="m0")).replace(b"message.created", b"message.edited"), [
            ("content-type", b"application/cloudevents+json")], "shared", True),
        (an_edit(id="m0", tenant_id="other"), EDITED, "shared", False),
        (an_edit(id="m0"), EDITED, "bobs", False),
        (an_edit(id="m0")[:-9], EDITED, "shared", True),
        (an_edit(id="m0", type=MESSAGE_EDITED)[:-9], [], "shared", True),
        (an_edit(id="m0"), [], "shared", False),
        (an_edit(id="m0")[:-9], [], "shared", False),
    ],
    ids=[
        "of their message", "of another's", "of one that nobody has", "of no id", "by its field", "structured",
        "of another tenant", "of another conversation", "cut off", "cut off, by its field", "no edit", "no JSON",
    ],
)  # fmt: skip
def test_userless_edit_is_erased_unless_clearly_anothers(
    value: bytes, headers: list[tuple[str, bytes]], conversation: str, is_theirs: bool
) -> None:
    async def story() -> tuple[set[str], int, int]:
        world = World()
        await world.say("shared", "ann")
        await world.say("shared", "bob")
        await world.say("bobs", "bob")
        letter = replace(dead(conversation, value), headers=headers)
        eraser = ErasesLetters(world, [letter])
        planned = (await eraser.plan("ann", TENANT))["dead_letters"]
        receipt = await eraser.erase("ann", TENANT)
        return eraser.discarded, planned, receipt.counts["dead_letters"]

    expected = {"messages.dlq/0/0"} if is_theirs else set()
    assert run_in_virtual_time(story()) == (expected, len(expected), len(expected))


def of_source(value: str | None, key: str = "k", tenant: str = "acme", topic: str = "chat") -> DeadLetter:
    """A record of a source's topic that ingest rejected. Each character is a byte."""
    headers, content = [("tenant", tenant.encode())], None if value is None else value.encode("latin-1")
    letter = replace(dead("", content or b""), topic="chat.dlq", stage=INGEST, origin=Origin(topic, 1, 9))
    return replace(letter, key=key.encode("latin-1"), value=content, headers=headers)


@with_rows
def test_rejected_source_records_owner_follows_mapping_or_id(
    value: str | None, fields: dict[str, str], is_theirs: bool
) -> None:
    mapped = source(FIELDS + 'tenant_id = "headers.tenant"')
    assert TheirDeadLetters(ANN, frozenset({"k"}), sources=[mapped])(of_source(value, **fields)) is is_theirs


@with_rows
def test_rejected_records_owner_follows_its_item_or_key(above: str, value: str, key: str, is_theirs: bool) -> None:
    within = "item" if "foreach" in above else "value"
    mapped = source(FIELDS.replace("value.user", f"{within}.user") + f'tenant_id = "{within}.team"', above)
    assert TheirDeadLetters(ANN, frozenset({"k"}), sources=[mapped])(of_source(value, key)) is is_theirs


def test_erasure_discards_the_persons_rejected_source_records() -> None:
    async def story() -> tuple[set[str], int]:
        letters = [of_source('{"user": "ann"'), replace(of_source('{"user": "bob"'), offset=1)]
        eraser = ErasesLetters(World(), letters)
        receipt = await eraser.erase("ann", TENANT)
        return eraser.discarded, receipt.counts["dead_letters"]

    assert run_in_virtual_time(story()) == ({"chat.dlq/0/0"}, 1)


def test_letters_under_an_earlier_id_are_the_persons() -> None:
    moves = [Move(offset, user_digest("guest"), user_digest(user)) for offset, user in ((5, "ann"), (9, "cleo"))]
    theirs = TheirDeadLetters(ANN, frozenset(), frozenset({"c1"}), moves={"c1": moves})
    cases = [("c1", "guest", 8, True), ("c2", "guest", 8, False), ("c1", "bob", 8, False), ("c1", "guest", 10, False)]
    for conversation_id, user_id, offset, is_theirs in cases:
        letter = dead(conversation_id, message(conversation_id=conversation_id, user_id=user_id))
        letter = replace(letter, origin=Origin("messages", 0, offset))
        assert theirs(letter) is is_theirs, (conversation_id, user_id, offset)


@pytest.mark.parametrize("users", [["guest"], ["guest", "bob"]])
def test_erasure_discards_letters_of_an_earlier_user(users: list[str]) -> None:
    """Also in a conversation that is the person's alone, where a deletion forgets whose messages were assigned."""

    async def story() -> tuple[set[str], int]:
        world = World()
        for user in users:
            await world.say("c1", user)
        given = ConversationAssigned(conversation_id="c1", tenant_id=TENANT, from_user_id="guest", user_id="ann")
        await world.messages.change(ArchiveChange(given, 0, next(world.offsets)))
        said = [message(conversation_id="c1", user_id=user, tenant_id=TENANT) for user in ("guest", "eve")]
        letters = [replace(dead("c1", value, "user_mismatch"), offset=at) for at, value in enumerate(said)]
        eraser = ErasesLetters(world, letters)
        planned = (await eraser.plan("ann", TENANT))["dead_letters"]
        await eraser.erase("ann", TENANT)
        return eraser.discarded, planned

    assert run_in_virtual_time(story()) == ({"messages.dlq/0/0"}, 1)
