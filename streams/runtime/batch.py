"""What one run of an agent over some records of one partition wants to write."""

import asyncio
from dataclasses import dataclass
from typing import Any

from faust import current_event

from streams.runtime.errors import AgentFailed, BatchClosed

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
    """A batch's own view of one table: what it has read, and what it has changed."""

    __slots__ = ("changed", "values")

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self.changed: set[Any] = set()


class Batch:
    """Collects an agent's table writes and sends, to be committed together or dropped whole."""

    __slots__ = ("abandoned", "database", "done", "open", "outputs", "tables", "where")

    def __init__(self, where: str, database: Any) -> None:
        self.where = where
        self.database = database
        self.outputs: list[Output] = []
        self.tables: dict[str, Overlay] = {}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.open = True
        self.abandoned = False
        """The partition is being given up: what the agent still writes goes nowhere, and that is meant."""

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
            raise BatchClosed(what=what)
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


def current_batch() -> Batch | None:
    """The batch of the event that this task is handling, None outside of an exactly-once agent."""
    event = current_event()
    return None if event is None else getattr(event.message, "batch", None)
