"""The protocol of the search index: which texts of an episode it has, what a query asks, and how searches rank."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field

from afterword.schemas import EpisodeMessage, MessageCreated, SummaryCreated
from afterword.schemas.base import Model, Time
from afterword.schemas.messages import Role, replaced_answers
from afterword.streams.stores.episodes import StoredEpisode, meets

Dense = Sequence[float]
VECTOR_CHARACTERS = 300
"""Maximum number of characters of a message that go into its vector: people say what matters first."""


class Noise(NamedTuple):
    """Mean and standard deviation of cosines that mean nothing."""

    mean: float
    deviation: float


class QueryVector(NamedTuple):
    """The vector of a query, and what is needed to judge its cosines."""

    vector: Dense
    query: Noise
    """Of this query's cosines with background sentences."""
    model: Noise
    """Of the cosines between background sentences, whatever the query."""
    passages: Callable[[Sequence[str]], Awaitable[Sequence[Dense | None]]]
    """Makes vectors of further texts to compare with the query; None for a refused text. Raises: StoreUnavailable."""


Embed = Callable[[str], Awaitable[QueryVector | None]]
"""Makes the vector of a query's text, or returns None to search by words alone."""

MOST_HITS = 100
MIN_COVERAGE = 0.17
"""Keeps 96 % of the questions that an episode answers."""
MIN_SCORE_RATIO = 0.4
MOST_QUERY_CHARACTERS = 2000
"""Maximum number of characters of a query that are searched for, because its words are stemmed in each language it may
be in."""

LONGEST_EPISODE = timedelta(days=7)
"""An episode that lasts longer is taken to be of its end."""
DEPTH = 32
"""Number of candidates that a search finds by words, and also by vectors. More would find hardly more answers."""


class Query(BaseModel):
    """A search in the episodes of a tenant that one user wrote in."""

    model_config = ConfigDict(frozen=True)

    text: str
    user_id: str
    tenant_id: str | None
    """None means only episodes without a tenant, never all."""
    k: int = Field(5, ge=1, le=MOST_HITS)
    agent_id: str | None = None
    conversation_id: str | None = None
    current_conversation_id: str | None = None
    """The conversation in which this is asked, whose pending messages are left out."""
    started_after: Time | None = None
    """Only episodes whose first message was sent at this time or later."""
    ended_before: Time | None = None
    """Only episodes whose last message was sent before this time."""
    min_coverage: float = Field(MIN_COVERAGE, ge=0, le=1)
    """If no hit has this coverage, there are no hits: the user never talked about this."""
    min_score_ratio: float = Field(MIN_SCORE_RATIO, ge=0, le=1)
    """Hits with a lower fraction of the best score are left out."""
    time_zone: str = "UTC"
    """The zone in which days like "yesterday" are counted."""
    ended_after: Time | None = None
    """Only episodes whose last message was sent at this time or later."""
    started_before: Time | None = None
    """Only episodes whose first message was sent before this time."""
    order: Literal["newest", "oldest"] | None = None
    """Find the episodes that began last or first, whatever the text is; None finds the best ones."""

    def within(self, begin: datetime, end: datetime) -> "Query":
        """Return the same query limited to episodes that overlap this time."""
        # with the lower bound, an index over the times of beginning need not be read from its start
        began = max(begin - LONGEST_EPISODE, self.started_after or datetime.min.replace(tzinfo=UTC))
        return self.model_copy(update={"started_after": began, "ended_after": begin, "started_before": end})

    def allows(self, episode: StoredEpisode) -> bool:
        """Return whether the query's user may find an episode, and it passes the filters."""
        is_own = self.user_id in episode.writers and episode.summary.tenant_id == self.tenant_id
        return is_own and meets(episode.summary, self.filters())

    def filters(self) -> dict[str, Any]:
        """Return the Conditions on an episode's agent, conversation and times."""
        asked = {"agent_id": self.agent_id, "conversation_id": self.conversation_id}
        return {name: value for name, value in asked.items() if value is not None} | self.times()

    def times(self) -> dict[str, datetime]:
        """Return the Conditions on its times."""
        asked = {
            "started_at >=": self.started_after,
            "ended_at <": self.ended_before,
            "ended_at >=": self.ended_after,
            "started_at <": self.started_before,
        }
        return {name: time for name, time in asked.items() if time is not None}


class RankingScores(Model):
    """The parts of a hit's score, each between 0 and 1."""

    episode: float
    """BM25 of the query's words in the episode, as a share of the highest possible value."""
    passage: float
    """The same in the best three messages in a row."""
    message: float
    """The same in the best message."""
    cosine: float | None
    """Best cosine of the vectors of query and message; null without vectors."""


class Match(Model):
    """A message that matches a query."""

    message_id: str
    role: Role
    author: str | None = None
    """Id of the user who wrote it, or of the agent; null if nobody is named."""
    name: str | None = None
    """Display name of who wrote it; null if the message has none."""
    sent_at: Time
    content: str
    """Its text as it is in the archive now; of a long text, the sentences around the query's words."""
    score: float
    """Score of the query's words in it, plus the cosine if there are vectors; comparable within one search."""
    conversation_id: str | None = None
    """Its conversation if that is another than the hit's: it was said later, and corrects the match before it."""


