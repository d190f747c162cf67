"""Reads the numbers of a text as quantities, with sign, magnitude and unit, and its times of day.

Two spellings of the same quantity have a key in common: "$2 million" and "2,000,000 dollars", "½ cup" and "0.5 cups",
"1.5 h" and "90 minutes", "6 pm" and "18:00". Another sign, magnitude, unit or half of the day gives another key.
"""

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import cache, lru_cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple
from unicodedata import numeric

from text_to_num import alpha2digit

from afterword_text.language import UNDETERMINED, VOCABULARY, date_words, pattern, stem, word_set, words

Key = tuple[str, Decimal]
"""A kind and a value. The kind is a unit's dimension, a currency, or one of the names below."""
NUMBER = "number"
"""A number of a source, whatever its unit, because a summary may leave the unit out."""
BARE = "bare"
"""A number without a known unit; a summary may name the unit."""
CLOCK = "clock"
"""The hour of a time of day: "at 5" for 17:00."""
ANY = "any"
"""Stands for the unknown unit of a rate in a source, which may be any."""
TIME = "time"
"""Minutes since midnight."""
NEAR_HOUR = "near hour"
"""An hour, modulo 12, that a time in words may be in: "ten to nine", "halb neun"."""

WORDS_KNOWN = frozenset({"da", "de", "en", "es", "fr", "it", "nl", "pt"})
"""text2num reads number words in these languages; in others, `spellings` writes them."""
PIECE = re.compile(r"(?s).{1,1000}(?:(?<=[.!?。！？])(?=\s)|\Z)|.{1,1000}(?!\S)|.{1,1000}")
"""A piece ends at the end of a sentence, or else between words, or else anywhere."""
LATIN = "A-Za-zÀ-ɏ"
"""Latin letters. In scripts without spaces, words touch the digits."""

_NUMBERS = VOCABULARY["numbers"]
MAGNITUDES = {word: 10 ** int(power) for power, listed in _NUMBERS["magnitudes"].items() for word in listed.split()}
DOZEN = 12
MAGNITUDES |= dict.fromkeys(_NUMBERS["dozens"].split(), DOZEN)
_BILLIONS = {"en": (10**9,), "pt": (10**9,), UNDETERMINED: (10**9, 10**12)}
"""A billion is a million millions in most European languages."""
CURRENCIES = {word: code for code, listed in _NUMBERS["currencies"].items() for word in listed.split()}
_CENTS = {"cent": (("cent", Decimal(1)), *((code, Decimal("0.01")) for code in _NUMBERS["currencies"]))}
"""A cent may be one of any currency."""

_PREFIXES = {"n": -9, "µ": -6, "μ": -6, "mc": -6, "m": -3, "c": -2, "d": -1, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12}
_PREFIX_WORDS = {"nano": -9, "micro": -6, "mikro": -6, "milli": -3, "mili": -3, "centi": -2, "zenti": -2, "deci": -1,
                 "kilo": 3, "kiló": 3, "quilo": 3, "quiló": 3, "quilô": 3, "centí": -2, "milí": -3,
                 "mega": 6, "giga": 9, "tera": 12}  # fmt: skip
_SYMBOL = re.compile(
    rf"(?P<prefix>{'|'.join(sorted(_PREFIXES, key=len, reverse=True))})"
    r"(?P<base>Wh|Ah|Hz|Pa|mol|cal|eq|bar|bps|bit|[glLmsWVABJN])"
    r"|(?P<alone>[glLmsWV]|[WA]h|Hz|mol|cal|bar)"
)
_NAME_OF_UNIT = re.compile(
    rf"(?P<prefix>{'|'.join(_PREFIX_WORDS)})?"
    r"(?P<base>gram(?!mar)|m[eèé]t(?:er|r)|lit(?:er|r)|watt|volt|byte|hertz|[ck]alor|joule)[a-zæøåéío]{0,3}"
)
_BASES = {"g": "g", "m": "m", "l": "l", "w": "w", "v": "v", "b": "b", "h": "hz", "c": "cal", "k": "cal", "j": "j"}
"""The symbols of units, by the first letters of their names."""
_UNITS = {word: (code, Decimal(1)) for code, listed in _NUMBERS["units"].items() for word in listed.split()}
_UNITS |= {word: (code, Decimal(1)) for word, code in CURRENCIES.items()}
_UNITS |= dict.fromkeys(("kilo", "kilos"), ("g", Decimal(1000)))
_TIMES = {"second": ("second", 1), "minute": ("second", 60), "hour": ("second", 3600), "day": ("second", 86_400),
          "week": ("second", 604_800), "fortnight": ("second", 1_209_600), "month": ("month", 1), "year": ("month", 12),
          "decade": ("month", 120), "century": ("month", 1200)}  # fmt: skip
