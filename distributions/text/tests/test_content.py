"""Message content in other applications' forms: the text and its speaker are found."""

import re
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword_text.content import ContentUnreadable, Kind, flatten, flatten_message, is_too_deep, said
from afterword_text.words_of_others import Whose, own_words, parts_of
from tests.rows import with_rows

SAID, RESULT, REASONING = Kind.SAID, Kind.RESULT, Kind.REASONING


def pieces(content: Any) -> list[tuple[Any, ...]]:
    return [tuple(piece) for piece in flatten(content)]


@with_rows
def test_spoken_text_is_found(content, text):
    assert pieces(content) == [(SAID, text, ())]


@pytest.mark.parametrize(
    "content", [None, "", " \n", [], {}, [{"type": "text", "text": ""}], [None, [""]], {"text": None}]
)
def test_content_without_text_has_no_pieces(content):
    assert pieces(content) == []


@with_rows
def test_tool_output_is_told_apart(content, answer):
    assert pieces([content]) == [(RESULT, answer, ())]


@with_rows
def test_call_has_its_tools_name_and_no_text(content, tool):
    assert pieces([content]) == [(SAID, "", (tool,))]


def test_call_may_carry_its_result():
    part = {"type": "tool-weather", "state": "output-available", "input": {"output": "no"}, "output": {"celsius": -3}}
    assert pieces([part]) == [(SAID, "", ("weather",)), (RESULT, '{"celsius":-3}', ())]
    state = {"status": "completed", "input": {"output": "no"}, "output": {"celsius": -3}}
    assert pieces([{"type": "tool", "name": "weather", "state": state}]) == pieces([part])


def test_adjacent_content_parts_are_joined_in_order():
    parts = [
        {"type": "thinking", "thinking": "Hm."},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "name": "weather", "input": {}},
        {"type": "tool_result", "content": "snow"},
        {"type": "text", "text": "It snows."},
    ]
    assert pieces(parts) == [(SAID, "Let me look.", ("weather",)), (RESULT, "snow", ()), (SAID, "It snows.", ())]


@with_rows
def test_reasoning_counts_only_where_nothing_else_is(content):
    assert pieces([content]) == [(REASONING, "Hm.", ())]
    assert pieces([content, "Yes."]) == [(SAID, "Yes.", ())]


def test_repeated_text_of_a_message_counts_once():
    message = {
        "role": "assistant",
        "content": "It snows.",
        "parts": [
            {"type": "text", "text": "It snows."},
            {"type": "tool-invocation", "toolInvocation": {"toolName": "weather", "args": {}, "result": "snow"}},
        ],
    }
    assert [tuple(p) for p in flatten_message(message)] == [(SAID, "It snows.", ("weather",)), (RESULT, "snow", ())]


def test_names_and_states_beside_empty_content_are_no_text():
    assert flatten_message({"role": "assistant", "content": "", "stop_reason": "end_turn", "name": "the bot"}) == []


def test_text_in_an_unknown_field_is_refused_unquoted():
    with pytest.raises(ContentUnreadable, match=r"its text is in extra\.utterance") as raised:
        flatten_message({"role": "user", "content": "", "extra": {"utterance": "secret words"}})
    assert "secret" not in str(raised.value)
    for role, message in (
        ("user", {"content": "", "answer": "Yes"}),
        ("assistant", {"answer": "Yes"}),
        ("assistant", {"content": {"answer": "Yes"}}),
        ("assistant", {"data": {"answer": "Yes"}, "type": "ai"}),
    ):
        with pytest.raises(ContentUnreadable, match=r"its text is in .*answer"):
            flatten_message({"role": role, **message})


def test_deeply_nested_content_is_refused():
    content: Any = "x"
    for _ in range(900):
        content = [{"type": "tool_result", "content": content}]
    with pytest.raises(ContentUnreadable):
        flatten(content)


