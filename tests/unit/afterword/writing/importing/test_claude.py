"""Claude's export → messages."""

import io
import json
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.writing.importing.formats import ImportOptions, ImportOutcome, LeftOut, Rejected
from tests.rows import with_rows
from tests.unit.afterword.writing.importing.histories import all_accounted, json_values, messages_of, read_all, reasons

ANN = ImportOptions("ann")


def said(sender: str, *content: Any, **changes: Any) -> dict[str, Any]:
    return {"uuid": f"m-{sender}", "sender": sender, "text": "", "content": list(content)} | changes


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, "citations": []}


def conversation(*messages: Any, **changes: Any) -> dict[str, Any]:
    return {"uuid": "c", "name": "A", "account": {"uuid": "a1"}, "chat_messages": list(messages)} | changes


def read(*conversations: Any, options: ImportOptions = ANN) -> list[ImportOutcome]:
    return read_all("claude", {"conversations.json": list(conversations)}, options)


def test_conversation_is_read_with_its_tools_and_files():
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
            [{"type": "thinking", "thinking": "Hello"}, {"type": "widget", "data": {"color": "red"}}],
            ["[attachment]"],
        ),
        ([text("Good morning")], ["Good morning"]),
        ([{"type": "tool_use", "name": "search", "input": {}}], [""]),
    ],
)
def test_text_replaces_unreadable_content(content, shown):
    found = messages_of(read(conversation(said("human", *content, text="Hello"))))
    assert [m.content for m in found] == shown


START = "00000000-0000-4000-8000-000000000000"


def turn(uuid: str, after: str, minute: int, words: str, **changes: Any) -> dict[str, Any]:
    """A message in an export that has branches."""
    sender, time = "human" if uuid.startswith("h") else "assistant", f"2026-03-02T09:{minute:02}:00.000000Z"
    message = {"uuid": uuid, "sender": sender, "content": [text(words)], "created_at": time}
    return message | {"parent_message_uuid": after} | changes


@pytest.mark.parametrize(
    ("turns", "said_last", "others"),
    [
        ([turn("h1", START, 0, "Oslo?"), turn("a1", "h1", 1, "Wool."), turn("a2", "h1", 2, "Silk.")], "Silk.", 1),
        ([turn("h1", START, 0, "Oslo?"), turn("a2", "h1", 2, "Silk."), turn("a1", "h1", 1, "Wool.")], "Silk.", 1),
        ([turn("h1", START, 0, "Oslo?"), turn("a1", "h1", 1, "Wool."), turn("h2", START, 2, "Rome?")], "Rome?", 2),
        ([turn("h1", START, 0, "Oslo?"), turn("h2", None, 1, "Rome?")], "Rome?", 1),  # type: ignore[arg-type]
        ([turn("h1", START, 0, "Oslo?"), turn("a1", "h1", 1, "Wool."), turn("a1", "h1", 1, "Wool.")], "Wool.", 1),
        ([turn("h1", "", 0, "Oslo?"), turn("a1", "h1", 1, "Wool.")], "Wool.", 0),
    ],
)
def test_branch_of_newest_leaf_is_read(turns, said_last, others):
    outcomes = read(conversation(*turns))
    assert messages_of(outcomes)[-1].content == said_last
    assert sum(o.number for o in outcomes if isinstance(o, LeftOut)) == others
    assert not any(isinstance(o, Rejected) for o in outcomes)


def test_messages_cut_off_from_the_branch_are_rejected():
    outcomes = read(conversation(turn("h1", START, 0, "Oslo?"), turn("a9", "gone", 3, "Wool.")))
    assert [m.content for m in messages_of(outcomes)] == ["Wool."]
    assert "no chain of parents" in reasons(outcomes)[0]


def test_circular_branch_is_rejected():
    assert "circular" in reasons(read(conversation(turn("h1", "a1", 0, "a"), turn("a1", "h1", 1, "b"))))[0]


@with_rows
def test_pasted_text_is_read_within_the_limit(attachments, files, content):
    [message] = messages_of(read(conversation(said("human", text("Look."), attachments=attachments, files=files))))
    assert message.content == content