LONGEST_UNIT = 20
_IN_PARTS = frozenset({"second", "month", "m", "g", "l"})
"""Quantities that are written in several units at once: "1 m 80 cm"."""

DIGITS = (
    r"\d{1,2}(?:,\d{2})+,\d{3}(?!\d)(?:\.\d+)?"  # lakhs and crores, as written in India
    r"|\d{1,3}(?:[.,'’ \u00a0\u202f]\d{3})+(?:[.,]\d+)?(?!\d)|\d+(?:[.,]\d+)?"
)
_NUMBER = re.compile(rf"(?<![{LATIN}\d])(?<!\d[.,])(?:{DIGITS})(?:e[+-]?\d\d?(?![{LATIN}\d]))?", re.IGNORECASE)
_LONG = "|".join(sorted(map(re.escape, MAGNITUDES.keys() - {"m", "b"}), key=lambda word: (-len(word), word)))
_SIGNS = "$€£¥₹₩₺₴₫₽฿₪₦₱"
_AFTER = re.compile(
    rf"(?:(?P<letter>[mb])(?![{LATIN}\d])"
    rf"|[\s-]?(?P<magnitude>[百千万萬億亿兆만억천]{{1,3}}|(?:{_LONG}|billions?)(?![{LATIN}\d])\.?))?"
    rf"(?:\s?(?P<sign>[%元円]|°(?:\s?[cf](?![{LATIN}]))?|[{_SIGNS}](?!\s?\d))"
    rf"|[\s-]?(?:of an? )?(?:(?:(?P<square>{_NUMBERS['square']})|(?P<cubic>{_NUMBERS['cubic']}))\s?)?"
    rf"(?P<unit>(?:per|pour|por)\s(?:cent|cien|cento|ciento)\b|[^\W\d_]{{1,{LONGEST_UNIT}}}[23]?(?!\w))"
    rf"(?:\s(?:(?P<squared>{_NUMBERS['squared']})|(?P<cubed>{_NUMBERS['cubed']}))\b)?)?",
    re.IGNORECASE,
)
_BEFORE = re.compile(
    r"(?P<minus>(?<![\w.,)%])(?:[-–]|−\s?)|\b(?:minus|moins|menos|meno|negative)\s)?"
    rf"(?:(?P<currency>\b(?:usd|eur|gbp|chf|inr|rs|jpy|cad|aud|brl)\.?|\br\$|(?<!\d)(?<!\d\s)[{_SIGNS}])\s?(?P<inner>[-−])?)?$",
    re.IGNORECASE,
)
_RATE = re.compile(
    rf"(?i)(?:[\s-]?(?:[{LATIN}]{{1,{LONGEST_UNIT}}}\.?|[%{_SIGNS}]))??"
    r"(?:\s?/\s?|\s(?:(?:an?|per|each|every|pro|im|je|par|por|a la|al|alla|om)\s|all['’]))"
    rf"([{LATIN}]{{1,{LONGEST_UNIT}}})"
)
"""Matches the second unit of a rate: "$15 an hour", "80.000 € im Jahr"."""
_PART_OF_HOUR = re.compile(r"\s(?:et|moins|y|menos|e|meno)\b")
"""Follows an hour of the day in French, Spanish, Portuguese and Italian: "cinq heures moins le quart"."""
LOOKED_BACK = 16
_SMALL_FRACTION = 3
_LATEST_SHORT_YEAR = 40
"""A two-digit year up to this one may be in this century."""


class Figure(NamedTuple):
    """A number or a time of day in a text."""

    start: int
    end: int
    """End of the digits and of the word for their magnitude."""
    text: str
    in_source: frozenset[Key]
    """Keys that it supports if it is in a source."""
    in_summary: frozenset[Key]
    """If it is in a summary, the source must have one of these keys."""


