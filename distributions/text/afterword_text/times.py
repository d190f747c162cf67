"""Finds the time that a question asks about: "in May 2023", "last week", "on Tuesday two weeks ago", "seit Montag".

The words for months, weekdays and relative days in each language are dateparser's. Its own search is not used, because
it takes "we" for Wednesday and "5 days a week" for a date, and does not know "vergangene Woche". A question with
several dates, or with a word that gives its date another meaning, such as "before", names no time, because a wrong time
would hide the right answer.
"""

import re
from calendar import monthrange
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import cache, lru_cache, partial
from typing import Literal, NamedTuple

import regex
import Stemmer
from text_to_num import alpha2digit

from afterword_text.language import (
    MONTHS,
    NAMES,
    UNDETERMINED,
    VOCABULARY,
    WEEKDAYS,
    date_words,
    plausible,
    search_words,
    stem,
    stems,
    stop_words,
    words,
)

TOLD_LATER = timedelta(days=2)
"""Events of a day are often mentioned up to this much later."""
LONGEST_LEFT_OUT = 31
"""The words for a time of at most this many days are not compared with the words of messages."""
MOST_CHARACTERS = 300
"""How much of a question is searched for a time."""
MOST_LANGUAGES = 4
"""Upper limit for the languages that are tried: a short question may be in many."""
SHORTEST_NAME = 4
"""Minimum length of a weekday's name. A shorter one may be another word: "sun", "mar", "we"."""
ABOUT_A_YEAR = timedelta(days=366)
LEAST_WORDS = 2
"""Minimum number of words of a question that names neither a subject nor a time."""


class Period(NamedTuple):
    """A range of days, both ends included."""

    first: date
    last: date

    @property
    def days(self) -> int:
        return (self.last - self.first).days + 1


class AskedTime(NamedTuple):
    """A span of time; ends are exclusive."""

    begin: datetime
    end: datetime
    named_end: datetime
    """The end of the named days, without TOLD_LATER."""
    days: Period
    """The days that the question names, without TOLD_LATER."""
    rest: str
    """The question without the words for the time. It is the whole question if nothing else is left, if the time is to
    come, or if it is longer than a month, because a year may be a subject too."""
    besides: tuple[str, ...]
    """The words of the question without those for the time."""
    is_ago: bool
    """Whether the days are counted back from today, such as "yesterday", instead of being named."""
    is_ahead: bool
    """Whether the days are to come, so that what was said of them was said on other days."""
    month: frozenset[str]
    """The names of the month of these days, as searches compare them. Empty if there are several months."""
    number: str
    """The only words for the day if they are digits without a year, which may mean something else: "on the 3rd"."""
    is_doubtful: bool
    """Whether no word of the question is about the past, so that a number may well be no day."""

    def meets(self, started_at: datetime, ended_at: datetime) -> bool:
        """Return whether an episode overlaps this time."""
        return started_at < self.end and ended_at >= self.begin

    def names(self, started_at: datetime, ended_at: datetime) -> bool:
        """Return whether an episode overlaps the days that are named."""
        return started_at < self.named_end and ended_at >= self.begin

    def is_near(self, ended_at: datetime) -> bool:
        """Return whether an episode took place within a year of this time, so that it may name its month."""
        return abs(ended_at.date() - self.days.first) < ABOUT_A_YEAR


