from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from afterword.schemas import ConversationFlush, InputEvent, MessageCreated, MessageDeleted, MessageEdited
from afterword.schemas.messages import replaced_answers, storable
from afterword.schemas.records import to_record
from tests.samples import NOON, a_message


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), True, Level.HIGH])
def test_metadata_accepts_every_64_bit_integer(number: int) -> None:
    assert a_message(metadata={"n": [number]}).metadata == {"n": [number]}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_metadata_refuses_an_integer_no_document_holds(number: int) -> None:
    with pytest.raises(ValidationError, match="64 bits"):
        a_message(metadata={"n": number})


@pytest.mark.timeout(60)
def test_custom_number_type_is_compared() -> None:
    class Number(int):
        """Integer as a library may pass it."""

    with pytest.raises(ValidationError, match="64 bits"):
        a_message(metadata={"n": Number(2**63)})
    assert a_message(metadata={"n": Number(2**62)}).metadata == {"n": 2**62}


class Watched(list[Any]):
    """A list that counts how often it is looked through."""

    reads = 0

    def __iter__(self) -> Iterator[Any]:
        Watched.reads += 1
        return super().__iter__()


@pytest.mark.parametrize("depth", [1, 10, 30])
def test_checking_metadata_reads_each_value_once(depth: int) -> None:
    lists = [Watched() for _ in range(100)]
    for _ in range(depth - 1):
        lists = [Watched([each]) for each in lists]
    Watched.reads = 0
    storable({"lists": lists})
    assert Watched.reads <= 100 * depth


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
def test_metadata_refuses_a_number_json_cannot_carry(number: str) -> None:
    fields = '"id": "m", "conversation_id": "c", "user_id": "u", "role": "user", "content": ""'
    with pytest.raises(ValidationError, match="not finite"):
        MessageCreated.model_validate_json(f'{{{fields}, "metadata": {{"n": [1.5, {number}]}}}}')


@pytest.mark.parametrize("field", ["user_id", "agent_id", "tenant_id"])
def test_participant_ids_are_bounded_and_may_be_empty(field: str) -> None:
    assert getattr(a_message(**{field: ""}), field) == ""
    assert len(getattr(a_message(**{field: "ä" * 256}), field)) == 256
    with pytest.raises(ValidationError, match="at most 256") as raised:
        a_message(**{field: "ä" * 257})
    assert "ä" not in str(raised.value)


def test_agent_of_a_flush_is_bounded() -> None:
    with pytest.raises(ValidationError, match="at most 256"):
        ConversationFlush(conversation_id="c1", agent_id="a" * 257)


HALF = "\ud83c"
"""The first half of a party popper, as a cut inside the emoji leaves it."""


@pytest.mark.parametrize(
    ("event", "field", "written"),
    [
        (a_message(content=f"well done {HALF}"), "content", "well done \ufffd"),
        (a_message(content=f"{HALF}{HALF}\udf89!"), "content", "\ufffd🎉!"),
        (a_message(content="\udf89 back"), "content", "\ufffd back"),
        (a_message(content=f"a\\ud83c {HALF}"), "content", "a\\ud83c \ufffd"),
        (a_message(conversation_id=f"c{HALF}\udf89{HALF}"), "conversation_id", "c🎉\ufffd"),
        (MessageEdited(id=HALF, conversation_id=HALF, content="b"), "conversation_id", "\ufffd"),
        (MessageDeleted(id=HALF, conversation_id="k"), "id", "\ufffd"),
        (ConversationFlush(conversation_id=HALF), "conversation_id", "\ufffd"),
        (a_message(metadata={"shown": [f"as {HALF}"]}), "metadata", {"shown": ["as \ufffd"]}),
        (a_message(flows=(f"f{HALF}",)), "flows", ["f\ufffd"]),
        (MessageEdited(id="1", conversation_id="k", metadata={"a": HALF}), "metadata", {"a": "\ufffd"}),
    ],
)
def test_lone_surrogate_is_sent_as_a_replacement(event: InputEvent, field: str, written: Any) -> None:
    assert orjson.loads(to_record(event, NOON).value)[field] == written


BOT, TOOL, USER = ({"role": role, "user_id": "u1"} for role in ("assistant", "tool", "user"))


@pytest.mark.parametrize(
    ("given", "replaced"),
    [
        ([BOT | {"reply_to": "q"}, BOT | {"reply_to": "q"}, BOT | {"reply_to": "q"}], {"0", "1"}),
        ([BOT | {"reply_to": "q"}, BOT | {"reply_to": "p"}, BOT], set()),
        ([BOT | {"reply_to": "q", "agent_id": "a"}, BOT | {"reply_to": "q", "agent_id": "b"}], set()),
        ([BOT | {"reply_to": "q", "author": "Ann"}, BOT | {"reply_to": "q", "author": "Ben"}], set()),
        ([USER | {"reply_to": "q"}, TOOL | {"reply_to": "q"}, USER | {"reply_to": "q"}], set()),
        (
            [
                *(BOT | {"reply_to": "q"}, TOOL | {"reply_to": "0"}, BOT | {"reply_to": "1"}, USER | {"reply_to": "0"}),
                *(BOT | {"reply_to": "q"}, TOOL | {"reply_to": "4"}),
            ],
            {"0", "1", "2"},
        ),
    ],
)
def test_last_answer_of_an_agent_replaces_its_earlier_ones(given: list[dict[str, Any]], replaced: set[str]) -> None:
    messages = [a_message(str(number), **fields) for number, fields in enumerate(given)]
    assert replaced_answers(messages) == replaced
