"""Context that an agent loads when a conversation continues: its summaries, and the last messages that fit.

`fit` and `fit_into` decide, without I/O; `read_context` reads a bounded number of documents for them.
"""

import re
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from afterword.schemas import MessageCreated
from afterword.schemas.ids import scope_id
from afterword.streams.settings import MOST_PENDING_EPISODES
from afterword.streams.stores.episodes import Conversation, EpisodeStore, find_conversation
from afterword.streams.stores.messages import ArchivedMessage, Counted, MessageArchive, Selection, sort_key
from afterword.streams.text.cutting import groups, water_level, without_middle
from afterword.streams.text.fences import INDENTATION, indented, quotation
from afterword.streams.text.tokens import count_tokens
from afterword.streams.text.visible import without_hidden

MOST_MESSAGES = 500
"""Messages that one walk through the archive loads at most."""
LONGEST_GROUP = 50
"""Further messages that are loaded to find the call of the oldest result."""
SUMMARY_SHARE = 2
"""Title and summaries take at most 1 / SUMMARY_SHARE of the tokens."""
SHORTEST_MESSAGE_TOKENS = 16
"""A shorter message is useless, and left out."""
MOST_CHARACTERS = 100_000
"""Characters of all rows that sentences are chosen from: where there are more, the beginning of each."""
CHARACTERS_A_TOKEN = 8
"""More than usual texts have: the first guess at a cut, which then shrinks until it fits."""

FRAME_TOKENS = 40
"""Tokens of the labels and of the lines around a quotation."""
SUMMARY = "Summary so far"
_NEXT_SPEAKER = re.compile(r" (?=(?:User|Assistant|Tool|System): )")
"""Before each but the first speaker in a line of a summary without an LLM."""


class Anyone(Enum):
    """Marker for "do not compare owners": None may be what a request without a user left behind."""

    ANYONE = "anyone"


ANYONE = Anyone.ANYONE


class Owner(NamedTuple):
    """Required owner of a conversation; tenant None is a conversation without a tenant."""

    user_id: str | Anyone = ANYONE
    tenant_id: str | Anyone | None = ANYONE

    def has(self, user_id: str, tenant_id: str | None) -> bool:
        """Check that a conversation of this user and tenant is theirs."""
        return self.user_id in (ANYONE, user_id) and self.tenant_id in (ANYONE, tenant_id)


class ContextRequest(NamedTuple):
    """The conversation, or an agent's part of it, and the size of its context."""

    conversation_id: str
    agent_id: str | None
    keep_recent: int
    max_tokens: int
    owner: Owner = Owner()


@dataclass(frozen=True)
class Context:
    """A conversation in few words. Token counts are those of texts alone, of the context as of all messages.

    `max_tokens` bounds the whole of `as_text` and `as_messages`, labels and roles included.
    """

    conversation_id: str
    title: str
    """Empty until the first episode is summarized."""
    rolling_summary: str
    """Empty until then, too; condensed if it exceeds its share of the tokens."""
    recent_summaries: tuple[str, ...]
    """Short summaries of the episodes that are not in the rolling summary yet, oldest first."""
    episode_count: int
    messages: tuple[MessageCreated, ...]
    """Oldest first, verbatim except those in `shortened`."""
    shortened: tuple[str, ...]
    """Ids of messages that were too long and lost their middle."""
    omitted: int
    """Messages that did not fit, of the last ones and of those in no summary yet."""
    tokens: int
    tokens_full: int
    """Number over all messages of the conversation."""
    events: int
    """The summary, as one, and the messages."""
    events_full: int
    """All messages of the conversation."""
    verbatim: bool = False
    """The conversation's messages instead of its summaries, which would take more tokens."""

    @property
    def compression(self) -> float:
        """1 − tokens / tokens_full."""
        return 1 - self.tokens / self.tokens_full if self.tokens_full else 0.0

    @property
    def events_compression(self) -> float:
        """1 − events / events_full."""
        return 1 - self.events / self.events_full if self.events_full else 0.0

    def as_dict(self) -> dict[str, Any]:
        messages = [message.model_dump(mode="json") for message in self.messages]
        ratios = {"compression": self.compression, "events_compression": self.events_compression}
        return {**vars(self), "messages": messages, **ratios}

    def as_messages(self) -> list[dict[str, str]]:
        """Messages as OpenAI's chat API takes them; the first, of the system, has the summaries, if there are any.

        A tool's result is a user's message: the id of its call, which `role: tool` demands, is not known.
        """
        known = "\n".join(self.summary_lines(without_hidden))
        summary = [{"role": "system", "content": quotation(known, SUMMARY)}] if known else []
        return summary + [_as_turn(message) for message in self.messages]

    def as_text(self, clean: Callable[[str], str] = without_hidden) -> str:
        """One text for a prompt: summary and last messages under their labels, one speaker a line, without ids.

        All other lines than a label and a message's first are indented, so that nothing else passes for either.
        `clean` is applied to each foreign text.
        """
        known = "\n".join(self.summary_lines(clean))
        turns = "\n".join(_as_line(message, clean) for message in self.messages)
        left_out = f" ({self.omitted} earlier ones left out)" if self.omitted else ""
        parts = ((SUMMARY, known), (f"Last messages{left_out}", turns))
        return "\n".join(f"{label}:\n{text}" for label, text in parts if text)

    def summary_lines(self, clean: Callable[[str], str] = str) -> list[str]:
        """Title and summaries, a speaker a line, all indented."""
        return Summaries(self.title, (self.rolling_summary,), self.recent_summaries).lines(clean)


