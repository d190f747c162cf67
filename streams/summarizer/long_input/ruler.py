"""How much of an LLM's context a message takes, and how messages are shortened to a number of tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from afterword.schemas import EpisodeClosed, EpisodeMessage
from afterword.streams.prompt_template import REQUIRED
from afterword.streams.summarizer.long_input.middle import without_middle
from afterword.streams.summarizer.prompt.fences import data_of
from afterword.streams.summarizer.providers.base import SummaryRequest
from afterword.streams.tokens import count_tokens

Room = Callable[[SummaryRequest], int]
"""Tokens that a request may still grow by; negative: as many as it has too many."""

SMALLEST_TOKENS = 60
"""A message is not made shorter than that: it could no longer tell anything."""
EACH_TOKENS = 2
"""Where a message meets its neighbours it may take some more than alone."""


@dataclass(frozen=True)
class Measured:
    """A message and the tokens that it adds to a prompt."""

    message: EpisodeMessage
    tokens: int


class Ruler:
    """Measures messages as prompts show them. What they take together, in whatever prompt, is for `Room` to say."""

    def __init__(self, episode: EpisodeClosed) -> None:
        self._episode = episode.model_copy(update={"overlap": ()})

    def measured(self, messages: Sequence[EpisodeMessage]) -> list[Measured]:
        return [Measured(message, self._tokens(message)) for message in messages]

    def fitted(self, messages: Sequence[Measured], tokens: int) -> list[Measured]:
        """The messages, together at most so many tokens: the longest ones without their middle, all to one length."""
        if sum(message.tokens for message in messages) <= tokens:
            return list(messages)
        longest = max(SMALLEST_TOKENS, water_level([message.tokens for message in messages], tokens))
        return [self._shortened(message, longest) for message in messages]

    def _shortened(self, measured: Measured, tokens: int) -> Measured:
        text, message = measured.message.content, measured.message
        frame = self._tokens(emptied(message))
        characters = len(text)
        while measured.tokens > tokens and characters:
            share = (tokens - frame) / max(1, measured.tokens - frame)
            characters = int(characters * min(0.9, max(0.0, share)))
            message = message.model_copy(update={"content": without_middle(text, characters)})
            measured = Measured(message, self._tokens(message))
        return measured

    def _tokens(self, message: EpisodeMessage) -> int:
        alone = self._episode.model_copy(update={"messages": (message,)})
        return count_tokens(data_of(alone, "")[REQUIRED]) + EACH_TOKENS


def water_level(sizes: Sequence[int], total: int) -> int:
    """The largest size to which all larger ones can be cut so that no more than `total` is left."""
    left = total
    for taken, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - taken)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0)


def emptied(message: EpisodeMessage) -> EpisodeMessage:
    return message.model_copy(update={"content": ""})
