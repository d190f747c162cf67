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


def test_authors_of_cited_sources_are_not_the_user():
    answer = {**TALK[1], "citations": [{"title": "Lakes", "author": "Jane Doe"}]}
    assert [m.user_id for m in messages_of(read({"id": "c", "messages": [TALK[0], answer]}))] == ["admin"] * 2


def test_participants_name_is_no_id_and_is_rejected():
    named = {**SAID[0], "name": "bo"}
    assert messages_of(read({"id": "c", "messages": [named]})) == []
    agents = [SAID[0], {"role": "assistant", "content": "I see.", "name": "planner"}]
    assert [m.user_id for m in messages_of(read({"id": "c", "messages": agents}))] == ["admin"] * 2
    assert [m.user_id for m in messages_of(read({"id": "c", "user_id": 7, "messages": [named]}))] == ["7"]


def test_message_naming_another_user_than_its_record_is_rejected():
    others, mine = {**TALK[0], "user_id": 8}, {**TALK[0], "user": 7}
    answer = {**TALK[1], "user_id": "bot"}
    outcomes = read({"id": "c", "user_id": 7, "messages": [others, mine, answer]})
    assert [(m.user_id, m.role) for m in messages_of(outcomes)] == [("7", "user"), ("7", "assistant")]
    assert reasons(outcomes) == ["a.json:1: message 1: it names another user than its record"]


def test_user_in_a_nested_field_is_found():
    of_bo = {**SAID[0], "extra": {"user_id": "bo"}}
    assert messages_of(read({"id": "c", "messages": [of_bo]})) == []
    asked = {"role": "assistant", "content": "", "tool_calls": [{"name": "find", "args": {"user_id": "ann"}}]}
    assert [m.user_id for m in messages_of(read({"id": "c", "messages": [SAID[0], asked]}))] == ["admin"] * 2


def test_messages_may_name_users_and_others_inherit_theirs():
    mine = [{**TALK[0], "user_id": 7}, TALK[1]]
    assert [m.user_id for m in messages_of(read({"id": "c", "messages": mine}))] == ["7", "7"]
    both = [*mine, {**TALK[0], "user_id": 8}]
    assert messages_of(read({"id": "c", "messages": both})) == []
    assert [m.user_id for m in messages_of(read({"id": "c", "messages": [both[0], both[2]]}))] == ["7", "8"]


@pytest.mark.parametrize("name", ["thread_id", "id", "session_id", "conversationId", "uuid"])
def test_numbered_conversations_are_told_apart(name):
    both = [{name: number, "user_id": user, "messages": TALK} for number, user in ((41, "pat"), (42, "quinn"))]
    found = messages_of(read(*both))
    assert [(m.conversation_id, m.user_id) for m in found] == [("41", "pat")] * 2 + [("42", "quinn")] * 2


@with_rows
def test_record_with_an_unreadable_conversation_is_rejected(named):
    with pytest.raises(Refused, match="conversation"):
        conversation_of(named)
    assert messages_of(read({**named, "messages": SAID})) == []


@pytest.mark.parametrize(
    "record",
    [
        {"id": "a", "messages": [{**SAID[0], "thread_id": "b"}]},
        {"messages": [{**SAID[0], "thread_id": "a"}, {**SAID[0], "thread_id": "b"}]},
        {"messages": [{**SAID[0], "user_id": "a"}, {**SAID[0], "user_id": "b"}]},
    ],
)
def test_record_of_several_conversations_is_rejected(record):
    assert messages_of(read(record)) == []


def test_equal_words_of_two_users_are_two_conversations():
    found = messages_of(read({"user_id": "pat", "messages": TALK}, {"user_id": "quinn", "messages": TALK}))
    assert len({m.conversation_id for m in found}) == 2
