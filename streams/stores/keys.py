"""Keys of `afterword serve`: their records, which hold no key but its digest, and the protocol of their store."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True)
class ApiKey:
    """Rights of a key, and whose they are."""

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
