"""The archive of chat messages, and what every store of them offers."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas import MessageCreated


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


class MessageArchive(Protocol):
    """Archiver and summarizer write different fields of the same document, in either order, any number of times.

    All methods raise StoreUnavailable.
    """

    async def put_many(self, messages: Sequence[ArchivedMessage]) -> None:
        """Archives messages. What was archived first stays: a message never changes."""
        ...

    async def assign(self, episode_id: str, keys: Sequence[str]) -> None:
        """Notes the episode on its core messages, given by their `message_key`; archived already or not."""
        ...

    async def recent(self, conversation_id: str, limit: int) -> list[ArchivedMessage]:
        """The conversation's last archived messages by time, oldest first."""
        ...

    async def get_many(self, keys: Sequence[str]) -> dict[str, ArchivedMessage]:
        """Archived messages by their `message_key`; those that are not archived are left out."""
        ...

    def all_messages(self) -> AsyncIterator[MessageRef]:
        """In no particular order."""
        ...
