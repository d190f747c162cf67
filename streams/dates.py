"""Dates in texts: how they are written, and the days that words such as "last Friday" name, in eight languages.

Rules, and not `dateparser`: that one reads "we" as Wednesday, gives a day where a week is meant, finds no
"last weekend", and takes 30 ms for 1,000 characters.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache, lru_cache
from operator import itemgetter

_MONTHS = (
    "january jan januar januari janvier enero janeiro gennaio jänner",
    "february feb februar februari février febrero fevereiro febbraio",
    "march mar märz maart mars marzo março marts",
    "april apr avril abril aprile",
    "may mai mei mayo maio maggio maj",
    "june jun juni juin junio junho giugno",
    "july jul juli juillet julio julho luglio",
    "august aug augustus août agosto",
    "september sep sept septembre septiembre setembro settembre",
    "october oct oktober okt octobre octubre outubro ottobre",
    "november nov novembre noviembre novembro",
    "december dec dezember dez décembre diciembre dezembro dicembre",
)
MONTHS = {name: number for number, names in enumerate(_MONTHS, 1) for name in names.split()}
_WEEKDAYS = (
    "monday montag lundi lunes segunda-feira lunedì maandag mandag",
    "tuesday dienstag mardi martes terça-feira martedì dinsdag tirsdag",
    "wednesday mittwoch mercredi miércoles quarta-feira mercoledì woensdag onsdag",
    "thursday donnerstag jeudi jueves quinta-feira giovedì donderdag torsdag",
    "friday freitag vendredi viernes sexta-feira venerdì vrijdag fredag",
    "saturday samstag sonnabend samedi sábado sabato zaterdag lørdag",
    "sunday sonntag dimanche domingo domenica zondag søndag",
)
WEEKDAYS = {name: number for number, names in enumerate(_WEEKDAYS) for name in names.split()}
"""0: Monday."""


def _any_of(words: Iterable[str]) -> str:
    """Alternatives, the longest first; a space in them is any white space. Without any, nothing matches."""
    each = [re.escape(word).replace(r"\ ", r"\s{1,3}") for word in sorted(words, key=len, reverse=True)]
    return "|".join(each) or "(?!)"


_MONTH = _any_of(MONTHS)
_LATIN = "A-Za-zÀ-ɏ"
_LATIN_WORD = re.compile(f"[{_LATIN}]+")


def small_letters(text: str) -> str:
    """Write what `re.IGNORECASE` takes for one letter as that one: the Turkish "ı" and "İ" as "i", "ſ" as "s"."""
    return text.casefold().replace("ı", "i").replace("i\u0307", "i")


def latin_words(text: str) -> list[str]:
    """Find the Latin words of a text, in small letters."""
    return _LATIN_WORD.findall(small_letters(text))


CACHED_CHARACTERS = 10_000
"""Length of a text whose words are kept for the next pattern: a few such texts take a megabyte at most."""


def _distinct_latin_words(text: str) -> frozenset[str]:
    return frozenset(latin_words(text))


_cached_latin_words = lru_cache(maxsize=16)(_distinct_latin_words)
"""Several patterns search the same text, one after the other."""


def _words_of(text: str) -> frozenset[str]:
    return (_cached_latin_words if len(text) <= CACHED_CHARACTERS else _distinct_latin_words)(text)


def has_month(text: str) -> bool:
    """Tell whether one of the Latin words of a text is a month's name."""
    return not MONTHS.keys().isdisjoint(_words_of(text))


