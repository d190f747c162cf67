"""Budgets in MongoDB: one document for each counter, changed by its server alone."""

from datetime import datetime

from pymongo.errors import DuplicateKeyError

from afterword.streams.stores.mongo import BUDGETS, Database, unavailable


class MongoBudgets:
    """Budgets of all workers on one database, which deletes old counters by itself."""

    def __init__(self, database: Database) -> None:
        self._counters = database[BUDGETS]

    async def take(self, key: str, amount: int, limit: int, expires_at: datetime) -> bool:
        below = {"_id": key, "tokens": {"$lt": limit}}
        change = {"$inc": {"tokens": amount}, "$setOnInsert": {"expires_at": expires_at}}
        with unavailable():
            for _ in range(2):  # a counter that somebody else made meanwhile is in the way as well: then look again
                try:
                    await self._counters.update_one(below, change, upsert=True)
                except DuplicateKeyError:
                    continue
                return True
        return False

    async def correct(self, key: str, amount: int) -> None:
        with unavailable():
            await self._counters.update_one({"_id": key}, {"$inc": {"tokens": amount}})

    async def used(self, key: str) -> int:
        with unavailable():
            found = await self._counters.find_one({"_id": key})
        return int(found["tokens"]) if found else 0