def quantities(text: str, language: str) -> Iterator[Figure]:
    """Find the numbers in a text that `readable` returned. Linear in its length.

    A summary must not change a unit, but it may leave it out, and a source may have the number alone.
    """
    end = 0
    for match in _NUMBER.finditer(text):
        if match.start() < end:  # it belongs to the previous number, as in "2 1000000"
            continue
        before = _BEFORE.search(text, max(0, match.start() - LOOKED_BACK), match.start())
        after = _AFTER.match(text, match.end())
        if before is None or after is None:  # never None, because both patterns match the empty text
            continue
        mark = (before["currency"] or "").strip().rstrip(".").casefold()
        unit = (CURRENCIES.get(mark, mark), Decimal(1)) if mark else _unit(text, after, language)
        signs, factors = _signs(text, before), _factors(after, language, unit)
        written = (*numbers(match[0]), *_short_years(text, match))
        values = {sign * value * factor for sign in signs for value in written for factor in factors}
        claimed = values | {abs(value) for value in values}  # a source may have a word for the sign: "overdrawn"
        if unit:
            units = _CENTS.get(unit[0], (unit,))
            in_source = _keys(values, NUMBER) | {(kind, value * factor) for kind, factor in units for value in values}
            in_summary = _keys(claimed, BARE) | {(kind, value * factor) for kind, factor in units for value in claimed}
        else:
            in_source, in_summary = _keys(values, NUMBER, BARE), _keys(claimed, NUMBER, CLOCK)
            in_source |= _keys({100 * value for value in values if 0 < value < 1}, "%")
            if re.fullmatch(r"(?:1\d|2[0-3])[0-5]\d", match[0]):  # "1845" may be a time of day
                in_source |= _keys({Decimal(int(match[0][:2]) * 60 + int(match[0][2:]))}, TIME)
        if not unit or _PART_OF_HOUR.match(text, after.end()):
            hours = {Decimal(int(hour) - step) % 12 for hour in values if 1 <= hour < 25 for step in (0, 1)}
            in_source |= _keys(hours, NEAR_HOUR)
        magnitude_end = max(match.end(), after.end("letter"), after.end("magnitude"))
        rate = _RATE.match(text, magnitude_end)
        if rate and (period := _units_of_time(language).get(rate[1].casefold())):
            per = f"{period[1]} {period[0]}"
            in_source |= {(f"{kind} per {per}", value) for kind, value in in_source}
            in_summary = frozenset((f"{kind} per {each}", value) for kind, value in in_summary for each in (per, ANY))
        else:
            in_source |= {(f"{kind} per {ANY}", value) for kind, value in in_source}
        end = after.end() if unit and not mark else magnitude_end
        shown = text[before.start() : end].strip()
        yield Figure(before.start(), magnitude_end, shown, in_source, in_summary)


LARGEST_SUM = Decimal(10**27)
"""Larger numbers have more digits than a Decimal divides exactly."""
TALLEST = 10
"""Below this many metres, two digits after them are centimetres."""
_BETWEEN_PARTS = re.compile(r"\s?(?:[^\W\d_]{1,12}\.?\s?)?(?:(?:and|und|et|y|con|e|en|og)\s)?")


def compound_keys(text: str, figures: Iterable[Figure]) -> Iterator[Key]:
    """Yield the sums of a source's numbers that are parts of one: "3 lakh 20 thousand", "1 h 30 min", "12 Euro 50"."""
    for figure, other in pairwise(figures):
        between = text[figure.end : other.start]
        if not _BETWEEN_PARTS.fullmatch(between):
            continue
        # it ends with a magnitude, which may be written in digits
        is_number = not between.strip() and not text[figure.start : figure.end].isdigit()
        cents = text[other.start : other.end] if BARE in dict(other.in_source) else ""
        for kind, value in figure.in_source:
            is_whole = kind in _NUMBERS["currencies"] or (kind == "m" and value < TALLEST)
            if is_whole and re.fullmatch(r"\d\d?", cents):
                yield from _keys({value + Decimal(cents) / 100}, kind, NUMBER)
            for part in (part for same, part in other.in_source if same == kind and 0 < part < value < LARGEST_SUM):
                if kind == NUMBER and is_number and value % 10 ** len(str(int(part))) == 0:
                    yield from _keys({value + part}, NUMBER, BARE)
                elif kind in _IN_PARTS or (kind in _NUMBERS["currencies"] and part < 1):
                    yield kind, value + part


def _keys(values: Iterable[Decimal], *kinds: str) -> frozenset[Key]:
    return frozenset((kind, value) for kind in kinds for value in values)


def _signs(text: str, before: re.Match[str]) -> tuple[int, ...]:
    if not (before["minus"] or before["inner"]):
        return (1,)
    left = text[max(0, before.start() - 2) : before.start()].rstrip(" ")
    may_be_dash = not left or left[-1] == "\n" or left[-1].isdigit()  # a list or a range may have a dash
    return (1, -1) if may_be_dash and before["minus"] in ("-", "–") else (-1,)


