"""Numbers and amounts as they may be written, reduced to what can be compared."""

import re
from collections.abc import Iterator
from decimal import Decimal

from text_to_num import alpha2digit

WORDS_KNOWN = frozenset({"da", "de", "en", "es", "fr", "it", "nl", "pt"})
"""Languages whose number words text2num reads; elsewhere only digits are numbers."""
ANY_CURRENCY = "any"

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
"""Latin: in scripts without spaces words touch the digits."""
_SYMBOL = "[$€£¥₹]"
_UNIT = "|".join(sorted({re.escape(w) for w in (*SCALES, *CURRENCIES) if w[0] not in "$€£¥₹"}, key=len, reverse=True))
AMOUNT = re.compile(
    rf"(?P<before>{_SYMBOL}|\b(?:usd|eur|gbp|chf|inr)\b)?\s?(?<![{_LETTER}\d.,])(?P<digits>{DIGITS})"
    rf"(?:\s?(?P<scale>{_UNIT})(?![{_LETTER}]))?(?:\s?(?P<after>{_SYMBOL}|(?:{_UNIT})(?![{_LETTER}])))?",
    re.IGNORECASE,
)
"""A number with what multiplies it and its currency, if any."""


def with_digits(text: str, language: str) -> str:
    """Number words written as digits: "twenty-three" → "23", "the twenty-first" → "the 21st"."""
    return str(alpha2digit(text, language, threshold=0)) if language in WORDS_KNOWN else text


def values(digits: str) -> Iterator[str]:
    """All that the digits may mean: "1.500" is 1500 in one country and 1.5 in another."""
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
    """Without trailing zeros, never in scientific notation."""
    text = f"{number:f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).lstrip("0") or "0"


def integer(digits: str) -> str:
    """Without leading zeros."""
    return digits.lstrip("0") or "0"


def amount_keys(found: re.Match[str], *, source: bool) -> frozenset[str]:
    """What an AMOUNT may be compared by.

    In a source a number without a currency stands for an amount in any; a summary must not change the currency.
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
