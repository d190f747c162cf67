"""Summarized episodes, rolling summaries and conversations: their records, and the protocol of their store."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, Protocol, Self

from pydantic import BaseModel, ConfigDict

from afterword.schemas import CloseReason, EpisodeClosed, SummaryCreated, SummaryDeleted
from afterword.schemas.base import Time
from afterword.schemas.ids import episode_id, scope_id
from afterword.schemas.summaries import RevisionReason
from afterword.streams.stores.arguments import require

NEVER = -1
"""Offset before every log offset."""
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


@dataclass(frozen=True)
class StoredEpisode:
    """An episode's summary as it was announced, and the identity of the messages it was made from."""

    summary: SummaryCreated
    fingerprint: str
    """Fingerprint of its `episode.closed`, whatever was changed since."""
    close_reason: CloseReason
    overlap_ids: tuple[str, ...] = ()
    changes: tuple[tuple[str, int], ...] = ()
    """Ids of messages of core and overlap that were changed before it was made, each with the log offset."""
    as_of: int = NEVER
    """Its rolling summary has all changes of the conversation up to this log offset."""
    made_by: int = NEVER
    """Log offset of the change that made this revision: its record announces it. NEVER: the record of the episode."""
    built_on: tuple[str, ...] = ()
    """Event ids of the summaries that its rolling summary continues."""
    last_offset: int = NEVER
    """Log offset of its last core message."""
    participants: tuple[str, ...] = ()
    """Users of core and overlap, each once."""
    announced_by: str | None = None
    """Position of the request or retry that made this revision, and announces it. None: `made_by` says which record."""
    earlier: tuple[Revision, ...] = ()
    """Revisions before this one, oldest first, MOST_REVISIONS at most."""

    @property
    def ordinal(self) -> int:
        return self.summary.ordinal

    @property
    def event(self) -> SummaryCreated | SummaryDeleted:
        """Event that announces it."""
        return self.summary


@dataclass(frozen=True)
class DeletedEpisode:
    """Tombstone of an episode of which no message is left, so that no late writer brings it back."""

    deletion: SummaryDeleted
    changes: tuple[tuple[str, int], ...] = ()
    as_of: int = NEVER
    """Log offset of the change that ended it."""
    made_by: int = NEVER
    """Same as in StoredEpisode."""
    announced_by: str | None = None
    """Same as in StoredEpisode."""
    last_offset: int = NEVER
    """Same as in StoredEpisode: state that is rebuilt goes on after it."""

    @property
    def ordinal(self) -> int:
        return self.deletion.ordinal

    @property
    def event(self) -> SummaryCreated | SummaryDeleted:
        """Event that announces it."""
        return self.deletion


class EpisodeVersion(NamedTuple):
    """The fields of an episode that tell whether it has changed."""

    revision: int
    as_of: int
    """Same as in StoredEpisode, or DeletedEpisode."""
    made_by: int
    """Same as in StoredEpisode."""
    ended: str | None = None
    """Reason of its deletion; None: it is there."""


@dataclass(frozen=True)
class RollingRow:
    """One row of a conversation's rolling summary: the whole text up to the episode `last_ordinal`."""

    conversation_id: str
    row: int
    """1, 2 …; the highest is the current text."""
    content: str
    token_count: int
    first_ordinal: int
    """The first episode that is in this row and in none before."""
    last_ordinal: int
    updated_at: datetime
    last_revision: int = 1
    """The revision of the last episode's summary, whose rolling text this is."""
    as_of: int = NEVER
    """It has all changes of the conversation up to this log offset."""

    def __post_init__(self) -> None:
        require(str, conversation_id=self.conversation_id)
        require(int, row=self.row, last_ordinal=self.last_ordinal, last_revision=self.last_revision)


@dataclass(frozen=True)
class Conversation:
    """Counts over the summarized episodes of a conversation, or of an agent's part of one."""

    conversation_id: str
    """Its `scope_id`."""
    title: str
    user_id: str
    tenant_id: str | None
    episode_count: int
    last_ordinal: int
    message_count: int
    updated_at: datetime
    token_count: int = 0
    """Tokens of their messages."""
    last_revision: int = 1
    """The revision of the last episode's summary, whose title this is."""


