"""Fields of messages: numbers, times, ids and texts."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import AwareDatetime, TypeAdapter, ValidationError

from afterword.schemas import ConversationFlush, InputEvent, MessageCreated, MessageDeleted, MessageEdited
from afterword.schemas.base import (
    conversation_of_scope,
    episode_id,
    event_id,
    message_key,
    parsed_time,
    point_id,
    rfc3339,
    row_id,
    scope_id,
    utc_milliseconds,
)
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


names = st.text(alphabet="ab%:/2F3A5", min_size=1, max_size=6) | st.text(min_size=1, max_size=8)
ordinals = st.integers(1, 30)


@given(names, names, st.none() | names | st.just(""), names, names, st.none() | names | st.just(""))
def test_message_keys_are_equal_only_for_equal_parts(
    a: str, b: str, tenant: str | None, c: str, d: str, other: str | None
) -> None:
    assert (message_key(a, b, tenant) == message_key(c, d, other)) == ((a, b, tenant) == (c, d, other))


@given(names, ordinals, st.none() | names, names, ordinals, st.none() | names)
def test_episode_ids_are_equal_only_for_equal_scopes(
    a: str, m: int, agent: str | None, b: str, n: int, other: str | None
) -> None:
    assert (episode_id(a, m, agent) == episode_id(b, n, other)) == ((a, m, agent) == (b, n, other))


@given(names, st.none() | names, names, st.none() | names, ordinals)
def test_scopes_are_equal_only_for_equal_parts(a: str, agent: str | None, b: str, other: str | None, n: int) -> None:
    same = (a, agent) == (b, other)
    assert (scope_id(a, agent) == scope_id(b, other)) == same
    assert (row_id(scope_id(a, agent), n) == row_id(scope_id(b, other), n)) == same


def test_separators_inside_a_part_are_percent_encoded() -> None:
    assert episode_id("a:b/c%d", 3) == "a%3Ab%2Fc%25d:3"
    assert episode_id("a", 3, "x:y") == "a/x%3Ay:3"
    assert message_key("a:b", "c") == "a%3Ab:c"
    assert message_key("a:b", "c", "t/1") == "a%3Ab:c:t%2F1"
    assert row_id("a:b", 2) == "a%3Ab:2"
    assert row_id(scope_id("a/b"), 2) == "a%252Fb:2"
    assert event_id("a:3", 1) == "a:3:1"


def test_point_of_an_episode_never_moves() -> None:
    assert point_id("a:1") == point_id("a:1") != point_id("a:2")
    assert UUID(point_id("a:1")).version == 5
    assert point_id("a:1") == "65190ab6-7ab0-51ba-b195-029f2d82a497"


@given(st.text(), st.none() | st.text())
def test_scope_names_its_conversation_and_agent(conversation: str, agent: str | None) -> None:
    assert conversation_of_scope(scope_id(conversation, agent)) == (conversation, agent)


digits = st.text("0123456789", min_size=2, max_size=2)
texts = st.builds(
    lambda year, month, day, mark, hour, minute, second, fraction, zone: (
        f"{year}-{month}-{day}{mark}{hour}:{minute}:{second}{fraction}{zone}"
    ),
    st.sampled_from(["2026", "0001", "9999", "0000", "1969"]),
    st.sampled_from(["01", "02", "12", "00", "13", "1"]) | digits,
    st.sampled_from(["01", "28", "29", "31", "00"]) | digits,
    st.sampled_from(["T", "t", " ", "_"]),
    st.sampled_from(["00", "23", "24"]) | digits,
    st.sampled_from(["00", "59", "60"]) | digits,
    st.sampled_from(["00", "59", "60"]) | digits,
    st.sampled_from(["", ".", ".1", ".12", ".123", ".1234", ".123456", ".1234567", ",123"]),
    st.sampled_from(["Z", "z", "", "+00:00", "-01:30", "Z\n", "+24:00"]),
)


@given(texts)
@example("2026-01-01T24:00:00Z")
@example("2026-06-30T23:59:60Z")
@example("2026-02-30T00:00:00.5Z")
@example("2026-W01-1T00:00:00Z")
@example("２026-01-01T00:00:00Z")
def test_time_text_equals_pydantics_reading(text: str) -> None:
    try:
        wanted: datetime | None = TypeAdapter(AwareDatetime).validate_python(text)
    except ValidationError:
        wanted = None
    if wanted is None:
        with pytest.raises(ValueError, match="RFC 3339"):
            parsed_time(text)
    else:
        assert parsed_time(text) == wanted


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1)), st.integers(-1439, 1439))
def test_time_is_kept_in_utc_milliseconds(naive: datetime, minutes: int) -> None:
    moment = naive.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    kept = utc_milliseconds(moment)
    assert kept.tzinfo is UTC
    assert timedelta(0) <= moment - kept < timedelta(milliseconds=1)
    assert kept.microsecond % 1000 == 0
    assert utc_milliseconds(kept) == kept == parsed_time(rfc3339(kept))