def asked_time(question: str, now: datetime, zone: tzinfo = UTC) -> AskedTime | None:
    """Find the time that a question names, and TOLD_LATER after it; None if it names none or is unclear.

    Days begin and end as in the time zone. Only the first MOST_CHARACTERS are read.
    """
    today = now.astimezone(zone).date()
    likely = plausible(question)
    languages = list(dict.fromkeys([*[code for code in likely if code in _WORDS][: MOST_LANGUAGES - 1], "en"]))
    tokens = list(_TOKEN.finditer(question[:MOST_CHARACTERS]))
    may_be_english = likely[0] in ("en", UNDETERMINED)
    readers = [_Reader(tokens, _vocabulary(language), today, may_be_english) for language in languages]
    reader = max(readers, key=lambda reader: reader.understood)
    try:
        days = reader.days()
        if days is None:
            return None
        if reader.is_ahead and days.last < today:
            days = Period(*(day.replace(year=day.year + 1) for day in days))
        begin, end = (datetime.combine(day, time(), zone) for day in (days.first, days.last + timedelta(days=1)))
        begin, end = begin.astimezone(UTC), end.astimezone(UTC)
        later = end + TOLD_LATER
    except (OverflowError, ValueError):  # there is no such day, or it is at the limit of what Python can represent
        return None
    rest = question
    left = words(without := reader.without_dates(question))
    is_ahead = days.first > today
    if not is_ahead and days.days <= LONGEST_LEFT_OUT and any(stems(left, language) for language in languages):
        rest = without
    is_of_a_month = (days.first.year, days.first.month) == (days.last.year, days.last.month)
    month = f"M{days.first.month}" if is_of_a_month else None
    names = (
        form
        for language in languages
        for name, symbol in _vocabulary(language).symbols.items()
        if symbol == month
        for word in search_words(name, language)
        for form in word.forms
    )
    is_ago = days.last < today and reader.is_relative
    number = " ".join(reader.numbers)
    is_doubtful = bool(number) and not reader.is_past
    besides, month_names = tuple(left), frozenset(names)
    return AskedTime(begin, later, end, days, rest, besides, is_ago, is_ahead, month_names, number, is_doubtful)


class TimeAlone(NamedTuple):
    """What a question asks for that names no subject, but a time at most."""

    order: Literal["newest", "oldest"]
    is_certain: bool
    """False if it may have a meaning that its words do not tell: "where am I from?", "what do I have on Monday?"."""


def time_alone(question: str, asked: AskedTime | None) -> TimeAlone | None:
    """Find out which episodes a question without a subject wants; None if it has a subject.

    Each of its words besides the time must be a stop word or a word for talking, in one of the languages in which times
    are read.
    """
    left = asked.besides if asked else words(question[:MOST_CHARACTERS])
    if asked is None and len(left) < LEAST_WORDS:
        return None
    for language, (said, newest, oldest, every) in _ALONE.items():
        stemmer = Stemmer.Stemmer(NAMES[language])
        if all(stem(word, language) is None or stemmer.stemWord(word) in every for word in left):
            found = set(stemmer.stemWords(left))
            of_talk = found & (said | newest | oldest)
            is_oldest = newest.isdisjoint(found) and not oldest.isdisjoint(found)
            is_certain = bool(of_talk) or (asked is not None and asked.is_ago)
            is_certain &= asked is None or not asked.is_ahead
            return TimeAlone("oldest" if is_oldest else "newest", is_certain)
    return None


