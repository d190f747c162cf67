"""What one run of an agent over some records of one partition wants to write."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from faust import current_event

from afterword.streams.runtime.errors import AgentFailed, BatchClosed

GONE = object()
"""In a batch's view of a table: this key is not there."""

Headers = list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Output:
    """A record that the agent wants to be sent with the batch."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None
    timestamp_ms: int | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class Tick:
    """Given to the agent instead of records: the deadlines of these keys have passed, and nothing is unread."""

    topic: str
    partition: int
    now_ms: int
    due: tuple[tuple[str, bytes], ...]
    """Table name and key."""


class Overlay:
    """A batch's own view of one table: rows as the database has them, and rows as the batch leaves them."""

    __slots__ = ("changed", "read")

    def __init__(self) -> None:
        self.read: dict[Any, Any] = {}
        self.changed: dict[Any, Any] = {}


class Batch:
    """Collects an agent's table writes and sends, to be committed together or dropped whole."""

    __slots__ = ("abandoned", "database", "done", "on_late_write", "open", "outputs", "tables", "where")

    def __init__(
        self, where: str, database: Any, on_late_write: Callable[[BatchClosed], None] = lambda _: None
    ) -> None:
        """`on_late_write` hears of a write that comes too late, which is raised where nobody may listen: in a task."""
        self.where = where
        self.database = database
        self.outputs: list[Output] = []
        self.tables: dict[str, Overlay] = {}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.open = True
        self.abandoned = False
        """The partition is being given up: what the agent still writes goes nowhere, and that is meant."""
        self.on_late_write = on_late_write

    def overlay(self, table: str) -> Overlay:
        overlay = self.tables.get(table)
        if overlay is None:
            overlay = self.tables[table] = Overlay()
        return overlay

    def send(self, output: Output) -> None:
        if self.accepts(f"topic {output.topic}"):
            self.outputs.append(output)

    def accepts(self, what: str) -> bool:
        """False while the partition is being given up. Raises: BatchClosed."""
        if not self.open and not self.abandoned:
            error = BatchClosed(what=what)
            self.on_late_write(error)
            raise error
        return self.open

    def finish(self) -> None:
        self.open = False
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, cause: BaseException) -> None:
        self.open = False
        if not self.done.done():
            self.done.set_exception(AgentFailed(where=self.where, cause=cause))

    def abandon(self) -> None:
        self.abandoned = True
        self.open = False


_current: ContextVar[Batch | None] = ContextVar("batch", default=None)


def current_batch() -> Batch | None:
    """The batch that this task, or the one that started it, was given last; None outside of an exactly-once agent.

    Faust's own `current_event` is a weak reference: in a task that outlives its event it would be None, and what such
    a task sends would leave the transaction unnoticed.
    """
    return _current.get()


def take_batch(value: Any) -> Any:
    """Stream processor: what the agent does from here on belongs to the event's batch."""
    event = current_event()
    _current.set(None if event is None else getattr(event.message, "batch", None))
    return value
