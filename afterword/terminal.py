"""What others wrote, as it may be shown on a terminal."""

import unicodedata

MOVED_OR_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Control characters, among them what begins a terminal's commands; format characters, which reverse or hide text."""
KEPT = {"\n", "\t", "\u200c", "\u200d"}
"""The two joiners are part of how Persian, Hindi and emoji are written."""


def printable(text: str) -> str:
    """The text with a � for each character that would not be shown but obeyed."""
    return "".join("\ufffd" if c not in KEPT and unicodedata.category(c) in MOVED_OR_HIDDEN else c for c in text)
