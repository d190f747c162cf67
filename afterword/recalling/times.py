"""Times that a query asks about: "in May 2023", "last week"."""

from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import NamedTuple

from afterword.streams.dates import asked_period
from afterword.streams.language import plausible

TOLD_LATER = timedelta(days=2)
"""Time after a day in which what happened on it is often told."""


class AskedTime(NamedTuple):
    """A span of time; `end` is not in it."""

    begin: datetime
    end: datetime

    def meets(self, started_at: datetime, ended_at: datetime) -> bool:
        """Tell whether an episode was at this time, in part at least."""
        return started_at < self.end and ended_at >= self.begin


def asked_time(query: str, now: datetime, zone: tzinfo = UTC) -> AskedTime | None:
    """Find the time that a query names in words or as a date, and TOLD_LATER after it; None if it names none.

    Days are those of the zone. Linear in the query.
    """
    period = asked_period(query, now.astimezone(zone).date(), plausible(query))
    if period is None:
        return None
    try:
        begin, end = (datetime.combine(day, time(), zone) for day in (period.first, period.last + timedelta(days=1)))
        return AskedTime(begin.astimezone(UTC), end.astimezone(UTC) + TOLD_LATER)
    except OverflowError:  # at the ends of the calendar
        return None