class Recalled(Model):
    """A hit of a search: an episode, or what is said in a conversation that is still open.

    The latter is `pending`: it has no episode yet, so `episode_id` is the conversation's id with ":pending", ordinal
    and revision are 0, and `event_id`, title and summary are empty.
    """

    score: float
    """Quality of the episode's match, from 0 to 1."""
    coverage: float
    """Share of the query that its best passage covers, from 0 to 1; low if the user never talked about this."""
    episode_id: str
    event_id: str
    revision: int
    conversation_id: str
    agent_id: str | None
    ordinal: int
    title: str
    """Empty for a user who may only read their own messages in the episode."""
    short_summary: str
    """Empty for a user who may only read their own messages in the episode."""
    message_ids: tuple[str, ...]
    started_at: Time
    ended_at: Time
    source: Literal["llm", "fallback"] | None
    """The summary's `quality.source`; None if pending."""
    pending: bool = False
    """True if its messages are in no episode yet."""
    matches: tuple[Match, ...] = ()
    """The best messages and those beside the best three, best first."""
    scores: RankingScores
    """The parts of `score`."""
    time_zone: str = "UTC"
    """The zone in which the query's days were counted, and in which the hit as text shows days."""

    @classmethod
    def of(cls, summary: SummaryCreated, **rest: Any) -> Self:
        """Make a hit of a stored episode and its scores."""
        stored = {name: value for name, value in summary if name in cls.model_fields}
        return cls(**stored, source=summary.quality.source, **rest)


class Candidate(NamedTuple):
    """An episode that a search found, with the data that the ranking compares."""

    episode_id: str
    conversation_id: str
    message_ids: Sequence[str]
    started_at: datetime
    ended_at: datetime
    words: bytes
    """The words as `pack_words` encodes them; empty in the answer to a query with an `order`, which nothing ranks."""
    vectors: bytes = b""
    """The vectors as `pack_vectors` encodes them; also empty without an embedder."""


class SearchText(NamedTuple):
    """What the index is given of a message. It begins with its author's name, because questions name people."""

    text: str
    is_long_answer: bool = False
    """True for a message of the assistant that is longer than its vector: see `VECTOR_CHARACTERS`."""

    @classmethod
    def of(cls, text: str, role: Role, author: str | None) -> Self:
        is_long_answer = role == "assistant" and len(text) > VECTOR_CHARACTERS
        return cls(f"{author}: {text}" if author and text.strip() else text, is_long_answer)


def searchable(messages: Iterable[EpisodeMessage | MessageCreated]) -> dict[str, SearchText]:
    """Return the texts to index by message id, without answers that were replaced; `messages` are in log order."""
    said = list(messages)
    replaced = replaced_answers(said)
    texts = {message.id: SearchText.of(message.content, message.role, message.author) for message in said}
    return {name: text for name, text in texts.items() if name not in replaced}


class EpisodeIndex(Protocol):
    """The search index. Writes may be repeated, and a lower revision never replaces a higher one.

    All methods raise StoreUnavailable.
    """

    async def prepare(self) -> None:
        """Check that an index which is there can be used. Raises: ConfigurationError, which names every mismatch."""
        ...

    async def put(
        self, episode: StoredEpisode, texts: Mapping[str, SearchText], vectors: Mapping[str, Dense] | None = None
    ) -> None:
        """Index an episode by its summary and its messages, for each of its `writers`.

        `texts`, as `searchable` makes them, and `vectors` are by message id, in log order; some may be missing.
        """
        ...

    async def hand_over(self, episode: StoredEpisode) -> bool:
        """Give an indexed episode to its `writers`, with the texts that it has; return whether it is indexed.

        Its messages may have expired, so that it cannot be indexed again.
        """
        ...

    async def remove(self, episode_id: str, revision: int) -> None:
        """Remove an episode from the index. A late write of this revision or an earlier one does not bring it back.

        This does nothing if the index is still empty and the dimension of the embedder's vectors is unknown.
        """
        ...

    async def push_out_removed(self) -> None:
        """Push what was removed out of the index's log of writes, which may otherwise keep it for months."""
        ...

    async def search(self, query: Query, dense: Dense | None = None) -> list[Candidate]:
        """Return the DEPTH (or `k`) best episodes by words and, with `dense`, as many by vectors.

        If the query has an `order`, return the `k` that come first in it.
        `dense` is the query's vector, made by the same model as the messages' vectors.
        """
        ...

    async def revisions(self, episode_ids: Sequence[str]) -> dict[str, int]:
        """Return the indexed revisions of those ids that are indexed."""
        ...

    def pages(self) -> AsyncIterator[dict[str, int]]:
        """Yield the indexed revisions of all episodes, a page at a time; another writer's are not in every page."""
        ...

    async def forget(self, episode_ids: Sequence[str]) -> None:
        """Remove episodes that the stores never had. Unlike a removed one, each may be put again."""
        ...

    async def close(self) -> None: ...
