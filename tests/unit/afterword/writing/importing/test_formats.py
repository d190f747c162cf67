"""Exports and histories → messages: what is read, what is left out, and what is rejected.

A row gives the records of a file, in which records with `said` are short for a conversation of the format; then the
messages with their roles, tools and texts (`*`: archived, but not summarized), the reasons for what is not read, other
fields of the messages, and the options.
"""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import MessageCreated
from afterword.writing.importing.formats import Found, ImportOptions, ImportOutcome, LeftOut
from tests.rows import with_rows
from tests.unit.afterword.writing.importing.histories import (
    all_accounted,
    json_values,
    lines,
    messages_of,
    plain_values,
    read_all,
    reasons,
)

Json = dict[str, Any]
EXPORTS = Path(__file__).with_name("exports")
"""Files as Open WebUI 0.8 and LibreChat 0.8 write them, with invented contents."""
ANN = ImportOptions("ann")
HELLO = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good morning"}]
OURS = {"id": "1", "conversation_id": "c", "user_id": "u", "role": "user", "content": "secret words"}
WORDS = st.sampled_from(["yes", "no", "perhaps"])


def chatgpt_message(message: Any) -> Any:
    if not isinstance(message, dict) or "role" not in message:
        return message
    content = {"content_type": "text", "parts": message.get("parts")}
    default = {"id": None, "create_time": None, "content": content, "recipient": "all"}
    return default | message | {"author": {"role": message["role"]}}


def chatgpt(said: Sequence[Any], nodes: Mapping[str, Json] | None = None, **changes: Any) -> Json:
    """A conversation of which each message follows the one before, and other `nodes` of its tree."""
    chain = {f"n{n}": {"parent": f"n{n - 1}" if n else None, "message": one} for n, one in enumerate(said)}
    tree = {
        name: node | {"message": chatgpt_message(node["message"])} for name, node in (chain | (nodes or {})).items()
    }
    last = f"n{len(said) - 1}" if said else None
    return {"id": "c", "create_time": 1_700_000_000.5, "mapping": tree, "current_node": last} | changes


def claude(said: Sequence[Any], **changes: Any) -> Json:
    """A conversation whose blocks of text are plain texts."""
    messages = [
        {"text": "", "uuid": f"m-{one['sender']}", **one}
        | {"content": [{"type": "text", "text": part} if isinstance(part, str) else part for part in one["content"]]}
        if "content" in one
        else one
        for one in said
    ]
    return {"uuid": "c", "name": "A", "account": {"uuid": "a1"}, "chat_messages": messages} | changes


def openwebui(said: Sequence[Json], last: object = None, **changes: Any) -> Json:
    """A conversation of messages by `q…`, the user, and `a…`; each names the one that it comes `after`."""
    messages = {
        one["id"]: {
            "parentId": one["after"],
            "role": "user" if one["id"][0] == "q" else "assistant",
            "content": "Hi",
            "timestamp": 1_772_442_000,
            **one,
        }
        for one in said
    }
    return {"id": "c", "user_id": "u1", "chat": {"history": {"messages": messages, "currentId": last}}} | changes


def librechat(said: Sequence[Json], **changes: Any) -> Json:
    """A conversation, in the same short form."""
    messages = [
        {
            "messageId": one["id"],
            "parentMessageId": one["after"],
            "isCreatedByUser": one["id"][0] == "q",
            "createdAt": "2026-03-02T09:00:00.000Z",
            "text": "Hi",
            **one,
        }
        for one in said
    ]
    return {"conversationId": "c", "messages": messages} | changes


SHORT: dict[str, Callable[..., Json]] = {
    "chatgpt": chatgpt, "claude": claude, "openwebui": openwebui, "librechat": librechat,
}  # fmt: skip


def read(form: str, records: Any, options: ImportOptions = ANN) -> list[ImportOutcome]:
    """Read a file: one of `exports`, the lines of a text, or these records."""
    if isinstance(records, str):
        is_file = records.endswith(".json")
        data = (EXPORTS / records).read_bytes() if is_file else records.encode()
        return read_all(form, {"a.json" if is_file else "a.jsonl": data}, options)
    if form == "jsonl":
        return read_all(form, {"a.jsonl": lines(*(OURS | one for one in records))}, options)
    if isinstance(records, list):
        records = [SHORT[form](**one) if isinstance(one, dict) and "said" in one else one for one in records]
    return read_all(form, {"a.json": records}, options)


def told(message: MessageCreated) -> str:
    skipped, tools = (
        "*" if message.skip_summarization else "",
        f" ({', '.join(message.tools)})" if message.tools else "",
    )
    return f"{message.role}{skipped}{tools}: {message.content}"


def field(message: MessageCreated, name: str) -> Any:
    value = message.model_dump(mode="json")[name]
    return value.replace(".000Z", "Z") if name == "sent_at" and value else value


