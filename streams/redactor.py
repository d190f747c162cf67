"""A deployment's redaction: replaces entities with placeholders in texts, records and dead letters.

Records are redacted before anything of them is stored.
"""

import html
import re
import sys
import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args

import orjson

from afterword.schemas import InputEvent
from afterword.schemas.base import Model
from afterword.schemas.dead_letters import DEAD_LETTER_PREFIX, DeadLetterRecord, cut_headers
from afterword.schemas.messages import METADATA_MAX_DEPTH
from afterword.schemas.records import RESERVED_PREFIX, Headers, loads
from afterword_text.redaction import ENTITIES, PHONE, REDACTED, OwnPattern, Span
from afterword_text.redaction.detecting import DETECTORS, Phones
from afterword_text.visible import IGNORABLE

PASSES = 4
"""A text in which more is found after this many passes was written to hide something, so it is replaced as a whole."""
SHORTEST = 3
"""Characters of the shortest entity, `::2`."""


class Folded(NamedTuple):
    """A text as detectors read it: digits and letters of any width as ASCII, without invisible characters and marks."""

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


_COMBINING = re.compile("[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]")
"""Marks that strike out, underline, or are an accent apart from its letter. Those of other scripts belong to words."""


def _character(character: str) -> str:
    """Return one character that reads the same, such as `4` for `４` and `٤`; nothing for an invisible one."""
    if character.isascii():
        return character
    if unicodedata.category(character) == "Cf" or IGNORABLE.match(character) or _COMBINING.match(character):
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
    for match in _ESCAPE.finditer(text):
        meant = folded(_read_escape(match[0])).text
        parts += text[at : match.start()], meant
        starts += (*range(at, match.start()), *[match.start()] * len(meant))
        ends += (*range(at + 1, match.start() + 1), *[match.end()] * len(meant))
        at = match.end()
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

    def redacted(self, text: str, limit: int = sys.maxsize) -> str:
        """Replace each entity with its name in brackets; existing placeholders stay as they are.

        A result of more than `limit` characters is cut, and redacted again. No placeholder is cut in two.
        """
        whole = replaced(text, self.spans(text), lambda span: f"[{span.name}]")
        if len(whole) <= limit:
            return whole
        end = next((p.start() for p in self.placeholder.finditer(whole) if p.start() < limit < p.end()), limit)
        return self.redacted(whole[:end], limit)

    def spans(self, text: str) -> list[Span]:
        """Find the entities, in order and without overlap.

        The text between two of them, or between placeholders, is searched separately until nothing more is found in it.
        Therefore nothing can be found in the redacted text.
        """
        whole = folded(text)
        parts = list(self._between_placeholders(whole.text))
        spans: list[Span] = []
        for _ in range(PASSES):
            parts = [part for start, end in parts for part in self._divided(whole.text, start, end, spans)]
            if not parts:
                return sorted(Span(*whole.original(span.start, span.end), span.name) for span in spans)
        return [Span(0, len(text), REDACTED)]

    def _between_placeholders(self, text: str) -> Iterator[tuple[int, int]]:
        start = 0
        if "[" in text:
            for known in self.placeholder.finditer(text):
                yield start, known.start()
                start = known.end()
        yield start, len(text)

    def _divided(self, text: str, start: int, end: int, spans: list[Span]) -> list[tuple[int, int]]:
        """Add the entities found in a part of the text; return the parts around them, which must be searched again."""
        taken = self._taken(text[start:end])
        if not taken:
            return []
        spans += [Span(start + span.start, start + span.end, span.name) for span in taken]
        ends = [start, *(start + span.end for span in taken)]
        starts = [*(start + span.start for span in taken), end]
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
        for name, find in self._detectors:
            yield [Span(start, end, name.upper()) for start, end in find(text)]
        if _ESCAPE.search(text):
            plain, starts, ends = unescaped(text)
            for name, find in self._detectors:
                yield [Span(starts[start], ends[end - 1], name.upper()) for start, end in find(plain)]


def merged(first: list[Span], others: list[Span]) -> list[Span]:
    """Add the `others` that overlap nothing, and return all spans in order."""
    taken = list(first)
    end = 0
    for one in sorted(others):
        before = bisect_left(first, one.end, key=lambda span: span.start)
        if end <= one.start and (not before or first[before - 1].end <= one.start):
            taken.append(one)
            end = one.end
    return sorted(taken)


def replaced(text: str, spans: Iterable[Span], placeholder: Any) -> str:
    """Replace each span with `placeholder(span)`."""
    parts: list[str] = []
    at = 0
    for span in spans:
        parts += text[at : span.start], placeholder(span)
        at = span.end
    return "".join([*parts, text[at:]]) if parts else text


AnyEvent = TypeVar("AnyEvent", bound=Model)