def _factors(after: re.Match[str], language: str, unit: tuple[str, Decimal] | None) -> tuple[int, ...]:
    if letter := (after["letter"] or "").casefold():  # without a currency "5m" may be metres
        is_money = unit is not None and (unit[0] in _NUMBERS["currencies"] or unit[0] in _SIGNS)
        return (MAGNITUDES[letter],) if is_money else (MAGNITUDES[letter], 1)
    word = (after["magnitude"] or "").rstrip(".").casefold()
    if word.startswith("billion") and word in ("billion", "billions"):
        return _BILLIONS.get(language, (10**12,))
    return (MAGNITUDES[word] if word in MAGNITUDES else prod(MAGNITUDES.get(each, 1) for each in word),)


_FURTHER = re.compile(rf"[ -]([^\W\d_]{{3,{LONGEST_UNIT}}})(?!\w)(?:[ -]([^\W\d_]{{3,{LONGEST_UNIT}}})(?!\w))?")
_BEFORE_UNIT, _BEFORE_NO_UNIT = (word_set("numbers", name) for name in ("before_unit", "before_no_unit"))


def _unit(text: str, after: re.Match[str], language: str) -> tuple[str, Decimal] | None:
    """Read the unit after a number, or after a word or two: "40 Canadian dollars", "40 New Zealand dollars"."""
    word = "".join((after["sign"] or after["unit"] or "").split())
    if not word and after["letter"] in ("m", "M"):
        word = "m"
    if after["square"] or after["squared"]:
        word += "2"
    elif after["cubic"] or after["cubed"]:
        word += "3"
    if word and word in _SIGNS and word not in CURRENCIES:
        return word, Decimal(1)
    further = _FURTHER.match(text, after.end()) if after["unit"] and "\n" not in after[0] else None
    if (unit := unit_of(word, language)) or not further or word.casefold() in _BEFORE_NO_UNIT:
        return unit
    is_stop_word = word.casefold() not in _BEFORE_UNIT and any(
        stem(word.casefold(), code) is None for code in (language, "en")
    )
    if is_stop_word or (unit := unit_of(further[1], language)):
        return None if is_stop_word else unit
    money = unit_of(further[2] or "", language) if word.istitle() and further[1].istitle() else None
    return money if money and money[0] in _NUMBERS["currencies"] else None


def unit_of(word: str, language: str) -> tuple[str, Decimal] | None:
    """Read a unit as its dimension and its factor to the base unit; return None for any other word."""
    if word[-1:] in ("2", "3") and (base := unit_of(word[:-1], language)):
        return base[0] + word[-1], base[1] ** int(word[-1])
    if word in ("C", "F", "A"):  # "a" is an article
        return "a" if word == "A" else f"°{word.lower()}", Decimal(1)
    small = word.casefold()
    if unit := _UNITS.get(small) or _units_of_time(language).get(small):
        return unit
    for each in (word, small, word.upper()):
        if symbol := _SYMBOL.fullmatch(each):
            power = _PREFIXES[symbol["prefix"]] if symbol["prefix"] else 0
            return (symbol["base"] or symbol["alone"]).lower(), Decimal(10) ** power
    if name := _NAME_OF_UNIT.fullmatch(small):
        return _BASES[name["base"][0]], Decimal(10) ** _PREFIX_WORDS.get(name["prefix"], 0)
    return None


@cache
def _units_of_time(language: str) -> dict[str, tuple[str, Decimal]]:
    return {
        word.casefold(): (dimension, Decimal(factor))
        for name, (dimension, factor) in _TIMES.items()
        for code in ("en", language)
        for word in date_words(code).get(name, ())
        if len(word) > 1 or not word.isascii() or (name, word) == ("hour", "h")
    }


def numbers(digits: str) -> Iterator[Decimal]:
    """Yield every value that the digits may mean: "1.500" is 1500 in one country and 1.5 in another."""
    digits, _, exponent = digits.lower().partition("e")
    if exponent:
        yield from (value.scaleb(int(exponent)) for value in numbers(digits))
        return
    plain = re.sub(r"['’\s]", "", digits)
    match = re.fullmatch(r"([\d.,]*?)(?:[.,](\d+))?", plain)
    whole, fraction = (match[1], match[2]) if match else (plain, None)
    whole = re.sub(r"[.,]", "", whole)
    if fraction is None or len(fraction) == _SMALL_FRACTION:
        yield Decimal(whole + (fraction or ""))
    if fraction is not None and plain.count(plain[-len(fraction) - 1]) == 1:  # "1.250.000" has no fraction
        yield Decimal(f"{whole or 0}.{fraction}")


