"""Faust's tables on the engine; their storage is the batch's view of the partition's database."""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from faust import Table as FaustTable
from faust.stores.base import Store as FaustStore
from faust.tables import TableManager as FaustTableManager

from faust_eos.batch import GONE, Batch, Overlay, current_batch
from faust_eos.database import DeadlineOf
from faust_eos.errors import NotInAgent
from faust_eos.options import LIFE_CYCLE

UNREAD, ABSENT = object(), object()
STORE_URL = "eos://local"
"""It has a host because `URL("eos://")` is falsy, for which Faust would silently use its memory store."""


def _batch() -> Batch | None:
    """Return the batch that is being handled, unless it is an at-least-once one, which has no tables."""
    batch = current_batch()
    return batch if batch is not None and batch.database is not None else None


class Store(FaustStore):
    """Shows the batch's changes on top of RocksDB inside an agent; elsewhere, a read-only view of committed state."""

    logger = LIFE_CYCLE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.key_type is bytes and self.key_serializer == "raw":  # skip Faust's codec layers
            self._encode_key = self._decode_key = _same
        if self.value_type is bytes and self.value_serializer == "raw":
            self._encode_value = self._decode_value = _same

    def get(self, key: Any, default: Any = None) -> Any:
        """Look up once; `key in store` followed by `store[key]` would look up twice."""
        value = self._find(key)
        return default if value is GONE else value

    def __getitem__(self, key: Any) -> Any:
        value = self._find(key)
        if value is GONE:
            raise KeyError(key)
        return value

    def __contains__(self, key: Any) -> bool:
        return self._find(key) is not GONE

    def __setitem__(self, key: Any, value: Any) -> None:
        batch = _batch()
        if batch is not None and batch.open:
            batch.tables[self.table_name].changed[key] = value
        else:
            self._drop_write(batch)

    def __delitem__(self, key: Any) -> None:
        if self._find(key) is GONE:
            raise KeyError(key)
        batch = _batch()
        if batch is None or not batch.open:
            self._drop_write(batch)
            return
        overlay = batch.tables[self.table_name]
        if self._stored(batch, overlay, key) is GONE:
            overlay.changed.pop(key, None)  # created and deleted in one batch: no change
        else:
            overlay.changed[key] = GONE

    def __iter__(self) -> Iterator[Any]:
        batch = _batch()
        overlay = batch.tables[self.table_name] if batch else Overlay()
        seen = overlay.read | overlay.changed  # a copy, because rows read during the iteration enter the overlay too
        yield from [key for key, value in seen.items() if value is not GONE]
        for database in self._databases(batch):
            for raw in database.keys(self.table_name):
                key = self._decode_key(raw)
                if key not in seen and overlay.changed.get(key) is not GONE:
                    yield key

    # Faust's mapping implements these with a dictionary that this kind of store does not have
    keys, values, items = Mapping.keys, Mapping.values, Mapping.items
    update, clear = MutableMapping.update, MutableMapping.clear

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def changes(self, batch: Batch) -> list[tuple[bytes, bytes | None]]:
        """Return the batch's changes to this table, encoded."""
        overlay = batch.tables.get(self.table_name)
        if overlay is None:
            return []
        return [
            (self._encode_key(key), None if value is GONE else self._encode_value(value))
            for key, value in overlay.changed.items()
        ]

    def _find(self, key: Any) -> Any:
        batch = _batch()
        if batch is None:
            return self._committed(key)
        overlay = batch.tables[self.table_name]
        found = overlay.changed.get(key, UNREAD)
        return self._stored(batch, overlay, key) if found is UNREAD else found

    def _stored(self, batch: Batch, overlay: Overlay, key: Any) -> Any:
        """Return the row as it was before the batch; the database is read once per key."""
        found = overlay.read.get(key, UNREAD)
        if found is UNREAD:
            raw = batch.database.get(self.table_name, self._encode_key(key))
            found = overlay.read[key] = GONE if raw is None else self._decode_value(raw)
        return found

    def _committed(self, key: Any) -> Any:
        encoded = self._encode_key(key)
        for database in self._databases(None):
            raw = database.get(self.table_name, encoded)
            if raw is not None:
                return self._decode_value(raw)
        return GONE

    def _drop_write(self, batch: Batch | None) -> None:
        """Ignore the write if the partition is being released. Raises: NotInAgent, BatchClosed."""
        if batch is None:
            raise NotInAgent(table=self.table_name)
        batch.accepts(f"table {self.table_name}")

    def _databases(self, batch: Batch | None) -> list[Any]:
        return [batch.database] if batch else list(self.app.consumer.databases())

    def reset_state(self) -> None:
        """Do nothing: the state belongs to the partitions, which reset it themselves."""

    def apply_changelog_batch(self, *_: Any, **__: Any) -> None:
        """Not supported: partitions recover themselves. Raises: NotImplementedError."""
        raise NotImplementedError

    async def backup_partition(self, *_: Any, **__: Any) -> None:
        """Not supported: the changelog is the backup. Raises: NotImplementedError."""
        raise NotImplementedError

    def restore_backup(self, *_: Any, **__: Any) -> None:
        """Not supported: the changelog is the backup. Raises: NotImplementedError."""
        raise NotImplementedError


class Table(FaustTable):
    """A Faust table without windows; keep a deadline in the row instead.

    `deadline` reads the deadline from a row's encoded value; when it has passed, the agent gets a `Tick`. `source` is
    the one topic whose records change the table; it is needed only if the app has several sources.
    """

    logger = LIFE_CYCLE

    def __init__(
        self, app: Any, *, deadline: DeadlineOf | None = None, source: str | None = None, **kwargs: Any
    ) -> None:
        self.deadline = deadline
        self._source = source
        super().__init__(app, **{**kwargs, "store": STORE_URL})

    def takes(self, topic: str) -> bool:
        """Return whether records of this topic change the table."""
        return self._source in (None, topic)

    def __getitem__(self, key: Any) -> Any:
        """Do what Faust's method does, with one look-up instead of two."""
        self.on_key_get(key)
        value = self.data.get(key, ABSENT)
        return self.__missing__(key) if value is ABSENT else value

    def get(self, key: Any, default: Any = None) -> Any:
        """Do what Faust's method does: the table's own default comes first."""
        if self.default is not None:
            return self[key]
        self.on_key_get(key)
        return self.data.get(key, default)

    def on_key_set(self, key: Any, value: Any) -> None:
        self._sensor_on_set(self, key, value)

    def on_key_del(self, key: Any) -> None:
        self._sensor_on_del(self, key)

    def using_window(self, *_: Any, **__: Any) -> Any:
        """Not supported. Raises: NotImplementedError."""
        raise NotImplementedError("windows are not supported: keep the deadline in the row")


class TableManager(FaustTableManager):
    """Starts the tables without subscribing to their changelogs, because partitions recover themselves."""

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
        """Do nothing: each partition recovers by itself when it is assigned."""

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Do nothing: each partition closes its own state."""


def _same(encoded: bytes) -> bytes:
    return encoded