class DatePattern:
    """Pattern of which every match has one of a few words: a text without any is not searched.

    That is so for most texts, and to see it takes a tenth of the time.
    """

    def __init__(self, pattern: str, needed: Iterable[str] = MONTHS, other: str = "(?!)") -> None:
        """`needed`: Latin words in small letters, of which a match has one, unless `other` matches the text."""
        self.whole = re.compile(pattern, re.IGNORECASE)
        self._needed = frozenset(needed)
        self._other = re.compile(other, re.IGNORECASE)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        return self.whole.finditer(text) if self._may_match(text) else iter(())

    def sub(self, new: str | Callable[[re.Match[str]], str], text: str) -> str:
        return self.whole.sub(new, text) if self._may_match(text) else text

    def _may_match(self, text: str) -> bool:
        return not self._needed.isdisjoint(_words_of(text)) or bool(self._other.search(text))


_DAY = r"(?:0?[1-9]|[12]\d|3[01])"
_ORDINAL = r"(?:st|nd|rd|th)"
_YEAR = r"(?:1[89]|20)\d\d"
_OF = r"(?:of|de|del|do|d[’'])"

DATE = DatePattern(
    rf"(?<![{_LATIN}\d.-])(?:(?P<iy>{_YEAR})(?P<isep>[-/.])(?P<im>\d\d?)(?P=isep)(?P<id>\d\d?)"
    rf"|(?:(?P<cy>{_YEAR})年)?(?P<cm>\d\d?)月(?P<cd>\d\d?)日?"
    rf"|(?P<a>\d\d?)(?P<sep>[./-])(?P<b>\d\d?)(?P=sep)(?P<ny>{_YEAR}|(?<!-)\d\d)"
    rf"|(?P<m1>{_MONTH})\.?\s{{1,3}}(?:the\s{{1,3}})?(?P<d1>{_DAY}){_ORDINAL}?\b"
    rf"(?:,?\s{{1,3}}(?:{_OF}\s{{1,3}})?(?P<y1>{_YEAR}))?"
    rf"|(?P<d2>{_DAY})(?:{_ORDINAL}|er|\.|º)?(?:\s{{1,3}}(?:{_OF}\s{{1,3}})?|-)(?P<m2>{_MONTH})\b\.?"
    rf"(?:(?:,?\s{{1,3}}(?:{_OF}\s{{1,3}})?|-)(?P<y2>{_YEAR}))?)"
    rf"(?![{_LATIN}\d])",
    other=r"\d[./-]\d|月",
)
MONTH_OF_YEAR = DatePattern(
    rf"(?<![{_LATIN}\d])(?:(?P<month>{_MONTH})\.?,?\s{{1,3}}(?:{_OF}\s{{1,3}})?(?P<year>{_YEAR})"
    rf"|(?P<cy>{_YEAR})年(?P<cm>\d\d?)月)(?![{_LATIN}\d])",
    other="月",
)

_DAYS_AND_MONTH = DatePattern(
    rf"(?<![{_LATIN}\d.,-])(?P<day>{_DAY})(?:{_ORDINAL}|\.)?"
    r"(?:\s?[–—-]\s?|\s(?:and|to|und|bis|et|au|y|al|e|a|en|tot|og|til)\s)"
    rf"(?={_DAY}(?:{_ORDINAL}|\.|º)?\s(?:{_OF}\s)?(?P<month>{_MONTH})\b)",
)
_MONTH_AND_DAYS = DatePattern(
    rf"(?<![{_LATIN}\d])(?P<month>{_MONTH})\s(?P<day>{_DAY}){_ORDINAL}?(?:\s?[–—-]\s?|\s(?:to|through)\s)"
    rf"(?={_DAY}(?!\d))",
)


def days_apart(text: str) -> str:
    """Write days that share a month each with it: "8–9 May" → "8 May, 9 May"."""
    return _MONTH_AND_DAYS.sub(r"\g<month> \g<day>, \g<month> ", _DAYS_AND_MONTH.sub(r"\g<day> \g<month>, ", text))


@dataclass(frozen=True, order=True)
class Period:
    """Days from the first to the last, both included."""

    first: date
    last: date

    @property
    def days(self) -> int:
        return (self.last - self.first).days + 1


