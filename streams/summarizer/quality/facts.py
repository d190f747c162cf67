"""Facts that can be checked to the letter: addresses, codes, dates, times, amounts and numbers."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from afterword.streams.language import stem_words
from afterword.streams.summarizer.quality.figures import (
    AMOUNT,
    DATE,
    MONTHS,
    TIME,
    amount_keys,
    date_keys,
    date_parts,
    integer,
    time_keys,
    with_digits,
    year,
)

COUNTED = 12
"""Largest number that may be a count made by the writer: "they compared three options"."""
LONGEST_COUNT = 20
"""Digits; Python reads no number of more than 4,300."""
LEAST_PHONE_DIGITS = 7
NATIONAL_DIGITS = 9
"""Last digits of a telephone number that are compared: the prefix may be missing or written differently."""

# Codes and addresses are of ASCII letters: in scripts without spaces the words around them touch them.
_START, _END = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"
# Lengths are bounded, by RFC 5321 and RFC 1035: otherwise each letter of a long run begins another search of all of it.
_EMAIL = re.compile(rf"{_START}[A-Za-z0-9._%+-]{{1,64}}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
_URL = re.compile(
    r"(?:https?://|www\.)[A-Za-z0-9._~:/?#@!$&'*+,;=%-]+"
    rf"|{_START}(?:[a-z0-9-]{{1,63}}\.){{1,10}}(?:com|org|net|gov|edu|io|eu|uk|de|fr|es|it|nl){_END}(?:/[A-Za-z0-9._~/?#&=%-]*)?",
    re.IGNORECASE,
)
_PHONE = re.compile(rf"(?<![A-Za-z0-9.,/-])\+?\(?\d[\d ().-]{{5,30}}\d(?![/-]){_END}")
_CODE = re.compile(
    rf"{_START}(?<!-)(?=[A-Za-z0-9/-]{{0,40}}\d)(?=[A-Za-z0-9/-]{{0,40}}[A-Za-z])"
    rf"[A-Za-z0-9]{{1,40}}(?:[-/][A-Za-z0-9]{{1,40}}){{0,6}}(?!-){_END}"
)
_MEASURE = re.compile(
    r"\d+(?:[-/]\d+)*(?:(?:st|nd|rd|th|er|re|e)?(?:-[A-Za-z]+)*|-?[a-z]+(?:-[A-Za-z]+)*|[KM])|[a-z]+-\d+"
)
"""Measures that are no codes: 21st, 30-day, 62-year-old, 5k, mid-1990."""
_WORD = re.compile(r"\w+")
_NEXT_WORD = re.compile(r"\s*+(?:[-–]\s*+)?([^\W\d_]+)")
_JOINED_WORDS = 3
NOTHING = "-"
"""Placeholder of the counted word where no word follows."""


@dataclass(frozen=True)
class Claim:
    """One checkable token. A source with any of `keys` supports it, and so does one with all of `together`."""

    text: str
    """The token as it was written."""
    keys: frozenset[str]
    together: frozenset[str] = frozenset()
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
    for pattern, claims in _EXACT:
        text = _taken(text, pattern, claims, found)
    written = frozenset(re.findall(r"\d+", text))
    text = with_digits(text, language)
    text = _taken(text, DATE, _date, found)
    text = _taken(text, TIME, _time, found)
    return found + [_number(match, text, written, language) for match in AMOUNT.finditer(text)]


def fact_keys(text: str, language: str) -> FactKeys:
    """Find the keys that a source supports. Linear in its length."""
    keys = {
        key for pattern, claims in _EXACT for match in pattern.finditer(text) for c in claims(match) for key in c.keys
    }
    keys.update(_joined(text), (integer(digits) for digits in re.findall(r"\d+", text)))
    text = with_digits(text, language)
    keys.update(f"month {MONTHS[word]}" for word in _WORD.findall(text.casefold()) if word in MONTHS)
    keys.update(key for match in DATE.finditer(text) for key in date_keys(match))
    keys.update(key for match in TIME.finditer(text) for key in time_keys(match))
    numbers = list(AMOUNT.finditer(text))
    keys.update(key for match in numbers for key in amount_keys(match, source=True))
    return FactKeys(frozenset(keys), frozenset(_counted(text, match, language) for match in numbers) - {""})


Claims = Callable[[re.Match[str]], list[Claim]]


def _taken(text: str, pattern: re.Pattern[str], claims: Claims, found: list[Claim]) -> str:
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
    if len("".join(groups)) < LEAST_PHONE_DIGITS or DATE.search(match[0]) or AMOUNT.fullmatch(match[0]):
        return []
    number = f"phone {''.join(groups)[-NATIONAL_DIGITS:]}"
    return [Claim(match[0].strip(), frozenset({number}), frozenset(map(integer, groups)))]


def _code(match: re.Match[str]) -> list[Claim]:
    if _MEASURE.fullmatch(match[0]):
        return []
    return [Claim(match[0], frozenset({f"code {_letters_and_digits(match[0])}"}))]


def _date(match: re.Match[str]) -> list[Claim]:
    parts = date_parts(match)
    if not parts:
        return []
    claims = [Claim(match[0].rstrip("."), date_keys(match), parts)]
    found = year(match)
    return claims + ([Claim(found, frozenset({found}))] if found else [])


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
    words = [word.casefold() for word in _WORD.findall(text)]
    with_digits = [at for at, word in enumerate(words) if not word.isalpha() and any(c.isdigit() for c in word)]
    for size in range(1, _JOINED_WORDS + 1):
        begins = {begin for at in with_digits for begin in range(at - size + 1, at + 1)}
        for begin in begins:
            if 0 <= begin <= len(words) - size:
                yield f"code {_letters_and_digits(''.join(words[begin : begin + size]))}"


def _letters_and_digits(text: str) -> str:
    return "".join(c for c in text.casefold() if c.isalnum())


_EXACT: tuple[tuple[re.Pattern[str], Claims], ...] = ((_EMAIL, _email), (_URL, _url), (_PHONE, _phone), (_CODE, _code))
