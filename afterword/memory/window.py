"""Which of a conversation's newest messages fit, and how. Pure functions over messages in order, oldest first."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from afterword.schemas import MessageCreated
from afterword.streams.summarizer.long_input.groups import groups
from afterword.streams.summarizer.long_input.middle import without_middle
from afterword.streams.summarizer.long_input.ruler import water_level
from afterword.streams.tokens import count_tokens

SHORTEST_TOKENS = 16
"""A message cut shorter than this says nothing any more."""
CHARACTERS_A_TOKEN = 8
"""More than any usual text has: the first guess at a cut, which is then made smaller until it fits."""


class Window(NamedTuple):
    """The messages that fit."""

    messages: tuple[MessageCreated, ...] = ()
    tokens: int = 0
    shortened: tuple[str, ...] = ()
    """Ids of those that lost their middle."""


def fit(messages: Sequence[MessageCreated], wanted: Collection[str], max_tokens: int) -> Window:
    """The newest of the `wanted` (ids), each with all of its group; the newest group is shortened if it does not fit.

    Nothing is left out between two that are shown.
    """
    window = Window()
    for group in reversed(_wanted_groups(messages, wanted)):
        tokens = sum(count_tokens(message.content) for message in group)
        if window.tokens + tokens > max_tokens:
            return window if window.messages else _shortened(group, max_tokens)
        window = Window((*group, *window.messages), window.tokens + tokens)
    return window


def _wanted_groups(messages: Sequence[MessageCreated], wanted: Collection[str]) -> list[list[MessageCreated]]:
    found = [[messages[at] for at in group] for group in groups(messages)]
    return [group for group in found if any(message.id in wanted for message in group)]


def _shortened(group: Sequence[MessageCreated], max_tokens: int) -> Window:
    """The group with its longest messages cut to the same length; nothing if that leaves too little of them."""
    sizes = [count_tokens(message.content) for message in group]
    level = water_level(sizes, max_tokens)
    if level < SHORTEST_TOKENS:
        return Window()
    cut = [_cut(m, level) if size > level else m for m, size in zip(group, sizes, strict=True)]
    ids = tuple(m.id for m, size in zip(group, sizes, strict=True) if size > level)
    return Window(tuple(cut), sum(count_tokens(message.content) for message in cut), ids)


def _cut(message: MessageCreated, tokens: int) -> MessageCreated:
    characters = tokens * CHARACTERS_A_TOKEN
    text = without_middle(message.content, characters)
    while count_tokens(text) > tokens and characters > 0:
        characters = characters * 9 // 10
        text = without_middle(message.content, characters)
    return message.model_copy(update={"content": text if characters else ""})