def readings(found: re.Match[str]) -> list[tuple[int, int]]:
    """Possible pairs of month and day of a match of DATE; none for a name that only looks like a month's.

    `re.IGNORECASE` takes the Turkish "ı" and "İ" for an "i", and `casefold` does not: "12 aprıl".
    """
    part = found.groupdict()
    if part["a"]:
        one, other = int(part["a"]), int(part["b"])
        return [(one, other), (other, one)]
    month = part["im"] or part["cm"] or MONTHS.get(str(part["m1"] or part["m2"]).casefold())
    day = part["id"] or part["cd"] or part["d1"] or part["d2"]
    return [(int(month), int(day))] if month else []


def year_of(found: re.Match[str]) -> str | None:
    """Year of a match of DATE, in four digits: "23" is 2023, and "99" is 1999, as POSIX has it."""
    part = found.groupdict()
    year = part["iy"] or part["cy"] or part["ny"] or part["y1"] or part["y2"]
    return f"{19 if year >= '69' else 20}{year}" if year and len(year) == 2 else year


def month_of_year(found: re.Match[str]) -> tuple[int, int] | None:
    """Year and month of a match of MONTH_OF_YEAR; None for a name that only looks like a month's."""
    month = int(found["cm"]) if found["cm"] else MONTHS.get(found["month"].casefold())
    return (int(found["year"] or found["cy"]), month) if month and month <= 12 else None


_IN_YEAR = re.compile(
    rf"(?<!\w)(?:in|during|of|since|im\s{{1,3}}jahre?|en|em|nel|i|fra|van)\s{{1,3}}(?P<year>{_YEAR})(?![\w/-])",
    re.IGNORECASE,
)
_DAY_STEP, _WEEK, _WEEKEND, _MONTH_STEP, _YEAR_STEP, _SEASON = "day", "week", "weekend", "month", "year", "season"
_NUMBERS = {
    "en": "a,an,one|two,a couple of,couple of|three|four|five|six|seven|eight|nine|ten|eleven|twelve",
    "de": "ein,eine,einem,einer,einen|zwei|drei|vier|fünf|sechs|sieben|acht|neun|zehn|elf|zwölf",
    "fr": "un,une|deux|trois|quatre|cinq|six|sept|huit|neuf|dix|onze|douze",
    "es": "un,una|dos|tres|cuatro|cinco|seis|siete|ocho|nueve|diez|once|doce",
    "pt": "um,uma|dois,duas|três|quatro|cinco|seis|sete|oito|nove|dez|onze|doze",
    "it": "un,una,un'|due|tre|quattro|cinque|sei|sette|otto|nove|dieci|undici|dodici",
    "nl": "een,één|twee|drie|vier|vijf|zes|zeven|acht|negen|tien|elf|twaalf",
    "da": "en,et|to|tre|fire|fem|seks|syv|otte|ni|ti|elleve|tolv",
}


@dataclass(frozen=True)
class _Language:
    """Words of one language, separated by commas; offsets are in days, or in the unit of what they stand with."""

    days: Mapping[int, str]
    units: Mapping[str, str]
    first: Mapping[int, str]
    """Words before the noun: "last week"."""
    last: Mapping[int, str]
    """Words after it: "la semaine dernière"."""
    ahead: str
    """Words before a number of units to come: "in two weeks"."""
    before: str
    """Words before a number of units past: "vor zwei Wochen"."""
    behind: str
    """Words before a length of time up to now: "seit zwei Wochen"."""
    ago: str
    later: str
    day_of_month: str
    """Pattern, with the day as its group."""
    within: str
    """Words before a month that stands alone."""