_TOKEN = re.compile(
    r"(?<!\d)(?:(?P<ymd>\d{4}(?P<sign>[-/.])\d\d?(?P=sign)\d\d?|\d{4}年\d\d?月\d\d?)(?!\d)"
    r"|(?P<dmy>(?!24/7)\d\d?(?P<mark>[-/.])\d\d?(?:(?P=mark)(?:\d\d)?\d\d)?)(?!\w|[-/.,:]\d))"
    r"|(?P<number>\d{1,4})(?:st|nd|rd|th|er|ère|de|ste|e|\.|º|ª)?(?!\w|[.,]\d)|\d(?:\w|[.,]\d)*|[–—-]|[^\W\d_]+(?:['’-][^\W\d_]+)*"
)
_ELIDED = re.compile(r"^(?:qu|d|l|dell|nell|all|dall)'|'s$")
_WORDS: dict[str, dict[str, list[str]]] = {
    language: {meaning: said.split() for meaning, said in around.items()}
    for language, around in VOCABULARY["asked_times"].items()
}
"""The words around dates, by language and meaning."""
_ALONE = {
    language: tuple(
        frozenset(Stemmer.Stemmer(NAMES[language]).stemWords(each.split()))
        for each in (
            *(said[meaning] for meaning in ("said", "newest", "oldest")),
            " ".join([*said.values(), *_WORDS[language]["since"]]),
        )
    )
    for language, said in VOCABULARY["time_alone"].items()
}
"""The stems of the words of questions without a subject, by language: three kinds of them, and all."""
_DASHES = frozenset("–—-")
_UNITS = ("day", "week", "month", "year")
_RELATIVE = re.compile(r"(?P<ahead>in )?(?P<count>\d+) (?P<unit>day|week|month|year)(?: ago)?")
"""dateparser's names of phrases, such as "1 week ago" for "last week"."""
_NUMBER = r"(\d++[.,]?\d*+)"
"""The number in dateparser's patterns."""
_ARTICLE = re.compile(r"^(?:(?:el|la|le)\s|l')")
_YEAR = re.compile(r"(?:19|20)\d\d")
_BETWEEN = r"(?:(?:[^\W\d]{1,3}|della|dalla|nella|~) ){0,2}"
"""Articles, prepositions or "last" between a date and the word that gives it another meaning."""
_OF = "(?:(?:of|de|del|di|do) )?"
_WITH_YEAR = rf"(?: {_OF}(?P<year>{_YEAR.pattern}))?"
_COUNTS = r"\s*(?:[%‰°€$£¥]|[/:]?\d|p(?:er|or|our)\s+c(?:ent|ien))"
"""Matches what follows a number that is no day: a unit, or "per cent" in some languages."""
_NAMED_DAYS = "|".join(VOCABULARY["times"]["named_days"].values()).replace("\n", "")
_WEEKEND = "(?P<weekend>weekend|wochenende|week-end)"
_DATE = (
    rf"(?:D|(?<=(?<!\S)(?:{VOCABULARY['times']['before_date']}|[Ww]\d(?: \S+)?) )d)(?P<digits>\d\S+)"
    rf"|\^ [Ww](?P<weekday>\d)|W(?P<weekday>\d) \^|~ {_WEEKEND}|{_WEEKEND} ~|~ [Ww](?P<weekday>\d)"
    r"|(?:[Ww]\d (?:[^\W\d]{2,3} )?)?"
    rf"(?:T?(?P<day>\d\d?) {_OF}M(?P<month>\d+)|M(?P<month>\d+) (?:the )?T?(?P<day>\d\d?)){_WITH_YEAR}"
    rf"|M(?P<month>\d+) {_OF}(?P<year>{_YEAR.pattern})"
)
"""Matches a date in the symbols of `_Vocabulary`, if it is not a lone month or year."""
_MONTH_OR_YEAR = rf"(?:M\d+|{_YEAR.pattern})"

Kind = Literal["day", "weekday", "week", "month", "year"]


