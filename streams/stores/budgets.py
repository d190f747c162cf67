"""Counters of what was used in an hour, shared by all workers."""

from datetime import datetime, timedelta
from typing import Protocol

from afterword.schemas.ids import escape

KEPT = timedelta(days=7)
"""How long a counter stays to be looked at."""


class Budgets(Protocol):
    """Counters by key; one that nobody has touched is at 0. All methods raise StoreUnavailable."""

    async def take(self, key: str, amount: int, limit: int, expires_at: datetime) -> bool:
        """Adds the amount, unless the counter has reached the limit: False, and nothing is added.

        So a counter passes its limit by less than the one amount that reached it, however many take at once.
        """
        ...

    async def correct(self, key: str, amount: int) -> None:
        """Adds the amount, which may be negative, to a counter that was taken from."""
        ...

    async def used(self, key: str) -> int: ...


def key_of(hour: datetime, tenant_id: str | None = None, *, of_tenant: bool = False) -> str:
    """The counter of an hour (UTC), of all tenants or of one; of messages without a tenant, too."""
    name = f"{hour:%Y-%m-%dT%H}"
    return f"{name}/{escape(tenant_id or '')}" if of_tenant else name