_LANGUAGES = {
    "en": _Language(
        days={
            -2: "the day before yesterday,day before yesterday",
            -1: "yesterday,last night,the day before,the previous day,the night before",
            0: "today,tonight,this morning,this afternoon,this evening",
            1: "tomorrow,the next day,the day after",
            2: "the day after tomorrow,day after tomorrow",
        },
        units={
            _DAY_STEP: "day,days",
            _WEEK: "week,weeks",
            _WEEKEND: "weekend,weekends",
            _MONTH_STEP: "month,months",
            _YEAR_STEP: "year,years",
            _SEASON: "spring,summer,autumn,fall,winter",
        },
        first={-1: "last,past,previous,this past", 0: "this,the,over the", 1: "next,coming,upcoming,this coming"},
        last={-2: "before last"},
        ahead="in,within",
        before="",
        behind="for,past,last",
        ago="ago,back,earlier,before",
        later="from now,from today,later",
        day_of_month=r"the\s{1,3}(\d\d?)(?:st|nd|rd|th)",
        within="in,since,until,till,by,during,early,late,mid,of,from",
    ),
    "de": _Language(
        days={-2: "vorgestern", -1: "gestern", 0: "heute", 1: "morgen", 2: "übermorgen"},
        units={
            _DAY_STEP: "tag,tage,tagen",
            _WEEK: "woche,wochen",
            _WEEKEND: "wochenende,wochenenden",
            _MONTH_STEP: "monat,monate,monaten,monats",
            _YEAR_STEP: "jahr,jahre,jahren,jahres",
            _SEASON: "frühling,frühjahr,sommer,herbst,winter",
        },
        first={
            -1: "letzte,letzten,letzter,letztes,letztem,vorige,vorigen,voriger,voriges,vergangene,"
            "vergangenen,vergangenes",
            0: "diese,diesen,dieser,dieses,diesem,am",
            1: "nächste,nächsten,nächster,nächstes,nächstem,kommende,kommenden,kommendes",
        },
        last={},
        ahead="in,binnen",
        before="vor",
        behind="seit",
        ago="zuvor,vorher",
        later="später",
        day_of_month=r"(?:am|dem|den|zum)\s{1,3}(\d\d?)\.",
        within="im,seit,anfang,mitte,ende,bis",
    ),
    "fr": _Language(
        days={
            -2: "avant-hier",
            -1: "hier,la veille",
            0: "aujourd'hui,aujourd’hui,ce matin,ce soir,cet après-midi",
            1: "demain,le lendemain",
            2: "après-demain",
        },
        units={
            _DAY_STEP: "jour,jours",
            _WEEK: "semaine,semaines",
            _WEEKEND: "week-end,weekend",
            _MONTH_STEP: "mois",
            _YEAR_STEP: "an,ans,année,années",
            _SEASON: "printemps,été,automne,hiver",
        },
        first={0: "ce,cet,cette", 1: "prochain,prochaine"},
        last={-1: "dernier,dernière,passé,passée,précédent,précédente", 1: "prochain,prochaine,suivant,suivante"},
        ahead="dans,d'ici",
        before="il y a",
        behind="depuis",
        ago="plus tôt,auparavant",
        later="plus tard",
        day_of_month=r"le\s{1,3}(\d\d?)(?:er)?",
        within="en,depuis,début,fin,mi",
    ),
    "es": _Language(
        days={
            -2: "anteayer,antes de ayer",
            -1: "ayer,anoche",
            0: "hoy,esta mañana,esta tarde,esta noche",
            1: "mañana",
            2: "pasado mañana",
        },
        units={
            _DAY_STEP: "día,días",
            _WEEK: "semana,semanas",
            _WEEKEND: "fin de semana,fines de semana",
            _MONTH_STEP: "mes,meses",
            _YEAR_STEP: "año,años",
            _SEASON: "primavera,verano,otoño,invierno",
        },
        first={-1: "pasado,pasada,último,última", 0: "este,esta,el", 1: "próximo,próxima"},
        last={-1: "pasado,pasada,anterior", 1: "que viene,próximo,próxima,siguiente"},
        ahead="en,dentro de",
        before="hace",
        behind="desde hace",
        ago="atrás,antes",
        later="después,más tarde",
        day_of_month=r"el\s{1,3}(?:día\s{1,3})?(\d\d?)",
        within="en,desde,hasta,de",
    ),
    "pt": _Language(
        days={-2: "anteontem", -1: "ontem", 0: "hoje,esta manhã,esta noite", 1: "amanhã", 2: "depois de amanhã"},
        units={
            _DAY_STEP: "dia,dias",
            _WEEK: "semana,semanas",
            _WEEKEND: "fim de semana,fins de semana,final de semana",
            _MONTH_STEP: "mês,meses",
            _YEAR_STEP: "ano,anos",
            _SEASON: "primavera,verão,outono,inverno",
        },
        first={
            -1: "última,último,passada,passado",
            0: "esta,este,essa,esse,nesta,neste,nessa,nesse",
            1: "próxima,próximo",
        },
        last={-1: "passada,passado,anterior", 1: "que vem,seguinte,próxima,próximo"},
        ahead="em,daqui a,dentro de",
        before="há,faz",
        behind="desde há",
        ago="atrás,antes",
        later="depois,mais tarde",
        day_of_month=r"dia\s{1,3}(\d\d?)",
        within="em,desde,até,de",
    ),
    "it": _Language(
        days={
            -2: "l'altro ieri,l’altro ieri,avantieri",
            -1: "ieri",
            0: "oggi,stamattina,stasera,stanotte",
            1: "domani",
            2: "dopodomani",
        },
        units={
            _DAY_STEP: "giorno,giorni",
            _WEEK: "settimana,settimane",
            _WEEKEND: "fine settimana,weekend",
            _MONTH_STEP: "mese,mesi",
            _YEAR_STEP: "anno,anni",
            _SEASON: "primavera,estate,autunno,inverno",
        },
        first={-1: "scorso,scorsa,ultimo,ultima", 0: "questo,questa", 1: "prossimo,prossima"},
        last={-1: "scorso,scorsa,precedente", 1: "prossimo,prossima,seguente"},
        ahead="tra,fra,in",
        before="",
        behind="da",
        ago="fa,prima",
        later="dopo,più tardi",
        day_of_month=r"il\s{1,3}(\d\d?)",
        within="a,in,da,di,nel",
    ),
    "nl": _Language(
        days={
            -2: "eergisteren",
            -1: "gisteren,gisteravond",
            0: "vandaag,vanochtend,vanmiddag,vanavond",
            1: "morgen",
            2: "overmorgen",
        },
        units={
            _DAY_STEP: "dag,dagen",
            _WEEK: "week,weken",
            _WEEKEND: "weekend,weekeinde",
            _MONTH_STEP: "maand,maanden",
            _YEAR_STEP: "jaar,jaren",
            _SEASON: "lente,voorjaar,zomer,herfst,najaar,winter",
        },
        first={
            -1: "vorige,vorig,afgelopen,laatste",
            0: "deze,dit,het",
            1: "volgende,volgend,komende,komend,aanstaande",
        },
        last={},
        ahead="over,binnen",
        before="",
        behind="sinds",
        ago="geleden,eerder",
        later="later",
        day_of_month=r"de\s{1,3}(\d\d?)(?:e|de|ste)",
        within="in,sinds,vanaf,begin,eind,tot",
    ),
    "da": _Language(
        days={
            -2: "i forgårs,forgårs",
            -1: "i går,går,i aftes",
            0: "i dag,i aften,i morges",
            1: "i morgen",
            2: "i overmorgen",
        },
        units={
            _DAY_STEP: "dag,dage",
            _WEEK: "uge,uger",
            _WEEKEND: "weekend",
            _MONTH_STEP: "måned,måneder",
            _YEAR_STEP: "år",
            _SEASON: "forår,sommer,efterår,vinter",
        },
        first={-1: "sidste,forrige", 0: "denne,dette,på", 1: "næste,kommende"},
        last={},
        ahead="om,inden for",
        before="",
        behind="for",
        ago="siden,tidligere",
        later="senere",
        day_of_month=r"den\s{1,3}(\d\d?)\.",
        within="i,siden,fra,til,primo,ultimo",
    ),
}
LEAP_YEARS_APART = 8
"""Years from one 29 February to the next at most: 1900 had none."""
SPOKEN = frozenset(_LANGUAGES)
"""Languages whose words for dates are read."""


