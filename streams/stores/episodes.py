"""Summarized episodes, rolling summaries and conversations: their records, and the protocol of their store."""

import operator
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

from pydantic import ConfigDict, TypeAdapter

from afterword.schemas import CloseReason, EpisodeClosed, FactKind, FactStatus, SummaryCreated, SummaryDeleted
from afterword.schemas.base import Model, Time, episode_id, row_id, scope_id
from afterword.schemas.messages import Role
from afterword.schemas.summaries import Calls, RevisionReason
from afterword.streams.tasks import in_parts

SCAN_SIZE = 200
"""Number of episodes that are read together when all are read; in between, others may write."""
MOST_IDS = 1000
"""Maximum number of ids in one query."""
MOST_REVISIONS = 20
"""Maximum number of revisions of an episode that are recorded, including the last one."""

Conditions = Mapping[str, Any]
"""Conditions on stored records, in the words of no backend: `{"scope": "c1", "ordinal <": 7}`. Without an operator,
None means a missing value. `in` asks for one of several values, and `or none` for the value or none at all.
"""

COMPARED = {"": operator.eq, "<": operator.lt, ">=": operator.ge}


def parts(conditions: Conditions) -> Iterator[tuple[str, str, Any]]:
    """Yield each field with its operator and value."""
    for name, value in conditions.items():
        field, _, operator_name = name.partition(" ")
        yield field, operator_name, value


def meets(record: object, conditions: Conditions) -> bool:
    """Return whether a record, of which no compared field is None, meets conditions of the kinds in COMPARED."""
    return all(COMPARED[compared](getattr(record, field), value) for field, compared, value in parts(conditions))


class Revision(Model):
    """A revision of an episode, without its texts, because earlier texts may contain words that were deleted since."""

    revision: int
    """Number of the revision, from 1."""
    event_id: str
    """Id under which it was announced, unless another revision replaced it before that."""
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
    """The position in Kafka of the record that caused a revision."""

    topic: str
    partition: int
    offset: int

    def is_before(self, other: "Cause") -> bool:
        """Return whether the other record comes later, or the order is unknown."""
        return self[:2] != other[:2] or self.offset < other.offset


Inputs = tuple[tuple[str, int], ...]
"""Message ids, each with the log offset of the message's last change."""


@dataclass(frozen=True)
class StoredEpisode:
    """An episode with its summary.

    The ids, offsets, fingerprint and close reason from its `episode.closed` never change. Everything else may, and each
    write replaces one `version` with the next.
    """

    summary: SummaryCreated
    """The summary as it was announced. Once one of its messages is deleted, its texts are empty until it is
    summarized again."""
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
    calls: tuple[Calls, ...] = ()
    """All calls for this episode, those for earlier revisions and failed attempts too."""
    inputs: Inputs = ()
    """The messages of core and overlap from which the texts were made."""
    participants: tuple[str, ...] = ()
    """The users in these messages, each once; the episode's own user is always one of them."""
    writers: tuple[str, ...] = ()
    """The users in its core messages, each once. Their searches find it."""
    earlier: tuple[Revision, ...] = ()
    """Revisions before this one, oldest first, at most MOST_REVISIONS."""
    attempt: int = 0
    """Number of attempts to replace this revision that a timer began or that failed."""
    unusable: int = 0
    """Number of these attempts that got an unusable answer."""
    due_at: datetime | None = None
    """Time of the next attempt to replace the summary, if it is a fallback or to be redone; else None."""

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
    """The tombstone of an episode that has no messages left, so that no late writer brings it back."""

    deletion: SummaryDeleted
    core_ids: tuple[str, ...]
    overlap_ids: tuple[str, ...]
    last_offset: int
    """Log offset of its last core message, after which rebuilt state continues."""
    cause: Cause
    """Same as in StoredEpisode."""
    inputs: Inputs = ()
    """Its core messages, each with the log offset of its deletion; none if it has expired."""

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
    """One row of a scope's rolling summary: a text about the episodes of one range, and only those."""

    conversation_id: str
    """Its `scope_id`."""
    row: int
    """1, 2 …"""
    revision: int
    """1, 2 …: every write replaces one revision with the next."""
    cause: Cause
    """Record that made this revision, and announces it."""
    content: str
    """Empty if nothing is left of these episodes."""
    is_complete: bool
    """True if the next episode begins another row. It is decided once, because workers may have different limits, and
    never changes back."""
    first_ordinal: int
    last_ordinal: int
    inputs: tuple[tuple[int, int], ...]
    """Ordinals of the episodes from whose long summaries it was made, each with the revision."""
    updated_at: datetime