def _short_years(text: str, match: re.Match[str]) -> Iterator[Decimal]:
    """Yield the years that "'88" and "the 90s" may mean."""
    if len(match[0]) != 2:
        return
    before, after = text[max(0, match.start() - 8) : match.start()], text[match.end() : match.end() + 4]
    is_decade = re.match(r"(?:s|er|ern)\b", after) or re.search(r"(?i)\b(?:années|años|anni|anos|jaren)\s\Z", before)
    if (before[-1:] in ("'", "’") and not before[-2:-1].isalnum()) or is_decade:
        yield Decimal(1900 + int(match[0]))
        if int(match[0]) <= _LATEST_SHORT_YEAR:
            yield Decimal(2000 + int(match[0]))


_AM, _PM, _NIGHT = (pattern("times", half) for half in ("am", "pm", "night"))
_TIME_OF_DAY = re.compile(
    rf"(?<![{LATIN}\d.,:])(?:(?P<four>(?:[01]\d|2[0-3])[0-5]\d)(?:(?P<hours>\s?(?:h|hrs?|hours|uhr)\b)|(?!\d|[.,:]\d))"
    r"|(?:(?P<before_noon>上午|早上|凌晨|午前|오전|아침)|(?P<after_noon>下午|晚上|午後|오후|저녁))?\s?"
    r"(?P<hour>[01]?\d|2[0-3])(?:(?P<separator>[:.]|\s?h(?:eures?)?\s?|\s?uhr\s|[点點時时시]\s?(?=\d\d[分분]))(?P<minute>[0-5]\d)(?::[0-5]\d)?)?(?![\d:])"
    rf"(?P<clock>\s?(?:(?:o['’]clock|uhr|uur)\b|[点點時时시](?P<half_past>半|\s?반)?))?(?:\s?(?:h(?:eures?)?\s)?(?:(?P<am>{_AM})|(?P<pm>{_PM})|(?P<night>{_NIGHT})))?)",
    re.IGNORECASE,
)
"""It also reads "0715" and "1830 hrs"."""
_POINTED = re.compile(rf"(?i)\b(?:{pattern('times', 'before_pointed')})\s$")
BEFORE_DATE = pattern("times", "before_date")
_IN_WORDS = re.compile(rf"(?i)\b(?:{pattern('times', 'before_hour')})\s\Z")
HALF_DAY = 720
"""Minutes."""
EVENING = 6
"""From this hour on, "at night" is before midnight."""