def named_periods(text: str, on: date, languages: Iterable[str]) -> set[Period]:
    """Find the days that a text of this day names in words or without a year: every reading of each expression.

    Linear in the text. `languages`: ISO 639-1 codes; those that are not in SPOKEN are ignored.
    """
    found: set[Period] = set()
    for language in SPOKEN.intersection(languages):
        for match in spoken_dates(language).finditer(text):
            found.update(_named(match, on, language))
    for match in DATE.finditer(text):
        if not year_of(match):
            found.update(period for month, day in readings(match) for period in _dates(month, day, on))
    return found


def asked_period(query: str, today: date, languages: Iterable[str]) -> Period | None:
    """Find the days that a question asks about: "in May 2023", "last week", "on Friday"; the first that it names.

    Memory is of the past: of several readings the latest that has begun counts. None where it names no day, and for
    mere lengths of time ("for five years"). Linear in the query.
    """
    if with_year := list(periods_with_year(query)):
        return min(with_year)[1]
    found = [
        (match.start(), set(_named(match, today, language)))
        for language in SPOKEN.intersection(languages)
        for match in spoken_dates(language).finditer(query)
        if match["number"] is None or any(match[name] for name in ("ago", "before", "later", "ahead"))
    ]
    for match in DATE.finditer(query):
        days = {each for month, day in readings(match) for each in _dates(month, day, today)}
        found.append((match.start(), days))
    _, periods = min((each for each in found if each[1]), key=itemgetter(0), default=(0, set()))
    begun = [period for period in periods if period.first <= today]
    return max(begun) if begun else min(periods, default=None)


