"""A text without its middle: people say what they want where they begin and where they end."""

MARKER_CHARACTERS = 40
"""Of the words that stand for what is left out; to leave out less would make the text longer."""
LONGEST_WORD = 40


def without_middle(text: str, characters: int) -> str:
    """At most `characters` of the beginning and the end together, and between them how many are left out.

    No word and no number is cut in two where words are written with spaces: half of 4711 would be another number.
    """
    if len(text) <= characters + MARKER_CHARACTERS:
        return text
    half = characters // 2
    head, tail = _boundary(text, characters - half, -1), _boundary(text, len(text) - half, 1)
    return f"{text[:head]} [… {tail - head:,} characters left out …] {text[tail:]}"


def _boundary(text: str, at: int, step: int) -> int:
    """The next place in that direction that is not inside a word; `at` itself where there is none near."""
    near = range(at, at + step * LONGEST_WORD, step)
    return next((place for place in near if not 0 < place < len(text) or not _inside_word(text, place)), at)


def _inside_word(text: str, place: int) -> bool:
    before, after = text[place - 1], text[place]
    return before.isascii() and after.isascii() and not (before.isspace() or after.isspace())
