"""Nobody gets another user's words: a record's user is read, or the record is rejected."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.writing.importing.formats import ImportOptions, Refused, conversation_of, user_of
from tests.rows import with_rows
from tests.unit.afterword.writing.importing.histories import messages_of, read_all, reasons

SAID = [{"role": "user", "content": "My salary will be cut."}]
TALK = [{"role": "user", "content": "Hello, are you there?"}, {"role": "assistant", "content": "How can I help?"}]
ADMIN = ImportOptions("admin")


def read(*records: Any, options: ImportOptions = ADMIN) -> list:
    return read_all("messages", {"a.json": list(records)}, options)


@with_rows
def test_user_named_by_a_record_is_read(named, user):
    assert user_of(named) == user


@with_rows
def test_record_with_an_unreadable_user_is_rejected(named):
    with pytest.raises(Refused, match="user"):
        user_of(named)
    for outcomes in (
        read({"id": "c", "messages": SAID, **named}),
        read({"id": "c", "messages": [{**SAID[0], **named}]}),
    ):
        assert messages_of(outcomes) == []
        assert len(reasons(outcomes)) == 1
    own = {"id": "1", "conversation_id": "c", "role": "user", "content": "x"}
    assert {m.user_id for m in messages_of(read_all("jsonl", {"a.jsonl": own | named}, ADMIN))} <= {"a"}


@given(st.dictionaries(st.sampled_from(["user_id", "user", "userId"]), st.none() | st.integers() | st.text(max_size=3)))
def test_default_user_applies_only_to_records_without_one(named):
    ids = {str(value) for value in named.values() if value not in (None, "")}
    found = {message.user_id for message in messages_of(read({"id": "c", "messages": SAID, **named}))}
    assert found <= (ids or {"admin"})


def test_tool_parameters_name_no_user():
    tools = [{"name": "mail", "parameters": {"properties": {"user_id": {"type": "string"}}}}]
    assert user_of({"tools": tools, "functions": tools}) is None


@with_rows
def test_record_with_an_unreadable_conversation_is_rejected(named):
    with pytest.raises(Refused, match="conversation"):
        conversation_of(named)
    assert messages_of(read({**named, "messages": SAID})) == []


def test_equal_words_of_two_users_are_two_conversations():
    found = messages_of(read({"user_id": "pat", "messages": TALK}, {"user_id": "quinn", "messages": TALK}))
    assert len({m.conversation_id for m in found}) == 2
