"""Sentence boundaries, in languages with and without spaces, and cutting a text to a length."""

import re

from afterword.streams.text.cutting import word_boundary
from afterword.streams.text.vocabulary import word_set

ELLIPSIS = "…"
OPENING = "([{\"'“‘«¿¡„"

_BREAK = re.compile(
    r"(?=[\s\"'”’»)\]」』）]|(?<=[。！？｡]))"  # true of every break, so that most characters are passed over at once
    r"(?:(?P<soft>(?<=[.…])[\"'”’»)\]]*\s+)"
    r"|(?P<hard>(?<=[!?؟۔।])[\"'”’»)\]]*\s+|(?<=[。！？｡])[」』”’）]*(?![。！？｡」』”’）])\s*|(?<!\s)\s*\n\s*))"
)
_NEAR_CHARACTERS = 24
"""Characters on either side of a full stop that decide whether a sentence ends there."""
_INITIALS = re.compile(r"(?:[^\W\d_]\.)+|(?:[^\W\d_]{1,2}\.){1,3}[^\W\d_]{1,4}\.|MM\.")
"""Initials and dotted abbreviations: J., U.S., e.g., z.B., bl.a., f.eks., d.w.z."""
_NAME_FOLLOWS = word_set("sentences", "name_follows")
_NUMBER_FOLLOWS = word_set("sentences", "number_follows")
_ORDINAL = re.compile(r"\d{1,3}\.")
"""A number as German and Danish write ordinals."""
_DATE_GOES_ON = re.compile(r"\d{1,2}\.|\d{4}(?!\d)")
_MONTHS = word_set("sentences", "months")
_ORDINAL_FOLLOWS = word_set("sentences", "ordinal_follows")
_STARTS = word_set("sentences", "starts")
_WORD = re.compile(r"\w{1,20}")
_SIGNS = re.compile(r"\W*")
_LIST_NUMBER = re.compile(r"\d{1,3}\.")
_WHOLE_WORD = re.compile(r"(?:\w{4,}|\d+[a-z]+)\.")
"""Ends a sentence of somebody who writes no capital letters. Shorter words may be abbreviations, numbers ordinals."""


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, stripped and not empty; a line break also ends one. Linear in the text's length."""
    sentences, start, first_word = [], 0, _after_signs(text, 0)
    for found in _BREAK.finditer(text):
        if found.end() > start and _ends(text, start, first_word, found):
            sentences.append(text[start : found.end()].strip())
            start = found.end()
            # do not read the same leading signs again for each sentence
            first_word = first_word if first_word >= start else _after_signs(text, start)
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def first_sentences(text: str, most: int) -> str:
    """Cut a text after `most` sentences."""
    sentences = split_sentences(text)
    if len(sentences) <= most:
        return text
    end = 0
    for sentence in sentences[:most]:
        end = text.index(sentence, end) + len(sentence)
    return text[:end]


def _after_signs(text: str, start: int) -> int:
    found = _SIGNS.match(text, start)
    return found.end() if found else start


def _ends(text: str, start: int, first_word: int, found: re.Match[str]) -> bool:
    if found["soft"] is None or "\n" in found[0]:
        return True
    words = text[max(start, found.start() - _NEAR_CHARACTERS) : found.start()].rsplit(None, 2)[-2:]
    if text[found.end() : found.end() + 1].islower() and not (
        text[first_word].islower() and words and _WHOLE_WORD.fullmatch(words[-1])
    ):
        return False
    if _LIST_NUMBER.fullmatch(text, first_word, found.start()):
        return False
    if len(words) > 1 and words[0].endswith(":") and _LIST_NUMBER.fullmatch(words[1]):
        return False
    if not words or len(words[-1]) == 1:
        return True
    return not _goes_on(words, text[found.end() : found.end() + _NEAR_CHARACTERS])


def _goes_on(words: list[str], after: str) -> bool:
    """Return whether a sentence continues after its last words, although they end with a full stop."""
    last = words[-1].lstrip(OPENING)
    last = last[max(last.rfind("'"), last.rfind("’")) + 1 :]  # l'avv.
    abbreviation = last.rstrip(".").lower()
    if _INITIALS.fullmatch(last) or abbreviation in _NAME_FOLLOWS or abbreviation.endswith("str"):
        return True
    if after[:1].isdigit() and abbreviation in _NUMBER_FOLLOWS:
        return True
    if abbreviation in ("ex", "ej", "es"):
        return words[-2:-1] == ["p."]
    return _ORDINAL.fullmatch(last) is not None and _is_ordinal(words, after)


def _is_ordinal(words: list[str], after: str) -> bool:
    if _DATE_GOES_ON.match(after):
        return not after[:4].isdigit() or (len(words) > 1 and _ORDINAL.fullmatch(words[-2]) is not None)
    found = _WORD.match(after)
    following = found[0].lower() if found else ""
    if following in _MONTHS:
        return True
    is_noun = following.isalpha() and following not in _STARTS
    return is_noun and len(words) > 1 and words[-2].lower() in _ORDINAL_FOLLOWS


def cut_at_word(text: str, limit: int) -> str:
    """Cut a text to `limit` characters, at the end of a word if possible, with an ellipsis."""
    if len(text) <= limit:
        return text
    return text[: word_end(text, limit - 1)].rstrip(" ,;:–—-、，") + ELLIPSIS


def word_end(text: str, end: int) -> int:
    """Move the end of a cut back to the end of a word, unless that removes half of what is left."""
    if text[end].isspace():
        return end
    before = text.rfind(" ", 0, end), word_boundary(text, end, -1)
    return next((place for place in before if 2 * place > end), end)


def cut_at_sentence(text: str, limit: int) -> str:
    """Cut a text to `limit` characters, after a whole sentence if possible, with an ellipsis."""
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    last = split_sentences(head)[-1:]
    kept = head[: head.rindex(last[0])].rstrip() if last else ""
    return f"{kept} {ELLIPSIS}"[:limit] if kept else cut_at_word(text, limit)
