"""Dates and times of day as they may be written, reduced to what can be compared."""

import re

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
    """Day and month; where digits alone do not tell which is which, both readings."""
    return frozenset(f"date {month}-{day}" for month, day in _readings(found) if 1 <= month <= 12)


def date_parts(found: re.Match[str]) -> frozenset[str]:
    """Month and day apart: "in March … on the 12th"."""
    month, day = _readings(found)[0]
    return frozenset({f"month {month}", str(day)})


def year(found: re.Match[str]) -> str | None:
    part = found.groupdict()
    return part["iy"] or part["cy"] or part["ny"] or part["y1"] or part["y2"]


def time_keys(found: re.Match[str]) -> frozenset[str]:
    """Minutes since midnight; without am or pm, "5:30" may be either."""
    hour, minute = int(found["h1"] or found["h2"]), int(found["n1"] or found["n2"] or 0)
    if found["half"]:
        return frozenset({_clock(hour % 12 * 60 + minute + MINUTES_OF_HALF_DAY * (found["half"] in "pP"))})
    minutes = hour * 60 + minute
    return frozenset({_clock(minutes), _clock(minutes + MINUTES_OF_HALF_DAY if hour <= 12 else minutes)})


def _readings(found: re.Match[str]) -> list[tuple[int, int]]:
    """Month and day."""
    part = found.groupdict()
    if part["a"]:
        one, other = int(part["a"]), int(part["b"])
        return [(one, other), (other, one)]
    month = part["im"] or part["cm"] or MONTHS[str(part["m1"] or part["m2"]).casefold()]
    day = part["id"] or part["cd"] or part["d1"] or part["d2"]
    return [(int(month), int(day))]


def _clock(minutes: int) -> str:
    return f"time {minutes % (2 * MINUTES_OF_HALF_DAY)}"