@dataclass(frozen=True)
class Conversation:
    """The title of a conversation, or of an agent's part of it, and counts over its summarized episodes."""

    conversation_id: str
    """Its `scope_id`."""
    revision: int
    """1, 2 …: every write replaces one revision with the next."""
    cause: Cause
    """Record that made this revision, and announces it."""
    title: str
    user_id: str
    tenant_id: str | None
    episode_count: int
    """0 if nothing is left of it."""
    last_ordinal: int
    message_count: int
    updated_at: datetime
    last_at: datetime
    """Time of the last message of the last episode."""
    token_count: int = 0
    """Number of tokens in their messages."""


Record = TypeVar("Record")


@dataclass(frozen=True)
class Kind(Generic[Record]):
    """A kind of record, in a collection or table of its own."""

    name: str
    records: TypeAdapter[Record]
    fields: Callable[[Record], dict[str, Any]]
    """Returns the id, and the fields that queries compare."""
    removes_words: Callable[[Record, Record], bool]
    """Returns whether words of the second record may be missing in the first, which replaces it."""
    version: tuple[str, ...] = ("revision",)
    """Fields that every write changes."""
    tombstones: TypeAdapter[Any] | None = None

    def adapter(self, fields: Mapping[str, Any]) -> TypeAdapter[Any]:
        """Return what reads and writes a record with these fields."""
        return self.tombstones if self.tombstones and fields["deleted"] else self.records


def queried_fields(episode: Episode) -> dict[str, Any]:
    """Return the fields of an episode, or of its tombstone, that queries compare."""
    event = episode.event
    stored = episode if isinstance(episode, StoredEpisode) else None
    return {
        "id": event.episode_id,
        "scope": scope_of(event),
        "conversation_id": event.conversation_id,
        "tenant_id": event.tenant_id,
        "ordinal": event.ordinal,
        "revision": episode.version[0],
        "attempt": episode.version[1],
        "deleted": stored is None,
        "ended_at": stored and stored.summary.ended_at,
        "due_at": stored and stored.due_at,
    }


EPISODES: Kind[Any] = Kind(
    "episodes",
    TypeAdapter(StoredEpisode),
    queried_fields,
    lambda _, before: before is not None,
    version=("revision", "attempt"),
    tombstones=TypeAdapter(DeletedEpisode),
)
ROWS: Kind[RollingRow] = Kind(
    "conversation_summaries",
    TypeAdapter(RollingRow),
    lambda row: {
        "id": row_id(row.conversation_id, row.row),
        **{name: getattr(row, name) for name in ("conversation_id", "row", "revision", "last_ordinal")},
    },
    lambda row, before: row.inputs[: len(before.inputs)] != before.inputs,
)
CONVERSATIONS: Kind[Conversation] = Kind(
    "conversations",
    TypeAdapter(Conversation),
    lambda known: {
        "id": known.conversation_id,
        **{name: getattr(known, name) for name in ("revision", "tenant_id", "user_id", "episode_count", "updated_at")},
    },
    lambda known, before: (known.title, known.user_id) != (before.title, before.user_id),
)


class EpisodeTotals(NamedTuple):
    """Sums over a scope's stored episodes."""

    episodes: int = 0
    messages: int = 0
    tokens: int = 0
    first_ordinal: int = 0
    last_ordinal: int = 0


class FactOfUser(NamedTuple):
    """A stored fact about a user, and the episode that states it.

    It is not validated again, because a profile reads thousands.
    """

    statement: str
    kind: FactKind
    attribute: str | None
    status: FactStatus
    about: str | None
    said_by: Role
    episode_id: str
    conversation_id: str
    ordinal: int
    message_ids: Sequence[str]
    ended_at: datetime
    """End of the episode."""


UsageBy = Literal["tenant", "user", "model", "outcome", "day"]
"""The field by which usage is grouped; days are the UTC days on which the summaries were made."""


class UsageTotals(NamedTuple):
    """The LLM's usage for stored episodes, with their earlier revisions and failed attempts."""

    group: str | None
    """The tenant, user, model, outcome or day; None for episodes without a tenant, or for which no LLM was asked."""
    episodes: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    seconds: float


@dataclass(frozen=True)
class UserTotals:
    """A user, and sums over the stored episodes that they take part in."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)

    user_id: str
    conversations: int
    episodes: int
    last_at: Time
    """Time of the last message of these episodes."""
    tokens: int
    """Tokens of their messages."""
    prompt_tokens: int
    """Tokens of all prompts for their summaries."""
    cached_tokens: int
    """Prompt tokens that came from the server's cache."""
    completion_tokens: int


