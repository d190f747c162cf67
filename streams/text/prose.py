"""The sentences of a message, without Markdown, headings, code, tables and list marks. Linear in its length."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby

from afterword.streams.text.cutting import both_ends
from afterword.streams.text.sentences import split_sentences
from afterword.streams.text.visible import strip_control_tokens

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
_EMPHASIS = re.compile(r"(\*{1,3}|__|~~|`{1,2})(?=[^\s*_~`])([^*~`\n]{0,300}?[^\s*_~`]|[^\s*_~`])\1(?!\w)")


@lru_cache(maxsize=KEPT_MESSAGES)
def sentences_of(content: str) -> tuple[str, ...]:
    """Split a message into sentences, as one would read them aloud.

    A short list and the line or heading that introduces it are one sentence; no sentence ends with a colon.
    """
    if len(content) > MAX_MESSAGE_CHARACTERS:
        content = "\n".join(both_ends(content, MAX_MESSAGE_CHARACTERS))
    spoken = list(_spoken(strip_control_tokens(content)))
    found: list[str] = []
    for is_item, group in groupby(spoken, key=lambda line: line[0]):
        lines = [text for _, text in group]
        opening = found.pop() if found and found[-1].endswith((":", "：")) else ""
        whole = f"{opening} {'; '.join(line.rstrip('.;, ') for line in lines)}"
        if is_item and opening and len(whole) <= MAX_LIST_CHARACTERS:
            found.append(whole)
            continue
        said = [sentence for line in lines for sentence in split_sentences(line)]
        if opening and not is_item and said:
            said[0] = f"{opening} {said[0]}"
        found += said
    return tuple(sentence for sentence in map(_ended, found) if sentence)


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
        line = line[found.end() :] if (found := _QUOTED.match(line)) else line
        item = _ITEM.match(line)
        is_item = item is not None and (item["number"] is None or numbered > 1)  # "12. Mai" alone is a date
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
    last = sentence.rstrip(")]%°€")[-1:]
    return sentence + "." if last.isalnum() and last < "\u0e00" else sentence
