"""The check of commit messages."""

from tests.rows import with_rows
from tools.commit_message import problems


@with_rows
def test_faulty_message_is_named(message: str, problem: str) -> None:
    found = list(problems(message))
    assert len(found) == bool(problem)
    assert problem in "".join(found)
