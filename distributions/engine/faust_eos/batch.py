"""A batch: what an agent writes while it handles one event, which has many records (exactly once) or one (at least
once).
"""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition
from faust import Schema, current_event
from faust.exceptions import KeyDecodeError, ValueDecodeError
from faust.types.tuples import ConsumerMessage

from faust_eos.errors import AgentFailed, BatchClosed
from faust_eos.transaction import Output

NOT_DONE = (GeneratorExit, asyncio.CancelledError, KeyDecodeError, ValueDecodeError)
"""Faust acknowledges a message even while one of these is being handled, that is, while the agent's generator is
closed."""


class RawSchema(Schema):
    """Hands the message's value to the agent unchanged. Faust would acknowledge a value that it cannot decode."""

    def compile(self, app: Any, **_: Any) -> Callable[..., Awaitable[Any]]:
        async def decode(message: Any, *, propagate: bool = False) -> Any:  # noqa: ARG001 – the signature is Faust's
            return app.create_event(None, message.value, None, message)

        return decode


Reject = Callable[[Any, Exception], Output]
"""Maps an aiokafka record, and the error that the agent raises on it, to its dead letter."""


class Batches(RawSchema):
    """The schema of a source that is processed exactly once: an event's value is a list of raw aiokafka records, or a
    `Tick`.

    All records of a list are from one partition. `reject` makes the dead letter of a record that keeps failing alone;
    without it, such a record stops the worker. An error of one of the types in `stops` always stops the worker,
    whatever the record.
    """

    def __init__(
        self,
        *args: Any,
        reject: Reject | None = None,
        stops: tuple[type[Exception], ...] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.reject = reject
        self.stops = stops


@dataclass(frozen=True, slots=True)
class Tick:
    """Given to the agent instead of records when the deadlines of these keys have passed and no record is unread."""

    topic: str
    partition: int
    now_ms: int
    due: tuple[tuple[str, bytes], ...]
    """Pairs of a table's name and a key."""


class Batch:
    """Collects an agent's table writes and sends, to be committed together or dropped whole."""

    def __init__(
        self,
        where: str,
        database: Any,
        on_late_write: Callable[[BatchClosed], None] = lambda _: None,
        most_bytes: int = sys.maxsize,
    ) -> None:
        """Start an empty batch.

        `database` holds the tables; it is None for a record that is handled at least once. `on_late_write` is called
        with the error of a write after the close, because nobody may be awaiting the task that made it.
        """
        self.where = where
        self.most_bytes = most_bytes
        """Once outputs and rows have this many bytes, the agent should take no more of the event's records or keys."""
        self.taken: int | None = None
        """Number of records or keys that the agent has taken; None means all of them."""
        self.database = database
        self.outputs: list[Output] = []
        self.tables: dict[str, dict[bytes, bytes | None]] = defaultdict(dict)
        """The changed rows of each table; None stands for a deleted one."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.open = True
        self.abandoned = False
        """True while the partition is being released: the agent's further writes are dropped on purpose."""
        self.on_late_write = on_late_write

    def send(self, output: Output) -> None:
        if self.accepts(f"topic {output.topic}"):
            self.outputs.append(output)

    def take_first(self, number: int) -> None:
        """Note that the agent took only the first `number` records or keys; the others come with the next event.

        An agent that waits for something should pause, then take 0. It then gets the same records again, unless its
        partition is released. The watchdog does not count that as a stall.
        """
        self.taken = number

    def accepts(self, what: str) -> bool:
        """Return whether a write is recorded: False while the partition is being released. Raises: BatchClosed."""
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
        """Drop whatever the agent writes from now on."""
        self.abandoned = True
        self.open = False


_current: ContextVar[Batch | None] = ContextVar("batch", default=None)


def current_batch() -> Batch | None:
    """Return the last batch of this task, or of the task that started it; None outside an agent.

    Faust's own `current_event` is a weak reference. In a task that outlives its event it would be None, and the task's
    sends would silently escape the transaction.
    """
    return _current.get()


@contextmanager
def failing_batch() -> Iterator[Batch]:
    """Yield the batch of the agent's event; an error inside the block fails the batch instead of the agent.

    Faust takes seconds to restart an agent that raised. Raises: LookupError outside an exactly-once agent. Nobody waits
    for the batch of an at-least-once record, so its failure would be lost.
    """
    batch = current_batch()
    if batch is None or batch.database is None:
        raise LookupError("not in an exactly-once agent")
    try:
        yield batch
    except Exception as error:  # noqa: BLE001 – the wrapper around an agent's handler: the engine retries, rejects or stops
        batch.fail(error)


@contextmanager
def bound(batch: Batch) -> Iterator[None]:
    """Bind the batch to this block: what is written inside joins it."""
    before = _current.set(batch)
    try:
        yield
    finally:
        _current.reset(before)


def take_batch(value: Any) -> Any:
    """A stream processor that binds whatever the agent writes from here on to the event's batch."""
    event = current_event()
    _current.set(None if event is None else getattr(event.message, "batch", None))
    return value


class NotTaken(Exception):
    """Faust skipped the event: flow control was suspended, or the event belongs to an earlier assignment."""


class EngineMessage(ConsumerMessage):
    """A Faust message of the engine; it has a batch and a value, and the source partition and offset that it is for."""

    __slots__ = ("batch",)

    def __init__(
        self, batch: Batch, source: TopicPartition, offset: int, timestamp: float, value: Any, generation_id: int
    ) -> None:
        """`batch` collects what the agent sends for this message."""
        self.batch = batch
        super().__init__(*source, offset, timestamp, 0, (), None, value, None, 0, 0, generation_id=generation_id)


class BatchMessage(EngineMessage):
    """A Faust message whose batch finishes when the agent asks for the next event, and fails if the agent ends
    otherwise.

    Faust's Cython code sets `acked` directly instead of calling a method, so `acked` is a property here.
    """

    __slots__ = ("_acked",)

    @property
    def acked(self) -> bool:
        return self._acked

    @acked.setter
    def acked(self, value: bool) -> None:
        self._acked = value
        if not value:
            return
        error = sys.exc_info()[1]
        if isinstance(error, NOT_DONE):
            self.batch.fail(error)
        elif not self.tracked:
            self.batch.fail(NotTaken())
        else:
            self.batch.finish()
