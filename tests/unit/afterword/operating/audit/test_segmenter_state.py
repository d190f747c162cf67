"""The audit reads the segmenter's changelogs, including damaged rows."""

from typing import Any, NamedTuple

import pytest

from afterword.operating import evidence
from afterword.operating.evidence import SegmenterState
from afterword.streams.errors import StateUnreadable
from afterword.streams.segmenter.state import CONVERSATIONS, MESSAGES
from tests.unit.segmenter.chat import Chat, limits, say, says

FOREIGN = b"\xc3\x28"


class Row(NamedTuple):
    key: bytes
    value: bytes | None
    partition: int = 3
    offset: int = 0


def read(chat: Chat, *later: Row) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    state = SegmenterState()
    for key, value in chat.messages.items():
        state.take(MESSAGES, Row(key, value))  # type: ignore[arg-type]  # it has all that is read of a record
    for row in [*(Row(key, value) for key, value in chat.conversations.items()), *later]:
        state.take(CONVERSATIONS, row)  # type: ignore[arg-type]  # it has all that is read of a record
    with evidence.open_evidence() as tables:
        state.add_to(tables)
        return list(tables.rows("SELECT * FROM pending")), list(tables.rows("SELECT * FROM damage"))


@pytest.fixture
def chat() -> Chat:
    chat = Chat(limits())
    chat.process([*says("a", "b"), say("x", conversation_id="d")])
    return chat


def pending(offset: int, scope: str) -> tuple[Any, ...]:
    return 3, offset, scope, scope, False


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 8 + b"\1\0not JSON", b"\0" * 8 + b"\1\0[]"])
def test_damaged_row_is_named_and_others_are_read(chat: Chat, damage: bytes) -> None:
    chat.conversations[b"c"] = damage
    rows, damaged = read(chat)
    assert [found[:2] for found in damaged] == [("c", 3)]
    assert {row for row in rows if not row[-1]} == {pending(2, "d")}


def test_damaged_message_is_named(chat: Chat) -> None:
    chat.messages = {key: value + b"" if value[:16] else value for key, value in chat.messages.items()}
    [first, *_] = [key for key, value in chat.messages.items() if len(value) > 20]
    chat.messages[first] = chat.messages[first][:20]
    assert read(chat)[1] == [("c", 3, "a message's row is cut off")]


def test_rewritten_row_is_no_longer_damaged(chat: Chat) -> None:
    row = chat.conversations[b"c"]
    chat.conversations[b"c"] = b"short"
    assert read(chat, Row(b"c", row))[1] == []
    assert read(chat, Row(b"c", None))[1] == []


@pytest.mark.parametrize("table", ["conversations", "messages"])
def test_key_without_a_conversation_damages_none(chat: Chat, table: str) -> None:
    rows: dict[str, Any] = {"conversations": chat.conversations, "messages": chat.messages}
    rows[table][FOREIGN] = next(iter(chat.conversations.values()))
    assert [found[0] for found in read(chat)[1]] == [None]


def test_row_of_a_later_release_is_no_damage(chat: Chat) -> None:
    chat.conversations[b"c"] = b"\0" * 8 + b"\37[]"
    with pytest.raises(StateUnreadable, match="only a later release can read"):
        read(chat)
