"""How much of an LLM's context a message takes, and how messages are shortened to a number of tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from schemas import EpisodeClosed, EpisodeMessage
from streams.summarizer.long_input.middle import without_middle
from streams.summarizer.providers.base import SummaryRequest

Room = Callable[[SummaryRequest], int]
"""Tokens that a request may still grow by; negative: as many as it has too many."""

SMALLEST_TOKENS = 60
"""A message is not made shorter than that: it could no longer tell anything."""
EACH_TOKENS = 4
"""Where a message meets its neighbours it may take some more than alone."""


@dataclass(frozen=True)
class Measured:
    """A message and the tokens that it adds to a prompt."""

    message: EpisodeMessage
    tokens: int


class Ruler:
    """Measures by the prompts themselves, whatever they look like."""

    def __init__(self, room: Room, request: SummaryRequest) -> None:
        self._room = room
        self._bare = replace(request, previous_rolling="", episode=_with(request, _empty(request.episode.messages[0])))
        self.space = room(self._bare)
        """For all that a prompt is about: messages, overlap, and the summary so far."""

    def measured(self, messages: Sequence[EpisodeMessage]) -> list[Measured]:
        return [Measured(message, self._tokens(message)) for message in messages]

    def previous(self, text: str) -> int:
        """The tokens that this summary so far adds to a prompt."""
        return self.space - self._room(replace(self._bare, previous_rolling=text))

    def fitted(self, messages: Sequence[Measured], tokens: int) -> list[Measured]:
        """The messages, together at most so many tokens: the longest ones without their middle, all to one length."""
        if sum(message.tokens for message in messages) <= tokens:
            return list(messages)
        longest = max(SMALLEST_TOKENS, water_level([message.tokens for message in messages], tokens))
        return [self._shortened(message, longest) for message in messages]

    def _shortened(self, measured: Measured, tokens: int) -> Measured:
        text, message = measured.message.content, measured.message
        frame = self._tokens(_empty(message))
        characters = len(text)
        while measured.tokens > tokens and characters:
            share = (tokens - frame) / max(1, measured.tokens - frame)
            characters = int(characters * min(0.9, max(0.0, share)))
            message = message.model_copy(update={"content": without_middle(text, characters)})
            measured = Measured(message, self._tokens(message))
        return measured

    def _tokens(self, message: EpisodeMessage) -> int:
        return self.space - self._room(replace(self._bare, episode=_with(self._bare, message))) + EACH_TOKENS


def water_level(sizes: Sequence[int], total: int) -> int:
    """The largest size to which all larger ones can be cut so that no more than `total` is left."""
    left = total
    for taken, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - taken)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0)


def _with(request: SummaryRequest, message: EpisodeMessage) -> EpisodeClosed:
    return request.episode.model_copy(update={"messages": (message,), "overlap": ()})


def _empty(message: EpisodeMessage) -> EpisodeMessage:
    return message.model_copy(update={"content": ""})