def is_outdated(summary: SummaryCreated, stored: Episode | None) -> bool:
    """Return whether a revision was deleted or replaced, so that its texts may contain deleted words."""
    return stored is not None and (isinstance(stored, DeletedEpisode) or stored.summary.revision > summary.revision)


Lookup = Callable[[Sequence[str]], Awaitable[Mapping[str, Episode]]]
"""Finds episodes, or the tombstones of deleted ones, by their ids. Raises: StoreUnavailable."""


class EpisodeStore(Protocol):
    """The summarizer's store. A late writer never undoes a newer write.

    All methods raise StoreUnavailable.
    """

    async def lookup(self, episode_ids: Sequence[str]) -> dict[str, Episode]:
        """Find episodes, or the tombstones of deleted ones, by their ids."""
        pages = [await self._find(EPISODES, {"id in": some}) for some in in_parts(episode_ids, MOST_IDS)]
        return {episode.event.episode_id: episode for page in pages for episode in page}

    async def put(self, episode: Episode, before: Episode | None) -> bool:
        """Store an episode in place of `before`.

        Returns False, having written nothing, if a different version is stored; the caller must then read and decide
        again.
        """
        return await self._replace(EPISODES, episode, before)

    async def holding(self, conversation_id: str, message_id: str) -> list[Episode]:
        """Return the episodes that have, or had, the message in their core or overlap, by ordinal."""
        ...

    async def page(self, after: str | None, limit: int, conversation_id: str | None = None) -> list[Episode]:
        """Return a page of all episodes, or of a conversation's, by id, beginning after the id `after`."""
        own = {} if conversation_id is None else {"conversation_id": conversation_id}
        return await self._find(EPISODES, {**own, "id >": after or ""}, "id", limit)

    async def latest(
        self, conversation_id: str, limit: int, *, before: int | None = None, agent_id: str | None = None
    ) -> list[StoredEpisode]:
        """Return the last episodes of the conversation, or of the agent, with ordinals below `before`, newest first."""
        earlier = {} if before is None else {"ordinal <": before}
        own = {"scope": scope_id(conversation_id, agent_id), "deleted": False}
        return await self._find(EPISODES, {**own, **earlier}, "-ordinal", limit)

    async def expired(self, before: datetime, limit: int) -> list[StoredEpisode]:
        """Return episodes whose last message is older than this, oldest first."""
        return await self._find(EPISODES, {"ended_at <": before}, "ended_at", limit)

    async def due(self, now: datetime, limit: int) -> list[StoredEpisode]:
        """Return episodes whose `due_at` has come, the longest overdue first."""
        return await self._find(EPISODES, {"due_at <=": now}, "due_at", limit)

    async def latest_row(self, scope: str) -> RollingRow | None:
        return next(iter(await self._find(ROWS, {"conversation_id": scope}, "-row", 1)), None)

    async def rows(self, scope: str, ordinal: int = 0) -> list[RollingRow]:
        """Return the rows whose last ordinal is this one or higher, oldest first."""
        return await self._find(ROWS, {"conversation_id": scope, "last_ordinal >=": ordinal}, "row")

    async def rows_at_ends(self, scope: str, last: int) -> list[RollingRow]:
        """Return the first row and the `last` latest ones, each once, oldest first."""
        rows = await self._find(ROWS, {"conversation_id": scope}, "-row", last)
        if rows and rows[-1].row > 1:
            rows += await self._find(ROWS, {"conversation_id": scope, "row": 1})
        return rows[::-1]

    async def put_row(self, row: RollingRow, before: RollingRow | None) -> bool:
        """Store a row in place of `before`; otherwise like `put`."""
        return await self._replace(ROWS, row, before)

    async def conversation(self, scope: str) -> Conversation | None:
        return next(iter(await self._find(CONVERSATIONS, {"id": scope})), None)

    async def conversations_at(self, scopes: Sequence[str]) -> list[Conversation]:
        return await self._find(CONVERSATIONS, {"id in": scopes})

    async def put_conversation(self, conversation: Conversation, before: Conversation | None) -> bool:
        """Store a conversation in place of `before`; otherwise like `put`."""
        return await self._replace(CONVERSATIONS, conversation, before)

    async def totals(self, conversation_id: str, agent_id: str | None = None) -> EpisodeTotals:
        """Add up the stored episodes of the conversation or of the agent."""
        ...

    async def _find(self, kind: Kind[Record], wanted: Conditions, order: str = "", limit: int = 0) -> list[Record]:
        """Return records. `order` names fields, of which those with a minus descend; a limit of 0 is none."""
        ...

    async def _replace(self, kind: Kind[Record], record: Record, before: Record | None) -> bool:
        """Store a record in place of `before`; return False if another version is stored."""
        ...


