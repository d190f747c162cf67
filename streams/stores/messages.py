"""Archived chat messages: their records, and the protocol of their store."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from afterword.schemas import MessageCreated
from afterword.streams.stores.arguments import require


@dataclass(frozen=True)
class ArchivedMessage:
    """A message, and the partition and offset of its record; decoding has set `message.sent_at`."""

    message: MessageCreated
    partition: int
    offset: int


@dataclass(frozen=True)
class MessageRef:
    """The fields of a message that the audit compares."""

    key: str
    """`message_key(conversation_id, id)`."""
    episode_id: str | None
    archived: bool
    """False while only the summarizer has written its document."""
    skipped: bool
    """The message's `skip_summarization`: it belongs to no episode."""


@dataclass(frozen=True)
class Selection:
    """Archived messages of one conversation and tenant; tenant None selects those without a tenant."""

    conversation_id: str
    tenant_id: str | None
    agent_id: str | None = None
    """Only this agent's messages, and those that name no agent; None: all."""
    unsummarised: bool = False
    """Only messages that are in no stored episode of the agent, if one is given, or else of the conversation."""

    def __post_init__(self) -> None:
        require(str, conversation_id=self.conversation_id)
        require(str | None, tenant_id=self.tenant_id, agent_id=self.agent_id)


@dataclass(frozen=True)
class Counted:
    """Counts that the store computes, without loading a message."""

    messages: int = 0
    tokens: int = 0
    """The tokens of their contents; messages that an older version archived have no count, and add nothing."""
    skipped: int = 0
    """The number of `messages` with `skip_summarization`."""


def position(archived: ArchivedMessage) -> tuple[float, int]:
    """The sort key of messages within a conversation: time, then offset."""
    sent_at = archived.message.sent_at
    return sent_at.timestamp() if sent_at else 0.0, archived.offset


def agent_scope(episode_id: str) -> str | None:
    """`conversation/agent` of an agent's episode, as in its id; None for an episode of a conversation."""
    scope = episode_id.rpartition(":")[0]
    return scope if "/" in scope else None


class MessageWriter(Protocol):
    """The archive as the archiver needs it."""

    async def put_many(self, messages: Sequence[ArchivedMessage]) -> None:
        """Archive messages; one that is archived stays as it is. Raises: StoreUnavailable."""
        ...


class MessageArchive(MessageWriter, Protocol):
    """Archiver and summarizer write different fields of the same document, in either order, any number of times.

    All methods raise StoreUnavailable.
    """

    async def assign(self, episode_id: str, keys: Sequence[str]) -> None:
        """Set the episode on its core messages, given by their `message_key`, whether they are archived yet or not."""
        ...

    def newest(self, selection: Selection) -> AsyncGenerator[ArchivedMessage, None]:
        """The selected messages, newest first, loaded page by page; a reader that stops early closes the generator."""
        ...

    async def count(self, selection: Selection) -> Counted: ...

    async def first(self, conversation_id: str) -> ArchivedMessage | None:
        """The message with the lowest offset, whose tenant is the conversation's."""
        ...

    async def get_many(self, keys: Sequence[str]) -> dict[str, ArchivedMessage]:
        """Archived messages by their `message_key`; those that are not archived are left out."""
        ...

    def all_messages(self) -> AsyncIterator[MessageRef]:
        """Every message, in no particular order."""
        ...