def without_dates(text: str, languages: Iterable[str]) -> str:
    """Leave out of a text what `asked_period` reads. Linear in the text."""
    for pattern in (DATE, MONTH_OF_YEAR, *(spoken_dates(language) for language in SPOKEN.intersection(languages))):
        text = pattern.sub(" ", text)
    return _IN_YEAR.sub(" ", text)


def periods_with_year(text: str) -> Iterator[tuple[int, Period]]:
    """Yield the days, months and years of a text that are written with their year, each with its place."""
    for match in DATE.finditer(text):
        year, read = year_of(match), readings(match)
        known = [_date_of(int(year), month, day) for month, day in read] if year else []
        yield from ((match.start(), Period(day, day)) for day in known[:2] if day)
    for match in MONTH_OF_YEAR.finditer(text):
        if named := month_of_year(match):
            yield match.start(), _month_period(*named)
    yield from ((match.start(), _year_period(int(match["year"]))) for match in _IN_YEAR.finditer(text))


def _words(listed: str) -> list[str]:
    return [word for word in listed.split(",") if word]


def _all(lists: Iterable[str]) -> str:
    return _any_of(word for listed in lists for word in _words(listed))


@cache
def spoken_dates(language: str) -> DatePattern:
    """Compile what a language can say: every quantifier is bounded, so that the search is linear."""
    said, gap = _LANGUAGES[language], r"\s{1,3}"
    units = _all(said.units.values())
    thing = f"{units}|{_any_of(WEEKDAYS)}|{_MONTH}"
    number = rf"\d{{1,3}}|{_all(_NUMBERS[language].split('|'))}"
    first, last = _all(said.first.values()), _all(said.last.values())
    kinds = [
        rf"(?P<day>{_all(said.days.values())})",
        rf"(?:(?:(?P<ahead>{_all([said.ahead])})|(?P<before>{_all([said.before])})|(?P<behind>{_all([said.behind])})){gap})?"
        rf"(?P<number>{number}){gap}(?P<unit>{units})"
        rf"(?:{gap}(?:(?P<ago>{_all([said.ago])})|(?P<later>{_all([said.later])})))?",
        rf"(?P<first>{first}){gap}(?P<thing1>{thing})(?!{gap}(?:{last})(?!\w))",
        rf"(?P<thing2>{thing}){gap}(?P<last>{last})",
        rf"(?P<weekday>{_any_of(WEEKDAYS)})",
        rf"(?:{_all([said.within])}){gap}(?P<month>{_MONTH})(?!{gap}\d)",
        _with_name(said.day_of_month, "date"),
    ]
    days = [max(latin_words(phrase), key=len) for listed in said.days.values() for phrase in _words(listed)]
    needed = [*days, *latin_words(" ".join([*said.units.values(), *WEEKDAYS])), *MONTHS]
    return DatePattern(rf"(?<!\w)(?:{'|'.join(kinds)})(?!\w)", needed, said.day_of_month)


