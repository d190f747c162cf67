"""Numbers and times of day in words, in a source whose number words are digits: "half past 5", "2 dozen", "nineties".

A source supports each reading of them. Nothing here makes a claim: what a summary says in words alone is not checked.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from itertools import chain

from afterword.streams.language import words
from afterword.streams.summarizer.quality.figures import HOURS_OF_HALF_DAY, MINUTES_OF_HALF_DAY, canonical, clock

MINUTES_OF_HOUR = 60
DOZEN = 12


def spoken_keys(text: str, language: str) -> frozenset[str]:
    """Keys of all of them. `text`: as `with_digits` writes it. Linear in its length."""
    said = frozenset(words(text))
    found = [_around_numbers(text, language), _decades(said)]
    if not said.isdisjoint(_HINTS.get(language, ())):
        found += [_times(text, language), _shares(text, language)]
    return frozenset(chain(*found))


_HINT_WORDS = {
    "en": "half halves quarter quarters third thirds 3rd 3rds noon midday midnight",
    "de": "halb halbe halbem halben halber halbes hälfte viertel viertelstunde viertelstunden drittel mitternacht",
    "fr": "demi demie demis demies moitié quart quarts tiers midi minuit",
    "es": "medio media medios medias mitad cuarto cuartos tercio tercios mediodía medianoche",
    "it": "mezz mezzo mezza metà quarto quarti terzo terzi mezzogiorno mezzanotte",
    "pt": "meio meia meios meias metade quarto quartos terço terços",
    "nl": "half halve helft kwart kwartier derde derden middernacht",
    "da": "halv halve halvt halvdelen kvart kvarter tredjedel tredjedele midnat",
}
_HINTS = {language: frozenset(hints.split()) for language, hints in _HINT_WORDS.items()}
"""Words of which `_times` and `_shares` need one: most texts have none, and to search for each pattern takes long."""
_HOUR = r"(?P<{}>1[0-2]|[1-9])(?!\d)"
_PARTS = ("past", "after_half", "to", "before_half", "noon", "night")
_TIME_WORDS = {
    "en": ("quarter (?:past|after) #", "half past #", "quarter (?:to|before) #", "", "noon|midday", "midnight"),
    "de": ("viertel nach #", "", "viertel vor #", "halb #", "", "mitternacht"),
    "fr": (
        "# (?:h|heures?) et quart",
        "# (?:h|heures?) et demie",
        "# (?:h|heures?) moins le quart",
        "",
        "midi",
        "minuit",
    ),
    "es": ("las? # y cuarto", "las? # y media", "las? # menos cuarto", "", "mediodía", "medianoche"),
    "it": ("# e un quarto", "# e mezz[oa]", "# meno un quarto", "", "mezzogiorno", "mezzanotte"),
    "pt": ("# e um quarto", "# e meia", "quarto para as? #", "", "meio-dia", "meia-noite"),
    "nl": ("kwart over #", "", "kwart voor #", "half #", "", "middernacht"),
    "da": ("kvart over #", "", "kvart i #", "halv #", "", "midnat"),
}
"""Times of day in words, by _PARTS, where # is an hour in digits."""
_SPOKEN_TIMES = {
    language: re.compile(
        "|".join(
            rf"(?i:\b{said.replace('#', _HOUR.format(part))}\b)" if "#" in said else rf"\b(?P<{part}>(?i:{said}))\b"
            for part, said in zip(_PARTS, every, strict=True)
            if said
        )
    )
    for language, every in _TIME_WORDS.items()
}
_AFTER_HOUR = {"past": 15, "after_half": 30, "to": -15, "before_half": -30}
"""Minutes after the hour that is named."""


def _times(text: str, language: str) -> Iterator[str]:
    """Yield keys of "half past 5" and of "noon"."""
    pattern = _SPOKEN_TIMES.get(language)
    for found in pattern.finditer(text) if pattern else ():
        name = found.lastgroup or ""
        if name in _AFTER_HOUR:
            yield from _at(int(found[name]), _AFTER_HOUR[name])
        else:
            yield clock(MINUTES_OF_HALF_DAY * (name == "noon"))


def _at(hour: int, minutes: int) -> Iterator[str]:
    """Yield the keys of so many minutes after an hour, in both halves of the day where it may be either."""
    yield clock(hour * MINUTES_OF_HOUR + minutes)
    if hour <= HOURS_OF_HALF_DAY:
        yield clock(hour * MINUTES_OF_HOUR + minutes + MINUTES_OF_HALF_DAY)


