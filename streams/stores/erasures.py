"""Erasures of persons that are under way, so that one that was killed goes on: their records, and their store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True)
class Erasure:
    """A request that has not come to its end."""

    key: str
    """Digest of what was asked: the same request goes on under the same receipt."""
    receipt_id: str
    salt: str
    asked_at: datetime
    asked_by: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    """Counts of places that keep nothing of it."""
    keys: tuple[bytes, ...] = ()
    """Ids of the keys that it destroys; of one that is destroyed nothing else tells whose it was."""


@dataclass(frozen=True)
class ErasedConversation:
    """A conversation in which the person wrote; once that is deleted, nothing else tells."""

    conversation_id: str
    whole: bool
    """All of it was deleted: nobody else had written."""
    messages: int = 0
    """The person's messages whose deletion is acknowledged."""
    open_messages: int = 0
    """Those whose deletion may not be."""
    episodes: int = 0
    """Episodes in which the person took part."""


class Erasures(Protocol):
    """All methods raise StoreUnavailable."""

    async def begin(self, erasure: Erasure) -> Erasure:
        """Store the erasure, unless one with its key is under way; return the one that is."""
        ...

    async def count(self, erasure: Erasure, counts: Mapping[str, int]) -> None:
        """Add to the counts of the erasure."""
        ...

    async def add_keys(self, erasure: Erasure, key_ids: Sequence[bytes]) -> None:
        """Add to the keys that the erasure destroys, each once."""
        ...

    async def find(self, erasure: Erasure) -> Erasure | None:
        """The erasure with its counts and keys; None once it has ended."""
        ...

    async def put(self, erasure: Erasure, conversations: Sequence[ErasedConversation]) -> None:
        """Store conversations in the place of what was stored of them."""
        ...

    async def known(self, erasure: Erasure, conversation_ids: Sequence[str]) -> dict[str, ErasedConversation]:
        """Those of the conversations that are stored."""
        ...

    async def following(self, erasure: Erasure, after: str | None, limit: int) -> list[ErasedConversation]:
        """A page of the conversations, by id, from the first one after `after` on."""
        ...

    async def end(self, erasure: Erasure) -> None:
        """Forget the erasure and its conversations."""
        ...
