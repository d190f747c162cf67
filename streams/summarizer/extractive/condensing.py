"""Condensing of a rolling summary: one line for each episode, at most a number of tokens."""

import re
from collections.abc import Sequence

from afterword.streams.language import words
from afterword.streams.summarizer.control_tokens import strip_control_tokens
from afterword.streams.summarizer.extractive.ranking import Terms, informativeness, is_question
from afterword.streams.summarizer.sentences import ELLIPSIS, split_sentences, word_end
from afterword.streams.tokens import count_tokens

SAME = 0.8
"""Jaccard index of two sentences' terms from which they are duplicates, if their numbers agree."""
MAX_CHARACTERS = 100_000
"""Characters that are read: no model writes more, only a broken server sends it."""
LENGTH = 0.001
"""Cost of a character: of two equally informative sentences the shorter one stays."""
SHORTEST_TOKENS = 12
"""Fewest tokens of a sentence that still has content; below that, whole lines are dropped."""
USUAL_WORDS = range(4, 25)
_SPEAKER = re.compile(r"^(\w+): ")

Line = list[str]
"""The sentences about one episode."""


def carry_forward(previous: str, new: Sequence[str], max_tokens: int, terms: Terms) -> str:
    """Append a line with those new sentences that the previous rolling summary does not have yet, and condense."""
    carried = tidy(previous[:MAX_CHARACTERS])
    known = [_signature(sentence, terms) for line in carried.splitlines() for sentence in split_sentences(line)]
    signed = [(sentence, _signature(sentence, terms)) for sentence in new]
    added = [sentence for sentence, signature in signed if not any(_same(signature, other) for other in known)]
    return condense("\n".join(part for part in (carried, " ".join(added)) if part), max_tokens)


def condense(text: str, max_tokens: int) -> str:
    """Leave out the least informative sentences until the text has at most `max_tokens` tokens.

    Each line keeps its best sentence as long as possible: first lines lose sentences, then lines between the first and
    the last are dropped, then sentences lose their ends.
    """
    text = tidy(text[:MAX_CHARACTERS])
    if count_tokens(text) <= max_tokens:
        return text
    lines = _leave_out_sentences([split_sentences(line) for line in text.splitlines()], max_tokens)
    lines = _leave_out_lines(lines, max_tokens)
    return cut_to_tokens("\n".join(" ".join(line) for line in _shorten(lines, max_tokens)), max_tokens)


def tidy(text: str) -> str:
    """Remove control tokens, repeated spaces and empty lines."""
    lines = (" ".join(line.split()) for line in strip_control_tokens(text).splitlines())
    return "\n".join(line for line in lines if line)


def cut_to_tokens(text: str, max_tokens: int) -> str:
    """Cut a text to at most `max_tokens` tokens, at a word's end and with an ellipsis."""
    if count_tokens(text) <= max_tokens:
        return text
    fits, too_long = 0, len(text)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if count_tokens(text[:middle].rstrip() + ELLIPSIS) <= max_tokens:
            fits = middle
        else:
            too_long = middle
    return text[: word_end(text, fits)].rstrip(" ,;:…，、\n") + ELLIPSIS


def _leave_out_sentences(lines: list[Line], max_tokens: int) -> list[Line]:
    """Drop the least informative sentences, the older of two equals first; no line loses its last sentence."""
    excess = sum(_cost(sentence) for line in lines for sentence in line) - max_tokens
    kept = [dict(enumerate(line)) for line in lines]
    order = sorted((_value(s, i), at, i) for at, line in enumerate(lines) for i, s in enumerate(line))
    for _, at, i in order:
        if excess > 0 and len(kept[at]) > 1:
            excess -= _cost(kept[at].pop(i))
    return [list(line.values()) for line in kept]


def _leave_out_lines(lines: list[Line], max_tokens: int) -> list[Line]:
    """Drop lines if there are so many that each would be cut to nothing; the first and the last always stay."""
    surplus = len(lines) - max(2, max_tokens // SHORTEST_TOKENS)
    between = sorted(range(1, len(lines) - 1), key=lambda at: (_value(lines[at][0], 0), at))
    dropped = set(between[: max(0, surplus)])
    return [line for at, line in enumerate(lines) if at not in dropped]


def _shorten(lines: list[Line], max_tokens: int) -> list[Line]:
    """Cut the ends off sentences, the least informative first and the very first last, until all fit."""
    sentences = [sentence for line in lines for sentence in line]
    excess = sum(_cost(sentence) for sentence in sentences) - max_tokens
    for at in sorted(range(len(sentences)), key=lambda at: (at == 0, _value(sentences[at], 0), at)):
        if excess > 0:
            cost = _cost(sentences[at])
            sentences[at] = cut_to_tokens(sentences[at], max(SHORTEST_TOKENS, cost - excess) - 1)
            excess -= cost - _cost(sentences[at])
    left = iter(sentences)
    return [[next(left) for _ in line] for line in lines]


def _cost(sentence: str) -> int:
    return count_tokens(sentence) + 1  # the line break or the space after it


def _value(sentence: str, place: int) -> float:
    usual = 0.2 * (len(words(sentence)) in USUAL_WORDS) + 0.05 * (place == 0)
    return informativeness(_SPEAKER.sub("", sentence)) + usual - 0.3 * is_question(sentence) - LENGTH * len(sentence)


def _signature(sentence: str, terms: Terms) -> tuple[frozenset[str], tuple[str, ...]]:
    text = _SPEAKER.sub("", sentence)
    return frozenset(terms(text)), tuple(word for word in words(text) if any(c.isdigit() for c in word))


def _same(one: tuple[frozenset[str], tuple[str, ...]], other: tuple[frozenset[str], tuple[str, ...]]) -> bool:
    union = len(one[0] | other[0])
    return one[1] == other[1] and (union == 0 or len(one[0] & other[0]) / union >= SAME)