class EpisodeQueries(EpisodeStore, Protocol):
    """An episode store with the queries that readers need."""

    async def conversations(
        self, user_id: str, tenant_id: str | None, limit: int, before: tuple[datetime, str] | None = None
    ) -> list[Conversation]:
        """Return the scopes of exactly this user and tenant that have episodes, most recently summarized first.

        `before` has the `updated_at` and the scope id of the previous page's last one.
        """
        own = {"tenant_id": tenant_id, "user_id": user_id, "episode_count >": 0}
        if before is None:
            return await self._find(CONVERSATIONS, own, "-updated_at -id", limit)
        updated_at, scope = before
        at_once = await self._find(CONVERSATIONS, own | {"updated_at": updated_at, "id <": scope}, "-id", limit)
        earlier = await self._find(CONVERSATIONS, own | {"updated_at <": updated_at}, "-updated_at -id", limit)
        return [*at_once, *earlier][:limit]

    async def conversations_of(self, user_id: str, tenant_id: str | None, after: str | None, limit: int) -> list[str]:
        """Return a page of the ids of conversations with episodes in which exactly this user takes part.

        Otherwise like `MessageArchive.conversations_of`.
        """
        ...

    async def facts_of(self, user_id: str, tenant_id: str | None, limit: int) -> list[FactOfUser]:
        """Return at most `limit` facts about exactly this user and tenant: those of the episodes that ended last.

        Facts of one episode keep their order. The episodes are in no particular order.
        """
        ...

    async def usage(self, by: UsageBy) -> list[UsageTotals]:
        """Add up the LLM's usage, in the order of the groups. Reads every episode."""
        ...

    async def users(
        self, tenant_id: str | None, prefix: str, before: tuple[datetime, str] | None, limit: int
    ) -> list[UserTotals]:
        """Return a page of the users of exactly this tenant whose ids begin with `prefix`, last active first.

        `before` has the `last_at` and the id of the previous page's last one. Reads all of their episodes.
        """
        ...

    async def count(self) -> int:
        """Return the approximate number of episodes, including tombstones."""
        ...


async def all_episodes(episodes: EpisodeStore, conversation_id: str | None = None) -> AsyncIterator[Episode]:
    """Yield all episodes, or a conversation's, and the tombstones of deleted ones, by id. Raises: StoreUnavailable."""
    after = None
    while page := await episodes.page(after, SCAN_SIZE, conversation_id):
        for episode in page:
            yield episode
        after = page[-1].event.episode_id


def revisions_until(episode: StoredEpisode) -> tuple[Revision, ...]:
    """Return an episode's revisions up to and including the stored one."""
    return (*episode.earlier, Revision.of(episode.summary))[-MOST_REVISIONS:]


async def find_episode(episodes: EpisodeStore, episode_id: str) -> StoredEpisode | None:
    """Find an episode that is not deleted. Raises: StoreUnavailable."""
    return living((await episodes.lookup([episode_id])).values()).get(episode_id)


async def find_conversation(episodes: EpisodeStore, scope: str) -> Conversation | None:
    """Find a conversation that has any episodes left. Raises: StoreUnavailable."""
    known = await episodes.conversation(scope)
    return known if known is not None and known.episode_count else None


def living(episodes: Iterable[Episode]) -> dict[str, StoredEpisode]:
    """Return the episodes that are not deleted, by id."""
    return {episode.summary.episode_id: episode for episode in episodes if isinstance(episode, StoredEpisode)}


def scope_of(event: EpisodeClosed | SummaryCreated | SummaryDeleted) -> str:
    """Return an event's `scope_id`; whether it is the conversation's or an agent's follows from its episode id."""
    return scope_id(event.conversation_id, agent_of_scope(event))


def id_prefix(conversation_id: str, agent_id: str | None = None) -> str:
    """Return the prefix that the ids of these episodes have, and no others."""
    return episode_id(conversation_id, 0, agent_id).removesuffix("0")


def agent_of_scope(event: EpisodeClosed | SummaryCreated | SummaryDeleted) -> str | None:
    """Return the agent in the event's episode id, if each agent has its own episodes."""
    own = event.episode_id == episode_id(event.conversation_id, event.ordinal, event.agent_id)
    return event.agent_id if own else None
