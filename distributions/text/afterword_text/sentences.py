"""The sentences of texts and messages, in languages with and without spaces, and cutting a text to a length."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby

from afterword_text.language import word_set
from afterword_text.visible import ELLIPSIS, strip_control_tokens

OPENING = "([{\"'“‘«¿¡„"

_BREAK = re.compile(
    r"(?=[\s\"'”’»)\]」』）]|(?<=[。！？｡])|(?<=\w\.)[A-Z])"  # true at every break, to skip most characters
    r"(?:(?P<soft>(?<=[.…])[\"'”’»)\]]*\s+)"
    r"|(?P<hard>(?<=[!?؟۔।])[\"'”’»)\]]*\s+|(?<=[。！？｡])[」』”’）]*(?![。！？｡」』”’）])\s*|(?<!\s)\s*\n\s*)"
    r"|(?P<glued>(?<=\w\.)(?=[A-Z])))"
)
_NEAR_CHARACTERS = 24
"""Characters on either side of a full stop that decide whether a sentence ends there."""
_INITIALS = re.compile(r"(?:[^\W\d_]\.)+|(?:[^\W\d_]{1,2}\.){1,3}[^\W\d_]{1,4}\.")
"""Initials and dotted abbreviations: J., U.S., e.g., z.B., bl.a., f.eks., d.w.z."""
_NAME_FOLLOWS = word_set("sentences", "name_follows")
_TWICE = re.compile(r"([A-Z])\1\.")
"""An abbreviated plural: MM. Petit et Roux, EE. UU."""
_LETTER = re.compile(r"[A-Z]\.|[ap]\.m\.")
"""Initials that may also end a sentence: "at 5 p.m.", "type A."."""
_WHOLE = re.compile(rf"[{re.escape(OPENING)}]?\w{{2,}}\.")
_NOUN_FOLLOWS = word_set("sentences", "noun_follows")
_WEEKDAYS = word_set("sentences", "weekdays")
_PARTS_OF_DAY = word_set("sentences", "parts_of_day")
_OPENS = word_set("sentences", "opens")
_NUMBER_FOLLOWS = word_set("sentences", "number_follows")
_ORDINAL = re.compile(r"\d{1,3}\.")
"""A number as German and Danish write ordinals."""
_DATE_GOES_ON = re.compile(r"\d{1,2}\.|\d{4}(?!\d)")
_MONTHS = word_set("sentences", "months")
_ORDINAL_FOLLOWS = word_set("sentences", "ordinal_follows")
_STARTS = word_set("sentences", "starts")
_WORD = re.compile(r"\w{1,20}(?:['’]\w{1,2})?")
_FIRST_LETTER = re.compile(r"\W{0,40}(\w)")
_LIST_NUMBER = re.compile(r"\W{0,40}\d{1,3}\.")
_WHOLE_WORD = re.compile(r"(?:\w{4,}|\d+[a-z]+)\.")
"""Ends a sentence of somebody who writes no capital letters. Shorter words may be abbreviations, numbers ordinals."""

MAX_MESSAGE_CHARACTERS = 24_000
"""Of a longer message, only the beginning and the end are read, where people say what they want."""
MAX_LIST_CHARACTERS = 240
"""A list that is longer, with the line that introduces it, is split into its items."""
ENDS = ":：,;，、"
KEPT_MESSAGES = 256
"""The sentences of this many messages are kept, because a summary, its check and its facts read the same messages."""

_FENCE = re.compile(r"\s{0,3}(?:```|~~~)")
_NOT_SAID = re.compile(r"\s{0,3}(?:#{1,6}\s|\|.*\||[-*_=]{3,}\s*$|(?:\*\*|__)[^*_\n]{1,200}(?:\*\*|__):?\s*$)")
"""Headings, table rows, rules, and lines that are bold as a whole."""
_HEADING = re.compile(r"\s{0,3}(?:#{1,6}\s+|\*\*|__)(?P<text>[^*_#\n|]{1,200}?):?(?:\*\*|__)?:?\s*$")
"""A heading. Right before a list it introduces the list."""
_ITEM = re.compile(r"\s{0,40}(?:[-*+•·–]|(?P<number>\d{1,3})[.)])\s+(?:\[[ xX]\]\s+)?(?=\S)")
_QUOTED = re.compile(r"\s{0,3}(?:>\s?)+")
_LINK = re.compile(r"!?\[([^\[\]\n]{0,300})\]\([^()\s]{0,1000}\)")
_EMPHASIS = re.compile(r"(\*{1,3}|__|~~|`{1,2})(?=[^\s*_~`])((?:(?!\1)[^\n]){0,300}?[^\s*_~`]|[^\s*_~`])\1(?!\w)")

MARKER_CHARACTERS = 40
"""Length of the note that replaces an omitted middle; omitting less than this would make the text longer."""
LONGEST_WORD = 40
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uff01-\uff0f\U00020000-\U0002ffff]"
)
"""Characters of scripts without spaces; a text may be cut next to each of them."""


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, stripped and not empty; a line break also ends one. Linear in the text's length."""
    sentences, start = [], 0
    for match in _BREAK.finditer(text):
        if match.end() > start and _ends(text, start, match):
            sentences.append(text[start : match.end()].strip())
            start = match.end()
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


