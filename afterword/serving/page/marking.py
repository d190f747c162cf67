"""Marks in foreign texts: words that a search was for, figures with their source, tokens that no message supports.

Everything here takes time linear in the text, and returns escaped HTML.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from markupsafe import Markup

from afterword.schemas import MessageCreated
from afterword.serving.page.rendering import anchor, cut_off, visible_text
from afterword.streams.text.language import detect, plausible
from afterword.streams.text.search_words import query_words, words_of

FIGURE = re.compile(r"\d{1,40}(?:[.,:/-]\d{1,40}){0,8}")
WORD = re.compile(r"\w{1,100}")
READ_CHARACTERS = 100_000
"""Characters of a message in which figures are looked for."""
MARKED_CHARACTERS = 4000
"""Characters of a text in which words are marked."""

FindWords = Callable[[str], list[tuple[int, int]]]
"""Finds where a text has words: first character, and the one after the last."""

_Span = tuple[int, int, str, str]
"""Start, end, and HTML before and after."""


def figures_in(messages: Iterable[MessageCreated]) -> dict[str, str]:
    """Map each figure in these messages to the anchor of the first message that has it."""
    found: dict[str, str] = {}
    for message in messages:
        place = anchor(message.id)
        for figure in FIGURE.findall(message.content[:READ_CHARACTERS]):
            found.setdefault(figure, place)
    return found


def with_evidence(text: str, unsupported: Sequence[str], sources: Mapping[str, str]) -> Markup:
    """Underline unsupported tokens, and link each other figure to the message that has it."""
    wrong = [(start, end, UNSUPPORTED, "</mark>") for start, end in _tokens(text, unsupported)]
    taken = {at for start, end, _, _ in wrong for at in range(start, end)}
    linked = [
        (found.start(), found.end(), f'<a class="source" href="#{sources[found[0]]}">', "</a>")
        for found in FIGURE.finditer(text)
        if found[0] in sources and found.start() not in taken and found.end() - 1 not in taken
    ]
    return _with(text, [*wrong, *linked])


UNSUPPORTED = '<mark class="unsupported" title="No message of the episode has this">'


def _tokens(text: str, tokens: Sequence[str]) -> Iterator[tuple[int, int]]:
    known = sorted({token for token in tokens if token}, key=len, reverse=True)
    if known:
        either = "|".join(map(re.escape, known))
        yield from (found.span() for found in re.finditer(rf"(?<!\w)(?:{either})(?!\w)", text))


def word_finder(query: str) -> FindWords:
    """Make the function that finds where a text has words of the query, in any form that the search takes for them."""
    languages = plausible(query)
    wanted = {form for word in query_words(query) for form in word.forms}

    def find(text: str) -> list[tuple[int, int]]:
        # as it was indexed; a short text's language may be a wrong guess
        return list(_words_of(text, wanted, [detect(text)])) or list(_words_of(text, wanted, languages))

    return find


def _words_of(text: str, wanted: set[str], languages: Sequence[str]) -> Iterator[tuple[int, int]]:
    for word in WORD.finditer(text[:MARKED_CHARACTERS]):
        said = [words_of(word[0], language) for language in languages]
        if len(said[0]) > 1:  # a script without spaces: its words are pairs of characters
            yield from _pairs(word[0].casefold(), word.start(), wanted)
        elif any(not wanted.isdisjoint(one.forms) for found in said for one in found):
            yield word.span()


def _pairs(run: str, start: int, wanted: set[str]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for at in range(len(run) - 1):
        if run[at : at + 2] in wanted:
            begin = start + at
            if found and found[-1][1] >= begin:
                begin = found.pop()[0]
            found.append((begin, start + at + 2))
    return found


def with_words(text: str, find: FindWords) -> Markup:
    """Mark the words that were searched for."""
    text = cut_off(text, MARKED_CHARACTERS)
    return _with(text, [(start, end, "<mark>", "</mark>") for start, end in find(text)])


def _with(text: str, spans: Iterable[_Span]) -> Markup:
    shown: list[Markup] = []
    last = 0
    for start, end, before, after in sorted(spans):
        if start < last:
            continue
        shown += [_escaped(text[last:start]), Markup(before), _escaped(text[start:end]), Markup(after)]  # noqa: S704 – our own tags
        last = end
    return Markup("").join([*shown, _escaped(text[last:])])


def _escaped(text: str) -> Markup:
    return Markup.escape(visible_text(text))