def _with_name(pattern: str, name: str) -> str:
    """Name the pattern's only capturing group."""
    return re.sub(r"\((?!\?)", f"(?P<{name}>", pattern, count=1)


@cache
def _meanings(language: str) -> tuple[dict[str, int], dict[str, str], dict[str, int], dict[str, int]]:
    """Tables of one language: days, units, steps and numbers by word."""
    said = _LANGUAGES[language]
    days = {word: offset for offset, listed in said.days.items() for word in _words(listed)}
    units = {word: unit for unit, listed in said.units.items() for word in _words(listed)}
    steps = {
        word: step for table in (said.first, said.last) for step, listed in table.items() for word in _words(listed)
    }
    numbers = {word: n for n, listed in enumerate(_NUMBERS[language].split("|"), 1) for word in _words(listed)}
    return days, units, steps, numbers


def _named(match: re.Match[str], on: date, language: str) -> Iterable[Period]:
    part = {name: " ".join(small_letters(text).split()) for name, text in match.groupdict().items() if text}
    try:
        return list(_read(part, on, language))
    except (OverflowError, ValueError):  # before the year 1, after 9999, or a month's 31st that it does not have
        return ()


def _read(part: dict[str, str], on: date, language: str) -> Iterator[Period]:
    days, _, steps, _ = _meanings(language)
    if day := part.get("day"):
        yield _day(on, days.get(day, 0))
    elif thing := part.get("thing1") or part.get("thing2"):
        step = steps.get(part.get("first") or part.get("last") or "", 0)
        yield from _stepped(thing, step, on, language)
    elif weekday := part.get("weekday"):
        yield from _weekdays(WEEKDAYS[weekday], 0, on)
    elif "number" in part:
        yield from _counted(part, on, language)
    elif month := part.get("month"):
        yield from _months(MONTHS[month], on)
    else:
        yield from _days_of_month(int(part["date"]), on)


def _stepped(thing: str, step: int, on: date, language: str) -> Iterator[Period]:
    """Periods of "last week", "this Friday" or "next May"."""
    if thing in WEEKDAYS:
        yield from _weekdays(WEEKDAYS[thing], step, on)
    elif thing in MONTHS:
        both = _months(MONTHS[thing], on) if step else [_month_period(on.year, MONTHS[thing])]
        yield from (period for period in both if step == 0 or (period.first > on) == (step > 0))
    else:
        unit = _meanings(language)[1][thing]
        yield from _periods(unit, step, on)


def _periods(unit: str, step: int, on: date) -> Iterator[Period]:
    monday = on - timedelta(days=on.weekday())
    if unit == _DAY_STEP:
        yield _day(on, step)
    elif unit == _WEEK:
        yield Period(monday + timedelta(weeks=step), monday + timedelta(weeks=step, days=6))
    elif unit == _WEEKEND:
        yield from _weekends(step, monday)
    elif unit == _MONTH_STEP:
        yield _month_period(*_month_after(on, step))
    else:
        yield from (_year_period(on.year + n) for n in {step, _nearer(step) if unit == _SEASON else step})