def _ends(text: str, start: int, match: re.Match[str]) -> bool:
    if match["hard"] is not None or "\n" in match[0]:
        return True
    words = text[max(start, match.start() - _NEAR_CHARACTERS) : match.start()].rsplit(None, 2)[-2:]
    first = _FIRST_LETTER.match(text, start)
    begins_small = first is not None and first[1].islower()
    after = text[match.end() : match.end() + _NEAR_CHARACTERS]
    opens = _first_word(after) in _OPENS
    if match["glued"] is not None and not (opens and words and _WHOLE.fullmatch(words[-1])):
        return False
    if after[:1].islower() and not (begins_small and words and (opens or _WHOLE_WORD.fullmatch(words[-1]))):
        return False
    if _LIST_NUMBER.fullmatch(text, start, match.start()):
        return False
    if len(words) > 1 and words[0].endswith(":") and _LIST_NUMBER.fullmatch(words[1]):
        return False
    if not words or len(words[-1]) == 1:
        return True
    return not _goes_on(words, after)


def _first_word(text: str) -> str:
    match = _WORD.match(text)
    return match[0].lower().replace("’", "'") if match else ""


def _goes_on(words: list[str], after: str) -> bool:
    """Return whether a sentence continues after its last words, although they end with a full stop."""
    last = words[-1].lstrip(OPENING)
    last = last[max(last.rfind("'"), last.rfind("’")) + 1 :]  # l'avv.
    abbreviation, following = last.rstrip(".").lower(), _first_word(after)
    if _LETTER.fullmatch(last) and following in _OPENS and after[len(following) : len(following) + 1] != ".":
        return False
    if last.rstrip(".") in _NOUN_FOLLOWS or _TWICE.fullmatch(last):
        return following not in _STARTS and following not in _OPENS
    if abbreviation in _WEEKDAYS and following in _PARTS_OF_DAY:
        return True
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
    following = _first_word(after)
    if following in _MONTHS:
        return True
    is_noun = following.isalpha() and following not in _STARTS
    return is_noun and len(words) > 1 and words[-2].lower() in _ORDINAL_FOLLOWS


@lru_cache(maxsize=KEPT_MESSAGES)
def sentences_of(content: str) -> tuple[str, ...]:
    """Split a message into sentences, as one would read them aloud.

    A short list and the line or heading that introduces it are one sentence; no sentence ends with a colon.
    """
    if len(content) > MAX_MESSAGE_CHARACTERS:
        content = "\n".join(both_ends(content, MAX_MESSAGE_CHARACTERS))
    spoken = list(_spoken(strip_control_tokens(content)))
    sentences: list[str] = []
    for is_item, group in groupby(spoken, key=lambda line: line[0]):
        lines = [text for _, text in group]
        opening = sentences.pop() if sentences and sentences[-1].endswith((":", "：")) else ""
        whole = f"{opening} {'; '.join(line.rstrip('.:;, ') for line in lines)}"
        if is_item and opening and len(whole) <= MAX_LIST_CHARACTERS:
            sentences.append(whole)
            continue
        said = [sentence for line in lines for sentence in split_sentences(line)]
        if opening and not is_item and said:
            said[0] = f"{opening} {said[0]}"
        sentences += said
    return tuple(sentence for sentence in map(_ended, sentences) if sentence)