_BEFORE_AN_HOUR = {
    "en": "at by from to until till around about before after",
    "de": "um ab bis gegen von vor nach",
    "fr": "à vers dès de avant après",
    "es": "la las",
    "it": "le alle dalle ore",
    "pt": "à às as",
    "nl": "om vanaf tot rond van voor na",
    "da": "kl kl. klokken fra til",
}
_BEFORE, _AFTER = -1, 1
_MINUTE_WORDS = {
    "en": {r"% (?:minutes? )?(?:past|after) #": _AFTER, r"% (?:minutes? )?(?:to|before) #": _BEFORE, "# @": _AFTER},
    "de": {r"% (?:minuten? )?nach #": _AFTER, r"% (?:minuten? )?vor #": _BEFORE, "# uhr %": _AFTER},
    "fr": {r"# (?:h|heures?) %": _AFTER, r"# (?:h|heures?) moins %": _BEFORE},
    "es": {r"# y %": _AFTER, r"# menos %": _BEFORE},
    "it": {r"# e %": _AFTER, r"# meno %": _BEFORE},
    "pt": {r"# e %": _AFTER, r"% para as #": _BEFORE},
    "nl": {r"% (?:minuten )?over #": _AFTER, r"% (?:minuten )?voor #": _BEFORE, "# uur %": _AFTER},
    "da": {r"% (?:minutter )?over #": _AFTER, r"% (?:minutter )?i #": _BEFORE},
}
"""Minutes after an hour and before it: # is the hour, % the minutes, @ minutes of two digits."""
_NUMBERS = {
    "#": r"(?P<hour>2[0-3]|1\d|\d)(?!\d)",
    "%": r"(?P<minute>[1-5]?\d)(?!\d)",
    "@": r"(?P<minute>[1-5]\d)(?!\d)",
}
_MINUTES = {
    language: [
        (re.compile(f"(?i){re.sub('[#%@]', lambda sign: _NUMBERS[sign[0]], said)}"), sign)
        for said, sign in every.items()
    ]
    for language, every in _MINUTE_WORDS.items()
}
_HOURS_FOLLOW = {language: frozenset(each.split()) for language, each in _BEFORE_AN_HOUR.items()}
_DECADES_FOLLOW = frozenset(("années", "años", "anni", "anos", "jaren"))
_NUMBER = re.compile(r"\d+")
_HOUR_ALONE = re.compile(r"(?:2[0-3]|1\d|\d)(?![\d:%]|[.,]\d)")
_WORD_BEFORE = re.compile(r"(?:^|[\s(])([^\s(]{1,8}) ['’]?$")
_LOOKED_BACK = 11
"""Characters before a number in which the word before it is looked for."""
_DECADE_ENDS = re.compile(r"(?i)(?:s|ern?|['’]?erne)\b")
_DOZENS = re.compile(r"(?i) (?:dozens?|dutzend|douzaines?|docenas?|dozzin[ae]|dúzias?|dozijn|dusin)\b")
_SHORT, _YEAR = 2, 4
"""Digits."""


def _around_numbers(text: str, language: str) -> Iterator[str]:
    """Yield keys of "10 to 9", "6 45", "at 7", "2 dozen", "the 90s" and "años 90"."""
    for number in _NUMBER.finditer(text):
        start, end = number.span()
        found = _WORD_BEFORE.search(text[max(0, start - _LOOKED_BACK) : start])
        before = found[1].casefold() if found else ""
        if end - start <= _SHORT:
            yield from _clock_times(text, start, before, language)
        begins_decade = end - start in (_SHORT, _YEAR) and number[0].endswith("0")
        if begins_decade and (before in _DECADES_FOLLOW or _DECADE_ENDS.match(text, end)):
            yield from _decade(number[0])
        if end - start < _YEAR and _DOZENS.match(text, end):
            yield str(int(number[0]) * DOZEN)


def _clock_times(text: str, start: int, before: str, language: str) -> Iterator[str]:
    """Yield keys of a time that begins with a number.

    Whoever sums up "at 7" knows by the rest of the talk whether it is in the evening. `before`: the word before it.
    """
    if before in _HOURS_FOLLOW.get(language, ()) and (hour := _HOUR_ALONE.match(text, start)):
        yield from _at(int(hour[0]), 0)
    for pattern, sign in _MINUTES.get(language, ()):
        if found := pattern.match(text, start):
            yield from _at(int(found["hour"]), sign * int(found["minute"]))


