"""Redaction: replaces personal data and secrets in texts with placeholders. Pure, and linear in the text's size.

This module has the entities' names and users' own patterns, so that settings can be checked without the libraries of
the detectors.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

EMAIL, PHONE, CARD, IBAN, IP, URL_SECRET, API_KEY = ENTITIES = (
    "email",
    "phone",
    "card",
    "iban",
    "ip",
    "url_secret",
    "api_key",
)
ALL = "all"
REDACTED = "REDACTED"
"""Placeholder name for a text that is replaced as a whole."""

PATTERN_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,31}")
DIGITS_AT_END = re.compile(r"_[0-9]+\Z")
MAX_PATTERNS = 50
MAX_PATTERN_CHARACTERS = 1000
MAX_PATTERN_BYTES = 8 * 2**20
"""Maximum memory for a compiled pattern and its automata."""
MOST_SCANNED = 2**27
"""Maximum number of characters that matching one pattern may examine in one line: 0.2 s at worst."""


class Span(NamedTuple):
    """A found entity: characters `start` to `end` of the text."""

    start: int
    end: int
    name: str
    """Name in its placeholder, such as `EMAIL`."""


def entities_in(text: str) -> tuple[str, ...]:
    """Read a list like `email,phone`, or `all`. Raises: ValueError."""
    given = [name.strip().lower() for name in text.split(",") if name.strip()]
    if given == [ALL]:
        return ENTITIES
    for name in given:
        if name not in ENTITIES:
            raise ValueError(f"{name!r} is not one of {', '.join(ENTITIES)}, or {ALL}")
    return tuple(name for name in ENTITIES if name in given)


def check_patterns(patterns: Mapping[str, str]) -> None:
    """Check the names, and if RE2 is installed also the expressions. Only workers need it. Raises: ValueError."""
    if len(patterns) > MAX_PATTERNS:
        raise ValueError(f"{len(patterns)} patterns; at most {MAX_PATTERNS} are allowed")
    for name, expression in patterns.items():
        if not PATTERN_NAME.fullmatch(name) or DIGITS_AT_END.search(name):
            raise ValueError(f"{name!r}: a name is at most 32 capitals, digits and _, without a number at its end")
        if name.lower() in ENTITIES or name == REDACTED:
            raise ValueError(f"{name!r} is the name of an entity")
        if len(expression) > MAX_PATTERN_CHARACTERS:
            raise ValueError(f"{name}: {len(expression)} characters; at most {MAX_PATTERN_CHARACTERS} are allowed")
    try:
        for name, expression in patterns.items():
            OwnPattern(name, expression)
    except ImportError:
        pass


class OwnPattern:
    """A user's own named expression, matched within lines."""

    def __init__(self, name: str, expression: str) -> None:
        """Compile the expression.

        Raises: ValueError if RE2 rejects it, as it rejects everything that would need more than linear time.
        """
        import re2  # imported here because producers and subscribers read the settings without it

        self.name = name
        options = re2.Options()
        options.log_errors = False
        options.max_mem = MAX_PATTERN_BYTES
        try:
            self._compiled: Any = re2.compile(expression, options)
        except re2.error as error:
            said = error.args[0] if error.args else error
            problem = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
            raise ValueError(f"{name}: RE2 rejects it: {problem}") from None
        if self._compiled.search("") is not None:
            raise ValueError(f"{name}: it matches the empty text")

    def spans(self, text: str) -> Iterator[Span]:
        """Yield the matches.

        RE2 looks at each character once per match, but may look at the rest of a line again for the next match. A line
        for which that would take too long counts as a match from that point on.
        """
        start = 0
        for line in text.split("\n"):
            most = max(1, MOST_SCANNED // (len(line) + 1))
            for number, match in enumerate(self._compiled.finditer(line)):
                if number == most:
                    yield Span(start + match.start(), start + len(line), self.name)
                    break
                if match.end() > match.start():
                    yield Span(start + match.start(), start + match.end(), self.name)
            start += len(line) + 1