@dataclass(frozen=True)
class EpisodeRef:
    """The fields of an episode that the audit compares."""

    episode_id: str
    revision: int
    conversation_id: str
    ordinal: int
    fingerprint: str
    message_ids: tuple[str, ...]
    made_from: int
    """The revision of its `episode.closed`."""
    tenant_id: str | None = None
    agent_id: str | None = None
    """Its agent, if episodes are kept for each agent."""
    changes: tuple[tuple[str, int], ...] = ()
    as_of: int = NEVER


class EpisodeStore(Protocol):
    """Writes may be repeated, and a late writer never undoes a newer write. All methods raise StoreUnavailable.

    Ids that are no texts are refused: TypeError.
    """

    async def find(self, episode_id: str) -> StoredEpisode | None: ...

    async def lookup(self, episode_id: str) -> StoredEpisode | DeletedEpisode | None:
        """Find an episode or the tombstone of a deleted one."""
        ...

    async def find_many(self, episode_ids: Sequence[str]) -> dict[str, StoredEpisode]:
        """Find episodes by their ids."""
        ...

    async def versions(self, episode_ids: Sequence[str]) -> dict[str, EpisodeVersion]:
        """Find the versions of episodes, deleted ones included, by their ids."""
        ...

    async def has_any(self, conversation_id: str, agent_id: str | None, message_ids: Sequence[str]) -> bool:
        """Return whether an episode of the scope has one of these messages in its core or overlap, or had it."""
        ...

    async def has_before(self, conversation_id: str, agent_id: str | None, offset: int, ordinal: int) -> bool:
        """Return whether the scope has anything of before this offset, at which the conversation was deleted.

        That is an episode that ended before, or the tombstone of one with at least this ordinal that the deletion left.
        """
        ...

    async def add(self, episode: StoredEpisode) -> StoredEpisode | DeletedEpisode:
        """Store the episode unless its revision, or a higher one, is stored; return the one that is stored afterwards.

        Of several writers of one revision the first wins, and all get the same result. A deleted one stays deleted.
        """
        ...

    async def remove(self, deleted: DeletedEpisode) -> StoredEpisode | DeletedEpisode:
        """Put this in the place of the episode unless its revision, or a higher one, is stored; return what is."""
        ...

    async def mark(self, episode: StoredEpisode, as_of: int) -> None:
        """Record that its rolling summary has all changes up to this log offset, unless another revision is stored."""
        ...

    async def refuse(self, episode_id: str, position: str) -> "StoredEpisode | DeletedEpisode | None":
        """Store no revision with this `announced_by` from now on; return what is stored.

        For a record of which nothing comes: a writer that was suspended may be about to store what it asked for.
        """
        ...

    async def holding(self, conversation_id: str, message_id: str) -> list[StoredEpisode | DeletedEpisode]:
        """Episodes that have the message in their core or overlap, or had it; by ordinal."""
        ...

    async def of_conversation(
        self, conversation_id: str, after: str | None, limit: int
    ) -> list[StoredEpisode | DeletedEpisode]:
        """A page of the conversation's episodes, of all agents, by id, from the first one after the id `after` on."""
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

    async def later(self, episode: SummaryCreated | SummaryDeleted, limit: int, after: int) -> list[StoredEpisode]:
        """Episodes of the same scope with an ordinal above `after`, the lowest first."""
        ...

    async def expired(self, before: datetime, limit: int) -> list[StoredEpisode]:
        """Episodes whose last message was sent before this time, oldest first."""
        ...

    async def end_conversation(self, last: StoredEpisode) -> bool:
        """Delete rolling rows and counts of a scope, up to this episode's, unless it has another episode.

        Return False, having deleted nothing, if it has.
        """
        ...

    async def latest_row(self, conversation_id: str) -> RollingRow | None: ...

    async def put_row(self, row: RollingRow, after: RollingRow | None) -> bool:
        """Store a row that was derived from `after`, the latest row at that time.

        Return False, having written nothing, if another writer was faster: then read and decide again.
        """
        ...

    async def rows_from(self, conversation_id: str, ordinal: int) -> list[RollingRow]:
        """Rows whose last ordinal is this or a higher one, oldest first."""
        ...

    async def recount(self, event: SummaryCreated | SummaryDeleted) -> None:
        """Set counts and title of the scope from its counted episodes; without any, it is not known any more.

        What stays then, an ordinal, keeps those episodes from being counted again by a writer that was suspended.
        """
        ...

    async def advance(self, summary: SummaryCreated) -> None:
        """Count the episode in its conversation, once: an ordinal that is not higher than the last one is not counted.

        A higher revision of the last episode changes the title.
        """
        ...

    async def conversation(self, conversation_id: str) -> Conversation | None: ...

    async def conversations(
        self, user_id: str, tenant_id: str | None, limit: int, before: tuple[datetime, str] | None = None
    ) -> list[Conversation]:
        """Scopes of this very user and tenant, the one that was summarized last first.

        `before`: `updated_at` and scope id of the last one of the page before.
        """
        ...

    async def latest(
        self, conversation_id: str, limit: int, *, before: int | None = None, agent_id: str | None = None
    ) -> list[StoredEpisode]:
        """The last episodes of the conversation or of the agent with an ordinal less than `before`, newest first."""
        ...

    async def count_following(self, episode_id: str | None) -> int:
        """Count the episodes with a higher id, or all. Raises: StoreUnavailable."""
        ...

    async def count_all(self) -> int:
        """Number of the episodes that `all_episodes` has; while others write, about that."""
        ...

    async def following(self, episode_id: str | None, limit: int) -> list[StoredEpisode]:
        """A page of all episodes in the order of their ids, from the first one after `episode_id` on."""
        ...

    async def users_of(self, conversation_id: str) -> set[str]:
        """Users who take part in the conversation's episodes."""
        ...

    def all_episodes(self) -> AsyncIterator[EpisodeRef | DeletedEpisode]:
        """Iterate over every episode, and what stays of each deleted one, in no particular order."""
        ...


