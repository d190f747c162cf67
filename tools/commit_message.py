"""Check a commit's message: python -m tools.commit_message FILE"""

import sys
from collections.abc import Iterator
from pathlib import Path

SUBJECT_CHARACTERS = 72


def problems(message: str) -> Iterator[str]:
    """Yield what is wrong with a message, whose comments begin with `#`."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject, rest = (lines or [""])[0], lines[1:]
    if len(subject.split()) < 2:
        yield "the subject is no sentence: say what the code does now"
    if len(subject) > SUBJECT_CHARACTERS:
        yield f"the subject has {len(subject)} characters, at most {SUBJECT_CHARACTERS}: the rest belongs in the body"
    if rest and rest[0].strip():
        yield "an empty line separates the subject from the body"


if __name__ == "__main__":
    sys.exit("\n".join(problems(Path(sys.argv[1]).read_text())))
