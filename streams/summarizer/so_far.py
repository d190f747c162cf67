"""What is known of a conversation before an episode, and what of it the episode's rolling summary takes in."""

import asyncio
from dataclasses import dataclass

from afterword.schemas import EpisodeClosed, SummaryCreated
from afterword.streams.settings import MOST_PENDING_EPISODES
from afterword.streams.stores.episodes import Conversation, EpisodeStore, RollingRow, scope_of, sibling_id
from afterword.streams.summarizer.providers.base import MAX_SUMMARY_LENGTH, SummaryRequest
from afterword.streams.summarizer.rolling import longest_text
from afterword.streams.tokens import count_tokens

PENDING_TOKENS = 2000
"""Of the pending episodes' long summaries together; past that their short ones stand for them."""


@dataclass(frozen=True)
class Rules:
    """How long a summary may be, and how often the rolling summary is updated."""

    rolling_max_tokens: int
    min_new_episodes: int = 1
    min_tokens: int = 0
    """Of those episodes, together."""
    max_summary_length: int = MAX_SUMMARY_LENGTH
    """Characters."""


@dataclass(frozen=True)
class SoFar:
    """Read once for each summary: what is asked and what is stored must speak of the same."""

    episode: EpisodeClosed
    rules: Rules
    latest_row: RollingRow | None
    """As it was then."""
    row: RollingRow | None
    """The one that the episode's rolling summary would follow; None too where an episode is made again later on."""
    rolling_summary: str
    """As of its last update; empty before the first one."""
    pending: tuple[SummaryCreated, ...]
    """Episodes since that update, oldest first."""
    conversation: Conversation | None

    @property
    def is_due(self) -> bool:
        """Whether the rolling summary is updated with this episode: enough has come, or there is none yet."""
        count = len(self.pending) + 1
        tokens = self.episode.token_count + sum(summary.compression.tokens_before for summary in self.pending)
        enough = count >= self.rules.min_new_episodes and tokens >= self.rules.min_tokens
        return enough or not self.rolling_summary or count >= MOST_PENDING_EPISODES

    @property
    def request(self) -> SummaryRequest:
        return SummaryRequest(
            self.episode,
            self.told,
            longest_text(self.row, self.rules.rolling_max_tokens),
            max_summary_length=self.rules.max_summary_length,
            wants_rolling=self.is_due,
        )

    @property
    def told(self) -> str:
        """All of it in words: the rolling summary, and a line for each pending episode."""
        long = [summary.long_summary for summary in self.pending]
        fits = count_tokens("\n".join(long)) <= PENDING_TOKENS
        lines = long if fits else [summary.short_summary for summary in self.pending]
        return "\n".join(line for line in (self.rolling_summary, *lines) if line)

    def completed(self, summary: SummaryCreated) -> SummaryCreated:
        """With what it says of the conversation: whose rolling summary may stay as it was this time."""
        told = tuple(summary.ordinal for summary in (*self.pending, summary))
        rolling = {"rolling_ordinals": told} if self.is_due else self._carried
        return summary.model_copy(update={**rolling, "title_changed": self._changes_title(summary)})

    @property
    def _carried(self) -> dict[str, object]:
        return {"rolling_ordinals": (), "rolling_summary": self.rolling_summary}

    def _changes_title(self, summary: SummaryCreated) -> bool:
        """Whether the conversation gets another title when it advances to this summary."""
        known = self.conversation
        if known is None:
            return True
        later = (known.last_ordinal, known.last_revision) < (summary.ordinal, summary.revision)
        return later and known.title != summary.title


async def read_so_far(episodes: EpisodeStore, episode: EpisodeClosed, rules: Rules) -> SoFar:
    """Raises: StoreUnavailable."""
    scope = scope_of(episode)
    latest, conversation = await asyncio.gather(episodes.latest_row(scope), episodes.conversation(scope))
    # where it is made again, the rows have gone on without it
    row = latest if latest is not None and latest.last_ordinal < episode.ordinal else None
    text, pending = await _since(episodes, episode, row)
    return SoFar(episode, rules, latest, row, text, tuple(pending), conversation)


async def _since(
    episodes: EpisodeStore, episode: EpisodeClosed, row: RollingRow | None
) -> tuple[str, list[SummaryCreated]]:
    """The rolling summary as of its last update before the episode, and the episodes after that, oldest first."""
    pending: list[SummaryCreated] = []
    oldest = max(row.last_ordinal if row else 0, episode.ordinal - MOST_PENDING_EPISODES)
    for ordinal in range(episode.ordinal - 1, oldest, -1):
        stored = await episodes.find(sibling_id(episode, ordinal))
        if stored is not None and stored.summary.rolling_range:
            return stored.summary.rolling_summary, pending[::-1]
        if stored is not None:
            pending.append(stored.summary)
    return row.content if row else "", pending[::-1]