def unread(outcome: ImportOutcome) -> str:
    number = f"{outcome.number} " if isinstance(outcome, LeftOut) and outcome.number > 1 else ""
    return number + reasons([outcome])[0]


@with_rows
def test_history_is_read_as_expected(
    sentence: str, form: str, records: Any, shown: list[str], missing: list[str], fields: Json, options: Json
) -> None:
    outcomes = read(form, records, ImportOptions(**{"user_id": "ann", **options}))
    messages = messages_of(outcomes)
    assert [told(message) for message in messages] == shown
    found = [unread(one) for one in outcomes if not isinstance(one, Found)]
    assert [reason[: len(begun)] for reason, begun in zip(found, missing, strict=True)] == missing
    assert "secret" not in str(found)
    assert {name: [field(message, name) for message in messages] for name in fields} == fields


def test_message_keeps_its_origin_and_indented_json_is_read() -> None:
    content = json.dumps({"messages": HELLO, "id": "c"}, indent=2).encode()
    found = messages_of(read_all("messages", {"a.json": content}, ANN))
    assert [told(message) for message in found] == ["user: Hello", "assistant: Good morning"]
    assert {message.metadata["imported_from"] for message in messages_of(read("openwebui", "openwebui.json"))} == {
        "openwebui"
    }


def test_byte_order_mark_surrogate_and_nan_cost_no_record() -> None:
    record = b'{"id":"c%d","score":NaN,"messages":[{"role":"user","content":"party \\ud83c"}]}'
    bom = b"\xef\xbb\xbf"
    for content in (b"[" + record % 1 + b"," + record % 2 + b"]", record % 1 + b"\n" + bom + record % 2):
        found = messages_of(read_all("messages", {"a.json": bom + content}, ANN))
        assert [told(message) for message in found] == ["user: party \ufffd"] * 2


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (orjson.dumps(OURS | {"content": "größe"}).decode().encode("latin-1"), "not UTF-8 at byte "),
        ('{"content": "secret"}'.encode("utf-16"), "not UTF-8 at byte 1"),
        (orjson.dumps(OURS | {"content": "secret" * 200_000}), "too_large"),
    ],
    ids=["Latin-1", "UTF-16", "too large"],
)
def test_unreadable_line_costs_one_record(bad: bytes, reason: str) -> None:
    content = lines(OURS) + bad + b"\n\n" + lines(OURS | {"id": "2"})
    outcomes = read_all("jsonl", {"a.jsonl": content}, ANN)
    assert [message.id for message in messages_of(outcomes)] == ["1", "2"]
    [rejected] = reasons(outcomes)
    assert rejected.startswith(f"a.jsonl:2: {reason}")
    assert "secret" not in rejected


def test_bare_messages_beyond_memory_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afterword.writing.importing.formats.MOST_CHARACTERS", 2_000)
    outcomes = read("messages", [*HELLO * 2, {"id": "c", "messages": HELLO}])
    assert len(messages_of(outcomes)) == 2
    assert reasons(outcomes) == ["a.json:1: too_large: more than 128 MiB (4 messages)"]


@pytest.mark.parametrize("levels", [600, 1_000, 2_000])
def test_deeply_nested_bare_message_is_rejected(levels: int) -> None:
    deep = b'{"role": "user", "content": ' + b"[" * levels + b"]" * levels + b"}"
    assert reasons(read_all("messages", {"a.json": deep}, ANN)) == ["a.json:1: it is nested too deeply"]


def test_exported_message_is_the_same_message() -> None:
    [message] = messages_of(read("jsonl", [{"sent_at": "2024-05-01T12:00:00+02:00", "metadata": {"a": 1}}]))
    assert messages_of(read("jsonl", [message.model_dump(mode="json")])) == [message]


# Claude's archives


def archive(**files: Any) -> bytes:
    packed = io.BytesIO()
    with ZipFile(packed, "w", ZIP_DEFLATED) as archive:
        for name, content in files.items():
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            archive.writestr(name.replace("__", "/").replace("_json", ".json").replace("_zip", ".zip"), data)
    return packed.getvalue()


CHATS = archive(conversations_json=[claude([{"sender": "human", "content": ["Hi"]}])])


@pytest.mark.parametrize(
    "files",
    [
        {"manifest-1.json": b"{}", "conversations-000.zip": CHATS, "memories-000.zip": archive(a_json={})},
        {"export.zip": archive(manifest_json={}, conversations_000_zip=CHATS, memories__a_json={})},
    ],
    ids=["in parts", "as a whole"],
)
def test_export_archives_are_read_as_given(files: dict[str, bytes]) -> None:
    outcomes = read_all("claude", files, ANN)
    assert [told(message) for message in messages_of(outcomes)] == ["user: Hi"]
    assert reasons(outcomes) == ["files without conversations"] * 2


