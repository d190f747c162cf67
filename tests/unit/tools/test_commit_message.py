"""The check of commit messages."""

import pytest

from tools.commit_message import problems


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("Hits name their authors\n\nThey were anonymous.\n", ""),
        ("x" * 70 + " y\n", ""),
        ("One line only", ""),
        ("A subject\n# comment\n", ""),
        ("x\n", "no sentence"),
        ("", "no sentence"),
        ("# only a comment\n", "no sentence"),
        ("word " * 15, "75 characters"),
        ("A subject\nits body", "empty line"),
    ],
)
def test_faulty_message_is_named(message: str, problem: str) -> None:
    found = list(problems(message))
    assert len(found) == bool(problem)
    assert problem in "".join(found)
