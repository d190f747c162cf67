"""What an LLM is given of an episode: all of it, shortened where it must be, or its parts. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from afterword.schemas import EpisodeClosed, EpisodeMessage
from afterword.streams.summarizer.extractive import condense
from afterword.streams.summarizer.long_input.groups import groups, packed
from afterword.streams.summarizer.long_input.middle import without_middle
from afterword.streams.summarizer.long_input.ruler import SMALLEST_TOKENS, Measured, Room, Ruler, emptied
from afterword.streams.summarizer.providers.base import SummaryRequest
from afterword.streams.tokens import count_tokens

MOST_PARTS = 16
"""Of one episode: where there would be more its longest messages are shortened, so that calls and time are bounded."""
PREVIOUS_SHARE, OVERLAP_SHARE = 3, 6
"""Of the space in a prompt: a third for the summary so far and a sixth for the overlap, should they need it."""
PART_OVERLAP = 2
"""Messages at the end of one part that introduce the next."""
SLACK_TOKENS = 100
"""A prompt that says what was wrong with an answer is longer than the first one; so may be the code of its fences."""
CUTS = 5
LEAST_TOKENS = 4 * SMALLEST_TOKENS
"""For messages, where instructions leave nothing: what is asked then is too long, and the LLM's server says so."""


@dataclass(frozen=True)
class Plan:
    """One request for each part, each with messages of its own; a single one stands for the whole episode."""

    parts: tuple[SummaryRequest, ...]
    truncated: bool
    """A message lost its middle because the context is too small for it."""


class Planner:
    """Cuts requests to what the provider has room for."""

    def __init__(self, room: Room, tool_output_characters: int) -> None:
        self._room = room
        self._tool_output_characters = tool_output_characters

    def plan(self, request: SummaryRequest, at_least: int = 1) -> Plan:
        """`at_least`: messages that every part can take, however long they are."""
        request = _with(request, messages=self._short_outputs(request.episode.messages))
        request = _with(request, overlap=self._short_outputs(request.episode.overlap))
        if self._room(request) >= 0:
            return Plan((request,), truncated=False)
        return Cut(request, self._room, at_least).plan()

    def _short_outputs(self, messages: Sequence[EpisodeMessage]) -> tuple[EpisodeMessage, ...]:
        return tuple(_shown(message, self._tool_output_characters) for message in messages)


class Cut:
    """A request that is too long, on its way to a plan."""

    def __init__(self, request: SummaryRequest, room: Room, at_least: int) -> None:
        self._room = room
        self._ruler = Ruler(request.episode)
        self._at_least = at_least
        space = room(_emptied(request))
        previous = _shorter(request.previous_rolling, space // PREVIOUS_SHARE)
        self._for_overlap = space // OVERLAP_SHARE
        self._for_messages = space - self._for_overlap - count_tokens(previous) - SLACK_TOKENS
        overlap = self._overlap(request.episode.overlap)
        self._request = _with(replace(request, previous_rolling=previous), overlap=overlap)

    def plan(self) -> Plan:
        """What was measured message by message is measured as a whole, and cut smaller as long as that is needed."""
        if self._room(self._request) >= 0:
            return Plan((self._request,), truncated=False)
        for _ in range(CUTS):
            self._for_messages = max(self._for_messages, LEAST_TOKENS)
            plan = self._cut()
            too_many = -min(map(self._room, plan.parts))
            if too_many <= 0:
                break
            self._for_messages -= self._for_messages * too_many // (self._for_messages + too_many) + 1
        return plan

    def _cut(self) -> Plan:
        messages = self._request.episode.messages
        kept = self._kept_together(messages)
        runs = packed([sum(message.tokens for message in group) for group in kept], self._for_messages)
        parts = [tuple(message.message for at in run for message in kept[at]) for run in runs]
        truncated = tuple(message for part in parts for message in part) != messages
        return Plan(self._requests(parts), truncated)

    def _kept_together(self, messages: Sequence[EpisodeMessage]) -> list[list[Measured]]:
        """The groups, each at most as long as a part may be."""
        measured = self._ruler.measured(messages)
        measured = self._ruler.fitted(measured, MOST_PARTS * self._for_messages // 2)  # some parts are half empty
        most = max(1, self._for_messages // SMALLEST_TOKENS)
        cut = [run[at : at + most] for run in groups(messages) for at in range(0, len(run), most)]
        for_group = self._for_messages // self._at_least
        return [self._ruler.fitted([measured[at] for at in run], for_group) for run in cut]

    def _requests(self, parts: Sequence[tuple[EpisodeMessage, ...]]) -> tuple[SummaryRequest, ...]:
        first = _with(self._request, messages=parts[0])
        if len(parts) == 1:
            return (first,)
        others = (
            _with(self._request, messages=part, overlap=self._overlap(before[-PART_OVERLAP:]))
            for before, part in pairwise(parts)
        )
        # the rolling summary is made of all parts together, at the end
        return tuple(replace(part, wants_rolling=False) for part in (first, *others))

    def _overlap(self, messages: Sequence[EpisodeMessage]) -> tuple[EpisodeMessage, ...]:
        latest = messages[-max(1, self._for_overlap // SMALLEST_TOKENS) :]
        fitted = self._ruler.fitted(self._ruler.measured(latest), self._for_overlap)
        return tuple(measured.message for measured in fitted)


def rounds(calls_at_a_time: int) -> int:
    """Calls one after another that the parts of the longest episode take, before those parts are put together."""
    return math.ceil(MOST_PARTS / calls_at_a_time)


def _shown(message: EpisodeMessage, characters: int) -> EpisodeMessage:
    if message.role != "tool" or len(message.content) <= characters:
        return message
    return message.model_copy(update={"content": without_middle(message.content, characters)})


def _emptied(request: SummaryRequest) -> SummaryRequest:
    return _with(replace(request, previous_rolling=""), (emptied(request.episode.messages[0]),), ())


def _shorter(previous: str, tokens: int) -> str:
    return previous if count_tokens(previous) <= tokens else condense(previous, max(tokens, SMALLEST_TOKENS))


def _with(
    request: SummaryRequest,
    messages: tuple[EpisodeMessage, ...] = (),
    overlap: tuple[EpisodeMessage, ...] | None = None,
) -> SummaryRequest:
    return replace(request, episode=_copy(request.episode, messages, overlap))


def _copy(
    episode: EpisodeClosed, messages: tuple[EpisodeMessage, ...], overlap: tuple[EpisodeMessage, ...] | None
) -> EpisodeClosed:
    messages = messages or episode.messages
    return episode.model_copy(
        update={
            "messages": messages,
            "overlap": episode.overlap if overlap is None else overlap,
            "message_count": len(messages),
            "started_at": messages[0].sent_at,
            "ended_at": messages[-1].sent_at,
        }
    )
