"""Finds the time that a question asks about: "in May 2023", "last week", "between March 1 and March 10", "seit Montag".

`dateparser` parses a single date or relative day, such as "12 June" or "vor 3 Tagen", because it knows each language's
words. It only gets short runs of words: its own search in a text takes "we" for Wednesday and does not know spans. This
module decides which words may be a date, and what several dates and the words around them mean together. An ambiguous
question names no time, because a wrong time would hide the right answer.
"""

import re
from calendar import monthrange
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import cache, lru_cache
from threading import Lock
from typing import Literal, NamedTuple

import Stemmer
from dateparser.date import DateDataParser
from text_to_num import alpha2digit

from afterword.streams.text.language import NAMES, date_words, plausible, stems, words

TOLD_LATER = timedelta(days=2)
"""What happens on a day is often told up to this much later."""
LONGEST_LEFT_OUT = 31
"""The words of a time of up to this many days are not compared with those of messages."""
MOST_CHARACTERS = 300
"""How much of a question is searched for a time."""
MOST_LANGUAGES = 4
"""Upper limit for the languages that are tried: a short question may be in many."""
MOST_PARSED = 60
"""Upper limit for the runs of words parsed per language. Parsing one takes about 0.6 ms."""
MOST_WORDS = 6
"""Number of words in the longest date: "20 de octubre de 2025"."""
SHORTEST_NAME = 4
"""Minimum length of a weekday's name. A shorter one may be another word: "sun", "mar", "we"."""
EARLIEST = date(1970, 1, 1)
"""First day of a span without a beginning, such as "before March 10"."""
ABOUT_A_YEAR = timedelta(days=366)


class Period(NamedTuple):
    """A range of days, both ends included."""

    first: date
    last: date

    @property
    def days(self) -> int:
        return (self.last - self.first).days + 1


class AskedTime(NamedTuple):
    """A span of time; `end` is exclusive."""

    begin: datetime
    end: datetime
    days: Period
    """The days that the question names, without TOLD_LATER."""
    rest: str
    """The question without the words for the time. It is the whole question if nothing else is left, or if the time is
    longer than a month, because a year may be a subject too."""
    month: re.Pattern[str]
    """The month of these days as messages write it. It matches nothing if they are in several months."""

    def meets(self, started_at: datetime, ended_at: datetime) -> bool:
        """Return whether an episode overlaps this time."""
        return started_at < self.end and ended_at >= self.begin

    def is_named(self, text: str, said_at: datetime) -> bool:
        """Return whether a text names the month of this time, because plans for May are made earlier.

        A month without a year counts if the text was sent within a year of it. Linear in the text.
        """
        is_near = abs(said_at.date() - self.days.first) < ABOUT_A_YEAR
        return any(
            int(found["year"]) == self.days.first.year if found["year"] else is_near
            for found in self.month.finditer(text)
            if found["year"] or found["before"] or found["day"]
        )


def asked_time(question: str, now: datetime, zone: tzinfo = UTC) -> AskedTime | None:
    """Find the time that a question names, and TOLD_LATER after it; None if it names none or is unclear.

    Days are those of the zone. MOST_CHARACTERS and MOST_PARSED limit this to 0.2 s. A language takes up to 0.4 s more
    when it is first used.
    """
    today = now.astimezone(zone).date()
    languages = [code for code in plausible(question) if code in _WORDS and code != "en"][: MOST_LANGUAGES - 1]
    languages.append("en")
    tokens = list(_TOKEN.finditer(question[:MOST_CHARACTERS]))
    with _ONE_AT_A_TIME:
        readings = [(reader, reader.dates()) for language in languages for reader in [_Reader(tokens, language, today)]]
    reader, dates = max(readings, key=lambda reading: sum(one.end - one.begin for one in reading[1]))
    days = reader.together(dates)
    if days is None:
        return None
    try:
        begin, end = (datetime.combine(day, time(), zone) for day in (days.first, days.last + timedelta(days=1)))
        begin, end = begin.astimezone(UTC), end.astimezone(UTC) + TOLD_LATER
    except OverflowError:  # the date is at an end of the calendar
        return None
    rest = question
    if days.days <= LONGEST_LEFT_OUT:
        left = words(rest := reader.without(dates, question))
        if not any(stems(left, language) for language in languages):
            rest = question
    return AskedTime(begin, end, days, rest, _month_of(days, tuple(languages)))


