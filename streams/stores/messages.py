"""The archive of chat messages, and what every store of them offers."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from afterword.schemas import MessageCreated


@dataclass(frozen=True)
class ArchivedMessage:
    """A message and where it was read; `message.sent_at` is set, decoding fills it in."""

    message: MessageCreated
    partition: int
    offset: int


@dataclass(frozen=True)
class MessageRef:
    """What an audit compares: which episode took a message."""

    key: str
    """`message_key(conversation_id, id)`."""
    episode_id: str | None
    archived: bool
    """False while only the summarizer has written of it."""
    skipped: bool
    """Its `skip_summarization`: it belongs to no episode."""


@dataclass(frozen=True)
class Selection:
    """Archived messages of one conversation, of exactly this tenant; None: of those without one."""

    conversation_id: str
    tenant_id: str | None
    agent_id: str | None = None
    """Only this agent's messages, and those that name no agent; None: all."""
    unsummarised: bool = False
    """Only those that no stored episode has: of the agent if one is given, else of the conversation."""


@dataclass(frozen=True)
class Counted:
    """Counted in the store; none of the messages is loaded."""

    messages: int = 0
    tokens: int = 0
    """Of their contents. What an older version archived was not counted, and adds nothing."""
    skipped: int = 0
    """Those of `messages` with `skip_summarization`."""


def position(archived: ArchivedMessage) -> tuple[float, int]:
    """By which messages of a conversation are in order: their time, then where they were read."""
    sent_at = archived.message.sent_at
    return sent_at.timestamp() if sent_at else 0.0, archived.offset


def agent_scope(episode_id: str) -> str | None:
    """The `scope_id` that an agent's episode is of; None for an episode of a conversation."""
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
        """Notes the episode on its core messages, given by their `message_key`; archived already or not."""
        ...

    async def recent(self, conversation_id: str, limit: int) -> list[ArchivedMessage]:
        """The conversation's last archived messages by time, oldest first."""
        ...

    def newest(self, selection: Selection) -> AsyncGenerator[ArchivedMessage, None]:
        """The newest by time first, a page at a time: whoever has enough closes it, and the rest is never loaded."""
        ...

    async def count(self, selection: Selection) -> Counted: ...

    async def first(self, conversation_id: str) -> ArchivedMessage | None:
        """The one that was read first, whose tenant is the conversation's."""
        ...

    async def get_many(self, keys: Sequence[str]) -> dict[str, ArchivedMessage]:
        """Archived messages by their `message_key`; those that are not archived are left out."""
        ...

    def all_messages(self) -> AsyncIterator[MessageRef]:
        """In no particular order."""
        ...
