"""A deployment's redaction: what it finds in a text, and the text with placeholders."""

import html
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from afterword.streams.redaction.detecting import DETECTORS, NUMERIC, has_numbers
from afterword.streams.redaction.entities import ENTITIES, PHONE, REDACTED, OwnPattern, Span
from afterword.streams.redaction.phones import Phones
from afterword.streams.text.visible import IGNORABLE

PASSES = 4
"""A text in which more is found after this many passes was written to hide something, so it is replaced as a whole."""
SHORTEST = 3
"""Characters of the shortest entity, `::2`."""


class Folded(NamedTuple):
    """A text as detectors read it: full-width and other digits and letters as ASCII, without invisible characters."""

    text: str
    starts: "array[int] | None"
    """Position of each character in the original; None if the positions are the same."""

    def original(self, start: int, end: int) -> tuple[int, int]:
        """Return the range in the original text of a range found here."""
        if self.starts is None:
            return start, end
        return self.starts[start], self.starts[end - 1] + 1


def folded(text: str) -> Folded:
    """Fold each character separately, so that a part of a text folds like the whole."""
    if text.isascii():
        return Folded(text, None)
    read_as = {ord(c): _character(c) for c in set(text)}  # each character is looked up once, however often it occurs
    shorter = text.translate(read_as)
    if len(shorter) == len(text):
        return Folded(shorter, None)
    return Folded(shorter, array("I", (at for at, c in enumerate(text) if read_as[ord(c)])))


def _character(character: str) -> str:
    """Return one character that reads the same, such as `4` for `４` and `٤`; nothing for an invisible one."""
    if character.isascii():
        return character
    if unicodedata.category(character) == "Cf" or IGNORABLE.match(character):
        return ""
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    if "\ud800" <= character <= "\udfff":
        return "\ufffd"  # a lone surrogate is not text and cannot be encoded
    if unicodedata.category(character) == "Pd" or character == "\u2212":
        return "-"
    compatible = unicodedata.normalize("NFKC", character)
    return compatible if len(compatible) == 1 else character


_ESCAPE = re.compile(
    r"%(?:25)*[2-7][0-9A-Fa-f]|(?:%(?:25)*[89A-Fa-f][0-9A-Fa-f])+|&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]{2,31});"
    r"|[\\%]u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}"
)
"""Escaped characters: in links, also escaped twice, in HTML, in JSON and in JavaScript."""


def unescaped(text: str) -> tuple[str, list[int], list[int]]:
    """Return a text with its escapes read, folded, and the start and end of each of its characters in the original."""
    parts, starts, ends = list[str](), list[int](), list[int]()
    at = 0
    for found in _ESCAPE.finditer(text):
        meant = folded(_read_escape(found[0])).text
        parts += text[at : found.start()], meant
        starts += (*range(at, found.start()), *[found.start()] * len(meant))
        ends += (*range(at + 1, found.start() + 1), *[found.end()] * len(meant))
        at = found.end()
    return (
        "".join([*parts, text[at:]]),
        [*starts, *range(at, len(text))],
        [*ends, *range(at + 1, len(text) + 1)],
    )


def _read_escape(escape: str) -> str:
    if escape.startswith("&"):
        return html.unescape(escape)
    if escape[1] in "ux":
        return chr(int(escape[2:], 16))
    return bytes.fromhex(re.sub("%(?:25)*", "", escape)).decode(errors="replace")


