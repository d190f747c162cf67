"""Summarized episodes, rolling summaries and conversations: their records, and the protocol of their store."""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, Protocol, Self

from pydantic import BaseModel, ConfigDict

from afterword.schemas import CloseReason, EpisodeClosed, Fact, SummaryCreated, SummaryDeleted
from afterword.schemas.base import Time
from afterword.schemas.ids import episode_id, scope_id
from afterword.schemas.summaries import RevisionReason
from afterword.streams.stores.arguments import require

MOST_REVISIONS = 20
"""Revisions of an episode that are named, the last one among them."""


class Revision(BaseModel):
    """A revision of an episode, without its texts: the ones before the last may have what was taken away since."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    revision: int
    """Number of the revision, from 1."""
    event_id: str
    """Id under which it was announced, unless another one came before that."""
    reason: RevisionReason | None
    """Same as in `summary.created`."""
    source: Literal["llm", "fallback"]
    """Same as in `quality`."""
    created_at: Time
    """Time at which it was made."""

    @classmethod
    def of(cls, summary: SummaryCreated) -> Self:
        named = {name: getattr(summary, name) for name in ("revision", "event_id", "reason", "created_at")}
        return cls(**named, source=summary.quality.source)


class Cause(NamedTuple):
    """Place in Kafka of the record that made a revision."""

    topic: str
    partition: int
    offset: int

    def is_before(self, other: "Cause") -> bool:
        """Return whether the other record comes later; also if nobody can tell."""
        return self[:2] != other[:2] or self.offset < other.offset


Inputs = tuple[tuple[str, int], ...]
"""Messages, by id, each with the log offset of its last change."""


@dataclass(frozen=True)
class StoredEpisode:
    """An episode with its summary.

    The ids, offsets, fingerprint and close reason of its `episode.closed` never change. Everything else does, and each
    write replaces one `version` by the next.
    """

    summary: SummaryCreated
    """As it was announced. Without texts while what it was made from is deleted, and the next one is not made yet."""
    core_ids: tuple[str, ...]
    overlap_ids: tuple[str, ...]
    fingerprint: str
    close_reason: CloseReason
    first_offset: int
    """Log offset of its first core message."""
    last_offset: int
    """Log offset of its last core message."""
    cause: Cause
    """Record that made this revision, and announces it."""
    inputs: Inputs = ()
    """The messages of core and overlap that the texts were made from."""
    participants: tuple[str, ...] = ()
    """Users of these messages, each once."""
    earlier: tuple[Revision, ...] = ()
    """Revisions before this one, oldest first, MOST_REVISIONS at most."""
    attempt: int = 0
    """Attempts to replace this revision that were begun by a timer, or led to nothing."""
    unusable: int = 0
    """Those of them whose answer could not be used."""
    due_at: datetime | None = None
    """Time of the next attempt to replace a fallback; None: there is none."""

    @property
    def ordinal(self) -> int:
        return self.summary.ordinal

    @property
    def version(self) -> tuple[int, int]:
        return self.summary.revision, self.attempt

    @property
    def event(self) -> SummaryCreated | SummaryDeleted:
        """Event that announces it."""
        return self.summary


@dataclass(frozen=True)
class DeletedEpisode:
    """Tombstone of an episode of which no message is left, so that no late writer brings it back."""

    deletion: SummaryDeleted
    core_ids: tuple[str, ...]
    overlap_ids: tuple[str, ...]
    last_offset: int
    """Log offset of its last core message: state that is rebuilt goes on after it."""
    cause: Cause
    """Same as in StoredEpisode."""
    inputs: Inputs = ()
    """Its core messages, each with the log offset at which it was deleted."""
    ended_at: datetime | None = None
    """Time of its last message, if it has expired and its conversation does not know it yet."""

    @property
    def ordinal(self) -> int:
        return self.deletion.ordinal

    @property
    def version(self) -> tuple[int, int]:
        return self.deletion.revision, 0

    @property
    def event(self) -> SummaryCreated | SummaryDeleted:
        """Event that announces it."""
        return self.deletion


Episode = StoredEpisode | DeletedEpisode


@dataclass(frozen=True)
class RollingRow:
    """One row of a scope's rolling summary: a text about the episodes of a range, and of these alone."""

    conversation_id: str
    """Its `scope_id`."""
    row: int
    """1, 2 …"""
    revision: int
    """1, 2 …: every write replaces one revision by the next."""
    cause: Cause
    """Record that made this revision, and announces it."""
    content: str
    """Empty if nothing is left of these episodes."""
    token_count: int
    first_ordinal: int
    last_ordinal: int
    inputs: tuple[tuple[int, int], ...]
    """Ordinals of the episodes whose long summaries it was made from, each with the revision."""
    updated_at: datetime

    def __post_init__(self) -> None:
        require(str, conversation_id=self.conversation_id)
        require(int, row=self.row, first_ordinal=self.first_ordinal, last_ordinal=self.last_ordinal)


