"""Exports of Open WebUI and LibreChat → messages of the branch that was shown."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.writing.importing.formats import ImportOptions, ImportOutcome, Rejected
from tests.unit.afterword.writing.importing.histories import all_accounted, json_values, messages_of, read_all, reasons

EXPORTS = Path(__file__).with_name("exports")
"""Files as Open WebUI 0.8 and LibreChat 0.8 write them, with invented contents."""
OTHERS = "on another branch (regenerated answers and replaced messages)"


def told(outcomes: list[ImportOutcome]) -> list[tuple[str, ...]]:
    return [(m.id, m.role, m.content, *m.tools) for m in messages_of(outcomes)]


def read(form: str, *records: Any, user: str | None = "ann") -> list[ImportOutcome]:
    return read_all(form, {"export.json": list(records)}, ImportOptions(user))


def test_open_webui_export_follows_its_shown_branch() -> None:
    outcomes = read_all("openwebui", {"a.json": (EXPORTS / "openwebui.json").read_bytes()}, ImportOptions())
    assert told(outcomes) == [
        ("q1", "user", "My boat is in Svolvær. When is low tide?\n[image]"),
        ("a1", "assistant", "", "tide_table"),
        ("a1.2", "tool", "14:10"),
        ("a1.3", "assistant", "", "code_interpreter"),
        ("a1.4", "tool", '{"stdout":"850 minutes"}'),
        ("a1.5", "assistant", "Low tide is at 14:10."),
        ("q2b", "user", "I sail with Per.\nPer is allergic to mackerel.\n[file: chart.pdf]"),
        ("a4", "assistant", "Bring cheese for Per.\nCheese, and no mackerel."),
        ("q3", "user", "What does <think>hm</think> mean?"),
        ("x1", "user", "Which lake is deepest?"),
        ("x2", "assistant", "Baikal."),
    ]
    assert reasons(outcomes) == [OTHERS, "empty"]
    found = messages_of(outcomes)
    assert {(m.conversation_id, m.user_id, m.metadata["imported_from"]) for m in found} == {
        ("boat", "u-ann", "openwebui"),
        ("lake", "u-ann", "openwebui"),
    }
    assert [m.sent_at.timestamp() for m in (found[0], found[-1]) if m.sent_at] == [1772442000, 1700000005]


@pytest.mark.parametrize("name", ["librechat.json", "librechat-recursive.json"])
def test_export_of_librechat_is_read_along_its_newest_branch(name: str) -> None:
    outcomes = read_all("librechat", {name: (EXPORTS / name).read_bytes()}, ImportOptions())
    assert told(outcomes) == [
        ("h1", "user", "I keep bees in Tromsø.\n[image]\n[file: notes.txt]"),
        ("a1", "assistant", "Let me look.", "weather"),
        ("a1.2", "tool", "minus four"),
        ("a1.3", "assistant", "It is too cold to open the hive."),
        ("h3", "user", "I open it on Friday."),
        ("a4", "assistant", "Friday is"),
        ("h4", "user", "Go on"),
        ("a5", "assistant", "Friday is warm enough."),
    ]
    assert reasons(outcomes) == [OTHERS]
    assert {(m.conversation_id, m.user_id) for m in messages_of(outcomes)} == {("lc1", "64d4f005d73ef522e1f48818")}


def of_openwebui(*messages: dict[str, Any], last: object = None, **changes: Any) -> dict[str, Any]:
    history = {"messages": {one["id"]: one for one in messages}, "currentId": last}
    return {"id": "c", "user_id": "u1", "chat": {"history": history}} | changes


def said(id_: str, after: str | None, content: object = "Hi", **changes: Any) -> dict[str, Any]:
    role = "user" if id_.startswith("q") else "assistant"
    return {"id": id_, "parentId": after, "role": role, "content": content, "timestamp": 1_772_442_000} | changes


def of_librechat(*messages: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"conversationId": "c", "messages": list(messages)} | changes


def turn(id_: str, after: str | None, **changes: Any) -> dict[str, Any]:
    time = "2026-03-02T09:00:00.000Z"
    message = {"messageId": id_, "parentMessageId": after, "isCreatedByUser": id_.startswith("q"), "createdAt": time}
    return message | {"text": "Hi"} | changes


@pytest.mark.parametrize(
    ("form", "record", "contents"),
    [
        ("openwebui", of_openwebui(said("q1", None, "Oslo"), said("q2", None, "Rome"), last="q1"), ["Oslo"]),
        ("openwebui", of_openwebui(said("q1", None, "a"), said("a1", "q1", "b"), last="gone"), ["a", "b"]),
        ("openwebui", of_openwebui(said("q1", None, "a"), said("q2", None, "b", timestamp=1_772_442_009)), ["b"]),
        ("openwebui", {"id": "c", "title": "", "history": {"messages": {"q1": said("q1", None, "bare")}}}, ["bare"]),
        ("openwebui", {"id": "c", "chat": {"messages": [said("q1", None, "a"), said("a1", "q1", "b")]}}, ["a", "b"]),
        ("openwebui", of_openwebui(said("a1", None, "Words", output=["odd"])), ["Words"]),
        ("openwebui", of_openwebui(said("a1", None, "Half", error={"content": "500"})), ["Half"]),
        ("openwebui", of_openwebui(said("q1", None, "ms", timestamp=1_772_442_000_123)), ["ms"]),
        ("openwebui", of_openwebui(said("a1", None, output=[{"type": "web_search_call", "action": {"query": "x y"}}])),
         [""]),
        ("openwebui", of_openwebui(said("q1", None, "", files=[{"type": "file", "name": "a.md"}])), ["[file: a.md]"]),
        ("openwebui", of_openwebui(said("q1", None, "", files=[{"name": "Pasted_Text_1.txt", "file": None}])),
         ["[file]"]),
        ("librechat", of_librechat(turn("q1", None, text="Oslo"), turn("a1", "q1", text="Wool")), ["Oslo", "Wool"]),
        ("librechat", of_librechat(turn("q1", None), turn("a1", "q1", text="old"), turn("a2", "q1", text="new")),
         ["Hi", "new"]),
        ("librechat", of_librechat(turn("q1", None), turn("a1", "q1", text="new", createdAt=None),
                                   turn("a2", "q1", text="old")), ["Hi", "new"]),
        ("librechat", of_librechat(turn("a1", None, content=[], text="Plain")), ["Plain"]),
        ("librechat", of_librechat(turn("a1", None, content=[{"type": "error", "error": "The run failed"}], text="")),
         []),
        ("librechat", of_librechat(turn("a1", None, content=[None, {"type": "text", "text": "Still"}])), ["Still"]),
    ],
)  # fmt: skip
def test_messages_of_the_branch_are_read(form: str, record: Any, contents: list[str]) -> None:
    outcomes = read(form, record)
    assert [m.content for m in messages_of(outcomes)] == contents
    assert not any(isinstance(o, Rejected) for o in outcomes)


@pytest.mark.parametrize(
    ("form", "record"),
    [
        ("librechat", of_librechat(turn("q1", None), turn("a1", "q1", text="Something went wrong", error=True))),
        ("openwebui", of_openwebui(said("q1", None), said("a1", "q1", "Uh-oh! There was an issue.", error=True))),
    ],
)
def test_error_is_archived_and_not_summarized(form: str, record: Any) -> None:
    assert [m.skip_summarization for m in messages_of(read(form, record))] == [False, True]


@pytest.mark.parametrize(
    ("form", "record", "reason"),
    [
        ("openwebui", of_openwebui(said("q1", None), id=None), "not a conversation"),
        ("openwebui", {"id": "c", "chat": {"history": {"messages": "secret"}}}, "not a conversation"),
        ("openwebui", of_openwebui(said("q1", "a1"), said("a1", "q1"), last="q1"), "its branch is circular"),
        ("openwebui", of_openwebui(said("q1", None, role="boss")), "message 1: it has no known role"),
        ("openwebui", of_openwebui(said("q1", None, timestamp="soon")), "message 1: its time is neither"),
        ("openwebui", of_openwebui(said("q1", "gone"), said("a1", None), last="a1"), "no chain of parents"),
        ("librechat", {"conversationId": "c"}, "not a conversation"),
        ("librechat", of_librechat(turn("q1", None, isCreatedByUser=None)), "message 1: it has no known role"),
        ("librechat", of_librechat(turn("q1", None, user="u1"), turn("a1", "q1", user="u2")), "its messages name more"),
    ],
)
def test_bad_conversation_is_named_and_the_rest_read(form: str, record: Any, reason: str) -> None:
    after = (of_openwebui if form == "openwebui" else of_librechat)(
        {**said("q1", None, "after"), "messageId": "q1", "isCreatedByUser": True, "text": "after"}
    )
    outcomes = read(form, record, after)
    assert messages_of(outcomes)[-1].content == "after"
    assert any(o.removeprefix("export.json:1: ").startswith(reason) for o in reasons(outcomes))
    assert "secret" not in str(reasons(outcomes))


@pytest.mark.parametrize(
    ("form", "first", "second"),
    [
        ("openwebui", of_openwebui(said("q1", None, "a")), of_openwebui(said("q1", None, "b"), id="d", user_id="u2")),
        ("librechat", of_librechat(turn("q1", None, text="a", user="u1")),
         of_librechat(turn("q1", None, text="b", user="u2"), conversationId="d")),
        ("librechat", of_librechat(turn("q1", None, text="a", user="u1")),
         {"conversationId": "d", "recursive": True, "messagesTree": [turn("q1", None, text="b", user="u2")]}),
    ],
)  # fmt: skip
def test_two_owners_are_never_one_user(form: str, first: Any, second: Any) -> None:
    outcomes = read(form, first, second)
    assert [(m.content, m.user_id) for m in messages_of(outcomes)] == [("a", "ann")]
    assert "another person" in reasons(outcomes)[0]
    assert [m.user_id for m in messages_of(read(form, first, second, user=None))] == ["u1", "u2"]


def test_librechat_without_an_owner_needs_a_user() -> None:
    record = of_librechat(turn("q1", None))
    assert "it has no user; give --user" in reasons(read("librechat", record, user=None))[0]
    assert len(messages_of(read("librechat", record))) == 1


NAMES = "id parentId role content output files merged timestamp messageId parentMessageId isCreatedByUser text children"


@given(
    st.lists(st.dictionaries(st.sampled_from(NAMES.split()), json_values | st.just("user"), max_size=8), max_size=4),
    st.sampled_from(["openwebui", "librechat"]),
)
def test_any_message_is_read_left_out_or_rejected(messages: list[dict[str, Any]], form: str) -> None:
    record = {"id": "c", "conversationId": "c", "messages": json.loads(json.dumps(messages))}
    assert all_accounted(read(form, record))
