"""Sentence boundaries, in languages with and without spaces, and cutting of a text to a length."""

import re

ELLIPSIS = "…"

_BREAK = re.compile(
    r"(?P<soft>(?<=[.…])[\"'”’»)\]]*\s+)"
    r"|(?P<hard>(?<=[!?؟۔।])[\"'”’»)\]]*\s+|(?<=[。！？｡])[」』”’）]*(?![。！？｡」』”’）])\s*|(?<!\s)\s*\n\s*)"
)
_LAST_WORD = re.compile(r"(\S{1,20})$")
_ABBREVIATION = re.compile(
    # initials and dotted abbreviations (J., e.g., U.S., z.B.), and the common ones that a name or a number follows
    r"(?:\W*(?:[^\W\d_]\.)+|\W*(?:mr|mrs|ms|dr|prof|st|sr|jr|vs|etc|approx|no|nr|inc|ltd|co|corp|dept|fig|vol"
    r"|art|hr|fr|bzw|ca|usw|evtl|sra|srta|ud|uds|mme|mlle|sig|dott|av|tel|jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|nov"
    r"|dec)\.)",
    re.IGNORECASE,
)
_SIGNS = re.compile(r"\W*")
_LIST_NUMBER = re.compile(r"\d{1,3}\.")


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, stripped and not empty; a line break ends one too. Linear in the text's length."""
    sentences, start, first_word = [], 0, _after_signs(text, 0)
    for found in _BREAK.finditer(text):
        if found.end() > start and _ends(text, start, first_word, found):
            sentences.append(text[start : found.end()].strip())
            start = found.end()
            # signs are not read again for each sentence that they hold
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
    if text[found.end() : found.end() + 1].islower():
        return False
    if _LIST_NUMBER.fullmatch(text, first_word, found.start()):
        return False
    word = _LAST_WORD.search(text, max(start, found.start() - 20), found.start())
    return word is None or not _ABBREVIATION.fullmatch(word[0])


def cut_at_word(text: str, limit: int) -> str:
    """Cut a text to `limit` characters, at a word's end if possible, with an ellipsis."""
    if len(text) <= limit:
        return text
    kept = text[: limit - 1]
    if not text[limit - 1].isspace():
        head, space, _ = kept.rpartition(" ")
        kept = head if space and 2 * len(head) > limit else kept
    return kept.rstrip(" ,;:–—-、，") + ELLIPSIS


def cut_at_sentence(text: str, limit: int) -> str:
    """Cut a text to `limit` characters, after a whole sentence if possible, with an ellipsis."""
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    last = split_sentences(head)[-1:]
    kept = head[: head.rindex(last[0])].rstrip() if last else ""
    return f"{kept} {ELLIPSIS}"[:limit] if kept else cut_at_word(text, limit)