class _Vocabulary:
    """The words for dates in one language, in lower case. Patterns that few questions need are not compiled here."""

    def __init__(self, language: str) -> None:
        info, around = date_words(language), _WORDS[language]
        self.language = language
        # English inflects no word of these phrases: "days before yesterday" is not "day before yesterday"
        self._stem = str if language == "en" else Stemmer.Stemmer(NAMES[language]).stemWord
        self._last = around["last"]
        self._before_last = tuple(around["before_last"])
        stop_word = _any_of(stop_words(language) - {around["of"][0]})  # "the 26th of 30"
        follows = rf"\s*(?![\w\s])|\s+(?:{around['verb'][0]}|(?i:{stop_word}))(?!\w)"  # a noun would be numbered
        day = rf"(?=[0-2]?\d(?!\d)|3[01])(?:{around['day'][0]})\.?+(?!{_COUNTS})(?:{follows})"
        self.is_day = partial(regex.match, day)
        """Matches a number that may be a day without its month, and what follows it."""
        self.symbols = {name.casefold(): f"M{number}" for number, key in enumerate(MONTHS, 1) for name in info[key]}
        for number, key in enumerate(WEEKDAYS):
            names = map(str.casefold, info[key])
            self.symbols |= {name: f"{'W' if len(name) >= SHORTEST_NAME else 'w'}{number}" for name in names}
        within = [word for meaning in ("since", "other", "in") for word in around[meaning]]
        beside = ("opens", "and", "to", "onward", "or", "of", "one")
        self.plain = frozenset(within).union(*(around[meaning] for meaning in beside))
        self.of = frozenset([*around["in"], *around["of"]])
        """Words between a month and its year."""

        self.phrases: dict[str, tuple[int, str]] = {}
        """Phrases such as "last week" by the stems of their words: how many units from today, and which."""
        said = [*info["relative-type"].items(), *VOCABULARY["days_ago"][language].items()]
        self._unstemmed = {phrase for _, phrases in said for phrase in phrases if " " not in phrase}
        self._unstemmed |= {name.casefold() for unit in _UNITS for name in info[unit]}  # "Wochen" are not "Woche"
        for key, phrases in said:
            if named := _RELATIVE.fullmatch(key):
                count = int(named["count"]) * (1 if named["ahead"] else -1)
                for phrase in phrases:
                    said_as = [self.stem(word) for word in _ARTICLE.sub("", phrase).split()]
                    self.phrases[" ".join(said_as)] = count, named["unit"]
                    if language != "en":  # "la última semana" for "la semana pasada"
                        self.phrases[" ".join(reversed(said_as))] = count, named["unit"]
        # "the last month" is no month of the calendar
        recent = rf"(?!(?<=(?<!\S){_any_of(around.get('recent', ()))} )~)"
        self.relative = regex.compile(rf"(?<!\S){recent}{_any_of(self.phrases)}(?!\S)")
        counted = rf"(?:\d+|{_any_of(around['one'])})"
        forms = {unit: "|".join(info["relative-type-regex"][rf"\1 {unit} ago"]) for unit in _UNITS}
        ago = "|".join(f"(?P<{unit}s>{each})" for unit, each in forms.items()).replace(_NUMBER, counted)
        self.ago = regex.compile(rf"(?<!\S)(?:{ago})(?!\S)")
        before = _any_of(["~", *within, *around["opens"]])
        alone = rf"M(?P<month>\d+)|(?<!(?<!\S)of )(?P<year>{_YEAR.pattern})"  # "the winter of 2024"
        self.before_short = frozenset(around["before_short"])
        self.ahead = re.compile(around.get("ahead", ["(?!)"])[0])
        self.past = re.compile(around["past"][0])
        """Matches a word that tells that a question is about the past."""
        of, short = around["before_day"][0], _any_of(self.before_short)
        day = rf"(?:[Ww](?P<weekday>\d) (?:(?:{of}|\w{{1,3}}) )?|(?<=(?<!\S)(?:{of}) ))T(?P<day>\d\d?)"
        day += rf"|W(?P<weekday>\d)|(?<=(?<!\S){short} )w(?P<weekday>\d)"
        day += rf"|(?<=(?<!\S){_any_of(around['since'])} )d(?P<digits>\d\S+)"
        self.dates = regex.compile(rf"(?<!\S)(?:{_DATE}|{day}|(?<=(?<!\S){before} )(?:{alone}))(?!\S)")
        words = {meaning: _any_of(said) for meaning, said in around.items()}
        self.since = rf"(?<!\S){words['since']} {_BETWEEN}@"
        other, opened, to_come = words["other"], words["opens"], words["to_come"]
        ends, also = (_any_of(around["and"] + around["to"] + more) for more in ([], [*_DASHES, *around["or"]]))
        also = rf"(?!a las? \d|à \d\d? h\b){also}"  # a time of day
        # "du 26 novembre au marché" is no span
        to_time = rf"(?!{_any_of(around['at'])} (?!{_BETWEEN}(?:[@DdMTWw]?\d|@|{_NAMED_DAYS}))){ends}"
        day, week = (_any_of(map(str.casefold, info[unit])) for unit in ("day", "week"))
        spans = (name.casefold() for unit in _UNITS[1:] for name in info[unit] if len(name) > 1)  # "a" may be French
        long = _any_of(["weekend", "wochenende", *spans])
        self.unclear = (
            rf"(?<!\S)(?:(?:{other}|{words['or']}) {_BETWEEN}@|{around['clause'][0]} (?:\S+ ){{0,7}}@"
            rf"|{opened} (?:\S+ ){{1,3}}{ends} {_BETWEEN}@"
            rf"|{opened} {_BETWEEN}@\w* (?:{to_time}|(?:\S+ )?{words['onward']})(?!\S)"
            rf"|{words['not']} (?:{words['since']} )?(?:(?:on|in|am|im|dem|el|le) )?@"
            rf"|(?:T?\d\d?|d\S+) {also} {_BETWEEN}@|{_MONTH_OR_YEAR} {also} {_BETWEEN}@"
            rf"|\d+ {day} (?:\S+ ){{0,2}}@"  # "3 days of March 10"
            rf"|{long} (?:\S+ ){{0,2}}@day"  # "the week of March 9"
            rf"|{week} (?:\S+ ){{0,2}}@weekday"  # of another week
            rf"|{to_come} @(?:weekday|month)1)"
            rf"|@\w* (?:{words['or']}|{ends} (?:{other}|later|earlier))(?!\S)"
            rf"|(?:@day1? (?:T?\d\d? )?{also} {_BETWEEN}(?:T?\d\d?|d\S+)|@\w* {also} {_BETWEEN}{_MONTH_OR_YEAR})(?!\S)"
            r"|@day \d\d(?!\S)"  # "June 12 '24"
            r"|@weekday1? (?:the|den) \d\d?(?!\S)"  # "Monday the 9th"
            rf"|@weekday1? {other} ~"  # "the Friday before last"
            rf"|@weekday1? (?:\S+ ){{0,2}}{week}(?!\S)"
            rf"|@(?:weekday|month)1 (?:\S+ )?{to_come}(?!\S)"
        )
        """Matches a list or a span of several days, and words that make a date mean other days."""

    def symbol(self, word: str) -> str:
        """Return a word's symbol in a date: "M5" for May, "W0" for Monday, a number, "~" for "last", "^" for the one
        before, or the word."""
        if word.startswith(self._before_last):
            return "^"
        if word in self.symbols or self.is_last(word):
            return self.symbols.get(word, "~")
        number = None
        if word.replace("-", "").isalpha() and word not in self.plain:
            number = re.match(r"\d{1,4}(?!\d)", str(alpha2digit(word, self.language, threshold=0)))
        return number[0] if number else word

    def stem(self, word: str) -> str:
        return word if word in self._unstemmed else "~" if self.is_last(word) else str(self._stem(word))

    def is_last(self, word: str) -> bool:
        return word in self._last or self._stem(word) in self._last


