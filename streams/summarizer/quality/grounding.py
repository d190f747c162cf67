"""Grounding: the share of a summary's checkable tokens that its source supports."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from unicodedata import numeric

from afterword.streams.summarizer.quality.facts import Claim, dates_in, facts, months, source_facts, weekdays
from afterword.streams.summarizer.quality.names import fold, names, words_of
from afterword.streams.text.language import normalized, stem_words, stems, words

UNSUPPORTED = 20
"""Most unsupported tokens that are listed; all of them count."""
TOKEN_CHARACTERS = 60
MAX_CHARACTERS = 400_000
"""Characters of a source that are read."""
LONGEST_RUN = 300
"""Longest run without a space, in characters. Some patterns take a time that grows with the square of a run; people
write no such runs except addresses, whose site comes first."""
SHORTEST_STEM = 4
"""Fewest letters that two forms of a name share: "Ital" is too little to distinguish "Italy" from "Italian"."""
LONGEST_BEGINNING = 40
"""Letters. Without this bound the beginnings of a word of n letters take n² / 2 of them: 200 MB for 20,000."""
ENDING = 3


@dataclass(frozen=True)
class Grounding:
    """The result of checking a summary's tokens."""

    share: float
    """Share of the distinct checkable tokens that the source has; 1.0 when there are none. The lower of the shares of
    figures and of names: many correct numbers must not make up for an invented person."""
    unsupported: tuple[str, ...]
    """The other tokens as they were written, figures first, at most UNSUPPORTED."""
    wrong_figure: bool
    """True if a number, a date, an amount, a code or an address is among them."""


class Evidence:
    """Everything that a source supports. Built in time linear in its length."""

    def __init__(self, source: str, language: str, sent_at: Iterable[datetime] = ()) -> None:
        """`sent_at`: times of the source's messages, where they are known."""
        source = plain(source)
        self._facts = source_facts(source, language, sent_at)
        self.words = words(source)
        """Words of the source, in order."""
        self.stems = frozenset(stems(self.words, language))
        self._words = frozenset((*map(fold, set(self.words)), *words_of(source)))
        self._stems = frozenset(map(fold, self.stems))
        self._beginnings = frozenset(
            word[:size] for word in self._words for size in range(SHORTEST_STEM, min(len(word), LONGEST_BEGINNING + 1))
        )
        self._language = language

    def supports(self, claim: Claim) -> bool:
        return self._facts.support(claim)

    def leaves_open(self, claim: Claim) -> bool:
        """Return whether the claim is a count that the writer may have made: the source counts no such thing."""
        return bool(claim.counted) and claim.counted not in self._facts.counted and not self.supports(claim)

    def names(self, word: str) -> bool:
        return word in self._words or self._has_form_of(word) or self._abbreviates(word)

    def _has_form_of(self, word: str) -> bool:
        stems = {fold(stem) for stem in stem_words(word, self._language)}
        if stems & self._stems:
            return True
        shorter = {word[:size] for size in range(max(SHORTEST_STEM, len(word) - ENDING), len(word))}
        return bool(shorter & self._words) or (len(word) > SHORTEST_STEM and word in self._beginnings)

    def _abbreviates(self, word: str) -> bool:
        month, weekday = months(self._language).get(word), weekdays(self._language).get(word)
        if month:
            return month in self._facts.months or self._facts.has_day((None, month, None))
        if weekday is not None:
            return self._facts.has_weekday(weekday) or any(word[:size] in self._words for size in (3, 4))
        return False


def ground(texts: Iterable[str], evidence: Evidence, language: str, rolling: str = "", carried: str = "") -> Grounding:
    """Check all the texts together, each token once. `language`: the source's.

    Tokens of a rolling summary count only where the carried text does not have them: otherwise the many tokens that
    were checked before would hide one that is invented now.
    """
    figures: dict[str, bool] = {}
    named: dict[str, bool] = {}
    nothing = Evidence("", language)
    parts = [(text, nothing) for text in texts] + ([(rolling, Evidence(carried, language))] if rolling else [])
    for text, ignored in ((plain(text), ignored) for text, ignored in parts):
        for claim in facts(text, language):
            if not ignored.supports(claim) and not evidence.leaves_open(claim):
                figures[claim.text] = evidence.supports(claim) and figures.get(claim.text, True)
        for name, word in names(dates_in(language).sub(" ", text), language):
            if not ignored.names(word):
                named[name] = evidence.names(word)
    unsupported = [token for token, supported in {**figures, **named}.items() if not supported]
    listed = tuple(token[:TOKEN_CHARACTERS] for token in unsupported[:UNSUPPORTED])
    return Grounding(min(_share(figures), _share(named)), listed, wrong_figure=not all(figures.values()))


def _share(tokens: Mapping[str, bool]) -> float:
    return sum(tokens.values()) / len(tokens) if tokens else 1.0


def plain(text: str) -> str:
    """Normalize full-width digits, ligatures and hard spaces (NFKC); bound the length of the text and of its runs."""
    text = _BARE_POINT.sub("0.", _MIXED.sub(_decimals, text[:MAX_CHARACTERS]))
    normal = normalized("NFKC", text)[:MAX_CHARACTERS]  # one character may become eighteen
    return _LONG_RUN.sub(r"\g<0> ", normal)


def _decimals(written: re.Match[str]) -> str:
    """Write "2½", "2 1/2" and "½" as decimals, and leave out exponents and the numbers of footnotes.

    NFKC makes 21⁄2 of the first, and of 10² 102.
    """
    fraction, over, under = written.group("fraction", "over", "under")
    if over and int(over) >= int(under):
        return written[0]
    share = f"{numeric(fraction) if fraction else int(over) / int(under):g}" if fraction or over else ""
    before = written.string[: written.start()][-1:]
    return share[1:] if before.isdigit() else share


_MIXED = re.compile(
    r"(?<=\d)[²³¹⁰⁴-⁹]+|(?:(?<=\d)\s?)?(?<![^\W\d_])(?P<fraction>[¼½¾⅐-⅞])"
    r"|(?:(?<=\d)\s|(?<![\w/.,])(?=\d/\d\s[^\W\d]))(?P<over>[1-9])/(?P<under>[2-9])(?![\w/])"
)
_BARE_POINT = re.compile(r"(?<![\w.,])\.(?=\d)")
_LONG_RUN = re.compile(rf"\S{{{LONGEST_RUN}}}(?=\S)")