@pytest.mark.parametrize(
    ("blocks", "content", "is_skipped"),
    [
        ([{"type": "thinking", "thinking": "Lonely?", "cut_off": True}, {"type": "token_budget"}], "Lonely?", True),
        ([{"type": "token_budget", "start_timestamp": "2026"}, text("At 14:10."), {"type": "flag", "flag": "sea"}],
         "At 14:10.", False),
        ([{"type": "voice_note", "title": "Note", "text": "Buy rope."}], "Buy rope.", False),
        ([{"type": "thinking", "thinking": "Hm.", "start_timestamp": "2026-03-02T09:00:00Z"}], "Hm.", True),
    ],
)  # fmt: skip
def test_thinking_and_silent_blocks_are_not_said(blocks, content, is_skipped):
    shown = "Lonely?\n```\nThis block is not supported on your current device yet.\n```\n"
    [message] = messages_of(read(conversation(said("assistant", *blocks, text=shown))))
    assert (message.content, message.skip_summarization) == (content, is_skipped)


def test_empty_answer_of_a_tool_is_no_message():
    call = {"type": "tool_use", "name": "web_search", "message": "Searching", "input": {"query": "pier"}}
    empty = {"type": "tool_result", "content": [], "is_error": False, "message": None, "display_content": None}
    found = messages_of(read(conversation(said("assistant", call, empty, text("Nothing.")))))
    assert [(m.role, m.content, m.tools) for m in found] == [("assistant", "Nothing.", ("web_search",))]


def test_design_chat_is_refused_by_name():
    chat = {"uuid": "d", "title": "Logo", "messages": [{"role": "user", "content": {"content": "Blue"}}]}
    assert reasons(read(chat)) == ["conversations.json:1: it is a design chat, which is not read"]


def archive(**files: Any) -> bytes:
    packed = io.BytesIO()
    with ZipFile(packed, "w", ZIP_DEFLATED) as archive:
        for name, content in files.items():
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            archive.writestr(name.replace("__", "/").replace("_json", ".json").replace("_zip", ".zip"), data)
    return packed.getvalue()


def test_export_archives_are_read_as_given():
    chats = archive(conversations_json=[conversation(said("human", text("Hi")))])
    parts = {"manifest-1.json": {"parts": 5}, "conversations-000.zip": chats, "memories-000.zip": archive(a_json={})}
    for files in (parts, {"export.zip": archive(manifest_json={}, conversations_000_zip=chats, memories__a_json={})}):
        outcomes = read_all("claude", files, ANN)
        assert [m.content for m in messages_of(outcomes)] == ["Hi"]
        assert reasons(outcomes) == ["files without conversations"] * 2
    design = archive(conversations_json=[], design_chats__d_json={"uuid": "d", "messages": []})
    assert reasons(read_all("claude", {"x.zip": design}, ANN)) == [
        "x.zip/design_chats/d.json:1: it is a design chat, which is not read"
    ]


def test_damaged_archive_is_rejected_and_the_others_read():
    whole = archive(conversations_json=[conversation(said("human", text("Hi")))])
    flipped = bytearray(whole)
    flipped[60] ^= 255
    outcomes = read_all("claude", {"a.zip": whole[:-30], "b.zip": bytes(flipped), "c.zip": whole}, ANN)
    assert [m.content for m in messages_of(outcomes)] == ["Hi"]
    assert reasons(outcomes) == ["a.zip: the archive is damaged", "b.zip: the archive is damaged"]


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (10, 9, "a.zip/conversations.json: its compression, method 9 of ZIP, is not supported"),  # Deflate64
        (10, 98, "a.zip/conversations.json: its compression, method 98 of ZIP, is not supported"),  # PPMd
        (8, 1, "a.zip/conversations.json: it is encrypted"),
        (6, 80, "a.zip: the archive is not supported: zip file version 8.0"),
    ],
)
def test_archive_of_an_unknown_kind_is_named(at, value, reason):
    packed = bytearray(archive(conversations_json=[]))
    packed[packed.index(b"PK\x01\x02") + at] = value
    assert reasons(read_all("claude", {"a.zip": bytes(packed)}, ANN)) == [reason]


def test_two_accounts_never_become_one_user():
    both = [conversation(said("human", text("a"))), conversation(said("human", text("b")), account={"uuid": "a2"})]
    outcomes = read(*both)
    assert [m.content for m in messages_of(outcomes)] == ["a"]
    assert "another person" in reasons(outcomes)[0]
    assert [m.user_id for m in messages_of(read(*both, options=ImportOptions()))] == ["a1", "a2"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (conversation(said("human"), uuid=None), "not a conversation: it has no id or no messages"),
        (conversation(said("boss", text("secret"))), "message 1: it has no known role"),
        (conversation(said("human", text("secret"), created_at="soon")), "message 1: its time is neither"),
        (conversation(said("human")), "empty"),
    ],
)
def test_bad_claude_record_is_named_and_others_are_read(bad, reason):
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
def test_any_claude_message_is_imported_omitted_or_rejected(message):
    outcomes = read(conversation(message))
    assert outcomes
    assert all_accounted(outcomes)
