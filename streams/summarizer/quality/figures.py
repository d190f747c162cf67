"""Numbers, amounts, dates and times of day: how they are written, and the keys by which two writings compare equal."""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal

from text_to_num import alpha2digit

from afterword.streams.dates import Period, readings, year_of

WORDS_KNOWN = frozenset({"da", "de", "en", "es", "fr", "it", "nl", "pt"})
"""Languages whose number words text2num reads; elsewhere only digits are numbers."""
ANY_CURRENCY = "any"
PIECE_CHARACTERS = 2000
_SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s")
_SPACE = re.compile(r"\s")

_SCALES = {
    1000: "k tsd thousand thousands tausend mille mil mila duizend 千",
    1_000_000: "m mn mio million millions millionen millón millones milhão milhões milione milioni miljoen",
    1_000_000_000: "bn billion billions milliarde milliarden milliard milliards miliardo miliardi miljard",
}
SCALES = {word: factor for factor, listed in _SCALES.items() for word in [*listed.split(), str(factor)]}
_CURRENCIES = {
    "usd": "$ usd dollar dollars buck bucks dólar dólares dollari",
    "eur": "€ eur euro euros",
    "gbp": "£ gbp pound pounds quid pfund livres libras",
    "jpy": "¥ jpy yen cny rmb yuan 元 円",
    "inr": "₹ inr rupee rupees",
    "chf": "chf franken",
}
CURRENCIES = {word: code for code, listed in _CURRENCIES.items() for word in listed.split()}

DIGITS = (
    r"\d{1,2}(?:,\d{2})+,\d{3}(?!\d)(?:\.\d+)?"  # lakhs and crores, as India writes them
    r"|\d{1,3}(?:[.,'’ \u00a0\u202f]\d{3})+(?:[.,]\d+)?(?!\d)|\d+(?:[.,]\d+)?"
)
_LETTER = "A-Za-zÀ-ɏ"
"""Latin letters: in scripts without spaces words touch the digits."""
_SYMBOL = "[$€£¥₹]"
_UNIT = "|".join(sorted({re.escape(w) for w in (*SCALES, *CURRENCIES) if w[0] not in "$€£¥₹"}, key=len, reverse=True))
AMOUNT = re.compile(
    rf"(?P<before>{_SYMBOL}|\b(?:usd|eur|gbp|chf|inr)\b)?\s?(?<![{_LETTER}\d.,])(?P<digits>{DIGITS})"
    rf"(?:\s?(?P<scale>{_UNIT})(?![{_LETTER}]))?(?:\s?(?P<after>{_SYMBOL}|(?:{_UNIT})(?![{_LETTER}])))?",
    re.IGNORECASE,
)
"""A number with what multiplies it and its currency, if any."""
_DIGIT = re.compile(r"\d")
_LONGEST_BEFORE = 4
"""Characters of a currency and a space before a number."""


def amounts(text: str) -> Iterator[re.Match[str]]:
    """Find the same as `AMOUNT.finditer`, which tries every character: a number begins shortly before a digit."""
    at = 0
    while digit := _DIGIT.search(text, at):
        found = AMOUNT.search(text, max(at, digit.start() - _LONGEST_BEFORE))
        if found is None:
            return
        yield found
        at = found.end()


def with_digits(text: str, language: str) -> str:
    """Write number words as digits: "twenty-three" → "23", "the twenty-first" → "the 21st".

    In pieces: the reader of number words takes time that grows with the square of the length.
    """
    if language not in WORDS_KNOWN:
        return text
    return "".join(str(alpha2digit(piece, language, threshold=0)) for piece in _pieces(text))


