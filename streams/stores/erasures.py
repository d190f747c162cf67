"""Erasures of persons that are under way, so that one that was killed goes on; and requests that servers carry out."""

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

    async def find(self, erasure: Erasure) -> Erasure | None:
        """The erasure with its counts; None once it has ended."""
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


@dataclass(frozen=True)
class ErasureRequest:
    """A request for an erasure, which any server carries out; once it has ended, only the receipt is left."""

    request_id: str
    """The id of the receipt, too."""
    asked_at: datetime
    user_id: str | None = None
    """None once the request has ended."""
    tenant_id: str | None = None
    conversation_id: str | None = None
    asked_by: str | None = None
    holder: str | None = None
    """The one that carries it out, until `held_until`."""
    held_until: datetime | None = None
    """Moment before which nobody else takes it; None once the request has ended."""
    stage: str | None = None
    """Things that are waited for."""
    left: int = 0
    """Their number."""
    problem: str | None = None
    """`error_type` of what ended the last attempt."""
    detail: str = ""
    receipt: str | None = None
    """The receipt as JSON; the request ends after it is kept."""


class ErasureRequests(Protocol):
    """All methods raise StoreUnavailable."""

    async def add(self, request: ErasureRequest) -> ErasureRequest:
        """Store the request, unless one of its id is there; return the one that is."""
        ...

    async def find(self, request_id: str) -> ErasureRequest | None: ...

    async def take(self, holder: str, now: datetime, until: datetime) -> ErasureRequest | None:
        """Hold a request that nobody holds at `now` until then; None if there is none."""
        ...

    async def renew(self, request: ErasureRequest, until: datetime) -> bool:
        """Hold on, and store `stage` and `left`; False if the request's holder has it no more."""
        ...

    async def put_off(self, request: ErasureRequest, until: datetime) -> None:
        """Let go of the request, with its `problem` and `detail`; nothing happens unless its holder has it."""
        ...

    async def keep(self, request_id: str, receipt: str) -> None:
        """Store the receipt."""
        ...

    async def end(self, request_id: str) -> None:
        """Forget everything but the time of asking and the receipt."""
        ...
