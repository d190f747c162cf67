"""Keys of users, wrapped: their store, and how somebody asks for keys that are not at hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class KeyOwner(NamedTuple):
    """User whose texts are sealed."""

    tenant_id: str | None
    user_id: str


class Needed(NamedTuple):
    """Keys that are not at hand."""

    owners: frozenset[KeyOwner] = frozenset()
    """Those whose current key is needed."""
    key_ids: frozenset[bytes] = frozenset()


class KeysNeeded(Exception):
    """Keys have to be fetched first."""

    def __init__(self, needed: Needed) -> None:
        super().__init__()
        self.needed = needed


@dataclass(frozen=True)
class WrappedKey:
    """A user's key, as it is stored."""

    key_id: bytes
    owner: str
    """Digest of tenant and user."""
    wrapped: bytes = field(repr=False)
    wrapped_by: str
    """Id of the key that wraps it."""


class UserKeys(Protocol):
    """A store of wrapped keys. All methods raise StoreUnavailable."""

    async def current(self, owners: Sequence[str]) -> dict[str, WrappedKey]:
        """Current keys of these owners, as far as they have one."""
        ...

    async def add(self, key: WrappedKey) -> WrappedKey:
        """Make it the current key of its owner, unless there is one; return the one that is."""
        ...

    async def find(self, key_ids: Sequence[bytes]) -> dict[bytes, WrappedKey | None]:
        """These keys, as far as they are known; None for one that was destroyed."""
        ...

    async def retire(self, owner: str) -> list[bytes]:
        """Let the owner's next text have another key; return the ids of all keys that were current before."""
        ...

    async def destroy(self, key_ids: Sequence[bytes]) -> None:
        """Keep of retired keys nothing but that they were destroyed."""
        ...

    async def rewrap(self, before: WrappedKey, after: WrappedKey) -> None:
        """Store the key as it is wrapped now, unless it was destroyed or rewrapped meanwhile."""
        ...

    async def wrapped_by(self) -> dict[str, int]:
        """Count keys by the id of the key that wraps them."""
        ...

    async def wrapped_by_others(self, wrapping_id: str, limit: int) -> list[WrappedKey]:
        """Keys that another key wraps, at most `limit`."""
        ...
