"""Archived chat messages: their records, and the protocol of their store."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from afterword.schemas import ConversationDeleted, MessageCreated, MessageDeleted, MessageEdited
from afterword.schemas.messages import Role
from afterword.streams.stores.arguments import require

NEVER = -1
"""Offset before every log offset."""


@dataclass(frozen=True)
class ArchivedMessage:
    """A message, and the partition and offset of its record; decoding has set `message.sent_at`."""

    message: MessageCreated
    partition: int
    offset: int
    changed: int = NEVER
    """Offset of the last edit that it has; one of its metadata alone does not count."""


class MessageText(NamedTuple):
    """What was said in a message: the beginning of its content, by whom, and when."""

    content: str
    role: Role
    sent_at: datetime
    author: str | None = None
    """The user, or the agent whose answer it is; None for nobody that is named."""


@dataclass(frozen=True)
class DeletedMessage:
    """Tombstone of a deleted message, so that a replay of its record does not bring it back."""

    changed: int
    """Offset of the deletion."""


@dataclass(frozen=True)
class ArchiveChange:
    """An edit or a deletion, and partition and offset of its record."""

    event: MessageEdited | MessageDeleted | ConversationDeleted
    partition: int
    offset: int


@dataclass(frozen=True)
class MessageRef:
    """The fields of a message that the audit compares."""

    key: str
    """`message_key(conversation_id, id, tenant_id)`."""
    episode_id: str | None
    skipped: bool = False
    """The message's `skip_summarization`: it belongs to no episode."""
    source: tuple[int, int] | None = None
    """Partition and offset; None if it is deleted."""
    content: str | None = None
    """Its text, as it is archived."""
    deleted: bool = False
    """Only what stays of a deleted message is there."""
    changed: int = NEVER
    """Log offset of its last change."""

    @property
    def archived(self) -> bool:
        return self.source is not None


@dataclass(frozen=True)
class Selection:
    """Archived messages of one conversation and tenant; tenant None selects those without a tenant."""

    conversation_id: str
    tenant_id: str | None
    agent_id: str | None = None
    """Only this agent's messages, and those that name no agent; None: all."""
    unsummarised: bool = False
    """Only messages that are in no stored episode of the agent, if one is given, or else of the conversation."""
    user_id: str | None = None
    """Only messages with this user; None: all."""
    before: int | None = None
    """Only messages before this log offset; None: all."""

    def __post_init__(self) -> None:
        require(str, conversation_id=self.conversation_id)
        require(str | None, tenant_id=self.tenant_id, agent_id=self.agent_id, user_id=self.user_id)
        require(int | None, before=self.before)


@dataclass(frozen=True)
class Counted:
    """Counts that the store computes, without loading a message."""

    messages: int = 0
    tokens: int = 0
    """The tokens of their contents."""
    skipped: int = 0
    """The number of `messages` with `skip_summarization`."""


class Authors(NamedTuple):
    """Numbers of messages of a conversation."""

    own: int
    others: int


def sort_key(archived: ArchivedMessage) -> int:
    """Return what messages of a conversation are sorted by: the log's order, because producers' clocks differ."""
    return archived.offset


def agent_scope(episode_id: str) -> str | None:
    """`conversation/agent` of an agent's episode, as in its id; None for an episode of a conversation."""
    scope = episode_id.rpartition(":")[0]
    return scope if "/" in scope else None


class MessageWriter(Protocol):
    """The archive as the archiver needs it."""

    async def put_many(self, messages: Sequence[ArchivedMessage]) -> None:
        """Archive messages; of one that is there, only what the summarizer did not have is added.

        A deleted one stays deleted. Raises: StoreUnavailable.
        """
        ...

    async def change(self, change: ArchiveChange) -> None:
        """Edit a message, or leave of it, or of a conversation's so far, only what keeps it deleted.

        Does nothing for a message that is not archived, is deleted, has another tenant, came later, or has a later
        change. Raises: StoreUnavailable.
        """
        ...


class MessageArchive(MessageWriter, Protocol):
    """Archiver and summarizer write the same documents, in either order, any number of times: the last change stays.

    The summarizer has no metadata; those are the archiver's alone. All methods raise StoreUnavailable.
    """

    async def assign(self, episode_id: str, messages: Sequence[ArchivedMessage]) -> None:
        """Set the episode on its core messages, and archive them as far as they are not, or as an older one."""
        ...

    def newest(self, selection: Selection) -> AsyncGenerator[ArchivedMessage, None]:
        """The selected messages, newest first, loaded page by page; a reader that stops early closes the generator."""
        ...

    async def count(self, selection: Selection) -> Counted: ...

    async def conversations_of(self, user_id: str, tenant_id: str | None, after: str | None, limit: int) -> list[str]:
        """A page of the ids of conversations with messages of this very user and tenant, from the first after `after`.

        Tenant None: messages without a tenant. In the order of the ids' UTF-8.
        """
        ...

    async def authors(self, conversation_ids: Sequence[str], user_id: str, tenant_id: str | None) -> dict[str, Authors]:
        """Count the messages of a tenant's conversations by whether they are this user's; none: left out."""
        ...

    async def first(self, conversation_id: str) -> ArchivedMessage | None:
        """The message with the lowest offset, whose tenant is the conversation's."""
        ...

    async def get_many(self, keys: Sequence[str]) -> dict[str, ArchivedMessage]:
        """Archived messages by their `message_key`; those that are not archived, or another tenant's, are left out."""
        ...

    async def texts(self, keys: Sequence[str], characters: int) -> dict[str, MessageText]:
        """Get the texts of the messages that `get_many` gets, each up to this number of characters."""
        ...

    async def states(self, keys: Sequence[str]) -> dict[str, ArchivedMessage | DeletedMessage]:
        """Get messages like `get_many`, deleted ones included."""
        ...

    async def changed(self, keys: Sequence[str]) -> dict[str, ArchivedMessage | DeletedMessage]:
        """Get messages like `states`, but only edited or deleted ones; meant for few of many."""
        ...

    async def expire(self, before: datetime, limit: int) -> int:
        """Remove messages that were sent before this time, the oldest first; return how many, at most `limit`."""
        ...

    async def count_all(self) -> int:
        """Number of the messages that `all_messages` has; while others write, about that."""
        ...

    def all_messages(self) -> AsyncIterator[MessageRef]:
        """Every message, in no particular order."""
        ...
