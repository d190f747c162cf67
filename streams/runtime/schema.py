"""How an agent wants its topic: whole batches exactly once, or single records at least once."""

from collections.abc import Awaitable, Callable
from typing import Any

from faust import Schema


class Batches(Schema):
    """Exactly once; the value of an event is a list of aiokafka records, raw, or a `Tick`.

    Decoding is the agent's: a value that cannot be decoded must not be acknowledged by Faust behind its back.
    """

    def compile(self, app: Any, **_: Any) -> Callable[..., Awaitable[Any]]:
        async def decode(message: Any, *, propagate: bool = False) -> Any:  # noqa: ARG001 – the signature is Faust's
            return app.create_event(None, message.value, None, message)

        return decode


Hold = Callable[[Any], Awaitable[None]]
"""Given an aiokafka record, returns when the agent may have it."""


class AtLeastOnce(Schema):
    """Records one by one, many at a time: `stream.noack()`, and `event.ack()` when a record is done. No tables.

    The value of an event is the aiokafka record. `max_in_flight`: of this topic, when it is not the engine's. `hold` is
    awaited before a record is handed over, and may take as long as it wants: no later record of the partition overtakes
    it, the watchdog lets it wait, and a rebalance or a stop cancels it at once.
    """

    def __init__(self, *args: Any, max_in_flight: int | None = None, hold: Hold | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.max_in_flight = max_in_flight
        self.hold = hold

    def compile(self, app: Any, **_: Any) -> Callable[..., Awaitable[Any]]:
        async def decode(message: Any, *, propagate: bool = False) -> Any:  # noqa: ARG001 – the signature is Faust's
            return app.create_event(None, message.value, None, message)

        return decode
