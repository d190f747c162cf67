"""Finds what can be checked in a summary: addresses, codes, dates, times, amounts, numbers, and capitalized names."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cache, lru_cache
from itertools import pairwise
from typing import NamedTuple

from afterword_text.gate.quantities import (
    BARE,
    BEFORE_DATE,
    CLOCK,
    CURRENCIES,
    DIGITS,
    LATIN,
    NUMBER,
    TIME,
    Figure,
    Key,
    chinese_figures,
    compound_keys,
    quantities,
    readable,
    spoken_digits,
    spoken_keys,
    times_of_day,
    units_in_words,
)
from afterword_text.language import (
    UNDETERMINED,
    VOCABULARY,
    date_words,
    is_common,
    stem_words,
    word_set,
)
from afterword_text.language import fold as without_accents
from afterword_text.tokens import token_ids

COUNTED = 12
"""A number up to this one may be the writer's own count: "they compared three options"."""
LEAST_LONG_DIGITS = 7
COMPARED_DIGITS = 9
"""This many last digits of a long number are compared: a telephone number's prefix may be missing or written
differently."""
NEARBY = timedelta(days=60)
"""A conversation may speak of days up to this far away in words that are not read: "next month", "on the 20th"."""
LONGEST_AGO = 1200
"""Months."""
SHORT = 1000
"""Number words of a source with at most this many characters are read in English too."""
NEAR = 100
"""This many characters before and after a digit decide what it means."""
CODE = "code"
"""Kind of a key that is a code without its separators."""
LARGEST_SPELLED = 10**12
DAY = "day"
"""Kind of a key that is a day of any year: 100 times the month, plus the day."""
NOTHING = "-"
"""Stands for the counted word if no word follows the number."""

Exact = tuple[str, str]
"""A kind of token that is compared character by character, such as an address, and its text."""
Day = tuple[int | None, int, int | None]
"""Year, month and day."""


@dataclass(frozen=True)
class Claim:
    """A checkable token. A source supports it with any of `keys`, or if any of `days` may be meant."""

    text: str
    """The token as it was written."""
    keys: frozenset[Key | Exact] = frozenset()
    days: tuple[Day, ...] = ()
    counted: str = ""
    """Stem of the things that a small number counts. If it is not empty, the claim is checked only if the source counts
    the same things."""

    @property
    def whole_numbers(self) -> set[int]:
        values = {Decimal(value) for kind, value in self.keys if kind in (NUMBER, BARE)}
        return {int(value) for value in values if value == int(value) and 0 < value < LARGEST_SPELLED}


@dataclass(frozen=True)
class Facts:
    """The facts that a source supports, in each of their readings."""

    keys: frozenset[Key | Exact]
    counted: frozenset[str]
    """Stems of the words after the source's numbers."""
    days: frozenset[Day]
    """Days and months that the source names as dates."""
    months: frozenset[int]
    """Months that the source names."""
    sent_on: frozenset[date] = frozenset()
    """Days on which the source's messages were sent, if they are known."""
    spells: Callable[[int], bool] = lambda _: False
    """Returns whether the source has a number in words that `readable` does not read."""

    def support(self, claim: Claim) -> bool:
        return (
            not claim.keys.isdisjoint(self.keys)
            or any(map(self.has_day, claim.days))
            or any(map(self.spells, claim.whole_numbers))
        )

    def has_day(self, day: Day) -> bool:
        """Return whether the source names a day, has all its parts, or was written near it."""
        year, month, number = day
        if day in self.days or (year and (None, month, number) in self.days and self._has_number(year)):
            return True
        if year is None and any((month, number) == named[1:] for named in self.days):
            return True
        was_sent_then = any((sent.month, sent.day) == (month, number) for sent in self.sent_on)
        if number and not was_sent_then and any(number == named for _, _, named in self.days):
            return False  # the source has this day in another month or year, so the writer changed the date
        if month in self.months and all(self._has_number(part) for part in (year, number) if part):
            return True
        return self._is_near(day)

    def has_weekday(self, weekday: int) -> bool:
        """Return whether a named day has this weekday, or messages were sent on it or on the day before or after."""
        sent = {(day.weekday() + step) % 7 for day in self.sent_on for step in (-1, 0, 1)}
        named = (_day(*day) for day in self.days)
        return weekday in sent or any(day.weekday() == weekday for day in named if day)

    def _is_near(self, day: Day) -> bool:
        if not self.sent_on:
            return False
        year, month, number = day
        first, last = min(self.sent_on) - NEARBY, max(self.sent_on) + NEARBY
        for each in (year,) if year else range(first.year, last.year + 1):
            ends = [_day(each, month, number)] if number else [_day(each, month, 1), _day(each, month, 28)]
            if any(end and first <= end <= last for end in ends):
                return True
        return False

    def _has_number(self, number: int) -> bool:
        return (NUMBER, Decimal(number)) in self.keys or self.spells(number)