@dataclass(frozen=True)
class Conversation:
    """Title of a conversation, or of an agent's part of one, and counts over its summarized episodes."""

    conversation_id: str
    """Its `scope_id`."""
    revision: int
    """1, 2 …: every write replaces one revision by the next."""
    cause: Cause
    """Record that made this revision, and announces it."""
    title: str
    user_id: str
    tenant_id: str | None
    episode_count: int
    """0: nothing is left of it."""
    last_ordinal: int
    message_count: int
    updated_at: datetime
    token_count: int = 0
    """Tokens of their messages."""


class Totals(NamedTuple):
    """Sums over the stored episodes of a scope."""

    episodes: int = 0
    messages: int = 0
    tokens: int = 0
    first_ordinal: int = 0
    last_ordinal: int = 0


class EpisodeFacts(NamedTuple):
    """What an episode says of one user."""

    episode_id: str
    conversation_id: str
    ordinal: int
    ended_at: datetime
    facts: tuple[Fact, ...]


UsageBy = Literal["tenant", "user", "model", "day"]
"""What usage is added up by; days are those of UTC on which the summaries were made."""


class UsageTotals(NamedTuple):
    """What the LLM used for the last revisions of stored episodes."""

    group: str | None
    """Tenant, user, model or day; None: without a tenant."""
    episodes: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    seconds: float


class EpisodeVersion(NamedTuple):
    """The revision of an episode that is stored."""

    revision: int
    ended: str | None = None
    """Reason of its deletion; None: it is there."""


@dataclass(frozen=True)
class EpisodeRef:
    """The fields of an episode that the audit compares."""

    episode_id: str
    revision: int
    conversation_id: str
    ordinal: int
    fingerprint: str
    message_ids: tuple[str, ...]
    inputs: Inputs = ()
    tenant_id: str | None = None
    agent_id: str | None = None
    """Its agent, if episodes are kept for each agent."""


class EpisodeStore(Protocol):
    """What the summarizer keeps. A late writer never undoes a newer write. All methods raise StoreUnavailable.

    Ids that are no texts are refused: TypeError.
    """

    async def lookup(self, episode_ids: Sequence[str]) -> dict[str, Episode]:
        """Find episodes, or the tombstones of deleted ones, by their ids."""
        ...

    async def put(self, episode: Episode, before: Episode | None) -> bool:
        """Store an episode in the place of `before`.

        Return False, having written nothing, if another version is stored: then read and decide again.
        """
        ...

    async def holding(self, conversation_id: str, message_id: str) -> list[Episode]:
        """Episodes that have the message in their core or overlap, or had it; by ordinal."""
        ...

    async def page(self, after: str | None, limit: int, conversation_id: str | None = None) -> list[Episode]:
        """A page of all episodes, or those of a conversation, by id, from the first one after the id `after` on."""
        ...

    async def latest(
        self, conversation_id: str, limit: int, *, before: int | None = None, agent_id: str | None = None
    ) -> list[StoredEpisode]:
        """The last episodes of the conversation or of the agent with an ordinal less than `before`, newest first."""
        ...

    async def expired(self, before: datetime, limit: int) -> list[Episode]:
        """Episodes, and tombstones with an `ended_at`, whose last message was sent before this time, oldest first."""
        ...

    async def due(self, now: datetime, limit: int) -> list[StoredEpisode]:
        """Episodes whose `due_at` has come, the longest due first."""
        ...

    async def latest_row(self, scope: str) -> RollingRow | None: ...

    async def rows(self, scope: str, ordinal: int = 0) -> list[RollingRow]:
        """Rows whose last ordinal is this or a higher one, oldest first."""
        ...

    async def put_row(self, row: RollingRow, before: RollingRow | None) -> bool:
        """Store a row in the place of `before`; same as `put`."""
        ...

    async def conversation(self, scope: str) -> Conversation | None: ...

    async def put_conversation(self, conversation: Conversation, before: Conversation | None) -> bool:
        """Store a conversation in the place of `before`; same as `put`."""
        ...

    async def totals(self, conversation_id: str, agent_id: str | None = None) -> Totals:
        """Add up the stored episodes of the conversation or of the agent."""
        ...


