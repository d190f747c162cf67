"""The patterns of what people say of themselves. It loads no model, so readers of facts may use them."""

import re

from afterword_text.language import VOCABULARY


def with_pieces(pattern: str) -> str:
    """Replace the names of pieces in braces; pieces may consist of others."""
    pieces = VOCABULARY["first_person"]["pieces"]
    return re.sub(r"\{([a-z_]+)\}", lambda match: with_pieces(pieces[match[1]].replace("\n", "")), pattern)


def pattern_of(name: str) -> str:
    return with_pieces(VOCABULARY["first_person"][name].replace("\n", ""))


_DOUBLED = re.compile(r"\b(\w+) (?=\1\b)", re.IGNORECASE)


class _Phrases:
    """The patterns of `[first_person]` in the vocabulary, by name. They ignore the case."""

    def __getattr__(self, name: str) -> re.Pattern[str]:
        compiled = re.compile(pattern_of(name), re.IGNORECASE)
        setattr(self, name, compiled)
        return compiled


PHRASES = _Phrases()


def correction_in(sentence: str) -> dict[str, str]:
    """Return what a sentence corrects, if it does: its `lead`, the `new` value and, if named, the `old` one."""
    named = fits.groupdict() if (fits := PHRASES.corrected.match(sentence)) else {}
    return {name.rstrip("23"): value for name, value in named.items() if value is not None}


def corrected(statement: str, old: str, new: str) -> str | None:
    """Return a statement with the new value in place of the old one; None if it does not have that."""
    right, times = re.subn(rf"(?<!\w){re.escape(old)}(?!\w)", lambda _: new, statement, flags=re.IGNORECASE)
    return _DOUBLED.sub("", right) if times else None