def stored_episode(
    episode: EpisodeClosed,
    summary: SummaryCreated,
    changes: tuple[tuple[str, int], ...] = (),
    as_of: int = NEVER,
    made_by: int = NEVER,
    built_on: tuple[str, ...] = (),
    before: StoredEpisode | None = None,
) -> StoredEpisode:
    """The document of a summary and the episode it was made from; `changes` and so on: as in StoredEpisode.

    `before`: the revision that it replaces.
    """
    return StoredEpisode(
        summary=summary,
        fingerprint=episode.fingerprint,
        close_reason=episode.close_reason,
        overlap_ids=tuple(message.id for message in episode.overlap),
        changes=changes,
        as_of=as_of,
        made_by=made_by,
        built_on=built_on,
        last_offset=episode.source.last_offset,
        participants=tuple(dict.fromkeys(message.user_id for message in (*episode.messages, *episode.overlap))),
        earlier=revisions_until(before) if before else (),
    )


def revisions_until(episode: StoredEpisode) -> tuple[Revision, ...]:
    """The revisions of an episode, the one that is stored last; those that the next one has before it."""
    return (*episode.earlier, Revision.of(episode.summary))[-MOST_REVISIONS:]


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


def sibling_id(episode: EpisodeClosed | SummaryCreated | SummaryDeleted, ordinal: int) -> str:
    """The `episode_id` of another episode of the same scope."""
    return f"{episode.episode_id.removesuffix(f':{episode.ordinal}')}:{ordinal}"


def first_advance(summary: SummaryCreated) -> Conversation:
    """A conversation with this one episode."""
    return Conversation(
        conversation_id=scope_of(summary),
        title=summary.title,
        user_id=summary.user_id,
        tenant_id=summary.tenant_id,
        episode_count=1,
        last_ordinal=summary.ordinal,
        message_count=summary.message_count,
        updated_at=summary.created_at,
        token_count=summary.compression.tokens_before,
        last_revision=summary.revision,
    )
