"""Capitalized names, in languages that write names with capitals and other words without."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from afterword.streams.language import is_common, normalized
from afterword.streams.summarizer.quality.quantities import CURRENCIES
from afterword.streams.tokens import token_ids

NOUN_CAPITALS = frozenset({"de", "lb"})
"""Languages that capitalize every noun: only words marked as a name count there."""
TITLE_CASE = 0.6
"""Share of capitals from which a text is a heading that capitalizes ordinary words too."""
LONGEST = 40
"""Characters of the longest name."""

_ROLES = """
user users assistant agent bot chatbot ai system tool tools customer client speaker operator representative advisor
nutzer nutzerin benutzer benutzerin anwender kunde kundin assistent assistentin berater beraterin ki
utilisateur utilisatrice client cliente agente conseiller ia usuario usuaria asistente cliente
usuário usuária assistente utente gebruiker klant
"""
ROLES = frozenset(_ROLES.split())
_ADDRESS = "mr mrs ms miss dr prof sir madam herr frau mme mlle sr sra srta sig"
_NO_NAMES = (
    frozenset(f"{_ADDRESS} ok okay id faq pdf url firstly lastly celsius fahrenheit".split())
    | CURRENCIES.keys()
    | ROLES
)

_USUAL = "ly ing tion tions ment ments ness ies ed mente zione zioni ción ciones ção ung ungen"
_ENDINGS = tuple(_USUAL.split())
"""Endings of ordinary words, for words that the tokenizer splits."""

_STARTS = """
additionally afterwards afterward alternatively alongside amid amidst besides consequently conversely concurrently
furthermore hence henceforth interestingly lastly likewise meanwhile moreover nevertheless nonetheless notably
notwithstanding overall subsequently thereafter thereby therefore thus ultimately
ainsi auparavant cependant désormais également enfin ensuite finalement néanmoins parallèlement toutefois
además asimismo finalmente igualmente luego mientras posteriormente también
ademais ainda além depois
anche dopo infine inoltre quindi successivamente tuttavia
bovendien daarna daarnaast tenslotte tevens uiteindelijk verder vervolgens
derefter derudover desuden efterfølgende endelig endvidere samtidig
"""
_OPENERS = frozenset(_STARTS.split())
"""Words with which sentences begin that tokenizers know better with a capital."""
_OF_ADVERBS = "ally ably ibly ingly ately etely antly ently edly ersely ively ously fully lessly"
_ADVERBS = tuple(_OF_ADVERBS.split())
SHORTEST_ADVERB = 8
"""Letters; a shorter word of such an ending may be Sally or Lively."""

_LETTERS = r"[^\W\d_\u0e00-\u0e7f\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"  # of scripts with spaces
_WORD = re.compile(rf"(?<![A-Za-zÀ-ɏ\d_]){_LETTERS}++(?:[’']{_LETTERS}++)*+(?![\d_])")
_BEFORE_START = re.compile(r"(?:\A|[.!?…:;。！？\n•*\"“”„«»(\[–—|])[\s\"'“”„«»(\[*#-]*\Z")
_ADDRESSED = re.compile(r"\b(?:Herrn?|Frau|Familie|Firma|Dr\.|Prof\.)\s*(?:[^\W\d_]\.\s*)*$")
_ELISION = re.compile(r"^(?:[cdjlmnst]|qu)[’'](?=\w)", re.IGNORECASE)
_POSSESSIVE = re.compile(r"[’'](?:s|S)?$")
_SPACE = re.compile(r"\s+")
_LINKING = frozenset(["of", "the", "and", "for", "de", "la", "du", "des", "del", "von", "van", "der", "di"])
_LINK = re.compile(rf"\s+|\s+(?:{'|'.join(sorted(_LINKING))})\s+(?:the\s+)?|-|&")


@dataclass(frozen=True)
class Name:
    """One capitalized word."""

    text: str
    word: str
    """The folded word, without its possessive."""
    initials: str
    """Initials of its run of capitalized words: "dmv" for "Department of Motor Vehicles"."""


def names(text: str, language: str) -> list[Name]:
    """Find the words of a summary that are names, in order. Linear in its length."""
    capitals = [match for match in _WORD.finditer(text) if match[0][0].isupper() and len(match[0]) < LONGEST]
    link = _LINK
    if language in NOUN_CAPITALS:
        link, capitals = _SPACE, [m for m in capitals if not is_common(m[0], language) and not _follows_number(text, m)]
    if not capitals:
        return []
    finder = _NameFinder(text, capitals, language)
    return [
        Name(_POSSESSIVE.sub("", match[0]), fold(match[0]), letters)
        for run in _runs(text, capitals, link)
        for letters in [initials([match[0] for match in run])]
        for match in run
        if finder.is_name(match, run)
    ]


def fold(word: str) -> str:
    """Fold case, accents, possessive and elided article: "Zoë's" → "zoe", "l'Olympia" → "olympia"."""
    if word.isascii() and word.isalnum():
        return word.lower()
    apart = normalized("NFKD", _POSSESSIVE.sub("", _ELISION.sub("", word))).casefold()
    return "".join(c for c in apart if not unicodedata.combining(c))


def acronyms(text: str) -> Iterator[str]:
    """Yield the initials of the text's runs of three and more capitalized words."""
    capitals = [match for match in _WORD.finditer(text) if match[0][0].isupper()]
    for run in _runs(text, capitals):
        letters = initials([match[0] for match in run])
        yield from (letters[i:j] for i in range(len(letters)) for j in range(i + 3, min(i + 7, len(letters) + 1)))


