"""Numbers, amounts, dates and times of day: how they are written, and the keys by which two writings compare equal."""

import re
from collections.abc import Iterator
from decimal import Decimal

from text_to_num import alpha2digit

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

DIGITS = r"\d{1,3}(?:[.,'’ \u00a0\u202f]\d{3})+(?:[.,]\d+)?(?!\d)|\d+(?:[.,]\d+)?"
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


_MONTHS = (
    "january jan januar januari janvier enero janeiro gennaio jänner",
    "february feb februar februari février febrero fevereiro febbraio",
    "march mar märz maart mars marzo março",
    "april apr avril abril aprile",
    "may mai mei mayo maio maggio",
    "june jun juni juin junio junho giugno",
    "july jul juli juillet julio julho luglio",
    "august aug augustus août agosto",
    "september sep sept septembre septiembre setembro settembre",
    "october oct oktober okt octobre octubre outubro ottobre",
    "november nov novembre noviembre novembro",
    "december dec dezember dez décembre diciembre dezembro dicembre",
)
MONTHS = {name: number for number, names in enumerate(_MONTHS, 1) for name in names.split()}
_MONTH = "|".join(sorted(MONTHS, key=len, reverse=True))
_DAY = r"(?:0?[1-9]|[12]\d|3[01])"
_YEAR = r"(?:1[89]|20)\d\d"

DATE = re.compile(
    rf"(?<![A-Za-zÀ-ɏ\d.-])(?:(?P<iy>{_YEAR})-(?P<im>\d\d?)-(?P<id>\d\d?)"
    rf"|(?:(?P<cy>{_YEAR})年)?(?P<cm>\d\d?)月(?P<cd>\d\d?)日?"
    rf"|(?P<a>\d\d?)(?P<sep>[./])(?P<b>\d\d?)(?P=sep)(?P<ny>{_YEAR}|\d\d)"
    rf"|(?P<m1>{_MONTH})\.?\s+(?:the\s+)?(?P<d1>{_DAY})(?:st|nd|rd|th)?\b(?:,?\s+(?P<y1>{_YEAR}))?"
    rf"|(?P<d2>{_DAY})(?:st|nd|rd|th|er|\.|º)?\s+(?:of\s+|de\s+)?(?P<m2>{_MONTH})\b\.?(?:,?\s+(?:de\s+)?(?P<y2>{_YEAR}))?)"
    r"(?![A-Za-zÀ-ɏ\d])",
    re.IGNORECASE,
)
TIME = re.compile(
    r"(?<![A-Za-zÀ-ɏ\d.,:])(?:(?P<h1>1[0-2]|0?[1-9])(?:[:.](?P<n1>[0-5]\d))?\s?(?P<half>[ap])\.?m\b\.?"
    r"|(?P<h2>[01]?\d|2[0-3])[:h](?P<n2>[0-5]\d)(?![A-Za-zÀ-ɏ\d]))",
    re.IGNORECASE,
)
MINUTES_OF_HALF_DAY = 720


def date_keys(found: re.Match[str]) -> frozenset[str]:
    """Keys of day and month, in both readings where digits alone do not decide which is which."""
    return frozenset(f"date {month}-{day}" for month, day in _readings(found) if 1 <= month <= 12)


def date_parts(found: re.Match[str]) -> frozenset[str]:
    """Keys of month and day apart: "in March … on the 12th"."""
    return frozenset(key for month, day in _readings(found)[:1] for key in (f"month {month}", str(day)))


def year(found: re.Match[str]) -> str | None:
    part = found.groupdict()
    return part["iy"] or part["cy"] or part["ny"] or part["y1"] or part["y2"]


def time_keys(found: re.Match[str]) -> frozenset[str]:
    """Keys of a time of day, in minutes since midnight; "5:30" without am or pm may be either."""
    hour, minute = int(found["h1"] or found["h2"]), int(found["n1"] or found["n2"] or 0)
    if found["half"]:
        return frozenset({_clock(hour % 12 * 60 + minute + MINUTES_OF_HALF_DAY * (found["half"] in "pP"))})
    minutes = hour * 60 + minute
    return frozenset({_clock(minutes), _clock(minutes + MINUTES_OF_HALF_DAY if hour <= 12 else minutes)})


def _readings(found: re.Match[str]) -> list[tuple[int, int]]:
    """Possible pairs of month and day; none for a name that only looks like a month's.

    `re.IGNORECASE` takes the Turkish "ı" and "İ" for an "i", and `casefold` does not: "12 aprıl".
    """
    part = found.groupdict()
    if part["a"]:
        one, other = int(part["a"]), int(part["b"])
        return [(one, other), (other, one)]
    month = part["im"] or part["cm"] or MONTHS.get(str(part["m1"] or part["m2"]).casefold())
    day = part["id"] or part["cd"] or part["d1"] or part["d2"]
    return [(int(month), int(day))] if month else []


def _clock(minutes: int) -> str:
    return f"time {minutes % (2 * MINUTES_OF_HALF_DAY)}"
