"""The tests' stores: SQLite in memory, with a view of its contents. What a test sets there is stored unchanged.

Calls of a database in memory end at once, so that they can be made without a loop, too.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from afterword.streams.stores.bookkeeping import ApiKey, ApiKeys, Budgets, Erasure, Erasures
from afterword.streams.stores.episodes import Conversation, DeletedEpisode, Episode, RollingRow, StoredEpisode
from afterword.streams.stores.messages import ArchivedMessage, DeletedMessage
from afterword.streams.stores.sqlite import SqliteEpisodes, SqliteFile, SqliteMessages, SqliteRecords

T = TypeVar("T")


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as done:
        found: T = done.value
        return found
    raise RuntimeError("it waits")


class View(dict[str, T]):
    """Records by key; setting one stores it."""

    def __init__(self, found: Mapping[str, T], store: Callable[[str, T | None], None]) -> None:
        super().__init__(found)
        self._store = store

    def __setitem__(self, key: str, value: T) -> None:
        self._store(key, value)
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self._store(key, None)
        super().__delitem__(key)

    def clear(self) -> None:
        for key in list(self):
            del self[key]

    def __deepcopy__(self, _: object) -> dict[str, T]:
        return dict(self)


class MemoryEpisodes(SqliteEpisodes):
    def __init__(self) -> None:
        self.file = SqliteFile(None)
        super().__init__(self.file)

    @property
    def episodes(self) -> View[StoredEpisode]:
        return View({e.summary.episode_id: e for e in self._all() if isinstance(e, StoredEpisode)}, self._set)

    @property
    def deleted(self) -> View[DeletedEpisode]:
        return View({e.deletion.episode_id: e for e in self._all() if isinstance(e, DeletedEpisode)}, self._set)

    @property
    def all_rows(self) -> dict[str, list[RollingRow]]:
        scopes = at_once(
            self.file.select("SELECT DISTINCT conversation_id FROM conversation_summaries ORDER BY conversation_id")
        )
        return {scope: at_once(self.rows(scope)) for (scope,) in scopes}

    @property
    def known(self) -> View[Conversation]:
        scopes = at_once(self.file.select("SELECT id FROM conversations ORDER BY id"))
        found = {scope: at_once(self.conversation(scope)) for (scope,) in scopes}
        return View({scope: one for scope, one in found.items() if one}, self._set_conversation)

    def _all(self) -> list[Episode]:
        ids = at_once(self.file.select("SELECT id FROM episodes ORDER BY rowid"))
        found = at_once(self.lookup([name for (name,) in ids]))
        return [found[name] for (name,) in ids]

    def _set(self, key: str, episode: Episode | None) -> None:
        at_once(self.file.write(lambda connection: connection.execute("DELETE FROM episodes WHERE id = ?", (key,))))
        if episode:
            at_once(self.put(episode, None))

    def _set_conversation(self, key: str, conversation: Conversation | None) -> None:
        delete = "DELETE FROM conversations WHERE id = ?"
        at_once(self.file.write(lambda connection: connection.execute(delete, (key,))))
        if conversation:
            at_once(self.put_conversation(conversation, None))


class MemoryMessages(SqliteMessages):
    def __init__(self) -> None:
        self.file = SqliteFile(None)
        super().__init__(self.file)

    @property
    def messages(self) -> View[ArchivedMessage]:
        return View({key: one for key, one in self._all().items() if isinstance(one, ArchivedMessage)}, self._set)

    @property
    def deleted(self) -> dict[str, DeletedMessage]:
        return {key: one for key, one in self._all().items() if isinstance(one, DeletedMessage)}

    @property
    def episode_ids(self) -> dict[str, str]:
        return dict(at_once(self.file.select("SELECT key, episode_id FROM messages WHERE episode_id IS NOT NULL")))

    def _all(self) -> dict[str, ArchivedMessage | DeletedMessage]:
        keys = at_once(self.file.select("SELECT key FROM messages ORDER BY rowid"))
        return at_once(self.states([key for (key,) in keys]))

    def _set(self, key: str, archived: ArchivedMessage | None) -> None:
        at_once(self.file.write(lambda connection: connection.execute("DELETE FROM messages WHERE key = ?", (key,))))
        if archived:
            at_once(self.put_many([archived]))


class MemoryKeys(ApiKeys):
    def __init__(self) -> None:
        super().__init__(SqliteRecords(SqliteFile(None)))
        self.looked_up = 0

    @property
    def kept(self) -> dict[str, ApiKey]:
        return {key.digest: key for key in at_once(self.list())}

    async def find(self, digest: str) -> ApiKey | None:
        self.looked_up += 1
        return await super().find(digest)


class MemoryErasures(Erasures):
    def __init__(self) -> None:
        self.records = SqliteRecords(SqliteFile(None))
        super().__init__(self.records)

    @property
    def erasures(self) -> dict[str, Erasure]:
        """Return the erasures under way, by their ids."""
        return {erasure.erasure_id: erasure for erasure in at_once(self.under_way())}

    @property
    def receipts(self) -> dict[str, Erasure | None]:
        return {name: at_once(self.find(name)) for name in at_once(self.records.read_all("erasure_receipts"))}


class MemoryBudgets(Budgets):
    def __init__(self) -> None:
        self.records = SqliteRecords(SqliteFile(None))
        super().__init__(self.records)

    @property
    def counters(self) -> dict[str, int]:
        return {key: int(tokens) for key, tokens in at_once(self.records.read_all("budgets")).items()}
