"""What people wrote is shown, and never obeyed by the terminal."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from afterword.commands.common import KEPT, printable


def test_commands_to_a_terminal_become_visible() -> None:
    assert printable("a\x1b]0;title\x07b\x9b2Jc\rd") == "a\ufffd]0;title\ufffdb\ufffd2Jc\ufffdd"


def test_text_that_is_reversed_or_hidden_becomes_visible() -> None:
    assert printable("\u202egnp.exe\u2066\u200b") == "\ufffdgnp.exe\ufffd\ufffd"


def test_ordinary_text_of_any_language_stays() -> None:
    text = "Grüße, 你好, שלום, می‌خواهم, 👩‍💻\n\tnext"
    assert printable(text) == text


@given(st.text())
def test_nothing_but_what_is_shown_remains(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    assert not {unicodedata.category(c) for c in shown if c not in KEPT} & {"Cc", "Cf", "Cs"}
