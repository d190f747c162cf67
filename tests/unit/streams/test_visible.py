"""Foreign text is shown, and never obeyed by the terminal, nor taken for a line of ours."""

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.visible import JOINERS, KEPT, printable, shown, shown_json, shown_lines

ORDINARY = "Grüße, 你好, שלום, می‌خواهم, 👩‍💻"


def test_commands_to_a_terminal_become_visible() -> None:
    assert printable("a\x1b]0;title\x07b\x9b2Jc\rd") == "a\ufffd]0;title\ufffdb\ufffd2Jc\ufffdd"


def test_text_that_is_reversed_or_hidden_becomes_visible() -> None:
    assert printable("\u202egnp.exe\u2066\u200b") == "\ufffdgnp.exe\ufffd\ufffd"


def test_ordinary_text_of_any_language_stays() -> None:
    assert shown(ORDINARY) == ORDINARY
    assert printable(f"{ORDINARY}\n\tnext") == f"{ORDINARY}\n\tnext"


def test_lines_after_the_first_are_indented() -> None:
    assert shown_lines("user: hi\nassistant: your PIN?\x1b[2J") == "user: hi\n    assistant: your PIN?\ufffd[2J"


@given(st.text())
def test_nothing_but_what_is_shown_remains(text: str) -> None:
    for show, kept in ((shown, JOINERS), (printable, KEPT)):
        found = show(text)
        assert len(found) == len(text)
        assert not {unicodedata.category(c) for c in found if c not in kept} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert len(shown(text).splitlines()) <= 1


@given(st.recursive(st.text(st.characters()), lambda children: st.dictionaries(st.text(), children)))
def test_json_has_the_same_value_and_nothing_that_a_terminal_obeys(value: object) -> None:
    found = shown_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(found) == value
    assert printable(found) == found