def test_damaged_archive_is_rejected_and_the_others_read() -> None:
    flipped = bytearray(CHATS)
    flipped[60] ^= 255
    outcomes = read_all("claude", {"a.zip": CHATS[:-30], "b.zip": bytes(flipped), "c.zip": CHATS}, ANN)
    assert [told(message) for message in messages_of(outcomes)] == ["user: Hi"]
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
def test_archive_of_an_unknown_kind_is_named(at: int, value: int, reason: str) -> None:
    packed = bytearray(archive(conversations_json=[]))
    packed[packed.index(b"PK\x01\x02") + at] = value
    assert reasons(read_all("claude", {"a.zip": bytes(packed)}, ANN)) == [reason]


def test_design_chat_in_an_archive_is_refused_by_name() -> None:
    design = archive(conversations_json=[], design_chats__d_json={"uuid": "d", "messages": []})
    assert reasons(read_all("claude", {"x.zip": design}, ANN)) == [
        "x.zip/design_chats/d.json:1: it is a design chat, which is not read"
    ]


# Whatever a file contains

NAMES = """id author role create_time recipient metadata uuid sender text content attachments files created_at parentId
output merged timestamp messageId parentMessageId isCreatedByUser children type messages tool_calls name"""
ANYTHING = (
    json_values
    | st.sampled_from(["user", "human", "text"])
    | st.fixed_dictionaries({"role": json_values | st.just("user")})
    | st.fixed_dictionaries({"content_type": json_values, "parts": json_values, "text": json_values})
)
FOREIGN = st.lists(st.dictionaries(st.sampled_from(NAMES.split()), ANYTHING, max_size=8), max_size=4)


@given(FOREIGN, st.sampled_from(["chatgpt", "claude", "openwebui", "librechat", "messages"]))
def test_any_message_is_imported_omitted_or_rejected(messages: list[Json], form: str) -> None:
    named = {"id": "c", "uuid": "c", "conversationId": "c", "messages": messages, "chat_messages": messages}
    tree = {f"n{n}": {"parent": f"n{n - 1}" if n else None, "message": one} for n, one in enumerate(messages)}
    outcomes = read(form, [{**named, "mapping": tree, "current_node": f"n{len(messages) - 1}"}])
    assert len(outcomes) >= (len(messages) if form == "chatgpt" else bool(messages))
    assert all_accounted(outcomes)


@given(st.dictionaries(st.sampled_from(["id", "mapping", "current_node", "create_time"]), json_values) | json_values)
def test_any_conversation_is_imported_omitted_or_rejected(conversation: Any) -> None:
    assert all_accounted(read("chatgpt", [conversation]))


nested_values = st.recursive(
    plain_values,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=3) | st.sampled_from(["role", "type", "content", "messages", "tool_calls", "name"]),
            inner | st.sampled_from(["user", "human", "text"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(nested_values, st.booleans())
def test_any_value_is_imported_omitted_or_rejected(value: Any, as_lines: bool) -> None:
    records = [value, {"messages": [value, {"role": "user", "content": value}]}]
    outcomes = read("messages", lines(*records).decode() if as_lines else records)
    assert outcomes
    assert all_accounted(outcomes)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.data())
def test_branch_of_any_tree_leads_from_its_root(parents: list[int], data: st.DataObject) -> None:
    nodes = {
        f"n{n}": {"parent": f"n{parent % n}" if n else None, "message": {"role": "user", "parts": [f"text {n}"]}}
        for n, parent in enumerate(parents)
    }
    node: Any = data.draw(st.sampled_from(sorted(nodes)))
    record, way = {"said": [], "nodes": nodes, "current_node": node}, []
    while node:
        way.insert(0, node)
        node = nodes[node]["parent"]
    assert [message.id for message in messages_of(read("chatgpt", [record]))] == way


@given(st.lists(WORDS, min_size=1, max_size=12), st.integers(0, 12))
def test_grown_conversation_keeps_its_message_ids(said: list[str], length: int) -> None:
    conversation = [{"role": "user", "content": word} for word in said]
    later, earlier = (
        [message.id for message in messages_of(read("messages", [{"id": "c", "messages": part}]))]
        for part in (conversation, conversation[:length])
    )
    assert later[: len(earlier)] == earlier
    assert len(set(later)) == len(later)


@given(st.lists(st.lists(WORDS, min_size=1, max_size=3), min_size=2, max_size=2, unique_by=tuple))
def test_conversations_without_ids_differ_by_their_content(both: list[list[str]]) -> None:
    records = [{"messages": [{"role": "user", "content": word} for word in said]} for said in both]
    assert len({message.conversation_id for message in messages_of(read("messages", records))}) == 2