def _pieces(text: str) -> Iterator[str]:
    """Cut a text where a sentence ends, else between words, else anywhere."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        near = (start + PIECE_CHARACTERS, start + 2 * PIECE_CHARACTERS)
        cut = _SENTENCE_END.search(text, *near) or _SPACE.search(text, *near)
        end = cut.end() if cut else near[0]
        yield text[start:end]
        start = end
    yield text[start:]


def values(digits: str) -> Iterator[str]:
    """Yield every value that the digits may have: "1.500" is 1500 in one country and 1.5 in another."""
    plain = re.sub(r"['’\s]", "", digits)
    found = re.fullmatch(r"([\d.,]*?)(?:[.,](\d+))?", plain)
    whole, fraction = (found[1], found[2]) if found else (plain, None)
    whole = re.sub(r"[.,]", "", whole)
    if fraction is None:
        yield canonical(Decimal(whole))
        return
    if len(fraction) == 3:
        yield canonical(Decimal(whole + fraction))
    if whole:
        yield canonical(Decimal(f"{whole}.{fraction}"))


def canonical(number: Decimal) -> str:
    """Format a number without leading or trailing zeros, never in scientific notation."""
    text = f"{number:f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).lstrip("0") or "0"


def integer(digits: str) -> str:
    """Strip leading zeros."""
    return digits.lstrip("0") or "0"


def amount_keys(found: re.Match[str], *, source: bool) -> frozenset[str]:
    """Keys by which a match of AMOUNT is compared.

    A source's number without a currency supports an amount in any currency; a summary must not change the currency.
    """
    scale = (found["scale"] or "").casefold()
    factor = SCALES.get(scale, 1)
    read = list(values(found["digits"]))
    read += [canonical(Decimal(value) * factor) for value in read if factor > 1]
    marks = (found["before"], found["scale"], found["after"])
    currency = next((CURRENCIES[m.casefold()] for m in marks if m and m.casefold() in CURRENCIES), None)
    if source:
        return frozenset(read) | {f"{value} {currency or ANY_CURRENCY}" for value in read}
    if currency:
        return frozenset(f"{value} {mark}" for value in read for mark in (currency, ANY_CURRENCY))
    return frozenset(read)


TIME = re.compile(
    r"(?<![A-Za-zÀ-ɏ\d.,:])(?:(?P<h1>1[0-2]|0?[1-9])(?:[:.](?P<n1>[0-5]\d))?\s?(?P<half>[ap])\.?m\b\.?"
    r"|(?P<h2>[01]?\d|2[0-3])(?:[:h](?P<n2>[0-5]\d)(?::[0-5]\d)?|\.(?P<n3>[0-5]\d)(?=\s?(?:Uhr|uur)\b))"
    r"(?![A-Za-zÀ-ɏ\d])"
    r"|(?:(?<=\bkl\.\s)|(?<=\bkl\s)|(?<=\bklokken\s)|(?<=\balle\s)|(?<=\bdalle\s)|(?<=\bore\s))"  # Danish, Italian
    r"(?P<h3>[01]?\d|2[0-3])\.(?P<n4>[0-5]\d)(?![.,]?\d))",
    re.IGNORECASE,
)
_HOURS, _MINUTES = ("h1", "h2", "h3"), ("n1", "n2", "n3", "n4")
HOURS_OF_HALF_DAY = 12
MINUTES_OF_HALF_DAY = 720
LONGEST_PERIOD = 31
"""Days of a period each of which may be named: a week or a month, but not a year."""


def date_keys(found: re.Match[str]) -> frozenset[str]:
    """Keys of a day in a source, with its year and without."""
    year = year_of(found)
    keys = {f"date {month}-{day}" for month, day in readings(found) if 1 <= month <= 12}
    if year is None:
        return frozenset(keys | {key.replace("date", "undated") for key in keys})
    days = {key.replace("date ", f"day {year}-") for key in keys}
    return frozenset(keys | days | {year} | {key for m, _ in readings(found) for key in month_keys(int(year), m)})


def claimed_date(found: re.Match[str]) -> tuple[frozenset[str], tuple[frozenset[str], ...]]:
    """Keys of a day in a summary, of which one is enough, and those that must come together.

    In both readings where digits alone do not decide which is which. Months and days may be apart: "in March … on the
    12th". A year must be that of the day, or one that the source has where it names the day without a year.
    """
    year, read = year_of(found), [(month, day) for month, day in readings(found) if 1 <= month <= 12]
    of_year = {year} if year else set()
    apart = tuple(frozenset({f"month {month}", str(day)} | of_year) for month, day in read[:1])
    if year is None:
        return frozenset(f"date {month}-{day}" for month, day in read), apart
    undated = tuple(frozenset({f"undated {month}-{day}", year}) for month, day in read)
    return frozenset(f"day {year}-{month}-{day}" for month, day in read), apart + undated


def month_keys(year: int, month: int) -> frozenset[str]:
    """Keys of a month in which a source has a day."""
    return frozenset({f"in {month}", f"in {year}-{month}"})


def period_keys(period: Period) -> frozenset[str]:
    """Keys of days that a source names by other words than a date, or on which its messages were sent."""
    keys = {str(period.first.year), str(period.last.year)}
    if period.days <= LONGEST_PERIOD:
        every = [period.first + timedelta(days=n) for n in range(period.days)]
        keys |= {f"date {day.month}-{day.day}" for day in every}
        keys |= {f"day {day.year}-{day.month}-{day.day}" for day in every}
        keys |= {key for day in every for key in month_keys(day.year, day.month)}
        keys |= {f"weekday {day.weekday()}" for day in every if period.days == 1}
    return frozenset(keys)


def clock_keys(at: datetime) -> frozenset[str]:
    """Keys of the time of day of a message."""
    return frozenset({clock(at.hour * 60 + at.minute)})


def time_keys(found: re.Match[str]) -> frozenset[str]:
    """Keys of a time of day, in minutes since midnight; "5:30" without am or pm may be either.

    "kl. 15.30" is the number too: whoever says 15.30 alone may mean the time.
    """
    hour, minute = _hour_and_minute(found)
    if found["half"]:
        return frozenset(
            {clock(hour % HOURS_OF_HALF_DAY * 60 + minute + MINUTES_OF_HALF_DAY * (found["half"] in "pP"))}
        )
    minutes = hour * 60 + minute
    either = {clock(minutes), clock(minutes + MINUTES_OF_HALF_DAY if hour <= HOURS_OF_HALF_DAY else minutes)}
    return frozenset(either.union(values(f"{found['h3']}.{found['n4']}") if found["h3"] else ()))


def _hour_and_minute(found: re.Match[str]) -> tuple[int, int]:
    hour, minute = (int(next(filter(None, found.group(*groups)), 0)) for groups in (_HOURS, _MINUTES))
    return hour, minute


def time_numbers(found: re.Match[str]) -> frozenset[str]:
    """Keys of the numbers that stand for a time of day in a source: "at 5" and "at 5.30" for 17:00 and 17:30."""
    hour, minute = _hour_and_minute(found)
    hours = {hour, hour % HOURS_OF_HALF_DAY or HOURS_OF_HALF_DAY}
    if found["half"]:
        hours.add(hour % HOURS_OF_HALF_DAY + HOURS_OF_HALF_DAY * (found["half"] in "pP"))
    return frozenset(value for each in hours for value in values(f"{each}.{minute:02}" if minute else f"{each}"))


def clock(minutes: int) -> str:
    """Key of a time of day, in minutes since midnight."""
    return f"time {minutes % (2 * MINUTES_OF_HALF_DAY)}"
