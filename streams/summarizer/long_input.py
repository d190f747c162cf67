"""Plans what an LLM is shown of an episode: all of it, shortened where necessary, or its parts. Pure functions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from afterword.schemas import EpisodeMessage
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from afterword_text.extractive import condense
from afterword_text.fences import message_lines
from afterword_text.sentences import without_middle
from afterword_text.tokens import count_tokens, groups, packed, water_level

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
    """One request for each part of an episode, or a single request for all of it."""

    parts: tuple[SummaryRequest, ...]
    truncated: bool
    """True if a message lost its middle because the context is too small for it."""


def plan_of(request: SummaryRequest, room: SpareTokens, at_least: int = 1) -> Plan:
    """Cut a request so that the provider has room for it. Every part has room for `at_least` messages, however long.

    The messages are cut by their own sizes. Then each part is measured as a whole, and all are cut smaller while one is
    too long.
    """
    episode = request.episode
    request = _with(request, _short_outputs(episode.messages), _short_outputs(episode.overlap))
    if room(request) >= 0:
        return Plan((request,), truncated=False)
    space = room(_with(replace(request, previous_rolling=""), (_empty(episode.messages[0]),), ()))
    previous, most = request.previous_rolling, space // PREVIOUS_SHARE
    if count_tokens(previous) > most:
        previous = condense(previous, max(most, SMALLEST_TOKENS))
    for_overlap = space // OVERLAP_SHARE
    overlap = _latest(request.episode.overlap, for_overlap)
    request = _with(replace(request, previous_rolling=previous), overlap=overlap)
    if room(request) >= 0:
        return Plan((request,), truncated=False)
    for_messages = space - for_overlap - count_tokens(previous) - SLACK_TOKENS
    for _ in range(CUTS):
        for_messages = max(for_messages, LEAST_TOKENS)
        plan = _cut(request, for_messages, for_overlap, at_least)
        too_many = -min(map(room, plan.parts))
        if too_many <= 0:
            break
        for_messages -= for_messages * too_many // (for_messages + too_many) + 1
    return plan


def _short_outputs(messages: Sequence[EpisodeMessage]) -> tuple[EpisodeMessage, ...]:
    return tuple(
        message.model_copy(update={"content": without_middle(message.content, TOOL_OUTPUT_CHARACTERS)})
        if message.role == "tool" and len(message.content) > TOOL_OUTPUT_CHARACTERS
        else message
        for message in messages
    )


def _cut(request: SummaryRequest, for_messages: int, for_overlap: int, at_least: int) -> Plan:
    messages = request.episode.messages
    # half of what all parts can hold, because messages are not split and may leave parts half empty
    shown = fitted(messages, MOST_PARTS * for_messages // 2)
    most = max(1, for_messages // SMALLEST_TOKENS)
    # a group is only split if it is longer than a part may be
    cut = [run[at : at + most] for run in groups(messages) for at in range(0, len(run), most)]
    kept = [fitted([shown[at] for at in run], for_messages // at_least) for run in cut]
    runs = packed([sum(map(_tokens, group)) for group in kept], for_messages)
    parts = [tuple(message for at in run for message in kept[at]) for run in runs]
    truncated = tuple(message for part in parts for message in part) != messages
    first = _with(request, messages=parts[0])
    if len(parts) == 1:
        return Plan((first,), truncated)
    others = (
        _with(request, messages=part, overlap=_latest(before[-PART_OVERLAP:], for_overlap))
        for before, part in pairwise(parts)
    )
    # the rolling summary is made from all parts together, at the end
    return Plan(tuple(replace(part, wants_rolling=False) for part in (first, *others)), truncated)


def _latest(messages: Sequence[EpisodeMessage], tokens: int) -> tuple[EpisodeMessage, ...]:
    return tuple(fitted(messages[-max(1, tokens // SMALLEST_TOKENS) :], tokens))


def fitted(messages: Sequence[EpisodeMessage], tokens: int) -> Sequence[EpisodeMessage]:
    """Shorten the messages to `tokens` in total: the longest ones lose their middle, all to the same length."""
    sizes = list(map(_tokens, messages))
    if sum(sizes) <= tokens:
        return messages
    longest = max(SMALLEST_TOKENS, water_level(sizes, tokens))
    return [_shortened(message, longest) for message in messages]


def _shortened(message: EpisodeMessage, tokens: int) -> EpisodeMessage:
    text, frame = message.content, _tokens(_empty(message))
    characters = len(text)
    while (size := _tokens(message)) > tokens and characters:
        share = (tokens - frame) / max(1, size - frame)
        characters = int(characters * min(0.9, max(0.0, share)))
        message = message.model_copy(update={"content": without_middle(text, characters)})
    return message


def _tokens(message: EpisodeMessage) -> int:
    """Count the tokens of a message as prompts show it, without its time, which they state now and then."""
    return count_tokens(message_lines(1, message, dated=False)) + EACH_TOKENS


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
