"""Plans what an LLM is shown of an episode: all of it, shortened where necessary, or its parts. Pure functions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from afterword.schemas import EpisodeMessage
from afterword.streams.summarizer.extractive import condense
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from afterword.streams.text.fences import is_dated, message_lines
from afterword.streams.text.sentences import without_middle
from afterword.streams.text.tokens import count_tokens, groups, packed, water_level

SpareTokens = Callable[[SummaryRequest], int]
"""Returns the number of tokens by which a request may grow; negative if it is too long."""

TOOL_OUTPUT_CHARACTERS = 2000
"""A longer tool output is shown without its middle."""
SMALLEST_TOKENS = 60
"""A shortened message keeps at least this many tokens, since less would say nothing."""
EACH_TOKENS = 2
"""Additional tokens that a message may take among its neighbours."""
MOST_PARTS = 16
"""Maximum number of parts of one episode. Its longest messages are shortened to fit, so that calls and time are
bounded."""
PREVIOUS_SHARE, OVERLAP_SHARE = 3, 6
"""Divisors of the space in a prompt: at most a third for the previous summary and a sixth for the overlap."""
PART_OVERLAP = 2
"""Number of messages from the end of one part that introduce the next."""
SLACK_TOKENS = 100
"""Reserve for a prompt that says what was wrong with an answer, or has longer fence codes, and so is longer than the
first."""
CUTS = 5
LEAST_TOKENS = 4 * SMALLEST_TOKENS
"""Space for messages if the instructions leave none; the prompt is then too long, and the LLM's server says so."""
COMBINED_AT_LEAST = 2
"""Fewest summaries of parts that one call combines, so that the parts become fewer each time."""


@dataclass(frozen=True)
class Plan:
    """One request per part, each with its own messages; a single one covers the whole episode."""

    parts: tuple[SummaryRequest, ...]
    truncated: bool
    """True if a message lost its middle because the context is too small for it."""


def plan_of(request: SummaryRequest, room: SpareTokens, at_least: int = 1) -> Plan:
    """Cut a request to what the provider has room for. Every part has room for `at_least` messages, however long."""
    episode = request.episode
    request = _with(request, _short_outputs(episode.messages), _short_outputs(episode.overlap))
    if room(request) >= 0:
        return Plan((request,), truncated=False)
    return PlanBuilder(request, room, at_least).plan()


def _short_outputs(messages: Sequence[EpisodeMessage]) -> tuple[EpisodeMessage, ...]:
    return tuple(
        message.model_copy(update={"content": without_middle(message.content, TOOL_OUTPUT_CHARACTERS)})
        if message.role == "tool" and len(message.content) > TOOL_OUTPUT_CHARACTERS
        else message
        for message in messages
    )


@dataclass(frozen=True)
class Measured:
    """A message and the tokens that it adds to a prompt."""

    message: EpisodeMessage
    tokens: int
    dated: bool
    """True if prompts state its time."""


# Tokens of messages are counted as prompts show them. `SpareTokens` measures what they take together, in any prompt.


def measured(messages: Sequence[EpisodeMessage]) -> list[Measured]:
    dated = [True, *(is_dated(before, message) for before, message in pairwise(messages))]
    return [Measured(m, _tokens(m, at), at) for m, at in zip(messages, dated, strict=False)]


def fitted(messages: Sequence[Measured], tokens: int) -> list[Measured]:
    """Shorten the messages to `tokens` in total: the longest ones lose their middle, all to the same length."""
    if sum(message.tokens for message in messages) <= tokens:
        return list(messages)
    longest = max(SMALLEST_TOKENS, water_level([message.tokens for message in messages], tokens))
    return [_shortened(message, longest) for message in messages]


def _shortened(measured: Measured, tokens: int) -> Measured:
    text, message = measured.message.content, measured.message
    frame = _tokens(_empty(message), measured.dated)
    characters = len(text)
    while measured.tokens > tokens and characters:
        share = (tokens - frame) / max(1, measured.tokens - frame)
        characters = int(characters * min(0.9, max(0.0, share)))
        message = message.model_copy(update={"content": without_middle(text, characters)})
        measured = Measured(message, _tokens(message, measured.dated), measured.dated)
    return measured


