"""Whether a summary is about its source, and in its language."""

from collections.abc import Iterable

from afterword.streams.language import UNDETERMINED, detect, plausible, stem_words
from afterword.streams.summarizer.quality.names import ROLES

SURE_CHARACTERS = 60
"""A language is told apart reliably from this length on."""
FEWEST_TERMS = 8
SHARED_TERMS = 0.3
"""Of a summary's different content words, those that its source has at least."""
BEGINNING = 5
"""Letters from which two words are forms of one: "renewal" and "renew", "benefits" and "beneficiary"."""

_STEMS = "convers discuss ask explain say tell mention assist want need inform clarifi confirm"
_TELLING = frozenset(_STEMS.split())
"""Stems of what summaries say of any conversation."""


def is_other_language(texts: Iterable[str], sources: Iterable[str]) -> bool:
    """One of the texts is long enough to be sure, and in a language that none of the sources may be in."""
    told = {text: detect(text) for text in texts if len(text) >= SURE_CHARACTERS}
    strange = [text for text, language in told.items() if language != UNDETERMINED]
    for source in sources:
        if len(source) < SURE_CHARACTERS or not strange:
            return False
        possible = plausible(source)
        if UNDETERMINED in possible:
            return False
        strange = [text for text in strange if told[text] not in possible and detect(source) not in plausible(text)]
    return bool(strange)


def shared_terms(text: str, source: Iterable[str], language: str) -> float:
    """Share of the text's content words whose stems, or beginnings, are among the source's stems; 1.0 when there are
    too few to tell."""
    terms = {term for term in stem_words(text, language) if term not in ROLES and term not in _TELLING}
    if len(terms) < FEWEST_TERMS:
        return 1.0
    there = set(source)
    beginnings = {term[:BEGINNING] for term in there}
    return sum(term in there or term[:BEGINNING] in beginnings for term in terms) / len(terms)