def initials(words: Sequence[str]) -> str:
    return "".join(fold(word)[:1] for word in words if word.lower() not in _LINKING)


def words_of(text: str) -> Iterator[str]:
    """Yield the text's distinct words, folded as names are."""
    return map(fold, set(_WORD.findall(text)))


class _NameFinder:
    """Decides which of a text's capitalized words are names."""

    def __init__(self, text: str, capitals: Sequence[re.Match[str]], language: str) -> None:
        self._text = text
        self._language = language
        written = len(_WORD.findall(text))
        self._heading = len(capitals) >= TITLE_CASE * written and language not in NOUN_CAPITALS
        inside = (match for match in capitals if not self._any_word_has_a_capital(match))
        self._known = frozenset(fold(match[0]) for match in inside) if language not in NOUN_CAPITALS else frozenset()

    def is_name(self, match: re.Match[str], run: Sequence[re.Match[str]]) -> bool:
        word = fold(match[0])
        if (
            len(word) < 2
            or {word, word.removesuffix("s")} & ROLES
            or word in _NO_NAMES
            or is_common(match[0], self._language)
        ):
            return False
        if any(c.isupper() for c in match[0][1:]):
            return True
        if self._language in NOUN_CAPITALS:
            return self._is_marked(match, run)
        return word in self._known or not self._any_word_has_a_capital(match) or not _opens_sentences(match[0])

    def _any_word_has_a_capital(self, match: re.Match[str]) -> bool:
        return self._heading or bool(_BEFORE_START.search(self._text, max(0, match.start() - 8), match.start()))

    def _is_marked(self, match: re.Match[str], run: Sequence[re.Match[str]]) -> bool:
        """Return whether a title or a neighbouring name marks it: nouns hardly ever follow each other, names do."""
        before = self._text[max(0, match.start() - 30) : match.start()]
        return bool(_ADDRESSED.search(before)) or (len(run) > 1 and not _BEFORE_START.search(before))


def _opens_sentences(word: str) -> bool:
    """Return whether the word has its capital from its place: no word is a name for beginning a sentence alone."""
    small = word.lower()
    is_adverb = len(small) >= SHORTEST_ADVERB and small.endswith(_ADVERBS)
    return small in _OPENERS or is_adverb or is_ordinary(word)


@lru_cache(maxsize=4096)
def is_ordinary(word: str) -> bool:
    """Return whether the word is written without a capital more often than with one.

    Read from a tokenizer's vocabulary, learned from web text: the more frequent a piece, the lower its id.
    """
    small, capital = token_ids(" " + word.lower()), token_ids(" " + word[:1].upper() + word[1:].lower())
    if len(small) != len(capital):
        return len(small) < len(capital)
    return small < capital if len(small) == 1 else word.endswith(_ENDINGS)


def _follows_number(text: str, match: re.Match[str]) -> bool:
    """Return whether it is a unit after a number: "39,5 Grad Fieber" names nobody."""
    return text[max(0, match.start() - 8) : match.start()].rstrip()[-1:].isdigit()


def _runs(text: str, capitals: Sequence[re.Match[str]], link: re.Pattern[str] = _LINK) -> list[list[re.Match[str]]]:
    runs: list[list[re.Match[str]]] = []
    for match in capitals:
        if runs and link.fullmatch(text, runs[-1][-1].end(), match.start()):
            runs[-1].append(match)
        else:
            runs.append([match])
    return runs
