"""Hourly budgets of LLM tokens: the protocol of their counters, which all workers share."""

from datetime import datetime, timedelta
from typing import Protocol

from afterword.schemas.ids import escape

KEPT = timedelta(days=7)
"""Retention of a counter, for inspection."""


class Budgets(Protocol):
    """Counters by key; a new one is at 0. All methods raise StoreUnavailable."""

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
