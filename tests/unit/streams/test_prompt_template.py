"""Prompt templates: which texts are valid, and the errors of the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.prompt_template import PLACEHOLDERS, check_template, placeholders


@pytest.mark.parametrize(
    "text",
    [
        "{conversation_text}",
        "In {language}: {conversation_text}",
        "{previous_summary} {overlap} {conversation_text} {language} {language} {max_sentences}",
        'Like {{"a": 1}}: {conversation_text}',
    ],
)
def test_template_needs_the_conversation_and_known_placeholders(text: str) -> None:
    check_template(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Summarise.", "placeholder {conversation_text} is missing"),
        ("{{conversation_text}}", "placeholder {conversation_text} is missing"),
        ("{conversation_text} {name}", "unknown placeholder {name}"),
        ("{conversation_text} {}", "unknown placeholder {}"),
        ("{conversation_text!r}", "unknown placeholder {conversation_text!r}"),
        ("{conversation_text:>9}", "unknown placeholder {conversation_text:>9}"),
        ("{conversation_text.x} {0}", "unknown placeholder {conversation_text.x}"),
        ('{conversation_text} {"title": "a"}', 'unknown placeholder {"title": "a"}'),
        ("{conversation_text} {a\nb}", "unknown placeholder {a b}"),
        ("{conversation_text} {" + "a" * 99 + "}", "unknown placeholder {" + "a" * 40 + "…}"),
        ("{conversation_text} {", "a single brace"),
        ("{conversation_text} }", "a single brace"),
        ("{conversation_text} {conversation_text}", "{conversation_text} occurs twice"),
        ("{overlap} {conversation_text} {overlap}", "{overlap} occurs twice"),
    ],
)
def test_template_problem_is_named_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"placeholder|brace") as caught:
        check_template(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="{}ab!:.[]0 ") | st.text())
def test_accepted_template_can_be_filled(text: str) -> None:
    try:
        check_template(text)
    except ValueError:
        return
    text.format(**dict.fromkeys(PLACEHOLDERS, "{x}"))


@given(st.lists(st.sampled_from([f"{{{name}}}" for name in PLACEHOLDERS] + ["{{", "}}", " a "])).map("".join))
def test_every_placeholder_is_found(text: str) -> None:
    assert [f"{{{name}}}" for name in placeholders(text)] == [
        f"{{{name}}}" for name in placeholders(text.replace("{{", "").replace("}}", ""))
    ]
