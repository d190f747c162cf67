"""Times that a query asks about: "in May 2023", "last week"."""

from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import NamedTuple

from afterword.streams.dates import Period, asked_period, named_periods, periods_with_year, without_dates
from afterword.streams.language import plausible, stems, words

TOLD_LATER = timedelta(days=2)
"""Time after a day in which what happened on it is often told."""
LONGEST_LEFT_OUT = 31
"""Days of a time whose words are not compared with those of messages."""


class AskedTime(NamedTuple):
    """A span of time; `end` is not in it."""

    begin: datetime
    end: datetime
    days: Period
    """The days that the query names, without what is after them."""
    is_over: bool
    """These days are over: of those that are not, what was told last holds."""
    zone: tzinfo
    """Zone of the days."""
    languages: tuple[str, ...]
    """Languages that the query may be in."""
    rest: str
    """Query without the words for the time. All of it if nothing else is left, or if the time is more than a month: a
    season is a subject, too."""

    def meets(self, started_at: datetime, ended_at: datetime) -> bool:
        """Tell whether an episode was at this time, in part at least."""
        return started_at < self.end and ended_at >= self.begin

    def is_named(self, text: str, said_at: datetime) -> bool:
        """Tell whether a text names days of this time: "in May", said in April, those of May.

        Linear in the text, which is read in the languages of the query.
        """
        named = {period for _, period in periods_with_year(text)}
        named |= named_periods(text, _day_of(said_at, self.zone), self.languages)
        return any(self.days.first <= period.first and period.last <= self.days.last for period in named)


def _day_of(moment: datetime, zone: tzinfo) -> date:
    try:
        return moment.astimezone(zone).date()
    except OverflowError:  # on the first or the last day of all that have a date
        return moment.date()


def asked_time(query: str, now: datetime, zone: tzinfo = UTC) -> AskedTime | None:
    """Find the time that a query names in words or as a date, and TOLD_LATER after it; None if it names none.

    Days are those of the zone. Linear in the query.
    """
    languages = plausible(query)
    today = now.astimezone(zone).date()
    period = asked_period(query, today, languages)
    if period is None:
        return None
    try:
        begin, end = (datetime.combine(day, time(), zone) for day in (period.first, period.last + timedelta(days=1)))
        begin, end = begin.astimezone(UTC), end.astimezone(UTC) + TOLD_LATER
    except OverflowError:  # at the ends of the calendar
        return None
    return AskedTime(begin, end, period, period.last < today, zone, languages, _rest(query, period, languages))


def _rest(query: str, period: Period, languages: tuple[str, ...]) -> str:
    if period.days > LONGEST_LEFT_OUT:
        return query
    rest = without_dates(query, languages)
    found = words(rest)
    return rest if any(stems(found, language) for language in languages) else query
