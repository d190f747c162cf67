"""Facts that can be checked to the letter: addresses, codes, dates, times, amounts and numbers."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from afterword.streams.dates import (
    DATE,
    MONTH_OF_YEAR,
    MONTHS,
    SPOKEN,
    DatePattern,
    Period,
    days_apart,
    has_month,
    month_of_year,
    named_periods,
)
from afterword.streams.language import stem_words
from afterword.streams.summarizer.quality.figures import (
    AMOUNT,
    TIME,
    amount_keys,
    amounts,
    claimed_date,
    clock_keys,
    date_keys,
    integer,
    month_keys,
    period_keys,
    time_keys,
    time_numbers,
    with_digits,
)
from afterword.streams.summarizer.quality.spoken import spoken_keys, with_halves

COUNTED = 12
"""Largest number that may be a count made by the writer: "they compared three options"."""
LONGEST_COUNT = 20
"""Digits; Python reads no number of more than 4,300."""
LEAST_PHONE_DIGITS = 7
NATIONAL_DIGITS = 9
"""Last digits of a telephone number that are compared: the prefix may be missing or written differently."""


class HintedPattern:
    """Pattern of which every match has a `hint` in it, a pattern too: a text without any is not searched."""

    def __init__(self, pattern: str, hint: str) -> None:
        self.whole = re.compile(pattern)
        self._hint = re.compile(hint)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        return self.whole.finditer(text) if self._hint.search(text) else iter(())

    def sub(self, new: Callable[[re.Match[str]], str], text: str) -> str:
        return self.whole.sub(new, text) if self._hint.search(text) else text


# Codes and addresses are of ASCII letters: in scripts without spaces the words around them touch them.
_START, _END = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"
# Lengths are bounded, by RFC 5321 and RFC 1035: otherwise each letter of a long run begins another search of all of it.
_EMAIL = HintedPattern(rf"{_START}[A-Za-z0-9._%+-]{{1,64}}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+", hint="@")
_DOMAINS = "com|org|net|gov|edu|io|eu|uk|de|fr|es|it|nl"
_URL = HintedPattern(
    r"(?i)(?:https?://|www\.)[A-Za-z0-9._~:/?#@!$&'*+,;=%-]+"
    rf"|{_START}(?:[a-z0-9-]{{1,63}}\.){{1,10}}(?:{_DOMAINS}){_END}(?:/[A-Za-z0-9._~/?#&=%-]*)?",
    hint=rf"(?i)://|www\.|\.(?:{_DOMAINS})",
)
_DOTTED = re.compile(r"(?<![\d.,])\d{1,4}(?:\.\d{1,4}){2,5}(?!\.?\d)")
_PHONE = re.compile(rf"(?<![A-Za-z0-9.,/-])\+?\(?\d[\d ().-]{{5,30}}\d(?![/-]){_END}")
_IBAN = re.compile(rf"{_START}[A-Z]{{2}}\d\d(?: ?[A-Z0-9]{{4}}){{2,7}}(?: ?[A-Z0-9]{{1,3}})?{_END}")
_CODE = re.compile(
    rf"{_START}(?<!-)(?=[A-Za-z0-9/-]{{0,40}}\d)(?=[A-Za-z0-9/-]{{0,40}}[A-Za-z])"
    rf"[A-Za-z0-9]{{1,40}}(?:[-/][A-Za-z0-9]{{1,40}}){{0,6}}(?!-){_END}"
)
_MEASURE = re.compile(
    r"\d+(?:[-/]\d+)*(?:(?:st|nd|rd|th|er|re|e)?(?:-[A-Za-z]+)*|-?[a-z]+(?:-[A-Za-z]+)*|[KM]|[AP]M)|[a-z]+-\d+"
    r"|\d*(?:[cdkm]?m|ft|in|yd)[23]"
)
"""Measures that are no codes: 21st, 30-day, 62-year-old, 5k, mid-1990, m2."""
_WITH_POINT = re.compile(
    r"(?<![\d.,])(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?:\.\d{3})+(?:,\d+)?|\d+[.,]\d\d?)(?![.,]?\d)"
)
"""Numbers with decimals, or separators of thousands."""
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d")
_TIMESTAMPS = re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?(?![A-Za-z\d])")
_WORD = re.compile(r"\w+")
_NEXT_WORD = re.compile(r"\s*+(?:[-–]\s*+)?([^\W\d_]+)")
_JOINED_WORDS = 3
NOTHING = "-"
"""Placeholder of the counted word where no word follows."""


Message = tuple[datetime, str]
"""Time of a message, in the zone in which its words are meant, and its content."""


@dataclass(frozen=True)
class Claim:
    """One checkable token. A source with any of `keys` supports it, and so does one with all of one of `together`."""

    text: str
    """The token as it was written."""
    keys: frozenset[str]
    together: tuple[frozenset[str], ...] = ()
    counted: str = ""
    """Stem of what a small number counts: it is checked only where the source counts the same; empty: always."""


@dataclass(frozen=True)
class FactKeys:
    """Keys of a source: every reading of every fact in it."""

    keys: frozenset[str]
    counted: frozenset[str]
    """Stems of the words that follow its numbers."""


def facts(text: str, language: str) -> list[Claim]:
    """Find the claims of a summary. Linear in its length."""
    found: list[Claim] = []
    text = _apart(text)
    for pattern, claims in EXACT:
        text = _taken(text, pattern, claims, found)
    written = frozenset(re.findall(r"\d+", text))
    text = with_digits(text, language)
    text = _taken(text, DATE, _date, found)
    text = _taken(text, MONTH_OF_YEAR, _month, found)
    text = _taken(text, TIME, _time, found)
    return found + [_number(match, text, written, language) for match in amounts(text)]


def fact_keys(text: str, language: str) -> FactKeys:
    """Find the keys that a source supports. Linear in its length."""
    keys = {
        key for pattern, claims in EXACT for match in pattern.finditer(text) for c in claims(match) for key in c.keys
    }
    # "0.5" is neither 0 nor 5; parts of dates, codes and numbers of telephones may be named alone
    keys.update(_joined(text), (integer(digits) for digits in re.findall(r"\d+", _WITH_POINT.sub(" ", text))))
    text = with_digits(text, language)
    if has_month(text):
        keys.update(f"month {MONTHS[word]}" for word in _WORD.findall(text.casefold()) if word in MONTHS)
    text = _apart(text)
    keys.update(key for match in DATE.finditer(text) for key in date_keys(match))
    months = filter(None, map(month_of_year, MONTH_OF_YEAR.finditer(text)))
    keys.update(key for year, month in months for key in month_keys(year, month))
    keys.update(key for match in TIME.finditer(text) for key in time_keys(match) | time_numbers(match))
    keys.update(spoken_keys(text, language))
    numbers = list(amounts(text))
    halves = with_halves(text, language)
    more = amounts(halves) if halves != text else ()
    keys.update(key for match in (*numbers, *more) for key in amount_keys(match, source=True))
    return FactKeys(frozenset(keys), frozenset(_counted(text, match, language) for match in numbers) - {""})


def time_keys_of(messages: Iterable[Message], language: str) -> frozenset[str]:
    """Find the keys that a source supports by its times: days and minutes, and what its words make of them.

    Linear in its length. English is read beside the source's language: people mix the two.
    """
    languages = {language, "en"} & SPOKEN
    named: set[Period] = set()
    keys: set[str] = set()
    for at, text in messages:
        named |= {Period(at.date(), at.date())} | named_periods(text, at.date(), languages)
        keys |= clock_keys(at)
    return frozenset(keys).union(*map(period_keys, named))


def _apart(text: str) -> str:
    """Write each day by itself, and the timestamps of computers as people write them, without seconds."""
    return days_apart(_TIMESTAMPS.sub(r"\1 \2", text))


Claims = Callable[[re.Match[str]], list[Claim]]


def _taken(
    text: str, pattern: re.Pattern[str] | DatePattern | HintedPattern, claims: Claims, found: list[Claim]
) -> str:
    """Move claims from the text to `found`; returns the rest of the text."""

    def take(match: re.Match[str]) -> str:
        made = claims(match)
        found.extend(made)
        return " , " if made else match[0]

    return pattern.sub(take, text)


def _email(match: re.Match[str]) -> list[Claim]:
    return [Claim(match[0], frozenset({f"email {match[0].casefold().rstrip('.')}"}))]


def _url(match: re.Match[str]) -> list[Claim]:
    """Claim the address, and its site: a source that has a page of a site supports the site too."""
    address = re.sub(r"^(?:https?://)?(?:www\.)?", "", match[0].casefold()).rstrip(".,;:!?/")
    return [Claim(match[0], frozenset({f"url {address}"})), *_site(address)]


def _site(address: str) -> Iterator[Claim]:
    if "/" in address:
        yield Claim(address, frozenset({f"url {address.partition('/')[0]}"}))


def _phone(match: re.Match[str]) -> list[Claim]:
    groups = re.findall(r"\d+", match[0])
    if len("".join(groups)) < LEAST_PHONE_DIGITS or DATE.whole.search(match[0]) or AMOUNT.fullmatch(match[0]):
        return []
    number = f"phone {''.join(groups)[-NATIONAL_DIGITS:]}"
    return [Claim(match[0].strip(), frozenset({number}), (frozenset(map(integer, groups)),))]


def _dotted(match: re.Match[str]) -> list[Claim]:
    """Claim a version, or the number of a section: neither an amount nor a date. Longer ones are telephone numbers."""
    number = match[0]
    is_longer = len(number.replace(".", "")) >= LEAST_PHONE_DIGITS
    if is_longer or AMOUNT.fullmatch(number) or DATE.whole.search(number):
        return []
    return [Claim(number, frozenset({f"dotted {number}"}))]


def _iban(match: re.Match[str]) -> list[Claim]:
    """Claim the number of an account, by its check digits (ISO 13616): words in capitals may look like one."""
    plain = match[0].replace(" ", "")
    number = int("".join(str(int(letter, 36)) for letter in plain[4:] + plain[:4]))
    return _whole_code(match) if number % 97 == 1 else []


def _whole_code(match: re.Match[str]) -> list[Claim]:
    return [Claim(match[0], frozenset({f"code {_letters_and_digits(match[0])}"}))]


def _code(match: re.Match[str]) -> list[Claim]:
    if any(pattern.fullmatch(match[0]) for pattern in (_MEASURE, _TIMESTAMP, DATE.whole, TIME)):
        return []
    return _whole_code(match)


def _date(match: re.Match[str]) -> list[Claim]:
    keys, together = claimed_date(match)
    return [Claim(match[0].rstrip("."), keys, together)] if keys else []


def _month(match: re.Match[str]) -> list[Claim]:
    """Claim a month of a year. The source may have the two apart, as in "next May … in 2024"."""
    found = month_of_year(match)
    if found is None:
        return []
    year, month = found
    return [Claim(match[0], frozenset({f"in {year}-{month}"}), (frozenset({f"month {month}", str(year)}),))]


def _time(match: re.Match[str]) -> list[Claim]:
    return [Claim(match[0].strip(), time_keys(match))]


def _number(match: re.Match[str], text: str, written: frozenset[str], language: str) -> Claim:
    digits, counted = match["digits"], ""
    if digits.isdecimal() and len(digits) <= LONGEST_COUNT and int(digits) <= COUNTED:
        counted = _counted(text, match, language) or ("" if digits in written else NOTHING)
    return Claim(match[0].strip(), amount_keys(match, source=False), counted=counted)


def _counted(text: str, number: re.Match[str], language: str) -> str:
    after = _NEXT_WORD.match(text, number.end("digits"))
    return next(iter(stem_words(after[1], language)), "") if after else ""


def _joined(text: str) -> Iterator[str]:
    """Join neighbouring words to codes as a summary may do: "AB 1234" for "AB-1234"."""
    words = _WORD.findall(text)
    with_digits = [at for at, word in enumerate(words) if not word.isalpha() and _has_digit(word)]
    for begin, end in {
        (begin, begin + size)
        for at in with_digits
        for size in range(1, _JOINED_WORDS + 1)
        for begin in range(max(0, at - size + 1), min(at, len(words) - size) + 1)
    }:
        yield f"code {_letters_and_digits(''.join(words[begin:end]))}"


def _has_digit(word: str) -> bool:
    return any(c.isdigit() for c in word.casefold())


def _letters_and_digits(text: str) -> str:
    text = text.casefold()
    return text if text.isalnum() else "".join(filter(str.isalnum, text))


EXACT: tuple[tuple[re.Pattern[str] | HintedPattern, Claims], ...] = (
    (_EMAIL, _email),
    (_URL, _url),
    (_DOTTED, _dotted),
    (_IBAN, _iban),
    (_PHONE, _phone),
    (_CODE, _code),
)
