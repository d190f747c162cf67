"""Text on its way to a terminal or a log. Foreign text is shown, never obeyed, and never taken for our own lines."""

import re
import unicodedata

MOVED_OR_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Control characters, which can start a terminal's escape sequence; format characters, which reverse or hide text."""
JOINERS = {"\u200c", "\u200d"}
"""Persian, Hindi and emoji need them."""
KEPT = {"\n", "\t"} | JOINERS
"""Kept in a text of several lines."""
INDENT = "    "

_NOT_ASCII = re.compile(r"[^\x20-\x7e]")


def many(count: int, one: str, more: str) -> str:
    """Count something, in its singular or plural."""
    return f"{count:,} {one if count == 1 else more}"


def shown(text: str) -> str:
    """One line, whatever the text is: line breaks, tabs and what a terminal would obey or hide become �."""
    return _replaced(text, JOINERS)


def printable(text: str) -> str:
    """Replace characters that a terminal would obey, or that hide text, by �; line breaks and tabs stay."""
    return _replaced(text, KEPT)


def shown_lines(text: str, indent: str = INDENT) -> str:
    """Printable, with the lines after the first indented, so that none passes for a line of somebody else."""
    return printable(text).replace("\n", f"\n{indent}")


def shown_json(document: str) -> str:
    """JSON of the same value, in which the characters that a terminal would obey or hide are escaped."""
    return _NOT_ASCII.sub(lambda found: _escaped(found[0]), document)


def _replaced(text: str, kept: set[str]) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join("\ufffd" if c not in kept and unicodedata.category(c) in MOVED_OR_HIDDEN else c for c in text)


def _escaped(character: str) -> str:
    if character in KEPT or unicodedata.category(character) not in MOVED_OR_HIDDEN:
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