names = st.sampled_from(
    ["type", "text", "content", "toolResult", "output", "image", "thinking", "name", "input", "parts"]
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["tool_use", "tool_result", "image", "text", "a b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)


@given(json_values)
def test_any_content_is_flattened(content):
    for piece in flatten(content):
        assert piece.text.strip() or piece.tools
    if isinstance(content, dict):
        with suppress(ContentUnreadable):
            flatten_message(content)


@given(
    st.text(min_size=1, max_size=20).filter(str.strip),
    st.lists(st.sampled_from(["text", "content", "parts", []]), max_size=5),
)
def test_text_is_found_below_any_known_names(text, way):
    content: Any = text
    for step in way:
        content = [content] if step == [] else {step: content}
    assert pieces(content) == [(SAID, text, ())]


@pytest.mark.parametrize(("levels", "too_deep"), [(500, False), (501, True), (20_000, True)])
def test_json_of_more_than_500_levels_is_too_deep(levels: int, too_deep: bool) -> None:
    value: Any = 1
    for level in range(levels):
        value = [2, value] if level % 2 else {"a": value}
    assert is_too_deep(value) is too_deep


DETAILS = '<details type="{}" done="true" name="weather">\n<summary>Done</summary>\n&gt; lonely\n</details>\n'


@with_rows
def test_thoughts_in_stored_answers_are_not_said(stored, content, tools):
    [message] = said("assistant", flatten(stored), "m")
    assert (message["content"], list(message["tools"]), message["skip_summarization"]) == (content, tools, False)


@pytest.mark.parametrize("stored", ["<think>\nlonely\n</think>", "<think>\nlonely", DETAILS.format("reasoning")])
def test_answer_that_is_only_a_thought_is_skipped(stored):
    assert [one["skip_summarization"] for one in said("assistant", flatten(stored), "m")] == [True]


def test_user_may_write_marks_of_thoughts():
    [message] = said("user", flatten("<think>hm</think> is what it prints."), "m")
    assert message["content"] == "<think>hm</think> is what it prints."


MARKED = Path(__file__).with_name("words_of_others.txt").read_text(encoding="utf-8").split("\n", 1)[1].split("\n====\n")


@pytest.mark.parametrize("marked", MARKED)
def test_words_of_others_are_told_from_own_ones(marked: str) -> None:
    marked = marked.rstrip("\n")
    text = re.sub("[⟦⟧]", "", marked)
    found = "".join(
        text[part.start : part.end] if part.whose is Whose.OWN else f"⟦{text[part.start : part.end]}⟧"
        for part in parts_of(text)
    )
    assert found.replace("⟧⟦", "") == marked


@pytest.mark.parametrize(
    ("text", "whose", "author"),
    [
        ("Fine.\n\nOn Tue, 26 May 2026 at 09:12, Ida Holm <i@x.example> wrote:\n> Lunch?", Whose.FORWARDED, "Ida Holm"),
        ("From: Ida Holm\nSubject: lunch\n\nI'm vegan.", Whose.FORWARDED, "Ida Holm"),
        ('My boss wrote: "I am moving to Oslo."', Whose.QUOTED, "My boss"),
        ("Q: Where?\nA: In Lagos.", Whose.PASTED, "A"),
        ("> I live in Oslo.", Whose.QUOTED, ""),
        ("Run `make it all` first.", Whose.MACHINE, ""),
    ],
)
def test_kind_and_author_of_others_words_are_named(text: str, whose: Whose, author: str) -> None:
    assert (whose, author) in {(part.whose, part.author) for part in parts_of(text)}


def test_very_long_text_keeps_own_words_of_both_ends() -> None:
    own = own_words("I live in Oslo. " + "Lorem ipsum dolor. " * 50_000 + "I have two cats.")
    assert own.startswith("I live in Oslo.")
    assert own.endswith("I have two cats.")
    assert len(own) < 100_000


def test_own_words_have_a_mark_where_others_are_quoted() -> None:
    assert own_words('She said "I live in Oslo" and left.') == "She said … and left."


@given(
    st.lists(st.sampled_from(["> a", "On 3 May Ida wrote:", "", "q: b", "x,1,2", "```", '"c d e"', "why?"])).map(
        "\n".join
    )
)
def test_parts_cover_the_text_without_gaps(text: str) -> None:
    parts = parts_of(text)
    assert "".join(text[part.start : part.end] for part in parts) == text
    assert all(before.end == part.start for before, part in pairwise(parts))


@pytest.mark.parametrize(
    "piece", ["“a ‘b 'c \"d «e ", "1,2,3\n", "\n", "> a\n", "On 3 may x@y wrote:\n", "a: b\n", "'a "]
)
def test_splitting_takes_time_linear_in_the_length(piece: str) -> None:
    def seconds(times: int) -> float:
        begin = time.process_time()
        parts_of(piece * times)
        return time.process_time() - begin

    assert seconds(8000) < 40 * max(seconds(1000), 0.005)