def times_of_day(text: str) -> Iterator[Figure]:
    """Find the times of day in a text. Linear in its length. "5:30" may be in either half of the day."""
    for match in _TIME_OF_DAY.finditer(text):
        four = match["four"] or ""
        half = match["am"] or match["pm"] or match["night"] or match["before_noon"] or match["after_noon"]
        pointed = match["separator"] == "." and bool(
            match["clock"] or _POINTED.search(text, max(0, match.start() - LOOKED_BACK), match.start())
        )
        is_four = four.startswith("0") or match["hours"]
        if not (is_four or half or pointed or match["clock"] or (match["minute"] and match["separator"] != ".")):
            continue
        hour, minute = int(four[:2] or match["hour"]), int(four[2:] or match["minute"] or 30 * bool(match["half_past"]))
        minutes = hour * 60 + minute
        is_exact = is_four or hour > 12 or (match["hour"] or "").startswith("0")
        readings = {minutes} if is_exact else {minutes, minutes + HALF_DAY}
        if half and 1 <= hour <= 12:
            is_pm = bool(match["pm"] or match["after_noon"]) or (bool(match["night"]) and EVENING <= hour < 12)
            readings = {minutes % HALF_DAY + HALF_DAY * is_pm}
        numbered = {each // 60 % 24 for each in readings}
        numbered |= {each % 12 or 12 for each in numbered}
        hours = [Decimal(f"{each}.{minute:02}") for each in numbered]
        exact = _keys({Decimal(each % (2 * HALF_DAY)) for each in readings}, TIME)
        if (match["separator"] or "").lstrip().startswith("h"):  # "1h30" is a duration as well
            exact |= {("second", Decimal(60 * minutes))}
        in_source = exact | _keys(hours, *((CLOCK, NUMBER) if pointed else (CLOCK,)))
        near = {Decimal(hour % 12)} if minute else set()
        if _IN_WORDS.search(text, max(0, match.start() - LOOKED_BACK), match.start()) or _PART_OF_HOUR.match(
            text, match.end()
        ):
            in_source |= _keys({Decimal(hour % 12), Decimal((hour - 1) % 12)}, NEAR_HOUR)
        yield Figure(*match.span(), match[0].strip(), in_source, exact | _keys(hours, NUMBER) | _keys(near, NEAR_HOUR))


_NAMED_TIME = re.compile(
    rf"(?i)\b(?:(?P<noon>{pattern('times', 'noon')})|(?P<midnight>{pattern('times', 'midnight')}))\b"
)
_HALF = re.compile(
    r"(?i)(?<!\d)(?<!\d[.,])(?P<number>\d{1,18})(?P<hours>\s?heures?)?\s?"
    rf"(?:{pattern('numbers', 'and_a_half')})\b"
)
_GERMAN_HALF = re.compile(r"(?i)(?<=[a-zäöüß])einhalb(?:(tausend)|\b)")
_GERMAN_HEIGHT = re.compile(r"(?i)\beins(?=\w+zig\b)")
_FRACTIONS = {f"{value} ": words.replace("\n", "") for value, words in _NUMBERS["fractions"].items()}
_FRACTION = re.compile(
    rf"(?i)\b(?:{'|'.join(f'({words})' for words in _FRACTIONS.values())})\s?"
    rf"(?=(?:hour|day|year|mile|cup|stunde|tag|jahr|heure|hora|año|ora|anno|uur|jaar|time|år|[а-яё]+|lit[er]+|litro|kilo|{_LONG}|billions?)"
    rf"[{LATIN}]{{0,2}}\b)"
)
"""Parts of a unit or of a large number: "half a million", "three quarters of an hour"."""
_COUPLE = re.compile(r"(?i)\bcouple\s(?:of\s)?(?=(?:hundred|thousand|million|billion|dozen)\b)")
_DECADE = re.compile(r"(?i)\b(twen|thir|for|fif|six|seven|eigh|nine)ties\b")
_TENS = ("twen", "thir", "for", "fif", "six", "seven", "eigh", "nine")


_SPOKEN_AS = {word: known for known, listed in _NUMBERS["spoken"].items() for word in listed.split()}
_SPOKEN = re.compile(rf"(?i)\b(?:{'|'.join(_SPOKEN_AS)})\b")
_MINUTES = {"30": "half_past", "-30": "half_to", "15": "past", "-15": "to"}
_CLOCKS = {
    code: re.compile(
        rf"(?i)\b(?:{'|'.join(f'(?P<{_MINUTES[minutes]}>{said})' for minutes, said in parts.items())}) "
        r"(?P<hour>[1-9]|1[0-2])(?!\d|[.,:/-]\d)"
    )
    for code, parts in VOCABULARY["times"]["parts_of_hour"].items()
}
_NOTHING = re.compile("(?!)")
_IDIOMS = {code: re.compile(rf"(?i)\b(?:{said.replace(chr(10), '')})\b") for code, said in _NUMBERS["idioms"].items()}


def readable(text: str, language: str) -> str:
    """Write words as digits: "twenty-three" as "23", "half a million" as "0.5 1000000", and "noon" as "12:00 pm".

    The text is read in pieces, because text2num's time grows with the square of the length.
    """
    text = _NAMED_TIME.sub(lambda match: "12:00 pm" if match["noon"] else "12:00 am", text)
    text = _FRACTION.sub(lambda match: [*_FRACTIONS][(match.lastindex or 1) - 1], text)
    text = _CHINESE_DATE.sub(lambda match: str(chinese(match[0])), text)
    text = _CHINESE_HEIGHT.sub(lambda match: f"{chinese(match[1])}.{chinese(match[2])}米", text)
    if language not in WORDS_KNOWN:
        return text
    text = _IDIOMS.get(language, _NOTHING).sub(" ", text)
    text = _SPOKEN.sub(lambda match: _SPOKEN_AS[match[0].lower()], text)
    if language == "en":
        text = _COUPLE.sub("two ", text)
        text = _DECADE.sub(lambda match: f"{_TENS.index(match[1].lower()) + 2}0s", text)
    text = _GERMAN_HEIGHT.sub("eins ", _GERMAN_HALF.sub(lambda match: f" einhalb {match[1] or ''}".rstrip(), text))
    text = "".join(str(alpha2digit(piece, language, threshold=0)) for piece in PIECE.findall(text))
    return _HALF.sub(_with_half, _CLOCKS[language].sub(_of_clock, text) if language in _CLOCKS else text)


def _of_clock(found: re.Match[str]) -> str:
    """Read "quarter to 9" as 8:45, and "halb 9" as 8:30."""
    named = found.groupdict()
    minutes = 60 * int(named["hour"]) + next(int(part) for part, name in _MINUTES.items() if named.get(name))
    return f"{minutes // 60 or 12}:{minutes % 60:02}"


def _with_half(match: re.Match[str]) -> str:
    """Read "2 and a half" as 2.5, but "2000000 and a half" as 2.5 million."""
    thousands = (len(match["number"]) - len(match["number"].rstrip("0"))) // 3
    if not thousands:
        return f"{match['number']}.5{match['hours'] or ''}"
    return str(int(match["number"]) + 1000**thousands // 2) + (match["hours"] or "")


_NUMERALS = "〇零一二两三四五六七八九十百千万萬億亿"
_CHINESE = re.compile(rf"[{_NUMERALS}]{{1,12}}")
_CHINESE_DATE = re.compile(
    "[〇零一二三四五六七八九十]{1,4}(?=[月日号號]|[時时点點](?:半|钟|鐘))|[〇零一二三四五六七八九]{4}(?=年)"
)
_CHINESE_HEIGHT = re.compile("([一二两12])米([一二三四五六七八九]{1,2})(?![十百千])")
_CHINESE_NUMBER = re.compile(rf"(?<![{_NUMERALS}])[一二两三四五六七八九][十百千万萬億亿][{_NUMERALS}]{{0,10}}")
_SINO_KOREAN = str.maketrans("영일이삼사오육칠팔구십백천만억", "零一二三四五六七八九十百千万億")
_ROMAN = re.compile(r"\b(?:V|X|[IVXLCDM]{2,12})\b")
_ROMAN_DIGITS = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_OUT_OF = re.compile(r"(?i)(?<![\d.,])(\d{1,3}) (?:out )?(?:of|in|von|sur|de|su|van|af) ([1-9]\d{0,2})(?![\d.,])")
_PARTS = re.compile(
    rf"(?i)\b(?:(an?|\d)[ -](?:([3-9])(?:rd|th)s?|(quarter)s?|half)"
    rf"|(?:{pattern('numbers', 'half')})\s(?:of|der|des|von|de|du|di|del|van|av|af))\b"
)
_ONE_UNIT = re.compile(
    rf"(?i)\b(?:(?:an?|une?|eine?[nrm]?|un[ao]?|een|uma?)\s|un[’'])(?P<unit>[{LATIN}]{{1,{LONGEST_UNIT}}})"
    rf"(?:(?P<half>\s(?:{pattern('numbers', 'and_a_half')}))"
    rf"|\s(?:and|und|et|y|e|en)\s(?P<number>\d{{1,4}})\s(?P<part>[{LATIN}]{{1,{LONGEST_UNIT}}}))?"
)
_REPEATED = re.compile(r"(?i)\b(?:(double)|triple) (\d)\b")
_SPOKEN_DIGITS = re.compile(r"(?<![\d.,:/-])\d{1,2}(?: (?:oh? )?\d{1,2}){1,15}(?!\d|[.,:/-]\d)", re.IGNORECASE)
_SPOKEN_DECIMAL = re.compile(r"(?<![\d.,:/-])(\d{1,2}) (?:(?:e|y|con|og|en) )?([1-9]\d)(?!\d|[.,:/-]\d)")
LEAST_SPOKEN = 3
_YEAR_IN_TWO = re.compile(r"(?<![\d.,])(1\d|20)\s(?:(\d\d)|oh?\s(\d))(?!\d|[.,]\d)")


def units_in_words(text: str, language: str) -> Iterator[Key]:
    """Yield the keys of units with an article, such as "an hour and a half" in a source that `readable` returned."""
    for match in _ONE_UNIT.finditer(text):
        dimension, factor = unit_of(match["unit"], language) or ("", Decimal(0))
        part = unit_of(match["part"] or "", language)
        if MAGNITUDES.get(match["unit"].casefold()) == DOZEN:
            yield from _keys({Decimal(DOZEN)}, NUMBER, BARE)
        if factor:
            yield dimension, factor * (Decimal("1.5") if match["half"] else 1)
        if factor and part and part[0] == dimension:
            yield dimension, factor + int(match["number"]) * part[1]


def spoken_digits(text: str) -> Iterator[str]:
    """Yield numbers and codes that are said in parts: "four four seven one", "one oh one", "forty-four seventy-one"."""
    text = _REPEATED.sub(lambda match: " ".join(match[2] * (2 if match[1] else 3)), text)
    for run in _SPOKEN_DIGITS.findall(text):
        digits = re.sub(r"\D", "", re.sub("[oO]h?", "0", run))
        if len(digits) >= LEAST_SPOKEN:
            yield digits


def spoken_keys(text: str) -> Iterator[Key]:
    """Yield the keys of years in two numbers ("nineteen eighty-four"), prices and heights ("drei fünfzig"), fractions,
    and Roman and Chinese numerals.

    `text` is the source as `readable` returns it.
    """
    for pair in _YEAR_IN_TWO.finditer(text):
        yield NUMBER, Decimal(pair[1] + (pair[2] or f"0{pair[3]}"))
    for whole, cents in _SPOKEN_DECIMAL.findall(text):
        yield from _keys({Decimal(f"{whole}.{cents}")}, NUMBER, BARE)
    for part in _PARTS.finditer(text):
        over, under = int(part[1]) if (part[1] or "").isdigit() else 1, int(part[2] or (4 if part[3] else 2))
        yield from _keys({Decimal(f"{over / under:g}")}, NUMBER, BARE)
        yield from _keys({Decimal(f"{100 * over / under:g}"), Decimal(round(100 * over / under))}, "%")
    for part in _OUT_OF.finditer(text):
        yield "%", Decimal(f"{100 * int(part[1]) / int(part[2]):g}")
    for roman in set(_ROMAN.findall(text)):
        values = [_ROMAN_DIGITS[digit] for digit in roman]
        signed = (-one if one < other else one for one, other in pairwise([*values, 0]))
        yield from _keys({Decimal(sum(signed))}, NUMBER, BARE)
    for run in _CHINESE.finditer(text.translate(_SINO_KOREAN)):
        value = Decimal(chinese(run[0]))
        yield from ((NUMBER, value), (BARE, value), (NEAR_HOUR, value % 12))


@lru_cache(maxsize=1024)
def spellings(number: int, language: str) -> frozenset[str]:
    """Return how Unicode's rules spell a number, in each gender and case.

    There are no spellings in a language that text2num or `chinese` reads.
    """
    rules = None if language in WORDS_KNOWN or language in ("ja", "zh") else _rules(language)
    spelled = rules.format_number(number).text_by_ruleset.values() if rules else ()
    return frozenset(" ".join(words(each.replace("\xad", "").replace("ʼ", "'"))) for each in spelled)


@cache
def _rules(language: str) -> Any:
    from unicode_rbnf import RbnfEngine  # imported here because it takes half a second, and few texts need it

    return RbnfEngine.for_language(language) if language in RbnfEngine.get_supported_languages() else None


@cache
def number_words(language: str) -> frozenset[str]:
    """Return the words of which a language's numbers consist."""
    small = (*range(1, 20), *range(20, 100, 10), *range(100, 1000, 100))
    large = (times * 10**power for power in (3, 6, 9) for times in (1, 2, 5))
    spelled = (each for number in (*small, *large) for each in spellings(number, language))
    return frozenset(word for each in spelled for word in each.split())


def chinese_figures(text: str) -> Iterator[Figure]:
    """Find numbers in Chinese numerals that have a digit before a magnitude, because few other words have both."""
    for run in _CHINESE_NUMBER.finditer(text):
        keys = frozenset({(NUMBER, Decimal(chinese(run[0])))})
        yield Figure(*run.span(), run[0], keys, keys)


def chinese(written: str) -> int:
    """Read a number in Chinese numerals: 三百 is 300."""
    if len(written) > 1 and not {*written} & {*"十百千万萬億亿"}:  # digit by digit, as years are: 二〇二四
        return int("".join(str(int(numeric(each))) for each in written.replace("两", "二")))
    total = section = digit = 0
    for each in written:
        value = int(numeric("二" if each == "两" else each))
        if value < 10:
            digit = value
        elif value < 10_000:
            section += (digit or 1) * value
            digit = 0
        else:
            total += (section + digit or 1) * value
            section = digit = 0
    return total + section + digit
