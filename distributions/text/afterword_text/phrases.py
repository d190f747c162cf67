"""The patterns of what people say of themselves. It loads no model, so readers of facts may use them."""

import re

from afterword_text.language import VOCABULARY


def with_pieces(pattern: str) -> str:
    """Replace the names of pieces in braces; pieces may consist of others."""
    pieces = VOCABULARY["first_person"]["pieces"]
    return re.sub(r"\{([a-z_]+)\}", lambda match: with_pieces(pieces[match[1]].replace("\n", "")), pattern)


def pattern_of(name: str) -> str:
    return with_pieces(VOCABULARY["first_person"][name].replace("\n", ""))


class _Phrases:
    """The patterns of `[first_person]` in the vocabulary, by name. They ignore the case."""

    def __getattr__(self, name: str) -> re.Pattern[str]:
        compiled = re.compile(pattern_of(name), re.IGNORECASE)
        setattr(self, name, compiled)
        return compiled


PHRASES = _Phrases()