IDS = frozenset({"id", "conversation_id", "user_id", "from_user_id", "agent_id", "tenant_id", "reply_to"})
"""Fields that stay, because a redacted id would be another message's."""
FORMS = frozenset({"enum", "const", "pattern", "format"})
"""Rules of a field's JSON schema that a placeholder would break."""
MAX_DEPTH = METADATA_MAX_DEPTH + 4
"""Maximum nesting of the JSON that is read in a dead letter; metadata lies below `data` and its own name."""
LEAST_NUMBER = 10**6
"""Integers from here on are read as texts, because they may be card numbers."""


class TooDeep(ValueError):
    """The JSON has too many levels."""


@cache
def text_limits(event: type[Model]) -> dict[str, int]:
    """Return the maximum length of the texts in each field to redact, as the event's schema has it.

    These are all fields, even new ones, but for ids and those whose values must have a certain form.
    """
    limits: dict[str, int] = {}
    for name, field in event.model_json_schema(by_alias=False)["properties"].items():
        rules = list(_schemas(field))
        if name not in IDS and not any(FORMS & rule.keys() for rule in rules):
            limits[name] = min((rule["maxLength"] for rule in rules if "maxLength" in rule), default=sys.maxsize)
    return limits


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a JSON schema and those inside it."""
    if isinstance(schema, dict):
        yield schema
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from _schemas(part)


class RecordRedaction:
    """Redacts the texts of input events and dead letters, but no ids and keys."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        events: tuple[type[Model], ...] = get_args(InputEvent)
        self._limits = {name: limit for event in events for name, limit in text_limits(event).items()}

    def event(self, event: AnyEvent) -> AnyEvent:
        """Return the event without entities in its texts, including metadata names; ids, times and roles stay.

        A valid event stays valid: a text that has become too long for its field is cut.
        """
        limits = text_limits(type(event))
        given = {name: value for name in limits if (value := getattr(event, name))}
        redacted = {name: self._value(value, MAX_DEPTH, limits[name]) for name, value in given.items()}
        changed = {name: value for name, value in redacted.items() if value != given[name]}
        return event.model_copy(update=changed) if changed else event

    def dead_letter(self, key: bytes | None, value: bytes | None, headers: Headers) -> DeadLetterRecord:
        """Return the dead letter without entities in its value and in its original's headers.

        A value that is not JSON is left out. Its size and its SHA-256 are kept, but the record cannot be replayed from
        there.
        """
        ours = [(name, said) for name, said in headers if name.startswith(RESERVED_PREFIX)]
        others = [(name, said) for name, said in headers if not name.startswith(RESERVED_PREFIX)]
        # a producer may leave a header's value out
        kept = [(self._redactor.redacted(name), said and self._header(said)) for name, said in others]
        if value is None:
            return key, None, kept + ours
        try:
            return key, self._json(value), kept + ours
        except (orjson.JSONDecodeError, orjson.JSONEncodeError, TooDeep):
            known = {name for name, _ in ours}
            said = [(DEAD_LETTER_PREFIX + name, text.encode()) for name, text in cut_headers("value", value).items()]
            return key, None, kept + ours + [(name, text) for name, text in said if name not in known]

    def _header(self, said: bytes) -> bytes:
        return self._redactor.redacted(said.decode(errors="surrogateescape")).encode(errors="surrogateescape")

    def _json(self, value: bytes) -> bytes:
        read = loads(value)
        redacted = self._event_json(read) if isinstance(read, dict) else self._value(read, MAX_DEPTH)
        return value if redacted == read else orjson.dumps(redacted)

    def _event_json(self, event: dict[str, Any], *, is_data: bool = False) -> dict[str, Any]:
        """Redact an event's JSON, or an event in the `data` of a structured CloudEvent; valid fields stay valid."""
        redacted: dict[str, Any] = {}
        for name, value in event.items():
            if name in IDS and isinstance(value, str):
                redacted[name] = value
            elif name == "data" and isinstance(value, dict) and not is_data:
                redacted[name] = self._event_json(value, is_data=True)
            else:
                limit = self._limits.get(name, sys.maxsize)
                redacted[self._redactor.redacted(name)] = self._value(value, MAX_DEPTH, limit)
        return redacted

    def _value(self, value: Any, depth: int, limit: int = sys.maxsize) -> Any:
        """Redact the texts in a value; if several names become the same, the last one stays. Raises: TooDeep."""
        if isinstance(value, str):
            return self._redactor.redacted(value, max(limit, len(value)))
        if type(value) is int and abs(value) >= LEAST_NUMBER:
            text = self._redactor.redacted(str(value))
            return value if text == str(value) else text
        if not isinstance(value, dict | list | tuple):
            return value
        if not depth:
            raise TooDeep
        if isinstance(value, dict):
            return {
                self._value(name, depth, limit): self._value(part, depth - 1, limit) for name, part in value.items()
            }
        return type(value)(self._value(part, depth - 1, limit) for part in value)