def _tokens(message: EpisodeMessage, dated: bool) -> int:
    return count_tokens(message_lines(1, message, dated=dated)) + EACH_TOKENS


class PlanBuilder:
    """A request that is too long, on its way to a plan."""

    def __init__(self, request: SummaryRequest, room: SpareTokens, at_least: int) -> None:
        self._room = room
        self._at_least = at_least
        space = room(_with(replace(request, previous_rolling=""), (_empty(request.episode.messages[0]),), ()))
        previous, most = request.previous_rolling, space // PREVIOUS_SHARE
        if count_tokens(previous) > most:
            previous = condense(previous, max(most, SMALLEST_TOKENS))
        self._for_overlap = space // OVERLAP_SHARE
        self._for_messages = space - self._for_overlap - count_tokens(previous) - SLACK_TOKENS
        overlap = self._overlap(request.episode.overlap)
        self._request = _with(replace(request, previous_rolling=previous), overlap=overlap)

    def plan(self) -> Plan:
        """Cut by the sizes of single messages, measure the parts as a whole, and cut smaller while one is too long."""
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
        # only half of what all parts could hold, because some will be half empty
        shown = fitted(measured(messages), MOST_PARTS * self._for_messages // 2)
        most = max(1, self._for_messages // SMALLEST_TOKENS)
        # a group is only split if it is longer than a part may be
        cut = [run[at : at + most] for run in groups(messages) for at in range(0, len(run), most)]
        kept = [fitted([shown[at] for at in run], self._for_messages // self._at_least) for run in cut]
        runs = packed([sum(message.tokens for message in group) for group in kept], self._for_messages)
        parts = [tuple(message.message for at in run for message in kept[at]) for run in runs]
        truncated = tuple(message for part in parts for message in part) != messages
        return Plan(self._requests(parts), truncated)

    def _requests(self, parts: Sequence[tuple[EpisodeMessage, ...]]) -> tuple[SummaryRequest, ...]:
        first = _with(self._request, messages=parts[0])
        if len(parts) == 1:
            return (first,)
        others = (
            _with(self._request, messages=part, overlap=self._overlap(before[-PART_OVERLAP:]))
            for before, part in pairwise(parts)
        )
        # the rolling summary is made from all parts together, at the end
        return tuple(replace(part, wants_rolling=False) for part in (first, *others))

    def _overlap(self, messages: Sequence[EpisodeMessage]) -> tuple[EpisodeMessage, ...]:
        latest = messages[-max(1, self._for_overlap // SMALLEST_TOKENS) :]
        return tuple(one.message for one in fitted(measured(latest), self._for_overlap))


def combining(request: SummaryRequest, parts: Sequence[SummaryRequest], summaries: Sequence[Summary]) -> SummaryRequest:
    """Make the request in which the parts' summaries take the place of the messages."""
    messages = tuple(
        EpisodeMessage(
            id=f"part-{number}",
            role="assistant",
            content=f"Summary of part {number} of {len(parts)}: {summary.long_summary}",
            sent_at=part.episode.ended_at,
            user_id=request.episode.user_id,
        )
        for number, (part, summary) in enumerate(zip(parts, summaries, strict=True), 1)
    )
    return replace(request, episode=request.episode.model_copy(update={"messages": messages}))


def _with(
    request: SummaryRequest,
    messages: tuple[EpisodeMessage, ...] = (),
    overlap: tuple[EpisodeMessage, ...] | None = None,
) -> SummaryRequest:
    episode = request.episode
    messages = messages or episode.messages
    changed = {
        "messages": messages,
        "overlap": episode.overlap if overlap is None else overlap,
        "message_count": len(messages),
        "started_at": min(message.sent_at for message in messages),
        "ended_at": max(message.sent_at for message in messages),
    }
    return replace(request, episode=episode.model_copy(update=changed))


def _empty(message: EpisodeMessage) -> EpisodeMessage:
    return message.model_copy(update={"content": ""})