def _nearer(step: int) -> int:
    """One step towards now."""
    return step - (step > 0) + (step < 0)


def _weekends(step: int, monday: date) -> Iterator[Period]:
    """Weekends from Friday to Sunday: one before this week or after it, or those around this day."""
    for n in (step,) if step else (-1, 0):
        yield Period(monday + timedelta(days=4 + 7 * n), monday + timedelta(days=6 + 7 * n))


def _counted(part: dict[str, str], on: date, language: str) -> Iterator[Period]:
    """Periods of "two weeks ago", "in 3 months" or "for five years"; days and weeks need a word that says which way."""
    _, units, _, numbers = _meanings(language)
    unit, word = units[part["unit"]], part["number"]
    number = int(word) if word.isdecimal() else numbers[word]
    marked = part.keys() & {"ahead", "before", "behind", "ago", "later"}
    if not marked and unit not in (_MONTH_STEP, _YEAR_STEP):
        return
    step = number if "later" in part or ("ahead" in part and "ago" not in part) else -number
    if unit in (_DAY_STEP, _WEEK):
        yield _day(on, step * (7 if unit == _WEEK else 1))
    elif unit == _WEEKEND:
        friday = on - timedelta(days=on.weekday() - 4) + timedelta(weeks=step)
        yield Period(friday, friday + timedelta(days=2))
    elif unit == _MONTH_STEP:
        yield _month_period(*_month_after(on, step))
    else:
        yield _year_period(on.year + step)


def _day(on: date, offset: int) -> Period:
    day = on + timedelta(days=offset)
    return Period(day, day)


def _weekdays(weekday: int, step: int, on: date) -> Iterator[Period]:
    """Days of "Friday": the one before and the one after; of "last Friday": the latest, and that of the week before."""
    before = -((on.weekday() - weekday - 1) % 7 + 1)
    after = (weekday - on.weekday() - 1) % 7 + 1
    of_week, further = weekday - on.weekday() + 7 * step, 7 * _nearer(step)
    offsets = (
        {before + further, of_week} if step < 0 else {after + further, of_week} if step > 0 else {before, 0, after}
    )
    yield from (_day(on, offset) for offset in offsets if (on + timedelta(days=offset)).weekday() == weekday)


def _month_after(on: date, step: int) -> tuple[int, int]:
    months = on.year * 12 + on.month - 1 + step
    return months // 12, months % 12 + 1


def _month_period(year: int, month: int) -> Period:
    following = date(year + month // 12, month % 12 + 1, 1)
    return Period(date(year, month, 1), following - timedelta(days=1))


def _year_period(year: int) -> Period:
    return Period(date(year, 1, 1), date(year, 12, 31))


def _months(month: int, on: date) -> Iterator[Period]:
    """The latest month of this name, which may be now, and the next one."""
    this_year = _month_period(on.year, month)
    yield this_year
    yield _month_period(on.year + (1 if this_year.first <= on else -1), month)


def _dates(month: int, day: int, on: date) -> Iterator[Period]:
    """The latest day of this date and the next one."""
    around = LEAP_YEARS_APART if (month, day) == (2, 29) else 1
    every = [_date_of(on.year + n, month, day) for n in range(-around, around + 1)]
    known = [each for each in every if each is not None]
    yield from (Period(each, each) for each in [max((d for d in known if d <= on), default=None)] if each)
    yield from (Period(each, each) for each in [min((d for d in known if d > on), default=None)] if each)


def _days_of_month(day: int, on: date) -> Iterator[Period]:
    """Days of "the 12th", in the months around this day."""
    for step in (-1, 0, 1):
        found = _date_of(*_month_after(on, step), day)
        if found is not None:
            yield Period(found, found)


def _date_of(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None