def facts(text: str, language: str) -> list[Claim]:
    """Find the claims of a summary. Linear in its length."""
    found: list[Claim] = []
    text = _TIMESTAMPS.sub(r"\1 \2", text)
    for pattern, claims in EXACT:
        exact = [(match.span(), claims(match)) for match in pattern.finditer(text)]
        found += [claim for _, made in exact for claim in made]
        text = _without(text, [span for span, made in exact if made])
    written = frozenset(re.findall(r"\d+", text))
    text = readable(text, language)
    read = _read(text, language)
    for written_as, days in read.dates:
        found += [Claim(written_as, _day_keys(day for day in each if not day[0]), tuple(each)) for each in days]
    found += [Claim(each.text, each.in_summary) for each in (*read.times, *chinese_figures(read.rest))]
    none = frozenset[Key]()
    wholes = [none, *(frozenset(compound_keys(read.rest, pair)) for pair in pairwise(read.numbers)), none]
    for at, number in enumerate(read.numbers):
        counted, digits = "", read.rest[number.start : number.end].strip()
        has_unit = any(kind.partition(" ")[0] not in (NUMBER, CLOCK) for kind, _ in number.in_summary)
        if digits.isdecimal() and len(digits) <= 2 and int(digits) <= COUNTED and not has_unit:
            counted = _counted(read.rest, number.end, language) or ("" if digits in written else NOTHING)
        keys: frozenset[Key | Exact] = number.in_summary | wholes[at] | wholes[at + 1]
        if _SHORT_DATE.fullmatch(number.text):  # "12.06." is a day or a price
            keys |= _short_dates(number.text, language)
        found.append(Claim(number.text, keys, counted=counted))
    return found


def source_facts(text: str, said: Set[str], language: str, sent_at: Sequence[datetime] = ()) -> Facts:
    """Find what a source supports. Linear in its length.

    `said` has the text's words. `sent_at` are the times of its messages in the zone that the writer saw.
    """
    text = _TIMESTAMPS.sub(r"\1 \2", text)
    named_days = {found.lastgroup or "" for found in _NAMED_DAY.finditer(text)}
    keys: set[Key | Exact] = set()
    for pattern, claims in EXACT:
        for match in pattern.finditer(text):
            made = claims(match)
            keys.update(key for claim in made for key in claim.keys)
            # a summary may name a part of a code or of a telephone number
            keys.update((NUMBER, Decimal(part)) for part in re.findall(r"\d+", match[0] if made else ""))
    # people mix languages, and the language of a short text is uncertain
    languages = {language, "en"} if len(text) <= SHORT else {language}
    text = "\n".join(readable(text, code) for code in sorted(languages))
    keys.update(spoken_keys(text))
    keys.update(units_in_words(text, language))
    for digits in spoken_digits(text):
        keys.update({(NUMBER, Decimal(digits)), (BARE, Decimal(digits)), ("digits", digits[-COMPARED_DIGITS:])})
    # no date or time is far from a digit, and looking for them takes long
    text = re.sub(r"\D+", lambda run: run[0] if len(run[0]) <= 2 * NEAR else f"{run[0][:NEAR]}\n{run[0][-NEAR:]}", text)
    read = _read(text, language)
    days: set[Day] = {day for _, every in read.dates for readings in every for day in readings}
    days |= {(None, int(name[1:3]), int(name[3:])) for name in named_days}
    keys.update(_short_dates(text, language), _day_keys(days), compound_keys(read.rest, read.numbers))
    keys.update(key for figure in (*read.times, *read.numbers) for key in figure.in_source)
    counted = {_counted(read.rest, number.end, language) for number in read.numbers}
    # "two years ago" and "in 18 months" name a month
    spans = {int(value) for kind, value in keys if kind == "month" and abs(Decimal(value)) <= LONGEST_AGO}
    for moment in (*sent_at[:1], *sent_at[-1:]):
        for step in (step for span in spans for step in (-span, span)):
            year, month = divmod(moment.year * 12 + moment.month - 1 + step, 12)
            days.add((year, month + 1, None))
    sent_on = frozenset(moment.date() for moment in sent_at)
    keys.update((TIME, Decimal(moment.hour * 60 + moment.minute)) for moment in sent_at)
    keys.update((NUMBER, Decimal(year)) for day in sent_on for year in (day.year - 1, day.year, day.year + 1))
    keys.update((NUMBER, Decimal(part)) for day in days for part in day if part)
    named = frozenset(month for name, month in months(language).items() if name in said)
    return Facts(frozenset(keys), frozenset(counted - {""}), frozenset(days), named, sent_on)