def _as_line(message: MessageCreated, clean: Callable[[str], str] = str) -> str:
    return f"{message.role}: {indented(clean(message.content))}"


def _cost(messages: Iterable[MessageCreated]) -> int:
    """Tokens of messages as they are shown to a model."""
    return sum(count_tokens(_as_line(message) + "\n") for message in messages)


def _as_turn(message: MessageCreated) -> dict[str, str]:
    if message.role != "tool":
        return {"role": message.role, "content": without_hidden(message.content)}
    of = f" of {', '.join(message.tools)}" if message.tools else ""
    return {"role": "user", "content": f"Result{of}: {without_hidden(message.content)}"}


class Summaries(NamedTuple):
    """The summaries of a conversation, which replace the messages that are in episodes."""

    title: str = ""
    rolling: tuple[str, ...] = ()
    """One text for each row of the rolling summary, oldest first."""
    recent: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(map(count_tokens, (self.title, *self.rolling, *self.recent)))

    @property
    def cost(self) -> int:
        """Tokens as they are shown to a model."""
        return count_tokens("\n".join(self.lines()))

    def lines(self, clean: Callable[[str], str] = str) -> list[str]:
        spoken = (_NEXT_SPEAKER.sub("\n", clean(text)) for text in (self.title, *self.rolling, *self.recent) if text)
        return [INDENTATION.lstrip("\n") + line for text in spoken for line in text.splitlines()]


class ContextWindow(NamedTuple):
    """The messages that fit into a context."""

    messages: tuple[MessageCreated, ...] = ()
    tokens: int = 0
    shortened: tuple[str, ...] = ()
    """Ids of the messages that lost their middle."""
    cost: int = 0
    """Tokens as they are shown to a model."""