def _any_of(phrases: Iterable[str]) -> str:
    return f"(?:{'|'.join(map(re.escape, sorted(phrases, key=len, reverse=True))) or '(?!)'})"


@cache
def _vocabulary(language: str) -> _Vocabulary:
    return _Vocabulary(language)


class _Date(NamedTuple):
    """A date in a question: its words from `begin` up to `end`, exclusive."""

    begin: int
    end: int
    kind: Kind
    days: Period


class _Reader:
    """Finds the dates in a question in one language."""

    def __init__(self, tokens: Sequence[re.Match[str]], known: _Vocabulary, today: date, may_be_english: bool) -> None:
        self._tokens = tokens
        self._known = known
        self._today = today
        self.numbers: list[str] = []
        """The words of days whose only name is a number without a year."""
        self._words = [token["number"] or _ELIDED.sub("", token[0].casefold().replace("’", "'")) for token in tokens]
        self._said = [
            _numeric(token, today, may_be_english)
            or (f"T{word}" if token["number"] and known.is_day(token.string, pos=token.start()) else known.symbol(word))
            for word, token in zip(self._words, tokens, strict=True)
        ]
        for at, said in enumerate(self._said):
            if said[0] == "w" and said[1:].isdigit() and not self._is_short_weekday(at):
                self._said[at] = self._words[at]
        self.is_relative = True
        """Whether no date has the name or number of a day, a month or a year."""
        self.dates = self._dates()

    @property
    def understood(self) -> tuple[int, int]:
        """The number of words in dates, and of stop words. They tell which language the dates are in."""
        are_stop_words = (stem(word, self._known.language) is None for word in self._words)
        return sum(each.end - each.begin for each in self.dates), sum(are_stop_words)

    @property
    def is_past(self) -> bool:
        return any(map(self._known.past.fullmatch, self._words))

    @property
    def is_ahead(self) -> bool:
        """Whether the question is about what is to come, and its days are named without a weekday or a year."""
        are_named = self.is_relative or any(map(_YEAR.fullmatch, self._words))
        are_named |= any(each.kind == "weekday" for each in self.dates)
        return not (are_named or self.is_past) and any(map(self._known.ahead.fullmatch, self._words))

    def _is_short_weekday(self, at: int) -> bool:
        """Return whether a short name of a weekday is one: "die", "so" and "man" are other words, too."""
        token, before = self._tokens[at], self._said[at - 1] if at else ""
        begins = re.search(r"(?:^|[^\w\s,])\s*$", token.string[: token.start()])
        return before in self._known.before_short or before in ("~", "^") or (token[0][0].isupper() and not begins)

    def _dates(self) -> list[_Date]:
        """Find dates from left to right, each as long as possible."""
        dates, said = [], list(self._said)
        stems = " ".join(map(self._known.stem, self._words))
        for pattern in (self._known.relative, self._known.ago, self._known.dates):
            for match in pattern.finditer(stems if pattern is self._known.relative else " ".join(said)):
                begin = match.string.count(" ", 0, match.start())
                end = begin + match[0].count(" ") + 1
                said[begin:end] = ["."] * (end - begin)  # no word belongs to two dates
                self.is_relative = self.is_relative and pattern is not self._known.dates
                if re.fullmatch(r"T\d+|[Dd]\d\S+", match[0]) and len(re.findall(r"\d+", self._words[begin])) < 3:
                    self.numbers.append(self._words[begin])
                try:
                    dates.append(_Date(begin, end, *self._read(match)))
                except (OverflowError, ValueError):  # no such day, before the year 1 or after 9999
                    continue
        return sorted(dates)

    def _read(self, match: re.Match[str]) -> tuple[Kind, Period]:
        today, parts = self._today, {name: value for name, value in match.groupdict().items() if value}
        if not parts:
            return self._relative(*self._known.phrases[match[0]])
        if unit := next((unit for unit in _UNITS if f"{unit}s" in parts), None):
            number = re.search(r"\d+", match[0])
            return self._relative(-int(number[0] if number else 1), unit)
        if "digits" in parts:
            return "day", _days(date.fromisoformat(parts["digits"]))
        if "weekend" in parts:
            return "day", _days(today - timedelta(days=today.weekday() + 3), 3)
        month, day, year = (int(parts.get(name, 0)) for name in ("month", "day", "year"))
        if day and not year:
            return "day", _days(_latest(today, day, month, parts.get("weekday")))
        if "weekday" in parts:
            days_ago = (today.weekday() - int(parts["weekday"]) - 1) % 7 + (8 if "^" in match[0] else 1)
            return "weekday", _days(today - timedelta(days=days_ago))
        if not month:
            return "year", _year(year)
        year = year or today.year - (month > today.month)
        return ("day", _days(date(year, month, day))) if day else ("month", _month(year, month))

    def _relative(self, count: int, unit: str) -> tuple[Kind, Period]:
        today = self._today
        if unit == "year":
            return "year", _year(today.year + count)
        if unit == "month":
            return "month", _month(today.year, today.month + count)
        if unit == "week":
            return "week", _days(today + timedelta(days=7 * count - today.weekday()), 7)
        return "day", _days(today + timedelta(days=count))

    def without_dates(self, text: str) -> str:
        for each in reversed(self.dates):
            text = f"{text[: self._tokens[each.begin].start()]} {text[self._tokens[each.end - 1].end() :]}"
        return text

    def days(self) -> Period | None:
        """Read the dates and the words around them as days; None if they name no days, or if their meaning is unclear.

        Raises: ValueError if there is no such day.
        """
        dates = self._combined()
        if not dates or re.search(self._known.unclear, self._around(dates)):
            return None
        if len(dates) > 1:
            dates = [each for each in dates if each.days.first <= self._today]  # a memory is only about the past
        if len(dates) != 1:
            return None
        if not re.search(self._known.since, self._around(dates)):
            return dates[0].days
        first = dates[0].days.first
        return Period(first, self._today) if first <= self._today else None

    def _combined(self) -> Sequence[_Date]:
        """Read "in May last year" as one date, and weekdays beside a week as its days: "on Tuesday last week".

        A weekday beside any other date is ignored.
        """
        weekdays = [each for each in self.dates if each.kind == "weekday"]
        others = [each for each in self.dates if each.kind != "weekday"]
        if len(others) == 2 and self._known.of.issuperset(self._words[others[0].end : others[1].begin]):
            year, other = sorted(others, key=lambda each: each.kind != "year")
            has_year = any(map(_YEAR.fullmatch, self._words[other.begin : other.end]))
            if year.kind == "year" and other.kind in ("day", "month") and not has_year:
                first = other.days.first.replace(year=year.days.first.year)
                named = _days(first) if other.kind == "day" else _month(first.year, first.month)
                return [_Date(others[0].begin, others[1].end, other.kind, named)]
        if not (weekdays and len(others) == 1 and others[0].kind == "week"):
            return others or weekdays
        days = [others[0].days.first + timedelta(days=each.days.first.weekday()) for each in weekdays]
        return [each._replace(kind="week", days=_days(day)) for each, day in zip(weekdays, days, strict=True)]

    def _around(self, dates: Sequence[_Date]) -> str:
        """Return the question's symbols with "@" for each date, followed by its kind and, for a single word, a "1"."""
        said = list(self._said)
        for each in reversed(dates):
            said[each.begin : each.end] = [f"@{each.kind}1" if each.end - each.begin == 1 else f"@{each.kind}"]
        return " ".join(said)