_ONE_AT_A_TIME = Lock()
"""The library fills its own tables while it reads."""


@lru_cache(maxsize=64)
def _month_of(days: Period, languages: Sequence[str]) -> re.Pattern[str]:
    if (days.first.year, days.first.month) != (days.last.year, days.last.month):
        return re.compile("(?!)")
    named = [
        name for code in languages for name, month in _vocabulary(code).months.items() if month == days.first.month
    ]
    names = "|".join(map(re.escape, sorted(named, key=len, reverse=True)))
    within = "|".join(sorted({word for code in languages for word in _vocabulary(code).within}))
    return re.compile(
        rf"(?i)(?P<before>\b(?:{within})\s|\d(?:\.|º|er|st|nd|rd|th)?\s(?:d[eo]\s|of\s)?)?\b(?:{names})\b\.?"
        r"(?P<day>\s(?:the\s)?\d\d?(?:st|nd|rd|th)?\b(?!\d))?(?:,?\s(?:del?\s|of\s)?(?P<year>[12]\d{3})\b)?"
    )


_TOKEN = re.compile(
    r"(?<!\d)(?:(?P<y1>\d{4})(?P<sign>[-/.])(?P<m1>\d\d?)(?P=sign)(?P<d1>\d\d?)"
    r"|(?P<y2>\d{4})年(?P<m2>\d\d?)月(?P<d2>\d\d?)"
    r"|(?P<d3>\d\d?)(?P<mark>[-/.])(?P<m3>\d\d?)(?P=mark)(?P<y3>\d{4}))(?!\d)"
    r"|(?P<number>\d{1,4})(?:st|nd|rd|th|er|ère|de|ste|e|\.|º|ª)?(?!\w)|\d\w*|[–—-]|[^\W\d_]+(?:['’-][^\W\d_]+)*"
)
_ELIDED = re.compile(r"^(?:qu|d|l|dell|nell|all|dall)'|'s$")
_ONES = "a an ein eine einem einen einer un une una um uma een en et"
_ONE = frozenset(_ONES.split())
_AROUND = """
en| since starting   | before prior | until till through by up | after  | between from       | and to through till until
de| seit ab          | vor      | bis                      | nach   | zwischen von vom   | und bis
fr| depuis dès partir| avant    | jusqu'à jusqu'au jusqu'en| après  | entre du de        | et au à
es| desde partir     | antes    | hasta                    | después| entre del de desde | y al a hasta
pt| desde partir     | antes    | até                      | depois | entre de desde     | e a ao até
it| da dal dall dalla partire| prima    | fino                     | dopo   | tra fra da dal dall| e al all a
nl| sinds vanaf      | voor     | tot                      | na     | tussen van         | en tot
da| siden            | før inden| indtil                   | efter  | mellem fra         | og til
"""
_MEANINGS = ("since", "before", "until", "after", "opens", "joins")
"""Columns of this table: words before a date, before the first of two dates, and between them."""
_WORDS = {
    language.strip(): dict(zip(_MEANINGS, map(str.split, cells), strict=True))
    for language, *cells in (line.split("|") for line in _AROUND.strip().splitlines())
}
_OPEN = _MEANINGS[:4]
_IN = {
    "en": "in of during year by early late mid last past from",
    "de": "im in jahr jahre jahres anfang mitte ende letzten letztem vergangenen",
    "fr": "en an année début fin",
    "es": "en año durante",
    "pt": "em ano durante",
    "it": "a in nel anno",
    "nl": "in jaar begin eind",
    "da": "i året fra til",
}
"""A month or a year alone is a time only after one of these words, or of those for "since" to "after"."""
_TO_COME = {
    "en": "next coming this every each",
    "de": "nächste nächsten nächster nächstem kommende kommenden kommender diesen dieser diesem jeden",
    "fr": "prochain prochaine ce cette chaque",
    "es": "próximo próxima viene siguiente este esta cada",
    "pt": "próximo próxima vem seguinte este esta neste nesta nessa nesse cada",
    "it": "prossimo prossima questo questa ogni",
    "nl": "volgende komende aanstaande deze elke",
    "da": "næste kommende denne hver",
}
"""Next to one of these words, a weekday or a month may mean the next one, so it names no time."""
_LAST = {
    "en": "last past previous",
    "de": "letzt vorig vergang",
    "fr": "derni pass précédent",
    "es": "pas anterior ultim",
    "pt": "pass anterior últim",
    "it": "scors ultim precedent",
    "nl": "voor afloop laatst",
    "da": "sidst for",
}
"""Stems of the adjectives for "last". The library's phrases use the first of them."""
_EVENINGS = {"last night": "yesterday"} | dict.fromkeys(
    ("tonight", "this morning", "this afternoon", "this evening"), "today"
)
_AND = frozenset(["and", "und", "et", "y", "e", "en", "og"])
"""Words that join two dates to a span only after a word such as "between"."""
_OTHERWISE = frozenset(["than", "except", "excluding", "including", "half"])
"""Before a date, these words mean other days than the date."""
_NEAR = 3
"""Number of words beside a day that may say which days or which week is meant."""
_DASHES = frozenset("–—-")
_WEEKENDS = frozenset(["weekend", "wochenende", "week-end"])
_JANUARY_TO_DECEMBER = "january february march april may june july august september october november december"
_MONTHS = _JANUARY_TO_DECEMBER.split()
_WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_UNIT = re.compile(r"\b(?:day|week|month|year|(?:last|this|next) \w+day)\b")
_ARTICLE = re.compile(r"^(?:(?:el|la|le)\s|l')")
_YEAR = re.compile(r"(?:19|20)\d\d")
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_SKIPPED = r"(?:[^\W\d]{1,3}|della|dalla|nella|~)"
"""An article, a preposition or "last" between a date and the word that says how it is meant."""
MOST_SKIPPED = 2

