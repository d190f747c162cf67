"""Tables whose changelog is written by the transaction, not by each assignment."""

from typing import Any

from faust import Table as FaustTable
from faust.tables import TableManager as FaustTableManager

from afterword.streams.runtime.database import DeadlineOf
from afterword.streams.runtime.logger import LIFE_CYCLE

ABSENT = object()
STORE_URL = "eos://local"
"""With a host: `URL("eos://")` is falsy, and Faust would silently take its memory store."""


class Table(FaustTable):
    """A Faust table on the engine. No windows: keep a deadline in the row and name it with `deadline`.

    `deadline`: reads the deadline from a row's encoded value; the agent gets a `Tick` when it has passed.
    `source`: the one topic whose records change it; needed only where the app has several.
    """

    logger = LIFE_CYCLE

    def __init__(
        self, app: Any, *, deadline: DeadlineOf | None = None, source: str | None = None, **kwargs: Any
    ) -> None:
        self.deadline = deadline
        self._source = source
        super().__init__(app, **{**kwargs, "store": STORE_URL})

    def takes(self, topic: str) -> bool:
        """Records of that topic change this table."""
        return self._source in (None, topic)

    def __getitem__(self, key: Any) -> Any:
        """As Faust's, which looks twice."""
        self.on_key_get(key)
        value = self.data.get(key, ABSENT)
        return self.__missing__(key) if value is ABSENT else value

    def get(self, key: Any, default: Any = None) -> Any:
        """As Faust's, in which a default of the table's own comes first."""
        if self.default is not None:
            return self[key]
        self.on_key_get(key)
        return self.data.get(key, default)

    def on_key_set(self, key: Any, value: Any) -> None:
        self._sensor_on_set(self, key, value)

    def on_key_del(self, key: Any) -> None:
        self._sensor_on_del(self, key)

    def using_window(self, *_: Any, **__: Any) -> Any:
        """Raises: NotImplementedError."""
        raise NotImplementedError("windows are not supported: keep the deadline in the row")


class TableManager(FaustTableManager):
    """Declares the changelogs; recovery belongs to the partitions, and changelogs are not subscribed to."""

    logger = LIFE_CYCLE

    async def on_start(self) -> None:
        for table in self.values():
            await table.maybe_start()
        self.app.consumer.tables_ready.set()

    async def on_stop(self) -> None:
        for table in self.values():
            await table.stop()

    async def wait_until_tables_registered(self) -> None:
        await self.wait_for_stopped(self.app.consumer.tables_ready)

    async def wait_until_recovery_completed(self) -> bool:
        return False

    async def on_rebalance(self, *_: Any, **__: Any) -> None:
        """Nothing: each partition recovers by itself when it is assigned."""

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Nothing: each partition closes its own state."""
