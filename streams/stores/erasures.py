"""Erasures of persons: those that are under way, and the receipts of those that are done."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import orjson


@dataclass(frozen=True)
class ErasedConversation:
    """A conversation in which the person wrote; once that is deleted, nothing else tells."""

    conversation_id: str
    alone: bool
    """Nobody else wrote in it: all of it is deleted."""
    messages: int = 0
    """The person's messages, as many as were found in it at once."""
    episodes: int = 0
    """Episodes in which the person took part."""

    def merged(self, earlier: "ErasedConversation") -> "ErasedConversation":
        """Combine what was found with what was found earlier."""
        return ErasedConversation(
            self.conversation_id,
            self.alone or earlier.alone,
            max(self.messages, earlier.messages),
            max(self.episodes, earlier.episodes),
        )


@dataclass(frozen=True)
class Erasure:
    """A request to erase a person; of one that is done, only the receipt and the tenant are left."""

    erasure_id: str
    user_id: str | None
    """None once it is done."""
    tenant_id: str | None
    conversation_id: str | None
    """The only conversation that is asked for; None: all."""
    asked_at: datetime
    asked_by: str | None = None
    conversations: tuple[ErasedConversation, ...] = ()
    """Conversations found so far; one may be there several times."""
    is_running: bool = False
    """A server is at it, or was when it was killed."""
    stage: str | None = None
    """Things that are waited for."""
    left: int = 0
    """Their number."""
    problem: str | None = None
    """`error_type` of what ended the last attempt."""
    detail: str = ""
    receipt: str | None = None
    """The receipt as JSON."""

    @property
    def key(self) -> str:
        """Digest of what was asked: the same request goes on under the same id."""
        return hashlib.sha256(orjson.dumps([self.user_id, self.tenant_id, self.conversation_id])).hexdigest()


class Erasures(Protocol):
    """All methods raise StoreUnavailable."""

    async def begin(self, erasure: Erasure) -> Erasure:
        """Store the erasure, unless one of the same person is under way; return the one that is."""
        ...

    async def add(self, erasure: Erasure, conversations: Sequence[ErasedConversation]) -> None:
        """Add conversations; nothing happens if the erasure is done."""
        ...

    async def report(self, erasure: Erasure) -> None:
        """Store what the erasure waits for and why it stopped; nothing happens if it is done."""
        ...

    async def under_way(self) -> list[Erasure]:
        """All erasures that are not done."""
        ...

    async def find(self, erasure_id: str) -> Erasure | None:
        """The erasure of this id, under way or done."""
        ...

    async def end(self, erasure: Erasure, receipt: str) -> None:
        """Keep the receipt, and forget whom it was about; a repetition does nothing."""
        ...