class _Read(NamedTuple):
    """The figures of a text."""

    dates: list[tuple[str, list[list[Day]]]]
    """Each date as it is written, with the readings of each of its days."""
    times: list[Figure]
    numbers: list[Figure]
    rest: str
    """The text without dates and times, to which the places of `numbers` refer."""


def _read(text: str, language: str) -> _Read:
    """Read the dates, times and numbers of a summary or a source. `text` is what `readable` returned."""
    dates = [(match, _days(match, language)) for match in dates_in(language).finditer(text)]
    dates = [(match, days) for match, days in dates if any(days)]
    text = _without(text, [match.span() for match, _ in dates])
    times = list(times_of_day(text))
    rest = _without(text, [(time.start, time.end) for time in times])
    named = [(match[0].rstrip("."), [each for each in days if each]) for match, days in dates]
    return _Read(named, times, list(quantities(rest, language)), rest)


def _without(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Remove spans, which are in order, from a text."""
    ends = [0, *(end for _, end in spans)]
    starts = [*(start for start, _ in spans), len(text)]
    return " , ".join(text[end:start] for end, start in zip(ends, starts, strict=True))


Claims = Callable[[re.Match[str]], list[Claim]]

# Codes and addresses consist of ASCII letters: in scripts without spaces, other words touch them.
_START, _END = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"
# Lengths are limited as in RFC 5321 and RFC 1035. Otherwise, each letter of a long run would start a search of the run.
_EMAIL = re.compile(rf"{_START}[A-Za-z0-9._%+-]{{1,64}}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
_DOMAINS = "com|org|net|gov|edu|io|eu|uk|de|fr|es|it|nl"
_URL = re.compile(
    r"(?i)(?:https?://|www\.)[A-Za-z0-9._~:/?#@!$&'*+,;=%-]+"
    rf"|{_START}(?:[a-z0-9-]{{1,63}}\.){{1,10}}(?:{_DOMAINS}){_END}(?:/[A-Za-z0-9._~/?#&=%-]*)?"
)
_DOTTED = re.compile(r"(?<![\d.,])\d{1,4}(?:\.\d{1,4}){2,5}(?!\.?\d)")
_LONG_NUMBER = re.compile(rf"(?<![A-Za-z0-9.,:/-])\+?\(?\d(?:[\d ()-]|\.(?!\s)){{5,30}}\d(?![/-]|[.,:]\d){_END}")
_CODE = re.compile(
    rf"{_START}(?<!-)(?<!\d[.,:])(?=[A-Za-z0-9/-]{{0,40}}[0-9])(?=[A-Za-z0-9/-]{{0,40}}[A-Za-z])"
    rf"[A-Za-z0-9]{{1,40}}(?:[-/][A-Za-z0-9]{{1,40}}){{0,6}}(?!-|\.\d){_END}"
)
_MEASURE = re.compile(
    r"\d+(?:[-/]\d+)*(?:(?:st|nd|rd|th|er|re|e)?(?:-[A-Za-z]+)*|-?[a-z]+(?:-[A-Za-z]+)*|[KMGT]?[KMBVWLh]|[AP]M|[KM]W?Hz|kWh?|[KMGT]B)"
    r"|[a-z]+-\d+s?|\d\d?-[A-Za-z]{3,9}-\d{4}|\d*(?:[cdkm]?m|ft|in|yd)[23]|\d+[eE][+-]?\d\d?"
)
"""Measures and dates that are not codes: 21st, 30-day, 62-year-old, 5k, mid-1990, m2, 8-May-2023, 1e6."""
_NEXT_WORD = re.compile(r"(?:st|nd|rd|th)?+\s*+(?:[-–]\s*+)?([^\W\d_]+)")


def _url(match: re.Match[str]) -> list[Claim]:
    """Claim the address and its site: a source that has a page of a site supports the site too."""
    address = re.sub(r"^(?:https?://)?(?:www\.)?", "", match[0].casefold()).rstrip(".,;:!?/")
    site, slash, _ = address.partition("/")
    return [
        Claim(match[0], frozenset({("url", address)})),
        *([Claim(address, frozenset({("url", site)}))] if slash else []),
    ]


def _dotted(match: re.Match[str]) -> list[Claim]:
    """Claim a version or a section number, but not an amount, a date or a telephone number, which is longer."""
    is_longer = len(match[0].replace(".", "")) >= LEAST_LONG_DIGITS
    is_other = is_longer or re.fullmatch(DIGITS, match[0]) or _DATE_IN_DIGITS.search(match[0])
    return [] if is_other else [Claim(match[0], frozenset({("dotted", match[0])}))]


def _long_number(match: re.Match[str]) -> list[Claim]:
    digits = "".join(re.findall(r"\d+", match[0]))
    if len(digits) < LEAST_LONG_DIGITS or _DATE_IN_DIGITS.search(match[0]) or re.fullmatch(DIGITS, match[0]):
        return []
    return [Claim(match[0].strip(), frozenset({("digits", digits[-COMPARED_DIGITS:])}))]


def _code(match: re.Match[str]) -> list[Claim]:
    if _MEASURE.fullmatch(match[0]) or any(times_of_day(match[0])):
        return []
    return [Claim(match[0], frozenset({(CODE, re.sub(r"[-/]", "", match[0]).casefold())}))]


EXACT: tuple[tuple[re.Pattern[str], Claims], ...] = (
    (_EMAIL, lambda match: [Claim(match[0], frozenset({("email", match[0].casefold().rstrip("."))}))]),
    (_URL, _url),
    (_DOTTED, _dotted),
    (_LONG_NUMBER, _long_number),
    (_CODE, _code),
)


def _counted(text: str, end: int, language: str) -> str:
    after = _NEXT_WORD.match(text, end)
    return next(iter(stem_words(after[1], language)), "") if after else ""


_MONTH_NAMES = "january february march april may june july august september october november december"
_WEEKDAY_NAMES = "monday tuesday wednesday thursday friday saturday sunday"
_YEAR = r"(?:1[89]|20)\d\d"
_OF = r"(?:of|de|del|do|d[’'])"
_NTH_DAY = r"(?:0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th|er|e|\.|º)?"
_DATE_IN_DIGITS = re.compile(
    rf"(?<![{LATIN}\d.-])(?:{_YEAR}([-/.])\d\d?\1\d\d?|\d\d?([./-])\d\d?\2(?:{_YEAR}|(?<!-)\d\d))(?![{LATIN}\d])"
)
_SHORT_DATE = re.compile(rf"(?<![{LATIN}\d./$€£-])(\d\d?)[./](\d\d?)(?![{LATIN}\d/%]|\.\d)")
_HYPHENED_DATE = re.compile(rf"(?i)\b(?:{BEFORE_DATE})\s(\d\d?)-(\d\d?)(?![\w/%-]|\.\d)")
MONTH_FIRST = frozenset({"hu", "ja", "ko", "zh"})
ANY_ORDER = frozenset({"en", UNDETERMINED})
_NAMED = "|".join(f"(?P<d{day}>{said})" for day, said in VOCABULARY["times"]["named_days"].items())
_NAMED_DAY = re.compile(rf"(?i)(?<![{LATIN}])(?:{_NAMED})(?![{LATIN}])".replace("\n", ""))
"""Days of the year with names and fixed dates."""
_TIMESTAMPS = re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?(?![A-Za-z\d])")


@cache
def months(language: str) -> dict[str, int]:
    """Return the numbers of months by their names in this language and in English."""
    return _names(language, _MONTH_NAMES)


@cache
def weekdays(language: str) -> dict[str, int]:
    """Return the numbers of weekdays by their names in this language and in English. Monday is 0."""
    return {name: number - 1 for name, number in _names(language, _WEEKDAY_NAMES).items()}


def _names(language: str, listed: str) -> dict[str, int]:
    return {
        name.casefold(): number
        for code in (language, "en")
        for number, key in enumerate(listed.split(), 1)
        for name in date_words(code).get(key, ())
        if name.isalpha() and len(name) > 2
    }


@cache
def dates_in(language: str) -> re.Pattern[str]:
    """Return a pattern for days with or without a year, for days of one month, and for a month of a year."""
    month = "|".join(map(re.escape, sorted(months(language), key=len, reverse=True)))
    year = rf",?\s{{1,3}}(?:{_OF}\s{{1,3}})?"
    to = r"\s?[–—-]\s?|\s(?:and|to|through|und|bis|et|au|y|al|e|a|en|tot|og|til)\s"
    return re.compile(
        rf"(?i)(?<![{LATIN}\d.:-])(?:(?P<y0>{_YEAR})(?P<sign>[-/.])(?P<m0>\d\d?)(?P=sign)(?P<d0>\d\d?)"
        rf"|(?:(?P<y1>{_YEAR})[年년]\s?)?(?P<m1>\d\d?)[月월](?:\s?(?P<d1>\d\d?)[日일]?)?"
        rf"|(?P<d2>\d\d?)(?P<mark>[./-])(?P<m2>\d\d?)(?P=mark)(?P<y2>{_YEAR}|(?<!-)\d\d)"
        rf"|(?P<m3>{month})\.?\s{{1,3}}(?:the\s{{1,3}})?(?P<d3>{_NTH_DAY})(?!:?\d)(?:(?:{to})(?P<last>{_NTH_DAY})(?!\d))?"
        rf"(?:{year}(?P<y3>{_YEAR}))?"
        rf"|(?:(?P<first>{_NTH_DAY})(?:{to}))?(?P<d4>{_NTH_DAY})(?:\s{{1,3}}(?:{_OF}\s{{1,3}})?|-)(?P<m4>{month})\b\.?"
        rf"(?:(?:{year}|-)(?P<y4>{_YEAR}))?"
        rf"|(?P<m5>{month})\.?{year}(?P<y5>{_YEAR}))(?![{LATIN}\d])"
    )


def _days(match: re.Match[str], language: str) -> list[list[Day]]:
    """Read each day of a date: in both readings if digits do not show which is the month, as in English."""
    part = match.groupdict()
    year, month, number = (next(filter(None, (part.get(f"{each}{n}") for n in range(6))), "") for each in "ymd")
    of_year = int(year) if year else None
    if len(year) == 2:  # POSIX's rule for two-digit years
        of_year = int(year) + (1900 if year >= "69" else 2000)
    of_month = int(month) if month.isdecimal() else months(language).get(month.casefold(), 0)
    numbers = [int(re.sub(r"\D", "", each)) for each in (part["first"], number, part["last"]) if each]
    every: list[list[Day]] = [[(of_year, of_month, each)] for each in numbers] or [[(of_year, of_month, None)]]
    if match["mark"]:
        return [[(of_year, *day) for day in _in_order(numbers[0], of_month, language)]]
    return [[day for day in readings if 1 <= day[1] <= 12] for readings in every]


def _day_keys(days: Iterable[Day]) -> frozenset[Key | Exact]:
    return frozenset((DAY, Decimal(100 * month + number)) for _, month, number in days if number)


def _short_dates(text: str, language: str) -> frozenset[Key | Exact]:
    """Return the days that "12.6.", "6/12" and, after some words, "5-6" may mean."""
    pairs = (*_SHORT_DATE.findall(text), *_HYPHENED_DATE.findall(text))
    days = (day for first, other in pairs for day in _in_order(int(first), int(other), language))
    return _day_keys((None, *day) for day in days)


def _in_order(first: int, other: int, language: str) -> list[tuple[int, int]]:
    """Return the months and days that two numbers may mean, in the order of the language unless no day has it."""
    ordered = [(first, other), (other, first)] if language in MONTH_FIRST else [(other, first), (first, other)]
    days = [(month, day) for month, day in ordered if 1 <= month <= 12 and 1 <= day <= 31]
    return days if language in ANY_ORDER else days[:1]


def _day(year: int | None, month: int, number: int | None) -> date | None:
    try:
        return date(year, month, number) if year and number else None
    except ValueError:
        return None


NOUN_CAPITALS = frozenset({"de", "lb"})
"""These languages capitalize every noun, so only words marked as names count in them."""
TITLE_CASE = 0.6
"""A text with at least this share of capitalized words is a heading that capitalizes ordinary words too."""
LONGEST_NAME = 40
"""A word with at least this many characters is not taken for a name."""

ROLES = word_set("names", "roles")
_NO_NAMES = word_set("names", "others") | CURRENCIES.keys() | ROLES
_ENDINGS = tuple(word_set("names", "endings"))
_OPENERS = word_set("names", "openers")
SHORTEST_ADVERB = 9
"""Letters. A shorter word in -ly may be a name such as Sally or Kimberly."""

# letters of scripts that put spaces between words
_LETTERS = r"[^\W\d_\u0e00-\u0e7f\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
_NAME = re.compile(rf"(?<![A-Za-zÀ-ɏ\d_]){_LETTERS}++(?:[’']{_LETTERS}++)*+(?![\d_])")
_BEFORE_START = re.compile(r"(?:\A|[.!?…:;。！？\n•*\"“”„«»(\[–—|])[\s\"'“”„«»(\[*#-]*\Z")
_ADDRESSED = re.compile(r"\b(?:Herrn?|Frau|Familie|Firma|Dr\.|Prof\.)\s*(?:[^\W\d_]\.\s*)*$")
_SPACE = re.compile(r"\s+")
_POSSESSIVE = re.compile(r"[’'][sS]?$")


def names(text: str, language: str) -> Iterator[tuple[str, str]]:
    """Yield each name in a summary, in order, as it is written and folded. Linear in the length."""
    written = list(_NAME.finditer(text))
    capitals = [match for match in written if match[0][0].isupper() and len(match[0]) < LONGEST_NAME]
    if language in NOUN_CAPITALS:
        capitals = list(_marked(text, capitals, language))
    else:
        is_heading = len(capitals) >= TITLE_CASE * len(written)
        placed = [is_heading or _begins_sentence(text, match) for match in capitals]
        inside = {fold(match[0]) for match, is_placed in zip(capitals, placed, strict=True) if not is_placed}
        capitals = [
            match
            for match, is_placed in zip(capitals, placed, strict=True)
            if not is_placed or fold(match[0]) in inside or _has_inner_capital(match) or not _opens_sentences(match[0])
        ]
    for match in capitals:
        word = fold(match[0])
        if len(word) > 1 and not {word, word.removesuffix("s")} & _NO_NAMES and not is_common(match[0], language):
            yield _POSSESSIVE.sub("", match[0]), word


def _marked(text: str, capitals: Sequence[re.Match[str]], language: str) -> Iterator[re.Match[str]]:
    """Yield the words that a title or a neighbouring name marks as names. Nouns rarely follow each other; names do."""
    # a unit after a number is not a name, or the German "39,5 Grad Fieber" (a fever of 39.5 degrees) would be one
    capitals = [
        m
        for m in capitals
        if not is_common(m[0], language) and not text[max(0, m.start() - 8) : m.start()].rstrip()[-1:].isdigit()
    ]
    for before, match, after in zip([None, *capitals], capitals, [*capitals[1:], None], strict=False):
        has_neighbour = (before and _SPACE.fullmatch(text, before.end(), match.start())) or (
            after and _SPACE.fullmatch(text, match.end(), after.start())
        )
        is_addressed = _ADDRESSED.search(text, max(0, match.start() - 30), match.start())
        if _has_inner_capital(match) or is_addressed or (has_neighbour and not _begins_sentence(text, match)):
            yield match


def fold(word: str) -> str:
    """Fold case, accents, possessive and elided article: "Zoë's" → "zoe", "l'Olympia" → "olympia"."""
    longest = max(re.split("[’']", word), key=len) if "'" in word or "’" in word else word
    return without_accents(longest.casefold())


def words_of(text: str) -> Iterator[str]:
    """Yield the text's distinct words, folded as names are."""
    return map(fold, set(_NAME.findall(text)))


def _begins_sentence(text: str, match: re.Match[str]) -> bool:
    return bool(_BEFORE_START.search(text, max(0, match.start() - 8), match.start()))


def _has_inner_capital(match: re.Match[str]) -> bool:
    return any(c.isupper() for c in match[0][1:])


def _opens_sentences(word: str) -> bool:
    """Return whether the word is usually capitalized only because it begins a sentence, and so is not a name."""
    is_adverb = len(word) >= SHORTEST_ADVERB and word.endswith("ly")
    return is_adverb or word.lower() in _OPENERS or is_ordinary(word)


@lru_cache(maxsize=4096)
def is_ordinary(word: str) -> bool:
    """Return whether the word is written without a capital more often than with one.

    This is read from a tokenizer's vocabulary, learned from web text: the more frequent a piece is, the lower is its
    id.
    """
    small, capital = token_ids(" " + word.lower()), token_ids(" " + word[:1].upper() + word[1:].lower())
    if len(small) != len(capital):
        return len(small) < len(capital)
    return small < capital if len(small) == 1 else word.endswith(_ENDINGS)