_SHARE_WORDS = {
    "en": ("half|halves", "quarters?", "thirds?|3rds?", r"(?: an| of an)? hour"),
    "de": ("halbe[mnrs]?|hälfte", "viertel", "drittel", r"(?<=viertel)stunden?\b| stunde"),
    "fr": ("demie?s?|moitié", "quarts?", "tiers", r"(?: d['’]|[ -])heure"),
    "es": ("medi[oa]s?|mitad", "cuartos?", "tercios?", r"(?: de)? hora"),
    "it": ("mezz[oa]?|metà", "quart[oi]", "terz[oi]", r"(?: d)?[ '’]ora"),
    "pt": ("mei[oa]s?|metade", "quartos?", "terços?", r"(?: de)? hora"),
    "nl": ("halve|half|helft", "kwart(?:ier)?", "derden?", r"(?<=kwartier)| uur"),
    "da": ("halv[et]?|halvdelen", "kvart(?:er)?", "tredjedele?", r"(?<=kvarter)| time"),
}
"""A half, a quarter, a third, and what follows where it is one of an hour."""
_PARTS_OF_ONE = {"half": 2, "quarter": 4, "third": 3}
_SHARES = {
    language: re.compile(
        rf"(?i)\b(?:(?P<count>[1-9]) )?(?:(?P<half>{half})|(?P<quarter>{quarter})|(?P<third>{third}))"
        rf"(?:(?P<hour>{hour})|\b)"
    )
    for language, (half, quarter, third, hour) in _SHARE_WORDS.items()
}
_HALF_WORDS = {
    "en": r" and a half",
    "fr": r" et demie?",
    "es": r" y medi[oa]",
    "it": r" e mezz[oa]",
    "pt": r" e mei[oa]",
    "nl": r" ?(?:en ?)?een ?half",
}
_UNITS = {
    "en": r"an? (?:(?P<hour>hour)|(?P<year>year)|\w+)",
    "fr": r"1 (?:(?P<hour>heure)|(?P<year>an)|\w+)",
    "es": r"(?:(?P<hour>hora)|(?P<year>año)|\w+)",
    "it": r"(?:(?P<hour>ora)|(?P<year>anno)|\w+)",
    "pt": r"(?:(?P<hour>hora)|(?P<year>ano)|\w+)",
}
"""One of something, which _HALF_WORDS follow."""
_ONE_AND_HALF = {language: re.compile(rf"(?i)\b{one}{_HALF_WORDS[language]}\b") for language, one in _UNITS.items()}


def _shares(text: str, language: str) -> Iterator[str]:
    """Yield keys of "half an hour", which is 30 minutes, of "3 quarters", which are 75 %, and of "a day and a half"."""
    pattern = _SHARES.get(language)
    for found in pattern.finditer(text) if pattern else ():
        name = next(name for name in _PARTS_OF_ONE if found[name])
        count, parts = int(found["count"] or 1), _PARTS_OF_ONE[name]
        yield _rounded(count, parts, 2)
        if found["hour"] is not None:
            yield str(MINUTES_OF_HOUR * count // parts)
        else:
            yield from (_rounded(100 * count, parts, 0), _rounded(100 * count, parts, 1))
    longer = _ONE_AND_HALF.get(language)
    for found in longer.finditer(text) if longer else ():
        yield "1.5"
        if found["hour"] or found["year"]:
            yield "90" if found["hour"] else "18"


def _rounded(count: int, parts: int, places: int) -> str:
    return canonical(round(Decimal(count) / parts, places))


_DECADE_WORDS = (
    "twenties thirties forties fifties sixties seventies eighties nineties",
    "zwanziger dreißiger vierziger fünfziger sechziger siebziger achtziger neunziger",
    "tyverne trediverne fyrrerne halvtredserne tresserne halvfjerdserne firserne halvfemserne",
)
_TENS = {word: tens for each in _DECADE_WORDS for word, tens in zip(each.split(), range(20, 100, 10), strict=True)}
_TENS |= {f"{word}n": tens for word, tens in _TENS.items()}
LATEST_TENS = 20
"""Tens of the decade that has begun: "the twenties" are those of this century too."""


def _decades(said: frozenset[str]) -> Iterator[str]:
    """Yield keys of "the nineties". `said`: words."""
    for word in said & _TENS.keys():
        yield from _decade(str(_TENS[word]))


def _decade(digits: str) -> Iterator[str]:
    """Yield keys of a decade, of two digits or four: its number, and the year in which it begins."""
    yield canonical(Decimal(digits[-_SHORT:]))
    if len(digits) == _YEAR:
        yield digits
        return
    yield f"19{digits}"
    if int(digits) <= LATEST_TENS:
        yield f"20{digits}"


_HALVES = {language: re.compile(rf"(?i)(?<=\d){half}\b") for language, half in _HALF_WORDS.items()}
_ONE_AND_A_HALF = re.compile(r"(?i)\b(?:anderthalb|eineinhalb|anderhalve?|halvanden)\b")


def with_halves(text: str, language: str) -> str:
    """Write "2 and a half million" as "2.5 million", in a text whose number words are digits."""
    pattern = _HALVES.get(language)
    return _ONE_AND_A_HALF.sub("1.5", pattern.sub(".5", text) if pattern else text)
