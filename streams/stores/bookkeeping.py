"""Small stores beside messages and episodes: erasures, budgets of LLM tokens, and keys of `afterword serve`."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import orjson

from afterword.schemas.ids import escape

COUNTER_RETENTION = timedelta(days=7)
"""Retention of a counter, for inspection."""


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


class Budgets(Protocol):
    """Counters of LLM tokens by the hour, shared by all workers, each from 0 on. All methods raise StoreUnavailable."""

    async def take(self, key: str, amount: int, limit: int, expires_at: datetime) -> bool:
        """Add the amount, unless the counter has reached the limit: then add nothing and return False.

        However many workers take at once, a counter exceeds its limit by less than the amount that reached it.
        """
        ...

    async def correct(self, key: str, amount: int) -> int:
        """Add the amount, which may be negative, to an existing counter; return its new count. 0: there is none."""
        ...


def budget_key(hour: datetime, tenant_id: str | None = None, *, of_tenant: bool = False) -> str:
    """The key of an hour's (UTC) counter: of all tenants, of one, or of messages without a tenant."""
    name = f"{hour:%Y-%m-%dT%H}"
    return f"{name}/{escape(tenant_id or '')}" if of_tenant else name


@dataclass(frozen=True)
class ApiKey:
    """Rights of a key of `afterword serve`, and whose they are. The key itself is kept nowhere."""

    digest: str
    """SHA-256 of the key, in hexadecimal: a key has 256 random bits, so that nobody can find it from this."""
    key_id: str
    """Name of the key in lists and logs."""
    scopes: tuple[str, ...]
    tenant_id: str | None
    """Only what this tenant has; None: only what has no tenant."""
    user_id: str | None
    """Only what this user has; None: every user of the tenant."""
    created_at: datetime


class ApiKeys(Protocol):
    """All methods raise StoreUnavailable."""

    async def put(self, key: ApiKey) -> None: ...

    async def find(self, digest: str) -> ApiKey | None: ...

    async def list(self) -> list[ApiKey]:
        """Every key, the oldest first."""
        ...

    async def remove(self, key_id: str) -> bool:
        """Remove a key; False if there is none of this name."""
        ...