def _spoken(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the lines, and whether each is a list item. If all of a message is headings
    and tables, they are read too, with commas for the bars."""
    lines = [*_without_code(text.splitlines())]
    prose = [line for line in lines if line.strip() and not _NOT_SAID.match(line)]
    numbered = sum(bool(item and item["number"]) for item in map(_ITEM.match, prose))
    heading: re.Match[str] | None = None
    for line in lines if prose else text.splitlines():
        if prose and _NOT_SAID.match(line):
            heading = _HEADING.match(line)
            continue
        line = line[match.end() :] if (match := _QUOTED.match(line)) else line
        item = _ITEM.match(line)
        is_item = item is not None and (item["number"] is None or numbered > 1)  # a single "12. Mai" is a date
        if line.lstrip().startswith("|"):
            cells = line.strip("| ").split("|") if line.strip("|-: ") else ()  # a row of dashes separates the header
            line = ", ".join(cell.strip() for cell in cells)
        said = " ".join(_EMPHASIS.sub(r"\2", _LINK.sub(r"\1", line[item.end() if item and is_item else 0 :])).split())
        if said:
            if is_item and heading:
                yield False, f"{heading['text']}:"
            heading = None
            yield is_item, said


def _without_code(lines: Sequence[str]) -> Iterator[str]:
    is_code = False
    for line in lines:
        if _FENCE.match(line):
            is_code = not is_code
        elif not is_code:
            yield line


def _ended(sentence: str) -> str:
    """Return the sentence with final punctuation, or an empty string if it only introduces what is missing."""
    if sentence.endswith((":", "：")):
        return ""
    sentence = sentence.rstrip(ENDS + " ")
    if sentence.count('"') % 2:  # the other mark is in another sentence
        sentence = sentence.strip('"')
    last = sentence.rstrip(')]%°€"”»')[-1:]
    return sentence + "." if last.isalnum() and last < "\u0e00" else sentence


def cut_at_word(text: str, limit: int) -> str:
    """Cut a text to `limit` characters, at the end of a word if possible, with an ellipsis."""
    if len(text) <= limit:
        return text
    return text[: word_end(text, limit - 1)].rstrip(" .,;:!?–—-、，") + ELLIPSIS


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


def without_middle(text: str, characters: int) -> str:
    """Keep at most `characters` of the beginning and the end, where people say what they want.

    A note between them says how many characters are omitted. Where words are separated by spaces, no word or number is
    cut in two: half of 4711 would be a different number.
    """
    if len(text) <= characters + MARKER_CHARACTERS:
        return text
    head, tail = both_ends(text, characters)
    return f"{head} [… {len(text) - len(head) - len(tail):,} characters left out …] {tail}"


def both_ends(text: str, characters: int) -> tuple[str, str]:
    """Return the beginning and the end of a longer text, at most `characters` in total, cut as in `without_middle`."""
    half = characters // 2
    return text[: word_boundary(text, characters - half, -1)], text[word_boundary(text, len(text) - half, 1) :]


def word_boundary(text: str, at: int, step: int) -> int:
    """Find the next place in the direction of `step` that is not inside a word, or return `at` if none is near."""
    near = range(at, at + step * LONGEST_WORD, step)
    return next((place for place in near if not 0 < place < len(text) or not _inside_word(text, place)), at)


def _inside_word(text: str, place: int) -> bool:
    before, after = text[place - 1], text[place]
    return not (before.isspace() or after.isspace() or _UNSPACED.match(before) or _UNSPACED.match(after))
