"""Claude's export → messages."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.writing.importing.formats import Found, ImportOptions, ImportOutcome, LeftOut, Rejected
from tests.unit.afterword.writing.importing.histories import json_values, messages_of, read_all, reasons

ANN = ImportOptions("ann")


def said(sender: str, *content: Any, **changes: Any) -> dict[str, Any]:
    return {"uuid": f"m-{sender}", "sender": sender, "text": "", "content": list(content)} | changes


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, "citations": []}


def conversation(*messages: Any, **changes: Any) -> dict[str, Any]:
    return {"uuid": "c", "name": "A", "account": {"uuid": "a1"}, "chat_messages": list(messages)} | changes


def read(*conversations: Any, options: ImportOptions = ANN) -> list[ImportOutcome]:
    return read_all("claude", {"conversations.json": list(conversations)}, options)


def test_a_conversation_is_read_with_its_tools_and_files():
    answer = [
        {"type": "thinking", "thinking": "Hm."},
        text("Let me look."),
        {"type": "tool_use", "name": "web_search", "input": {"query": "lakes"}},
        {"type": "tool_result", "name": "web_search", "content": [{"type": "text", "text": "Baikal"}]},
        text("Baikal."),
    ]
    question = said(
        "human", text("Which lake?"), created_at="2024-05-01T12:00:00.5Z", attachments=[{"file_name": "map.png"}]
    )
    found = messages_of(read(conversation(question, said("assistant", *answer))))
    assert [(m.role, m.content, m.tools) for m in found] == [
        ("user", "Which lake?\n[file: map.png]", ()),
        ("assistant", "Let me look.", ("web_search",)),
        ("tool", "Baikal", ()),
        ("assistant", "Baikal.", ()),
    ]
    assert [m.id for m in found] == ["m-human", "m-assistant", "m-assistant.2", "m-assistant.3"]
    assert {(m.conversation_id, m.user_id) for m in found} == {("c", "ann")}
    assert found[0].sent_at is not None


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ([], ["Hello"]),
        ([{"type": "widget", "data": {"color": "red"}}] * 2, ["Hello\n[attachment]\n[attachment]"]),
        (
            [{"type": "thinking", "thinking": "Hm."}, {"type": "widget", "data": {"color": "red"}}],
            ["Hello\n[attachment]"],
        ),
        ([text("Good morning")], ["Good morning"]),
        ([{"type": "tool_use", "name": "search", "input": {}}], [""]),
    ],
)
def test_the_text_stands_for_a_content_that_cannot_be_read(content, shown):
    found = messages_of(read(conversation(said("human", *content, text="Hello"))))
    assert [m.content for m in found] == shown


def test_two_accounts_are_never_one_user():
    both = [conversation(said("human", text("a"))), conversation(said("human", text("b")), account={"uuid": "a2"})]
    outcomes = read(*both)
    assert [m.content for m in messages_of(outcomes)] == ["a"]
    assert "another person" in reasons(outcomes)[0]
    assert [m.user_id for m in messages_of(read(*both, options=ImportOptions()))] == ["a1", "a2"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (conversation(said("human"), uuid=None), "not a conversation: it has no uuid or no chat_messages"),
        (conversation(said("boss", text("secret"))), "message 1: it has no known role"),
        (conversation(said("human", text("secret"), created_at="soon")), "message 1: its time is neither"),
        (conversation(said("human")), "empty"),
    ],
)
def test_what_is_bad_is_named_without_its_content_and_the_rest_is_read(bad, reason):
    outcomes = read(bad, conversation(said("human", text("after"))))
    assert [m.content for m in messages_of(outcomes)] == ["after"]
    assert reasons(outcomes)[0].removeprefix("conversations.json:1: ").startswith(reason)
    assert "secret" not in reasons(outcomes)[0]


def test_rejected_messages_are_named_by_their_place():
    outcomes = read(conversation(said("human", json.loads("[" * 99 + "]" * 99)), said("boss", text("secret"))))
    assert [reason.split(": ")[1] for reason in reasons(outcomes)] == ["message 1", "message 2"]


@given(
    st.dictionaries(
        st.sampled_from(["uuid", "sender", "text", "content", "attachments", "files", "created_at"]),
        json_values | st.just("human"),
    )
)
def test_any_message_is_taken_left_out_or_rejected(message):
    outcomes = read(conversation(message))
    assert outcomes
    assert all(isinstance(outcome, Found | LeftOut | Rejected) for outcome in outcomes)
