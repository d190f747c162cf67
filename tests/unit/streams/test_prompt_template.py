"""Prompt templates: which texts are valid, and the errors of the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.prompt_template import PLACEHOLDERS, check_template, placeholders
from tests.rows import with_rows


@with_rows
def test_template_needs_the_conversation_and_known_placeholders(text: str) -> None:
    check_template(text)


@with_rows
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