def _numeric(token: re.Match[str], today: date, may_be_english: bool) -> str | None:
    """Read a date in digits: "D" and the date, or "d" if it is one only after a word such as "on", as "3-5" is.

    Return None for 03/05/2024 if it may be English, so that it may be in May or in March.
    """
    if not (token["ymd"] or token["dmy"]):
        return None
    digits = [int(each) for each in re.findall(r"\d+", token[0])]
    day, month, *years = digits[::-1] if token["ymd"] else digits
    if may_be_english and token["dmy"] and max(month, day) <= 12 and month != day:
        return None
    # "which 5/16 wrench" is a fraction
    may_be_day = years or re.match(r"\s*(?:[?!.,;:)]|$)", token.string[token.end() :])
    is_sure = max(digits) > 99 or (token["mark"] == "/" and max(day, month) > 12 and may_be_day)
    if token["dmy"] and month > 12:
        month, day = day, month
    year = max(years, default=2000)
    try:
        named = date(year if year > 99 else year + 2000, month, day)
        return f"{'D' if is_sure else 'd'}{named if years else _latest(today, day, month)}"
    except ValueError:
        return None


@lru_cache(maxsize=1024)
def _latest(today: date, day: int, month: int = 0, weekday: str | None = None) -> date:
    """Return the latest such day, or the nearest one that is on the weekday, which may be to come.

    Raises: ValueError if there is none within eight years.
    """
    for ago in sorted(range(-31, 8 * 366), key=abs) if weekday else range(8 * 366):
        named = today - timedelta(days=ago)
        if named.day == day and month in (0, named.month) and weekday in (None, str(named.weekday())):
            return named
    raise ValueError(day)


def _days(first: date, count: int = 1) -> Period:
    return Period(first, first + timedelta(days=count - 1))


def _month(year: int, month: int) -> Period:
    """Return the days of a month; 0 is the December before the year, and 13 the January after it."""
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    return Period(date(year, month, 1), date(year, month, monthrange(year, month)[1]))


def _year(year: int) -> Period:
    return Period(date(year, 1, 1), date(year, 12, 31))
