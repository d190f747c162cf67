"""The patterns of what people say of themselves. It loads no model, so readers of facts may use them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from afterword_text.language import VOCABULARY, names_of_days, word_set


def with_pieces(pattern: str) -> str:
    """Replace the names of pieces in braces; pieces may consist of others."""
    pieces = VOCABULARY["first_person"]["pieces"]
    return re.sub(r"\{([a-z_]+)\}", lambda match: with_pieces(pieces[match[1]].replace("\n", "")), pattern)


def pattern_of(name: str) -> str:
    return with_pieces(VOCABULARY["first_person"][name].replace("\n", ""))


MOST_CUTS = 3
"""A correction goes on after one of this many commas."""
_DOUBLED = re.compile(r"\b(\w+) (?=\1\b)", re.IGNORECASE)


class _Phrases:
    """The patterns of `[first_person]` in the vocabulary, by name. They ignore the case."""

    def __getattr__(self, name: str) -> re.Pattern[str]:
        compiled = re.compile(pattern_of(name), re.IGNORECASE)
        setattr(self, name, compiled)
        return compiled


PHRASES = _Phrases()


_PLACED = re.compile(with_pieces(r"\b{at_place} ({propers})"), re.IGNORECASE)
_CUT = re.compile(r",\s|(?<=[^\W\d]{2})[.!]\s+(?=[a-zß-ÿ])")


@cache
def value_forms() -> Sequence[re.Pattern[str]]:
    """Return the forms of values that are like one another: dates, numbers, days and months, and school classes."""
    days = "|".join(map(re.escape, names_of_days()))
    whole_days = "|".join(re.escape(name) for name in names_of_days() if len(name) > 3)  # "may" is also another word
    numbers = "|".join(word_set("first_person", "numbers") - word_set("first_person", "no_numbers"))
    forms = (
        rf"\d{{1,2}}(?:\.|st|nd|rd|th|º)?(?: de| of)? (?:{days})",
        rf"\d+(?:[.,:]\d+)*|{numbers}",
        rf"(?:{whole_days})s?",
        r"[a-z]{1,3}\d{1,2}|\d[a-z]",
    )
    return [re.compile(rf"(?<!\w)(?:{form})(?!\w)", re.IGNORECASE) for form in forms]


def correction_in(sentence: str) -> dict[str, str]:
    """Return what a sentence corrects, if it does: its `lead`, the `new` value and, if named, the `old` one.

    It may go on after a comma: "sorry, the 26th, I misread it".
    """
    cuts = [cut.start() for cut in _CUT.finditer(sentence)][:MOST_CUTS]
    asks = sentence.rstrip().endswith("?")
    for end in (len(sentence), *reversed(cuts)):
        named = fits.groupdict() if (fits := PHRASES.corrected.match(sentence[:end])) else {}
        values = {name.rstrip("234"): value for name, value in named.items() if value is not None}
        is_clear = values.get("lead") and ("old" in values or (form_of(values) and not asks))
        if values and (end == len(sentence) or is_clear):
            return values
    return {}


def form_of(named: Mapping[str, str]) -> re.Pattern[str] | None:
    """Return the form of a correction's new number, day, date, class or place, which the old one has too."""
    form = next((form for form in value_forms() if form.fullmatch(named["new"])), None)
    return form or (_PLACED if "at" in named and named["new"][0].isupper() else None)


def only_value(form: re.Pattern[str], texts: Iterable[str]) -> str | None:
    """Return the value of this form in the first text that has any; None if that has several."""
    found: list[str] = next(filter(None, map(form.findall, texts)), [])
    return found[0] if len(found) == 1 else None


def corrected(statement: str, old: str, new: str) -> str | None:
    """Return a statement with the new value in place of the old one; None if it does not have that."""
    right, times = re.subn(rf"(?<!\w){re.escape(old)}(?!\w)", lambda _: new, statement, flags=re.IGNORECASE)
    return _DOUBLED.sub("", right) if times else None