async def read_context(episodes: EpisodeStore, archive: MessageArchive, request: ContextRequest) -> Context | None:
    """The context; None for an unknown conversation, and for somebody else's. Raises: StoreUnavailable.

    Makes a handful of calls. `max_tokens` and MOST_MESSAGES bound the messages that are loaded, not the conversation's
    length.
    """
    known = await find_conversation(episodes, scope_id(request.conversation_id, request.agent_id))
    first = None if known else await archive.first(request.conversation_id)
    begun = known or (first.message if first else None)
    if begun is None or not request.owner.has(begun.user_id, begun.tenant_id):
        return None
    tenant = begun.tenant_id
    uncovered = Selection(request.conversation_id, tenant, request.agent_id, unsummarised=known is not None)
    counted = await archive.count(uncovered)
    stored = await _summaries(episodes, request, known) if known else Summaries()
    room = max(0, request.max_tokens - FRAME_TOKENS)
    summaries = fit_into(stored, room // SUMMARY_SHARE)
    window, omitted = await _window(archive, request, uncovered, counted, room - summaries.cost)
    if not window.messages:
        summaries = fit_into(stored, room)
    tokens_full = counted.tokens + (known.token_count if known else 0)
    events_full = counted.messages + (known.message_count if known else 0)
    verbatim = None
    if known and request.keep_recent and window.tokens + summaries.tokens >= tokens_full:
        verbatim = await _verbatim(archive, request, tenant, events_full)
    if verbatim is not None:
        summaries, window, omitted = Summaries(), verbatim, 0
    return Context(
        conversation_id=request.conversation_id,
        title=summaries.title,
        rolling_summary="\n".join(summaries.rolling),
        recent_summaries=summaries.recent,
        episode_count=known.episode_count if known else 0,
        messages=window.messages,
        shortened=window.shortened,
        omitted=omitted,
        tokens=summaries.tokens + window.tokens,
        tokens_full=tokens_full,
        events=len(window.messages) + (summaries != Summaries()),
        events_full=events_full,
        verbatim=verbatim is not None,
    )


async def _verbatim(
    archive: MessageArchive, request: ContextRequest, tenant: str | None, events_full: int
) -> ContextWindow | None:
    """All messages of a conversation that fit; None if the archive does not have all of them.

    Skipped ones only if they are among the last: as beside a summary.
    """
    if events_full > MOST_MESSAGES:
        return None
    whole = Selection(request.conversation_id, tenant, request.agent_id)
    found = await _latest(archive.newest(whole), events_full)
    last = {archived.message.id for archived in found[: request.keep_recent]}
    shown = [a.message for a in found if not a.message.skip_summarization or a.message.id in last]
    fits = len(found) == events_full and _cost(shown) <= request.max_tokens - FRAME_TOKENS
    return ContextWindow(tuple(reversed(shown)), _tokens(shown)) if fits else None


async def _summaries(episodes: EpisodeStore, request: ContextRequest, known: Conversation) -> Summaries:
    rows = await episodes.rows(known.conversation_id)
    texts = tuple(row.content for row in rows if row.content)
    covered = rows[-1].last_ordinal if rows else 0
    return Summaries(known.title, texts, await _recent(episodes, request, known, covered))


async def _recent(
    episodes: EpisodeStore, request: ContextRequest, known: Conversation, covered: int
) -> tuple[str, ...]:
    behind = min(known.last_ordinal - covered, MOST_PENDING_EPISODES)
    if behind <= 0:
        return ()
    found = await episodes.latest(request.conversation_id, behind, agent_id=request.agent_id)
    behind_row = (e.summary for e in reversed(found) if covered < e.summary.ordinal <= known.last_ordinal)
    return tuple(summary.short_summary for summary in behind_row if summary.short_summary)


def fit_into(summaries: Summaries, max_tokens: int) -> Summaries:
    """The summaries in at most `max_tokens`: fewer sentences if need be, the recent ones at least half of the room."""
    room = max_tokens
    found = summaries
    while found.cost > max_tokens:  # lines and speakers cost some tokens, too
        found = _condensed(summaries, room)
        room -= max(1, found.cost - max_tokens)
    return found


def _condensed(summaries: Summaries, max_tokens: int) -> Summaries:
    # imported here because few contexts need it, and numpy with the languages takes longer to load than all else
    from afterword.streams.summarizer.extractive.condensing import whole_sentences

    title = summaries.title if count_tokens(summaries.title) <= max_tokens // 4 else ""
    room = max(0, max_tokens - count_tokens(title))
    rolling = sum(map(count_tokens, summaries.rolling))
    recent = whole_sentences("\n".join(summaries.recent), max(room // 2, room - rolling))
    return Summaries(title, composed(summaries.rolling, room - count_tokens(recent)), tuple(recent.splitlines()))


def composed(rows: Sequence[str], max_tokens: int) -> tuple[str, ...]:
    """The rows of a rolling summary in at most `max_tokens`: the latest as it is, and of those before it the best."""
    if not rows:
        return ()
    from afterword.streams.summarizer.extractive.condensing import whole_sentences  # as above

    latest = whole_sentences(rows[-1], max_tokens)
    room, each = max(0, max_tokens - count_tokens(latest)), MOST_CHARACTERS // len(rows)
    earlier = whole_sentences("\n".join(row[:each] for row in rows[:-1]), room)
    return tuple(text for text in (earlier, latest) if text)


async def _window(
    archive: MessageArchive, request: ContextRequest, uncovered: Selection, counted: Counted, max_tokens: int
) -> tuple[ContextWindow, int]:
    """The messages to show, and the number of those that did not fit."""
    recent = min(request.keep_recent, MOST_MESSAGES)
    loaded = await _until_full(archive.newest(uncovered), max_tokens, recent)
    pending = {a.message.id: a for a in loaded if not (uncovered.unsummarised and a.message.skip_summarization)}
    selection = Selection(uncovered.conversation_id, uncovered.tenant_id, uncovered.agent_id)
    latest = await _latest(archive.newest(selection), max(recent, len(loaded)))
    last = {a.message.id for a in latest[:recent]}
    together = {a.message.id: a for a in (*latest, *loaded)}
    messages = [a.message for a in sorted(together.values(), key=sort_key)]
    window = fit(messages, pending.keys() | last, max_tokens)
    shown = {message.id for message in window.messages}
    skipped = counted.skipped if uncovered.unsummarised else 0
    omitted = counted.messages - skipped - len(shown & pending.keys()) + len(last - pending.keys() - shown)
    return window, omitted


async def _until_full(
    newest: AsyncGenerator[ArchivedMessage, None], max_tokens: int, least: int
) -> list[ArchivedMessage]:
    """Newest first: the messages that fit, and the first that does not.

    At least `least` of them, so that each of the last messages is known to be among them or not.
    """
    found: list[ArchivedMessage] = []
    tokens = 0
    async with aclosing(newest):
        async for archived in newest:
            found.append(archived)
            tokens += count_tokens(archived.message.content)
            if (tokens > max_tokens and len(found) >= least) or len(found) == MOST_MESSAGES:
                break
    return found


async def _latest(newest: AsyncGenerator[ArchivedMessage, None], count: int) -> list[ArchivedMessage]:
    """Newest first: `count` messages, and those before them up to the call of the oldest result."""
    found: list[ArchivedMessage] = []
    if count < 1:
        return found
    async with aclosing(newest):
        async for archived in newest:
            found.append(archived)
            complete = archived.message.role == "user"
            if len(found) >= count and (complete or len(found) == count + LONGEST_GROUP):
                break
    return found


def fit(messages: Sequence[MessageCreated], wanted: Collection[str], max_tokens: int) -> ContextWindow:
    """The newest of the `wanted` (ids), each with all of its group; the newest group is shortened if it does not fit.

    `messages`: in order, oldest first. No wanted message is left out between two that are shown.
    """
    window = ContextWindow()
    for group in reversed(_wanted_groups(messages, wanted)):
        cost = window.cost + _cost(group)
        if cost > max_tokens:
            return window if window.messages else _shortened(group, max_tokens)
        window = ContextWindow((*group, *window.messages), window.tokens + _tokens(group), cost=cost)
    return window


def _tokens(messages: Iterable[MessageCreated]) -> int:
    return sum(count_tokens(message.content) for message in messages)


def _wanted_groups(messages: Sequence[MessageCreated], wanted: Collection[str]) -> list[list[MessageCreated]]:
    found = [[messages[at] for at in group] for group in groups(messages)]
    return [group for group in found if any(message.id in wanted for message in group)]


def _shortened(group: Sequence[MessageCreated], max_tokens: int) -> ContextWindow:
    """The group with its longest messages cut to the same length; empty if that leaves too little of them."""
    sizes = [_cost([message]) for message in group]
    level = water_level(sizes, max_tokens)
    if level < SHORTEST_MESSAGE_TOKENS:
        return ContextWindow()
    cut = [_cut(m, level) if size > level else m for m, size in zip(group, sizes, strict=True)]
    ids = tuple(m.id for m, size in zip(group, sizes, strict=True) if size > level)
    return ContextWindow(tuple(cut), _tokens(cut), ids, _cost(cut))


def _cut(message: MessageCreated, tokens: int) -> MessageCreated:
    characters = tokens * CHARACTERS_A_TOKEN
    cut = message
    while characters > 0:
        cut = message.model_copy(update={"content": without_middle(message.content, characters)})
        if _cost([cut]) <= tokens:
            return cut
        characters = characters * 9 // 10
    return message.model_copy(update={"content": ""})