Kind = Literal["day", "weekday", "week", "month", "year"]


class _Vocabulary:
    """The library's words for dates in one language, in lower case."""

    def __init__(self, language: str) -> None:
        info = date_words(language)
        self._stem = Stemmer.Stemmer(NAMES[language]).stemWord
        self._last = _LAST[language].split()
        self.months = {name.casefold(): number for number, key in enumerate(_MONTHS, 1) for name in info[key]}
        self.weekdays = frozenset(name.casefold() for key in _WEEKDAYS for name in info[key])
        said = [phrase for key, phrases in info["relative-type"].items() if _UNIT.search(key) for phrase in phrases]
        counted = [
            form
            for key, forms in info["relative-type-regex"].items()
            if _UNIT.search(key) and key.endswith(" ago")
            for form in forms
        ]
        self.phrases = {self.key_of(_ARTICLE.sub("", phrase).split()): phrase for phrase in said}
        """Phrases such as "last week", by the stems of their words."""
        if language == "en":
            self.phrases |= {self.key_of(phrase.split()): meant for phrase, meant in _EVENINGS.items()}
        else:  # "la última semana", "la semana pasada"
            self.phrases |= {key[::-1]: phrase for key, phrase in self.phrases.items()}
        self.single = frozenset(phrase for phrase in said if " " not in phrase)
        self.counted = re.compile("|".join(counted))
        """Phrases such as "3 days ago"."""
        words_of = {meaning: "|".join(map(re.escape, small)) for meaning, small in _WORDS[language].items()}
        between = rf"(?:{_SKIPPED} ){{0,{MOST_SKIPPED}}}"
        self.span = re.compile(
            rf"(?:(?<!\S)(?P<opens>{words_of['opens']}) {between})?(?<!\S)(?P<first>@|\d\d?) {between}"
            rf"(?P<joins>{words_of['joins']}|[–—-]) {between}(?P<last>@|\d\d?)(?!\S)(?: (?P<year>(?:19|20)\d\d)(?!\S))?"
        )
        opening = "|".join(f"(?P<{meaning}>{words_of[meaning]})" for meaning in _OPEN)
        self.open_span = re.compile(rf"(?:(?P<word>\S+) )?(?<!\S)(?:{opening}) {between}@")
        self.opening = frozenset(word for meaning in _OPEN for word in _WORDS[language][meaning])
        self.within = self.opening.union(_IN[language].split())
        self.to_come = frozenset(_TO_COME[language].split())
        self.joins = _DASHES.union(_WORDS[language]["joins"])
        self.begins_span = self.within.union(_WORDS[language]["opens"])
        self.weeks = frozenset(name.casefold() for name in info["week"])
        self.units = _WEEKENDS.union(*(map(str.casefold, info[unit]) for unit in ("week", "month", "year")))
        self._begin_or_end = frozenset(_WORD.findall(" ".join((*said, *_EVENINGS, *counted)))) | _ONE | _WEEKENDS

    def key_of(self, said: Sequence[str]) -> tuple[str, ...]:
        return tuple(self._last[0] if self.is_last(word) else str(self._stem(word)) for word in said)

    def is_last(self, word: str) -> bool:
        return self._stem(word) in self._last

    def begins_or_ends(self, word: str) -> bool:
        """Return whether a date may begin or end with this word."""
        return word in self._begin_or_end or word in self.months or word in self.weekdays or self.is_last(word)


