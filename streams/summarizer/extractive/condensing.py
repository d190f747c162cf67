"""Condenses a rolling summary, which has one line per episode, to a number of tokens."""

import re
from collections.abc import Collection, Sequence

from afterword.streams.summarizer.extractive.ranking import Terms, informativeness, is_question
from afterword.streams.text.fences import NAMED
from afterword.streams.text.language import words
from afterword.streams.text.sentences import ELLIPSIS, split_sentences, word_end
from afterword.streams.text.tokens import count_tokens
from afterword.streams.text.visible import strip_control_tokens

SAME = 0.8
"""Sentences are duplicates if their terms have at least this Jaccard index and their numbers agree."""
MAX_CHARACTERS = 100_000
"""At most this many characters are read. No model writes more; only a broken server sends more."""
LENGTH = 0.002
"""Cost of a character: the shorter of two equally informative sentences is kept."""
USUAL_WORDS = range(4, 25)
_SPEAKER = re.compile(f"^(?:User|Assistant|Tool|System){NAMED}")


def carry_forward(previous: str, new: Sequence[str], max_tokens: int, terms: Terms) -> str:
    """Append a line with the new sentences that the previous rolling summary does not have yet, and condense it."""
    carried = tidy(previous[:MAX_CHARACTERS])
    known = [_signature(told, terms) for line in carried.splitlines() for told in _exchanges(line)]
    signed = [(told, _signature(told, terms)) for told in new]
    added = [told for told, signature in signed if not any(_same(signature, other) for other in known)]
    return condense("\n".join(part for part in (carried, " ".join(added)) if part), max_tokens)


def condense(text: str, max_tokens: int) -> str:
    """Leave out the least informative sentences until the text has at most `max_tokens` tokens.

    If not even one sentence fits, the text is cut.
    """
    text = tidy(text[:MAX_CHARACTERS])
    return whole_sentences(text, max_tokens) or cut_to_tokens(text, max_tokens)


def whole_sentences(text: str, max_tokens: int) -> str:
    """Return the most informative sentences that fit, in their order. A question is kept or dropped with its answer.

    Each line keeps its best sentence as long as possible. Then whole lines are dropped, the first and the last one only
    after all others.
    """
    if len(text) <= MAX_CHARACTERS and count_tokens(text) <= max_tokens:
        return text
    text = tidy(text[:MAX_CHARACTERS])
    lines = [_exchanges(line) for line in text.splitlines()]
    values = {(at, i): _value(told, i) for at, line in enumerate(lines) for i, told in enumerate(line)}
    best = {at: max(range(len(line)), key=lambda i: values[at, i]) for at, line in enumerate(lines)}
    kept: list[tuple[int, int]] = []
    left = max_tokens + 1
    ends = {0, len(lines) - 1}
    for key in sorted(values, key=lambda key: (key[1] != best[key[0]], key[0] not in ends, -values[key], -key[0])):
        cost = count_tokens(lines[key[0]][key[1]]) + 1  # 1 for the space or line break after it
        if cost <= left:
            kept.append(key)
            left -= cost
    # the parts may have fewer tokens than the whole
    while count_tokens(found := _joined(lines, set(kept))) > max_tokens:
        kept.pop()
    return found


def _joined(lines: Sequence[Sequence[str]], kept: Collection[tuple[int, int]]) -> str:
    told = [[told for i, told in enumerate(line) if (at, i) in kept] for at, line in enumerate(lines)]
    return "\n".join(" ".join(line) for line in told if line)


def tidy(text: str) -> str:
    """Remove control tokens, repeated spaces and empty lines."""
    lines = (" ".join(line.split()) for line in strip_control_tokens(text).splitlines())
    return "\n".join(line for line in lines if line)


def cut_to_tokens(text: str, max_tokens: int) -> str:
    """Cut a text to at most `max_tokens` tokens, at the end of a word and with an ellipsis."""
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


def _exchanges(line: str) -> list[str]:
    """Split a line into its smallest parts: sentences, questions with their answers, or what one named speaker says."""
    found: list[str] = []
    sentences = split_sentences(line)
    has_speakers = any(map(_SPEAKER.match, sentences))
    for sentence in sentences:
        if found and (is_question(found[-1]) or (has_speakers and not _SPEAKER.match(sentence))):
            found[-1] += f" {sentence}"
        else:
            found.append(sentence)
    return found


def _value(sentence: str, place: int) -> float:
    usual = 0.2 * (len(words(sentence)) in USUAL_WORDS) + 0.05 * (place == 0)
    return informativeness(_SPEAKER.sub("", sentence)) + usual - 0.3 * is_question(sentence) - LENGTH * len(sentence)


def _signature(sentence: str, terms: Terms) -> tuple[frozenset[str], tuple[str, ...]]:
    text = _SPEAKER.sub("", sentence)
    return frozenset(terms(text)), tuple(word for word in words(text) if any(map(str.isdigit, word)))


def _same(one: tuple[frozenset[str], tuple[str, ...]], other: tuple[frozenset[str], tuple[str, ...]]) -> bool:
    union = len(one[0] | other[0])
    return one[1] == other[1] and (union == 0 or len(one[0] & other[0]) / union >= SAME)