class Redactor:
    """Finds entities. Deterministic: the same text always has the same spans."""

    def __init__(
        self, entities: Iterable[str], patterns: Mapping[str, str] | None = None, regions: Iterable[str] = ()
    ) -> None:
        """`regions` are countries whose telephone numbers are found without a country code. Raises: ValueError."""
        wanted = set(entities)
        self._own = [OwnPattern(name, expression) for name, expression in sorted((patterns or {}).items())]
        detectors = {**DETECTORS, PHONE: Phones(regions).spans} if PHONE in wanted else DETECTORS
        self._detectors = [(name, find) for name, find in detectors.items() if name in wanted]
        self.names = (*(name.upper() for name in ENTITIES), *(own.name for own in self._own), REDACTED)
        """All placeholder names, whether or not the entity is to be redacted."""
        names = "|".join(map(re.escape, self.names))
        self.placeholder = re.compile(rf"\[(?:{names})(?:[ _][0-9]{{1,6}})?\]", re.IGNORECASE)
        """A placeholder, with or without a number; nothing inside one is examined."""
        self.numbered = re.compile(rf"\[({names})[ _]([0-9]{{1,6}})\]", re.IGNORECASE)
        """A numbered placeholder as an LLM gets it, or as it may repeat it: name and number."""

    def redacted(self, text: str) -> str:
        """Replace each entity with its name in brackets; existing placeholders stay as they are."""
        return replaced(text, self.spans(text), lambda span: f"[{span.name}]")

    def spans(self, text: str) -> list[Span]:
        """Find the entities, in order and without overlap.

        The text between two of them, or between placeholders, is searched separately until nothing more is found in it.
        Therefore nothing can be found in the redacted text.
        """
        whole = folded(text)
        parts = list(self._between_placeholders(whole.text))
        found: list[Span] = []
        for _ in range(PASSES):
            parts = [part for start, end in parts for part in self._divided(whole.text, start, end, found)]
            if not parts:
                return sorted(Span(*whole.original(one.start, one.end), one.name) for one in found)
        return [Span(0, len(text), REDACTED)]

    def _between_placeholders(self, text: str) -> Iterator[tuple[int, int]]:
        start = 0
        if "[" in text:
            for known in self.placeholder.finditer(text):
                yield start, known.start()
                start = known.end()
        yield start, len(text)

    def _divided(self, text: str, start: int, end: int, found: list[Span]) -> list[tuple[int, int]]:
        """Add what is found in a part of the text; return the parts left around it, which must be read again."""
        taken = self._taken(text[start:end])
        if not taken:
            return []
        found += [Span(start + one.start, start + one.end, one.name) for one in taken]
        ends = [start, *(start + one.end for one in taken)]
        starts = [*(start + one.start for one in taken), end]
        return [(a, b) for a, b in zip(ends, starts, strict=True) if a < b]

    def _taken(self, text: str) -> list[Span]:
        """Find entities of all kinds; where two overlap, the first kind takes precedence."""
        if not text or (len(text) < SHORTEST and not self._own):
            return []
        taken: list[Span] = []
        for spans in self._by_kind(text):
            taken = merged(taken, spans)
        return taken

    def _by_kind(self, text: str) -> Iterator[list[Span]]:
        for own in self._own:
            yield list(own.spans(text))
        numbers = has_numbers(text)
        for name, find in self._detectors:
            if numbers or name not in NUMERIC:
                yield [Span(start, end, name.upper()) for start, end in find(text)]
        if _ESCAPE.search(text):
            plain, starts, ends = unescaped(text)
            for name, find in self._detectors:
                yield [Span(starts[start], ends[end - 1], name.upper()) for start, end in find(plain)]


def merged(first: list[Span], others: list[Span]) -> list[Span]:
    """Add the `others` that overlap nothing, and return all spans in order."""
    if not others:
        return first
    taken: list[Span] = []
    at = 0
    for one in sorted(others):
        while at < len(first) and first[at].end <= one.start:
            taken.append(first[at])
            at += 1
        overlaps_next = at < len(first) and first[at].start < one.end
        overlaps_last = bool(taken) and taken[-1].end > one.start
        if not overlaps_next and not overlaps_last:
            taken.append(one)
    return taken + first[at:]


def replaced(text: str, spans: Iterable[Span], placeholder: Any) -> str:
    """Replace each span with `placeholder(span)`."""
    parts: list[str] = []
    at = 0
    for span in spans:
        parts += text[at : span.start], placeholder(span)
        at = span.end
    return "".join([*parts, text[at:]]) if parts else text