class EpisodeQueries(EpisodeStore, Protocol):
    """What readers ask besides."""

    async def versions(self, episode_ids: Sequence[str]) -> dict[str, EpisodeVersion]:
        """Find the versions of episodes, deleted ones included, by their ids."""
        ...

    async def conversations(
        self, user_id: str, tenant_id: str | None, limit: int, before: tuple[datetime, str] | None = None
    ) -> list[Conversation]:
        """Scopes of this very user and tenant with episodes, the one that was summarized last first.

        `before`: `updated_at` and scope id of the last one of the page before.
        """
        ...

    async def conversations_of(self, user_id: str, tenant_id: str | None, after: str | None, limit: int) -> list[str]:
        """A page of the ids of conversations with episodes of which this very user is a participant.

        Otherwise as in MessageArchive.
        """
        ...

    async def taken_part_in(
        self, conversation_ids: Sequence[str], user_id: str, tenant_id: str | None
    ) -> dict[str, int]:
        """Count the episodes of a tenant's conversations of which this very user is a participant; none: left out."""
        ...

    async def facts_of(self, user_id: str, tenant_id: str | None, limit: int) -> list[EpisodeFacts]:
        """Facts of this very user and tenant, of the `limit` episodes with any that ended last, in no order."""
        ...

    async def usage(self, by: UsageBy) -> list[UsageTotals]:
        """Add up what the LLM used, in the order of the groups. Reads every episode."""
        ...

    async def users_of(self, conversation_id: str) -> set[str]:
        """Users who take part in the conversation's episodes."""
        ...

    async def count(self, after: str | None = None) -> int:
        """Number of the episodes, tombstones included, with a higher id than `after`; of all, about that number."""
        ...

    def all_episodes(self) -> AsyncIterator[EpisodeRef | DeletedEpisode]:
        """Iterate over every episode, and what stays of each deleted one, in no particular order."""
        ...


def revisions_until(episode: StoredEpisode) -> tuple[Revision, ...]:
    """The revisions of an episode, the one that is stored last; those that the next one has before it."""
    return (*episode.earlier, Revision.of(episode.summary))[-MOST_REVISIONS:]


async def find_episode(episodes: EpisodeStore, episode_id: str) -> StoredEpisode | None:
    """An episode that is not deleted. Raises: StoreUnavailable."""
    return living((await episodes.lookup([episode_id])).values()).get(episode_id)


async def find_conversation(episodes: EpisodeStore, scope: str) -> Conversation | None:
    """A conversation of which something is left. Raises: StoreUnavailable."""
    known = await episodes.conversation(scope)
    return known if known is not None and known.episode_count else None


def living(episodes: Iterable[Episode]) -> dict[str, StoredEpisode]:
    """The episodes that are not deleted, by id."""
    return {one.summary.episode_id: one for one in episodes if isinstance(one, StoredEpisode)}


def scope_of(event: EpisodeClosed | SummaryCreated | SummaryDeleted) -> str:
    """The `scope_id` of an event: that of its conversation, or of an agent's part of it, as its episode id says."""
    own = event.agent_id is not None and event.episode_id == episode_id(
        event.conversation_id, event.ordinal, event.agent_id
    )
    return scope_id(event.conversation_id, event.agent_id if own else None)


def id_prefix(conversation_id: str, agent_id: str | None = None) -> str:
    """The prefix that the ids of these episodes have, and no others."""
    return episode_id(conversation_id, 0, agent_id).removesuffix("0")


def agent_of_scope(event: EpisodeClosed | SummaryCreated | SummaryDeleted) -> str | None:
    """The agent in the event's episode id, if episodes are kept by agent."""
    own = event.episode_id == episode_id(event.conversation_id, event.ordinal, event.agent_id)
    return event.agent_id if own else None
