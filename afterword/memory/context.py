"""What an agent loads when a conversation goes on: what it was about, and the last words."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple

from afterword.memory.window import Window, fit
from afterword.schemas import MessageCreated
from afterword.schemas.ids import scope_id
from afterword.streams.settings import MOST_PENDING_EPISODES
from afterword.streams.stores.episodes import Conversation, EpisodeStore, RollingRow
from afterword.streams.stores.messages import ArchivedMessage, Counted, MessageArchive, Selection, position
from afterword.streams.summarizer.extractive.condensing import SHORTEST_TOKENS, condense
from afterword.streams.tokens import count_tokens

MOST_MESSAGES = 500
"""Loaded by one walk through the archive, however short they are."""
LONGEST_GROUP = 50
"""How far beyond them is looked for the call that their first result belongs to."""
SUMMARY_SHARE = 2
"""Title and summaries take at most one part in so many of the tokens."""


class Wish(NamedTuple):
    """Whose context, and how much of it."""

    conversation_id: str
    agent_id: str | None
    keep_recent: int
    max_tokens: int


@dataclass(frozen=True)
class Context:
    """A conversation in few words. Tokens are those of texts alone, before and after by the same measure."""

    conversation_id: str
    title: str
    """Empty until the first episode is summarised."""
    rolling_summary: str
    """Likewise; condensed where it would take more than its share of the tokens."""
    recent_summaries: tuple[str, ...]
    """Short summaries of the episodes that the rolling summary does not tell of yet, oldest first."""
    episode_count: int
    messages: tuple[MessageCreated, ...]
    """Oldest first, verbatim but for those in `shortened`."""
    shortened: tuple[str, ...]
    """Ids of messages that lost their middle, being too long by themselves."""
    omitted: int
    """Messages that should be here and did not fit: among the last ones, or in no summary yet."""
    tokens: int
    tokens_full: int
    """Of all messages of the conversation."""
    events: int
    """The summary, as one, and the messages."""
    events_full: int
    """All messages of the conversation."""

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


class Summaries(NamedTuple):
    """What stands for the messages that are in episodes."""

    title: str = ""
    rolling: str = ""
    recent: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(map(count_tokens, (self.title, self.rolling, *self.recent)))


async def read_context(episodes: EpisodeStore, archive: MessageArchive, wish: Wish) -> Context | None:
    """From any stores; None when nothing is known of the conversation. Raises: StoreUnavailable.

    A handful of calls; the messages that are loaded are bounded by `max_tokens` and MOST_MESSAGES, not by the
    conversation.
    """
    known = await episodes.conversation(scope_id(wish.conversation_id, wish.agent_id))
    first = None if known else await archive.first(wish.conversation_id)
    if known is None and first is None:
        return None
    tenant = known.tenant_id if known else first.message.tenant_id if first else None
    untold = Selection(wish.conversation_id, tenant, wish.agent_id, unsummarised=known is not None)
    counted = await archive.count(untold)
    summaries = await _summaries(episodes, wish, known) if known else Summaries()
    window, expected = await _window(archive, wish, untold, counted, wish.max_tokens - summaries.tokens)
    tokens_in_episodes = await _tokens_in_episodes(episodes, wish, known)
    return Context(
        conversation_id=wish.conversation_id,
        title=summaries.title,
        rolling_summary=summaries.rolling,
        recent_summaries=summaries.recent,
        episode_count=known.episode_count if known else 0,
        messages=window.messages,
        shortened=window.shortened,
        omitted=expected,
        tokens=summaries.tokens + window.tokens,
        tokens_full=tokens_in_episodes + counted.tokens,
        events=len(window.messages) + (1 if known else 0),
        events_full=(known.message_count if known else 0) + counted.messages,
    )


async def _summaries(episodes: EpisodeStore, wish: Wish, known: Conversation) -> Summaries:
    row = await episodes.latest_row(known.conversation_id)
    return bounded(
        Summaries(known.title, row.content if row else "", await _recent(episodes, wish, known, row)),
        wish.max_tokens // SUMMARY_SHARE,
    )


async def _recent(episodes: EpisodeStore, wish: Wish, known: Conversation, row: RollingRow | None) -> tuple[str, ...]:
    told = row.last_ordinal if row else 0
    behind = min(known.last_ordinal - told, MOST_PENDING_EPISODES)
    if behind <= 0:
        return ()
    found = await episodes.latest(wish.conversation_id, behind, agent_id=wish.agent_id)
    return tuple(e.summary.short_summary for e in reversed(found) if told < e.summary.ordinal <= known.last_ordinal)


def bounded(summaries: Summaries, max_tokens: int) -> Summaries:
    """In at most `max_tokens`: each condensed if need be, the recent ones to no less than half of what there is."""
    title = shorter(summaries.title, max_tokens // 4)
    room = max_tokens - count_tokens(title)
    recent = shorter("\n".join(summaries.recent), max(room // 2, room - count_tokens(summaries.rolling)))
    return Summaries(title, shorter(summaries.rolling, room - count_tokens(recent)), tuple(recent.splitlines()))


def shorter(text: str, max_tokens: int) -> str:
    if count_tokens(text) <= max_tokens:
        return text
    return condense(text, max_tokens) if max_tokens >= SHORTEST_TOKENS else ""


async def _tokens_in_episodes(episodes: EpisodeStore, wish: Wish, known: Conversation | None) -> int:
    if known is None:
        return 0
    if known.counted_episodes == known.episode_count:
        return known.token_count
    return await episodes.tokens_before(wish.conversation_id, wish.agent_id)  # an older version counted none


async def _window(
    archive: MessageArchive, wish: Wish, untold: Selection, counted: Counted, max_tokens: int
) -> tuple[Window, int]:
    """The messages to show, and how many more should have been shown."""
    recent = min(wish.keep_recent, MOST_MESSAGES)
    loaded = await _until_full(archive.newest(untold), max_tokens, recent)
    pending = {a.message.id: a for a in loaded if not (untold.unsummarised and a.message.skip_summarization)}
    selection = Selection(untold.conversation_id, untold.tenant_id, untold.agent_id)
    latest = await _latest(archive.newest(selection), max(recent, len(loaded)))
    last = {a.message.id for a in latest[:recent]}
    together = {a.message.id: a for a in (*latest, *loaded)}
    messages = [a.message for a in sorted(together.values(), key=position)]
    window = fit(messages, pending.keys() | last, max_tokens)
    shown = {message.id for message in window.messages}
    skipped = counted.skipped if untold.unsummarised else 0
    missing = counted.messages - skipped - len(shown & pending.keys()) + len(last - pending.keys() - shown)
    return window, missing


async def _until_full(
    newest: AsyncGenerator[ArchivedMessage, None], max_tokens: int, least: int
) -> list[ArchivedMessage]:
    """Newest first: those that fit, and the first that does not.

    At least so many as the last messages are: so it is known of each of those whether it is among these.
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
    """Newest first: so many, and what it takes to see the call of the oldest one's result."""
    found: list[ArchivedMessage] = []
    if count < 1:
        return found
    async with aclosing(newest):
        async for archived in newest:
            found.append(archived)
            whole = archived.message.role == "user"
            if len(found) >= count and (whole or len(found) == count + LONGEST_GROUP):
                break
    return found
