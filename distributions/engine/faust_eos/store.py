"""Faust's tables on the engine; only agents read and write them, while they handle an event."""

from collections.abc import Mapping
from typing import Any

from faust import Table as FaustTable
from faust.stores.base import Store as FaustStore
from faust.tables import TableManager as FaustTableManager

from faust_eos.batch import Batch, current_batch
from faust_eos.database import DeadlineOf
from faust_eos.errors import NotInAgent
from faust_eos.options import LIFE_CYCLE

STORE_URL = "eos://local"
"""It has a host because `URL("eos://")` is falsy, for which Faust would silently use its memory store."""


class Store(FaustStore):
    """The agent's view of a table: the changes of its batch on top of the partition's database. All of it is bytes."""

    logger = LIFE_CYCLE

    def __getitem__(self, key: Any) -> Any:
        batch = self._batch()
        changed = batch.tables[self.table_name]
        value = changed[key] if key in changed else batch.database.get(self.table_name, key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        batch = self._batch()
        if batch.accepts(f"table {self.table_name}"):
            batch.tables[self.table_name][key] = value

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        batch = self._batch()
        if batch.accepts(f"table {self.table_name}"):
            changed = batch.tables[self.table_name]
            if batch.database.get(self.table_name, key) is None:
                del changed[key]  # created and deleted in one batch: no change
            else:
                changed[key] = None

    __contains__ = Mapping.__contains__  # Faust's uses a dictionary that this kind of store does not have

    def changes(self, batch: Batch) -> list[tuple[bytes, bytes | None]]:
        """Return the batch's changes to this table."""
        return list(batch.tables.get(self.table_name, {}).items())

    def _batch(self) -> Batch:
        batch = current_batch()
        if batch is None or batch.database is None:  # the batch of an at-least-once record has no tables
            raise NotInAgent(table=self.table_name)
        return batch

    def reset_state(self) -> None:
        """Do nothing: the state belongs to the partitions, which reset it themselves."""

    def _unsupported(self, *_: Any, **__: Any) -> Any:
        """Not supported: rows are not listed, and each partition recovers its own. Raises: NotImplementedError."""
        raise NotImplementedError

    __iter__ = __len__ = keys = values = items = update = clear = _unsupported
    apply_changelog_batch = backup_partition = restore_backup = _unsupported


class Table(FaustTable):
    """A Faust table of bytes without windows; keep a deadline in the row instead.

    `deadline` reads the deadline from a row's encoded value; when it has passed, the agent gets a `Tick`.
    """

    logger = LIFE_CYCLE

    def __init__(self, app: Any, *, deadline: DeadlineOf | None = None, **kwargs: Any) -> None:
        self.deadline = deadline
        super().__init__(app, **{**kwargs, "store": STORE_URL})

    def _unused(self, *_: Any) -> None:
        """Do nothing: the batch has the change, which its commit sends to the changelog."""

    on_key_set = on_key_del = _unused

    def using_window(self, *_: Any, **__: Any) -> Any:
        """Not supported. Raises: NotImplementedError."""
        raise NotImplementedError("windows are not supported: keep the deadline in the row")


class TableManager(FaustTableManager):
    """Starts the tables without subscribing to their changelogs, because partitions recover themselves."""

    logger = LIFE_CYCLE

    async def on_start(self) -> None:
        for table in self.values():
            await table.maybe_start()
        self._tables_registered.set()

    async def on_stop(self) -> None:
        for table in self.values():
            await table.stop()

    async def wait_until_recovery_completed(self) -> bool:
        return False

    async def on_rebalance(self, *_: Any, **__: Any) -> None:
        """Do nothing: each partition recovers by itself when it is assigned."""

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Do nothing: each partition closes its own state."""
