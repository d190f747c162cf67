"""Prompt templates that users write: text with placeholders in braces. No I/O."""

import string
from collections.abc import Iterator

REQUIRED = "conversation_text"
PLACEHOLDERS = (REQUIRED, "previous_summary", "overlap", "language", "max_sentences")
SHOWN_CHARACTERS = 40


def check_template(text: str) -> None:
    """Check a template, in which a literal brace is doubled, as in `str.format`.

    Raises: ValueError, in one line, naming the placeholder that is unknown, repeated or missing.
    """
    names = list(placeholders(text))
    for name in names:
        if name not in PLACEHOLDERS:
            known = ", ".join(f"{{{known}}}" for known in PLACEHOLDERS)
            raise ValueError(f"unknown placeholder {_shown(name)}; there are {known}; write {{{{ for a literal brace")
    repeated = next((name for name in PLACEHOLDERS[:3] if names.count(name) > 1), None)
    if repeated:
        raise ValueError(f"placeholder {{{repeated}}} occurs twice")
    if REQUIRED not in names:
        raise ValueError(f"placeholder {{{REQUIRED}}} is missing")


def placeholders(text: str) -> Iterator[str]:
    """Yield the text in each pair of braces, in order. Raises: ValueError for an unmatched brace."""
    try:
        for _, name, form, conversion in string.Formatter().parse(text):
            if name is not None:
                yield name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
    except ValueError:
        raise ValueError("a single brace; write {{ or }} for a literal one") from None


def _shown(name: str) -> str:
    short = " ".join(name.split())
    return f"{{{short if len(short) <= SHOWN_CHARACTERS else short[:SHOWN_CHARACTERS] + '…'}}}"
