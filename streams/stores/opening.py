"""Opens the stores: MongoDB and Qdrant, or one SQLite file."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Self

from afterword.streams.settings import Settings
from afterword.streams.stores.bookkeeping import ApiKeys, Budgets, Erasures
from afterword.streams.stores.episodes import EpisodeQueries
from afterword.streams.stores.index import EpisodeIndex
from afterword.streams.stores.messages import MessageArchive


class Stores(ABC):
    """The stores of one process, each opened when it is first requested, which may raise ConfigurationError.

    Opening does not connect; the first call does.
    """

    def __init__(self) -> None:
        self._closing = AsyncExitStack()

    @property
    @abstractmethod
    def episodes(self) -> EpisodeQueries: ...

    @property
    @abstractmethod
    def messages(self) -> MessageArchive: ...

    @property
    @abstractmethod
    def budgets(self) -> Budgets: ...

    @property
    @abstractmethod
    def erasures(self) -> Erasures: ...

    @property
    @abstractmethod
    def keys(self) -> ApiKeys: ...

    @property
    @abstractmethod
    def index(self) -> EpisodeIndex: ...

    @property
    @abstractmethod
    def checks(self) -> dict[str, Callable[[], Awaitable[str]]]:
        """Checks of the backends by name; each returns what it found. Raises: ConfigurationError, StoreUnavailable."""

    @abstractmethod
    async def prepare_database(self) -> None:
        """Create the indexes that the database lacks; may be repeated. Raises: StoreUnavailable."""

    @abstractmethod
    async def ping_database(self) -> None:
        """Check that the database answers. Raises: StoreUnavailable."""

    @abstractmethod
    async def reach(self) -> None:
        """Wait until everything answers. Raises: ConfigurationError, StoreUnavailable."""

    async def close(self) -> None:
        """Close what was opened, the last one first."""
        await self._closing.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def open_stores(settings: Settings) -> Stores:
    """Return the configured stores, for use with `async with`. Clients of other backends are not imported."""
    if settings.sqlite.path is not None:
        from afterword.streams.stores.sqlite_stores import FileStores

        return FileStores(settings, settings.sqlite.path)
    from afterword.streams.stores.servers import ServerStores

    return ServerStores(settings)
