"""Events and dead letters without the originals."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field, StringConstraints, ValidationError

from afterword.schemas import (
    ConversationDeleted,
    ConversationFlush,
    InputEvent,
    MessageCreated,
    MessageDeleted,
    MessageEdited,
)
from afterword.schemas.base import Model
from afterword.schemas.dead_letters import DEAD_LETTER_PREFIX, dead_letter, read_dead_letter
from afterword.streams.redactor import IDS, RecordRedaction
from afterword.streams.settings import Redaction
from tests.rows import with_rows
from tests.samples import a_message
from tests.unit.segmenter.chat import Sent

NEEDLE = "ann.needle@example.com"
CARD = 4111111111111111


@pytest.fixture
def redaction() -> RecordRedaction:
    found = Redaction(where="everywhere").of_records()
    assert found is not None
    return found


def test_incoming_messages_are_redacted_only_everywhere() -> None:
    assert Redaction(where="off").of_records() is Redaction(where="llm").of_records() is None


def test_all_texts_of_a_message_are_redacted(redaction: RecordRedaction) -> None:
    metadata = {"from": NEEDLE, "deep": [{NEEDLE: [f"to {NEEDLE}"]}], "card": CARD, "page": 7, "ok": True}
    found = redaction.event(a_message(content=f"I am {NEEDLE}", metadata=metadata, flows=(NEEDLE,), tools=("t",)))
    assert NEEDLE not in found.model_dump_json()
    assert found.content == "I am [EMAIL]"
    assert found.metadata == {
        "from": "[EMAIL]",
        "deep": [{"[EMAIL]": ["to [EMAIL]"]}],
        "card": "[CARD]",
        "page": 7,
        "ok": True,
    }
    assert (found.flows, found.tools) == (("[EMAIL]",), ("t",))


class Bounded(MessageCreated):
    """A message with every kind of text that a later one may have."""

    code: Annotated[str, StringConstraints(pattern=r"^[0-9 ]*$")] = ""
    kind: Literal["4111 1111 1111 1111"] | None = None
    labels: tuple[Annotated[str, StringConstraints(max_length=20)], ...] = ()
    notes: dict[Annotated[str, StringConstraints(max_length=20)], str] = Field(default_factory=dict)


PIECES = ("a@b.co ", "4111 1111 1111 1111", "::2 ", "+1 212 555 0123 ", "[EMAIL]", "xx ", "7", "Ä")


@pytest.mark.parametrize("event", [*get_args(InputEvent), Bounded], ids=lambda event: event.__name__)
@given(pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=60), most=st.sampled_from([20, 256]))
@example(pieces=["a@b.co "] * 36, most=256)
@example(pieces=["4111 1111 1111 1111"], most=20)
def test_redacted_event_is_valid_in_every_field(event: type[Any], pieces: list[str], most: int) -> None:
    redaction = Redaction(where="everywhere").of_records()
    assert redaction is not None
    required = {"id": "m", "conversation_id": "c", "user_id": "u", "from_user_id": "v", "role": "user", "content": ""}
    text = "".join(pieces)[:most]
    for name in event.model_fields:
        for value in (text, (text,), {text: text}):
            try:
                given = event(**{**required, name: value})
            except ValidationError:
                continue  # a value of another type than the field's
            found = redaction.event(given)
            assert event.model_validate(found.model_dump()) == found
            assert redaction.event(found) == found


@with_rows
def test_text_is_cut_around_whole_placeholders(before: str, left: str, most: int) -> None:
    assert Redaction(where="everywhere").redactor().redacted(before, most) == left


def test_new_fields_are_redacted(redaction: RecordRedaction) -> None:
    class WithMore(MessageCreated):
        transcript: str = ""
        notes: dict[str, list[str]]

    later = WithMore(**a_message().model_dump(), transcript=f"said {NEEDLE}", notes={"of": [NEEDLE]})
    found = redaction.event(later)
    assert isinstance(found, WithMore)
    assert (found.transcript, found.notes) == ("said [EMAIL]", {"of": ["[EMAIL]"]})


@pytest.mark.parametrize("event", get_args(InputEvent), ids=lambda event: event.__name__)
def test_every_id_of_an_event_is_known(event: type[Model]) -> None:
    assert {name for name in event.model_fields if name == "id" or name.endswith("_id")} <= IDS


def test_ids_are_not_redacted(redaction: RecordRedaction) -> None:
    message = a_message(NEEDLE, user_id=NEEDLE, tenant_id=NEEDLE, agent_id=NEEDLE, content="x")
    assert redaction.event(message) is message


def test_redaction_keeps_an_edits_fields(redaction: RecordRedaction) -> None:
    edit = MessageEdited(id="m", conversation_id="c", content=f"now {NEEDLE}")
    assert redaction.event(edit).changes == {"content": "now [EMAIL]"}
    cleared = MessageEdited(id="m", conversation_id="c", sentiment=None)
    assert redaction.event(cleared).changes == {"sentiment": None}


@pytest.mark.parametrize(
    "event",
    [
        ConversationFlush(conversation_id="c", reason=NEEDLE),
        MessageDeleted(id="m", conversation_id="c", reason=NEEDLE),
        ConversationDeleted(conversation_id="c", reason=NEEDLE),
    ],
)
def test_reasons_are_redacted(
    redaction: RecordRedaction, event: ConversationFlush | MessageDeleted | ConversationDeleted
) -> None:
    assert redaction.event(event).reason == "[EMAIL]"


@pytest.fixture
def redacted(redaction: RecordRedaction) -> Callable[..., Sent]:
    """A record of the dead-letter topic, for a record with this value and these headers."""

    def make(value: bytes | None, *headers: tuple[str, bytes]) -> Sent:
        record = Sent(b"c", value, headers=headers)
        written = dead_letter(record, stage="segmenter", error_type="e", message="p", now_ms=0)
        key, left, said = redaction.dead_letter(*written)
        return Sent(key, left, headers=tuple((name, text or b"") for name, text in said), topic="messages.dlq")

    return make


def test_redacted_dead_letter_keeps_ids_and_can_be_replayed(redacted: Callable[..., Sent]) -> None:
    event = {"id": NEEDLE, "conversation_id": NEEDLE, "content": NEEDLE, "rolle": {"x": NEEDLE}}
    found = read_dead_letter(
        redacted(orjson.dumps(event), ("from", NEEDLE.encode()), ("raw", b"\xff" + NEEDLE.encode()))
    )
    assert orjson.loads(found.value or b"") == event | {"content": "[EMAIL]", "rolle": {"x": "[EMAIL]"}}
    assert found.headers == [("from", b"[EMAIL]"), ("raw", b"\xff[EMAIL]")]
    assert not found.truncated


@pytest.mark.parametrize(("before", "left"), [(36, "[EMAIL] " * 32), (50, "[EMAIL] " * 43)], ids=["valid", "too long"])
def test_author_in_a_dead_letter_is_as_valid_as_before(redacted: Callable[..., Sent], before: int, left: str) -> None:
    event = {"id": "m", "conversation_id": "c", "author": "a@b.co " * before}
    assert orjson.loads(redacted(orjson.dumps(event)).value or b"")["author"] == left


def test_structured_event_keeps_the_ids_in_its_data(redacted: Callable[..., Sent]) -> None:
    event = {"id": "1", "data": {"id": NEEDLE, "conversation_id": "c", "content": NEEDLE}}
    found = orjson.loads(redacted(orjson.dumps(event)).value or b"")
    assert found["data"] == {"id": NEEDLE, "conversation_id": "c", "content": "[EMAIL]"}


def test_bytes_without_entities_stay_unchanged(redacted: Callable[..., Sent]) -> None:
    assert redacted(b'{ "a":  1 }').value == b'{ "a":  1 }'
    assert redacted(None).value is None


@pytest.mark.parametrize(
    "value", [NEEDLE.encode(), b'{"content": "' + NEEDLE.encode(), b"[" * 100 + b"]" * 100, b"x" * 1_000_000]
)
def test_unreadable_value_is_omitted_and_described(redacted: Callable[..., Sent], value: bytes) -> None:
    written = redacted(value)
    assert written.value is None
    said = dict(written.headers)
    assert said[DEAD_LETTER_PREFIX + "value_bytes"] == str(len(value)).encode()
    assert len(written.headers) == len(said)
    assert len(said[DEAD_LETTER_PREFIX + "value_sha256"]) == 64
    assert read_dead_letter(written).truncated