@cache
def _vocabulary(language: str) -> _Vocabulary:
    return _Vocabulary(language)


@lru_cache(maxsize=32)
def _parser(language: str, today: date) -> DateDataParser:
    base = datetime.combine(today, time(12))
    settings = {"RELATIVE_BASE": base, "PREFER_DATES_FROM": "past", "PREFER_DAY_OF_MONTH": "first"}
    return DateDataParser(languages=[language], settings=settings)


@lru_cache(maxsize=4096)
def _digits(word: str, language: str) -> str:
    return str(alpha2digit(word, language, threshold=0)).rstrip(".ºª")


class _Date(NamedTuple):
    """A date in a question: its words from `begin` up to `end`, exclusive."""

    begin: int
    end: int
    kind: Kind
    days: Period


class _Reader:
    """Finds the dates in a question in one language."""

    def __init__(self, tokens: Sequence[re.Match[str]], language: str, today: date) -> None:
        self._tokens = tokens
        self._language = language
        self._today = today
        self._known = _vocabulary(language)
        self._words = [token["number"] or _ELIDED.sub("", token[0].casefold().replace("’", "'")) for token in tokens]
        self._said = [
            "~" if self._known.is_last(word) and word not in self._known.opening else word for word in self._words
        ]
        self._stems = self._known.key_of(self._words)
        self._numbers = [_digits(word, language) for word in self._words]
        self._parsed = 0

    def dates(self) -> list[_Date]:
        """Find dates from left to right, each as long as possible."""
        found: list[_Date] = []
        begin = 0
        while begin < len(self._words):
            ends = range(min(len(self._words), begin + MOST_WORDS), begin, -1)
            one = next((one for end in ends if (one := self._date(begin, end))), None)
            found += [one] if one else []
            begin = one.end if one else begin + 1
        return found

    def without(self, dates: Sequence[_Date], text: str) -> str:
        """Return the text without the dates."""
        for one in reversed(dates):
            text = f"{text[: self._tokens[one.begin].start()]} {text[self._tokens[one.end - 1].end() :]}"
        return text

    def _date(self, begin: int, end: int) -> _Date | None:
        said = self._words[begin:end]
        for place in (begin, end - 1):
            if not self._numbers[place][0].isdigit() and not self._known.begins_or_ends(self._words[place]):
                return None
        if not self._known.months.keys().isdisjoint(said):
            return self._of_month(begin, end)
        if len(said) == 1 and said[0] not in self._known.single:
            return self._one_word(begin)
        if len(said) == 2 and any(map(self._known.is_last, said)) and not _WEEKENDS.isdisjoint(said):
            friday = self._today - timedelta(days=self._today.weekday() + 3)
            return _Date(begin, end, "day", Period(friday, friday + timedelta(days=2)))
        return self._relative(begin, end)

    def _one_word(self, place: int) -> _Date | None:
        if day := _numeric(self._tokens[place]):
            return _Date(place, place + 1, "day", Period(day, day))
        word = self._words[place]
        if _YEAR.fullmatch(word) and self._word(place - 1) != "of" and self._is_time(place):  # "the winter of 2024"
            return _Date(place, place + 1, "year", _period(date(int(word), 1, 1), "year"))
        if word in self._known.weekdays and len(word) >= SHORTEST_NAME:
            return self._parse(place, place + 1, word, "weekday")
        return None

    def _relative(self, begin: int, end: int) -> _Date | None:
        said = self._words[begin:end]
        if phrase := self._known.phrases.get(self._stems[begin:end]):
            return self._parse(begin, end, phrase, None if self._known.weekdays.isdisjoint(said) else "weekday")
        after = [*self._numbers[begin + 1 : end], ""]
        counted = " ".join(
            "1" if word in _ONE and not following[:1].isdigit() and following not in _ONE else number
            for (word, number), following in zip(self._both(begin, end), after, strict=True)
        )
        return self._parse(begin, end, counted) if self._known.counted.fullmatch(counted) else None

    def _both(self, begin: int, end: int) -> Iterator[tuple[str, str]]:
        return zip(self._words[begin:end], self._numbers[begin:end], strict=True)

    def _of_month(self, begin: int, end: int) -> _Date | None:
        if end - begin == 1:
            return self._parse(begin, end, self._words[begin], "month") if self._is_time(begin) else None
        names = self._known.months.keys() | self._known.weekdays
        if not all(self._numbers[at][0].isdigit() or self._words[at] in names for at in (begin, end - 1)):
            return None
        if not (self._known.joins - {"a"}).isdisjoint(self._words[begin:end]):
            return None
        date_words = [
            word if word in _ONE else re.sub(r"(?<=\d)[^\W\d_]+$", "", number)  # "1st" and "1er" are 1
            for word, number in self._both(begin, end)
        ]
        if (
            not any(word.isdigit() for word in date_words)
            or sum(len(word) < 3 and word.isdigit() for word in date_words) > 1
        ):
            return None
        return self._parse(begin, end, " ".join(date_words))

    def _is_time(self, place: int) -> bool:
        """Return whether the words beside a lone month or year say that it is a time."""
        before, after = self._word(place - 1), self._word(place + 1)
        return (
            before in self._known.begins_span
            or (before in self._known.joins and self._is_month_or_year(place - 2))
            or (after in self._known.joins - _AND and self._is_month_or_year(place + 2))
        )

    def _is_month_or_year(self, place: int) -> bool:
        return self._word(place) in self._known.months or bool(_YEAR.fullmatch(self._word(place)))

    def _parse(self, begin: int, end: int, text: str, kind: Kind | None = None) -> _Date | None:
        self._parsed += 1
        if self._parsed > MOST_PARSED:
            return None
        try:
            read = _parser(self._language, self._today).get_date_data(text)
            if read.date_obj is None or read.period not in ("day", "week", "month", "year"):
                return None
            return _Date(begin, end, kind or read.period, _period(read.date_obj.date(), read.period))
        except (OverflowError, ValueError):  # before the year 1 or after 9999
            return None

    def _word(self, place: int) -> str:
        return self._words[place] if 0 <= place < len(self._words) else ""

    def _is_unclear(self, one: _Date) -> bool:
        """Return whether other days may be meant, as in "next May", "Friday of another week" or "around Friday"."""
        if self._word(one.begin - 1) in _OTHERWISE or self._words[max(0, one.begin - 2) : one.begin] == ["as", "of"]:
            return True
        if one.kind == "day" and not self._known.units.isdisjoint(self._words[max(0, one.begin - _NEAR) : one.begin]):
            return True  # "the week of March 9"
        if one.kind == "weekday":
            beside = (*range(one.begin - _NEAR, one.begin), *range(one.end, one.end + _NEAR))
            is_before_last = self._word(one.end) in self._known.opening and self._known.is_last(self._word(one.end + 1))
            if is_before_last or any(self._word(place) in self._known.weeks for place in beside):
                return True
        is_name = one.end - one.begin == 1 and one.kind in ("weekday", "month")
        around = map(self._word, (one.begin - 1, one.end, one.end + 1))
        return is_name and not self._known.to_come.isdisjoint(around)

    def together(self, dates: Sequence[_Date]) -> Period | None:
        """Read what the dates and the words around them mean together; None if that is unclear."""
        dates = self._in_week(dates)
        if not dates or any(map(self._is_unclear, dates)):
            return None
        if span := self._span(dates):
            return span
        if len(dates) > 1:
            dates = [one for one in dates if one.days.first <= self._today]  # a memory is only about the past
        return self._open_span(dates[0]) if len(dates) == 1 else None

    def _in_week(self, dates: Sequence[_Date]) -> Sequence[_Date]:
        """Read weekdays beside a week as its days: "on Tuesday last week". Beside another date, they do not count."""
        weekdays, others = ([one for one in dates if (one.kind == "weekday") == is_one] for is_one in (True, False))
        if not (weekdays and len(others) == 1 and others[0].kind == "week"):
            return others or weekdays
        monday = others[0].days.first
        days = [monday + timedelta(days=one.days.first.weekday()) for one in weekdays]
        return [one._replace(kind="week", days=Period(day, day)) for one, day in zip(weekdays, days, strict=True)]

    def _around(self, dates: Sequence[_Date]) -> str:
        said = list(self._said)
        for one in reversed(dates):
            said[one.begin : one.end] = ["@"]
        return " ".join(said)

    def _span(self, dates: Sequence[_Date]) -> Period | None:
        """Read "between … and …", "from … to …", "from 1 to 10 March" and "March 1-10"."""
        for found in self._known.span.finditer(self._around(dates)):
            first, last = found["first"], found["last"]
            if (first, last).count("@") == len(dates) and (found["opens"] or found["joins"] not in _AND):
                try:
                    period = self._between(dates, first, last, found["year"])
                except ValueError:  # there is no such day
                    return None
                return period if period and period.first <= period.last else None
        return None

    def _between(self, dates: Sequence[_Date], begin: str, end: str, year: str | None) -> Period | None:
        one, other = dates[0], dates[-1]
        first, last = one.days.first, other.days.last
        if len(dates) == 2:
            year = None if self._year_in(one) else self._year_in(other)
            if one.kind == "weekday" and first > last:
                first -= timedelta(days=7)
            return Period(first.replace(year=int(year)) if year and one.kind in ("day", "month") else first, last)
        if one.kind != "day":
            return None
        if end == "@":
            return Period(first.replace(day=int(begin)), last)
        first = first.replace(year=int(year)) if year else first
        return Period(first, first.replace(day=int(end)))

    def _year_in(self, one: _Date) -> str | None:
        return next(filter(_YEAR.fullmatch, self._words[one.begin : one.end]), None)

    def _open_span(self, one: _Date) -> Period | None:
        """Read "since Monday" and "before March 10"; without such a word, the days themselves."""
        found = self._known.open_span.search(self._around([one]))
        if not found:
            return one.days
        if found["word"] and self._known.begins_or_ends(found["word"]):
            return None  # "the week before March 10"
        first, last = one.days
        days = {
            "since": Period(first, self._today),
            "before": Period(EARLIEST, first - timedelta(days=1)),
            "until": Period(EARLIEST, last),
            "after": Period(last + timedelta(days=1), self._today),
        }[str(found.lastgroup)]
        return days if days.first <= days.last else None


def _numeric(token: re.Match[str]) -> date | None:
    """Read a date in digits; None for 03/05/2024, which may be in May or in March."""
    year, month, day = (next(filter(None, token.group(*(f"{part}{n}" for n in (1, 2, 3)))), None) for part in "ymd")
    if not (year and month and day):
        return None
    if token["mark"] == "/" and int(month) <= 12 and int(day) <= 12 and month != day:
        return None
    if token["mark"] and int(month) > 12:
        month, day = day, month
    try:
        return date(int(year), int(month), int(day))
    except ValueError:
        return None


def _period(day: date, length: str) -> Period:
    if length == "week":
        monday = day - timedelta(days=day.weekday())
        return Period(monday, monday + timedelta(days=6))
    if length == "month":
        return Period(day.replace(day=1), day.replace(day=monthrange(day.year, day.month)[1]))
    if length == "year":
        return Period(date(day.year, 1, 1), date(day.year, 12, 31))
    return Period(day, day)
